"""Mamba, Falcon-Mamba and Mamba 2 (Codestral-Mamba): no attention at all.

Source: vllm/model_executor/models/mamba.py, mamba2.py (0.26.0): embedding, final norm and head on every
pipeline stage (Mamba 2 has no pipeline parallelism); Falcon-Mamba's dt, B and C norms have no weights.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder
from vllm_capacity.architecture.modules import (
    Architecture,
    LayerGroup,
    Module,
    Placement,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.architecture.state_space import mamba1_modules, mamba2_mixer, mamba2_modules
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release
from vllm_capacity.units import cdiv


def mamba(config: ModelConfig, release: Release) -> Architecture:
    """MambaForCausalLM (also Falcon-Mamba's)."""
    del release
    hidden = config.hidden_size
    inner = config.size("intermediate_size", config.size("expand", 2) * hidden)
    rank = config.get("time_step_rank", "auto")
    mixer = StateSpace(
        kind=StateSpaceKind.MAMBA1,
        conv_kernel=config.size("conv_kernel", 4),
        inner_size=inner,
        state_size=config.size("state_size", 16),
    )
    modules = mamba1_modules(
        hidden,
        mixer,
        time_step_rank=cdiv(hidden, 16) if rank == "auto" else config.size("time_step_rank"),
        conv_bias=config.boolean("use_conv_bias", True),
        bias=config.boolean("use_bias", False),
        norms=config.text_model_type == "falcon_mamba",
        norm_weights=False,
    )
    return _attention_free(config, "MambaForCausalLM", mixer, modules, allocated_first=False)


def mamba2(config: ModelConfig, release: Release) -> Architecture:
    """Mamba2ForCausalLM."""
    del release
    hidden = config.hidden_size
    mixer = mamba2_mixer(
        config,
        inner_size=config.size("intermediate_size", config.size("expand", 2) * hidden),
        state_size=config.size("state_size", 128),
        num_heads=config.size("num_heads", 128),
        head_dim=config.size("head_dim", 64),
        n_groups=config.size("n_groups", 8),
        conv_kernel=config.size("conv_kernel", 4),
    )
    modules = mamba2_modules(
        hidden, mixer, conv_bias=config.boolean("use_conv_bias", True), bias=config.boolean("use_bias", False)
    )
    return _attention_free(config, "Mamba2ForCausalLM", mixer, modules, allocated_first=True)


def _attention_free(
    config: ModelConfig, name: str, mixer: StateSpace, modules: tuple[Module, ...], *, allocated_first: bool
) -> Architecture:
    hidden, tied = config.hidden_size, common.tied(config)
    return decoder(
        config,
        name=name,
        family="mamba",
        tied=tied,
        supports_mamba_prefix_caching=True,
        supports_pp=name != "Mamba2ForCausalLM",  # class bases of mamba.py and mamba2.py, 0.22.0 to 0.33.0
        layers=(
            LayerGroup(
                indices=tuple(range(config.num_hidden_layers)),
                modules=(*modules, *common.norm("norm", hidden)),
                mixers=(mixer,),
                feed_forward=None,
            ),
        ),
        outside=common.place(
            embed=common.embedding(config.vocab_size, hidden, name="embeddings"),
            head=common.lm_head(config.vocab_size, hidden),
            tied=tied,
            final_norm=common.norm("norm_f", hidden),
            embed_on=Placement.EVERY,
            head_on=Placement.EVERY,
            norm_on=Placement.EVERY,
            head_allocated_first=allocated_first,
        ),
    )
