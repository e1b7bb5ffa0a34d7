"""MiniCPM-V 2.6: Qwen2 behind Idefics2's tower (a SigLIP without head) and a resampler.

Source: vllm/model_executor/models/minicpmv.py (MiniCPMVBaseModel, MiniCPMV2_6, Resampler2_5, MiniCPMV.__new__),
idefics2_vision_model.py, layers/resampler.py (BaseResampler); 0.19.0 to 0.33.0 build the same tensors.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import Architecture, Module, Placed, Shard, Tensor
from vllm_capacity.architecture.qwen2 import qwen2
from vllm_capacity.architecture.vision import block, everywhere, linear, multimodal, vision_part
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

SUPPORTED = ((2, 0), (2, 5), (2, 6), (4, 0), (4, 5))
"""_SUPPORT_VERSION: the versions for which vLLM has a class; of these 2.6 is modelled."""

POSITIONS_PER_SIDE = 70
"""`max_size` of Resampler2_5: its table of positions is as large whatever the images are."""


def minicpm_v(config: ModelConfig, release: Release) -> Architecture:
    """MiniCPMV of version 2.6.

    Raises RefusedError for versions without a class in vLLM, InputError for those that are not modelled.
    """
    version = _version(config)
    if version not in SUPPORTED:
        raise RefusedError(
            Reason.UNSUPPORTED_BY_RELEASE,
            "Currently, MiniCPMV only supports versions"
            f" {', '.join(f'{major}.{minor}' for major, minor in SUPPORTED)}. Got version: {version}",
        )
    if version != (2, 6):
        raise InputError(
            f"{config.name}: MiniCPMV of version {version[0]}.{version[1]} is not modelled (2.6 is); ask an installed vLLM"
            " with `vllm-capacity dry-run`"
        )
    return multimodal(qwen2(config, release), "MiniCPMV", (*_tower(config), *_resampler(config)))


def _version(config: ModelConfig) -> tuple[int, ...]:
    """`version` by its digits; configs without one are 2.0 or 2.5 by their sizes (get_version_by_config)."""
    given = config.root.get("version")
    if given is None:
        return (2, 0) if config.hidden_size == 2304 and config.root.get("query_num") == 64 else (2, 5)
    parts = str(given).split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise InputError(
            f"{config.name}: config key 'version' must be a version such as 2.6, not {given!r:.40}"
        )
    return tuple(int(part) for part in parts)


def _tower(config: ModelConfig) -> tuple[Placed, ...]:
    """Idefics2VisionTransformer, without its last block where `drop_vision_last_layer` says so."""
    vision = vision_part(config)
    hidden, patch = vision.size("hidden_size", 1152), vision.size("patch_size", 14)
    positions = (vision.size("image_size", 980) // patch) ** 2
    modules: tuple[Module, ...] = (
        Tensor(
            name="vpm.embeddings.patch_embedding.weight",
            shape=(hidden, vision.size("num_channels", 3) * patch * patch),
        ),
        Tensor(name="vpm.embeddings.patch_embedding.bias", shape=(hidden,)),
        Tensor(name="vpm.embeddings.position_embedding.weight", shape=(positions, hidden)),
        *common.norm("vpm.post_layernorm", hidden, bias=True),
    )
    blocks = block(
        "vpm.encoder.layers.0", hidden, vision.size("intermediate_size", 4304), qkv="self_attn.qkv_proj",
        out="self_attn.out_proj", norms=("layer_norm1", "layer_norm2"), heads=vision.size("num_attention_heads", 16),
    )  # fmt: skip
    dropped = config.boolean("drop_vision_last_layer", False)
    count = vision.size("num_hidden_layers", 27) - (1 if dropped else 0)
    return (*everywhere(modules), *everywhere(blocks, count))


def _resampler(config: ModelConfig) -> tuple[Placed, ...]:
    """Resampler2_5: one cross attention of `query_num` learnt queries, whole on every rank.

    Its attention is torch's, never quantised. The positions are computed on the CPU in fp32 and follow the module to the
    GPU in the model's dtype.
    """
    hidden, inputs = config.hidden_size, vision_part(config).size("hidden_size", 1152)
    modules: tuple[Module, ...] = (
        Tensor(name="resampler.query", shape=(config.size("query_num"), hidden)),
        Tensor(name="resampler.proj", shape=(hidden, hidden)),
        Tensor(name="resampler.attn.in_proj_weight", shape=(3 * hidden, hidden)),
        Tensor(name="resampler.attn.in_proj_bias", shape=(3 * hidden,)),
        Tensor(name="resampler.attn.out_proj.weight", shape=(hidden, hidden)),
        Tensor(name="resampler.attn.out_proj.bias", shape=(hidden,)),
        *common.norm("resampler.ln_q", hidden, bias=True),
        *common.norm("resampler.ln_kv", hidden, bias=True),
        *common.norm("resampler.ln_post", hidden, bias=True),
        Tensor(
            name="resampler.pos_embed", shape=(POSITIONS_PER_SIDE, POSITIONS_PER_SIDE, hidden), buffer=True
        ),
    )
    if inputs != hidden:
        modules += (linear("resampler.kv_proj", inputs, hidden, Shard.REPLICATED, bias=False),)
    return everywhere(modules)
