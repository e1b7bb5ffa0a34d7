"""Older decoders with LayerNorms and plain MLPs: GPT-2, GPT-J, GPT-NeoX, OPT, BLOOM, StableLM, Nemotron (dense).

Source: vllm/model_executor/models/gpt2.py, gpt_j.py, gpt_neox.py, opt.py, bloom.py, stablelm.py, nemotron.py (0.26.0). All
but Nemotron hold embedding, final norm and head on every pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import config_head_dim, decoder, grouped_attention, plain_head_dim
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    DenseMLP,
    LayerGroup,
    Module,
    Placed,
    Placement,
    Tensor,
)
from vllm_capacity.architecture.vision import everywhere
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release

Modules = tuple[Module, ...]


def gpt2(config: ModelConfig, release: Release) -> Architecture:
    """GPT2LMHeadModel: positions are embedded, not rotated."""
    del release
    hidden, mixer = config.hidden_size, _plain_heads(config, rope=False)
    width = config.size("n_inner") if config.get("n_inner") is not None else 4 * hidden
    modules = (
        *common.norm("ln_1", hidden, bias=True),
        *_attention(hidden, mixer, "attn", "c_attn", "c_proj"),
        *common.norm("ln_2", hidden, bias=True),
        *common.plain_mlp(hidden, width, bias=True, up="c_fc", down="c_proj"),
    )
    positions = Tensor(name="wpe.weight", shape=(config.size("max_position_embeddings", 1024), hidden))
    return _model(config, "GPT2LMHeadModel", "gpt2", modules, mixer, width, extra=(positions,), tied=True)


def gpt_j(config: ModelConfig, release: Release) -> Architecture:
    """GPTJForCausalLM: one norm a layer, `rotary_dim` of each head rotated, a head with bias, never tied."""
    del release
    if common.tied(config):
        raise InputError(f"{config.name}: GPTJForCausalLM needs tie_word_embeddings false (vLLM asserts it)")
    hidden, mixer = config.hidden_size, _plain_heads(config)
    width = config.size("n_inner") if config.get("n_inner") is not None else 4 * hidden
    modules = (
        *common.norm("ln_1", hidden, bias=True),
        *common.attention_modules(hidden, mixer, prefix="attn", out="out_proj"),
        *common.plain_mlp(hidden, width, bias=True, up="fc_in", down="fc_out"),
    )
    rope = common.rope_cache(
        config, mixer.head_size, rotary_dim=config.size("rotary_dim", 64),
        max_position=config.size("max_position_embeddings", 8192),
    )  # fmt: skip
    return _model(config, "GPTJForCausalLM", "gptj", modules, mixer, width, rope=(rope,), head_bias=True)


def gpt_neox(config: ModelConfig, release: Release) -> Architecture:
    """GPTNeoXForCausalLM (until 0.31; then Transformers' own)."""
    del release
    hidden, width = config.hidden_size, config.size("intermediate_size")
    mixer, bias = _plain_heads(config), config.boolean("attention_bias", True)
    modules = (
        *common.norm("input_layernorm", hidden, bias=True),
        *common.norm("post_attention_layernorm", hidden, bias=True),
        *_attention(hidden, mixer, "attention", "query_key_value", "dense", bias=bias),
        *common.plain_mlp(hidden, width, bias=True, up="dense_h_to_4h", down="dense_4h_to_h"),
    )
    block = {**common.rope_parameters(config)}
    block.setdefault("partial_rotary_factor", 0.25)
    rope = common.rope_cache(
        config, mixer.head_size, parameters=block, max_position=config.size("max_position_embeddings", 8192)
    )
    return _model(config, "GPTNeoXForCausalLM", "gpt_neox", modules, mixer, width, rope=(rope,))


def opt(config: ModelConfig, release: Release) -> Architecture:
    """OPTForCausalLM: two rows more of positions than the config says; biases with `enable_bias`."""
    del release
    hidden, width, mixer = config.hidden_size, config.size("ffn_dim"), _plain_heads(config, rope=False)
    if config.size("word_embed_proj_dim", hidden) != hidden:
        raise InputError(
            f"{config.name}: OPT with word_embed_proj_dim other than hidden_size is not modelled"
        )
    bias, affine = config.boolean("enable_bias", True), config.boolean("layer_norm_elementwise_affine", True)

    def norm(name: str) -> Modules:
        return common.norm(name, hidden, bias=True) if affine else ()

    modules = (
        *_attention(hidden, mixer, "self_attn", "qkv_proj", "out_proj", bias=bias),
        *norm("self_attn_layer_norm"),
        *common.plain_mlp(hidden, width, bias=bias, up="fc1", down="fc2"),
        *norm("final_layer_norm"),
    )
    positions = Tensor(
        name="embed_positions.weight", shape=(config.size("max_position_embeddings", 2048) + 2, hidden)
    )
    final = config.boolean("do_layer_norm_before", True) and not config.boolean(
        "_remove_final_layer_norm", False
    )
    return _model(
        config, "OPTForCausalLM", "opt", modules, mixer, width, extra=(positions,), tied=True,
        final_norm=norm("decoder.final_layer_norm") if final else (),
    )  # fmt: skip


def bloom(config: ModelConfig, release: Release) -> Architecture:
    """BloomForCausalLM: ALiBi instead of rope, the embedding has a norm."""
    del release
    hidden, mixer = config.hidden_size, _plain_heads(config, rope=False)
    modules = (
        *common.norm("input_layernorm", hidden, bias=True),
        *_attention(hidden, mixer, "self_attention", "query_key_value", "dense"),
        # vLLM keeps the slopes outside of the module's parameters and buffers
        Tensor(
            name="self_attention.attn.alibi_slopes",
            shape=(mixer.num_heads,),
            shard_dim=0,
            dtype="float32",
            buffer=True,
        ),
        *common.norm("post_attention_layernorm", hidden, bias=True),
        *common.plain_mlp(hidden, 4 * hidden, bias=True, up="dense_h_to_4h", down="dense_4h_to_h"),
    )
    extra = common.norm("word_embeddings_layernorm", hidden, bias=True)
    return _model(config, "BloomForCausalLM", "bloom", modules, mixer, 4 * hidden, extra=extra, tied=True)


def stablelm(config: ModelConfig, release: Release) -> Architecture:
    """StableLmForCausalLM: a gated MLP between LayerNorms."""
    del release
    hidden, width = config.hidden_size, config.size("intermediate_size")
    mixer = grouped_attention(
        config, plain_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    if config.boolean("qk_layernorm", False) or config.boolean("use_parallel_residual", False):
        raise InputError(
            f"{config.name}: StableLM with qk_layernorm or use_parallel_residual is not modelled"
        )
    modules = (
        *common.attention_modules(hidden, mixer, qkv_bias=config.boolean("use_qkv_bias", False)),
        *common.gated_mlp(hidden, width),
        *common.norm("input_layernorm", hidden, bias=True),
        *common.norm("post_attention_layernorm", hidden, bias=True),
    )
    block = {**common.rope_parameters(config)}
    block.setdefault("partial_rotary_factor", 0.25)
    rope = common.rope_cache(config, mixer.head_size, parameters=block)
    return _model(config, "StableLmForCausalLM", "stablelm", modules, mixer, width, rope=(rope,), gated=True)


def nemotron(config: ModelConfig, release: Release) -> Architecture:
    """NemotronForCausalLM: Llama's stages, LayerNorm1P, squared ReLU without gate."""
    del release
    hidden, width = config.hidden_size, config.size("intermediate_size")
    mixer = grouped_attention(
        config, config_head_dim(config), sliding_window=common.cache_sliding_window(config)
    )
    bias = config.boolean("attention_bias", False) or config.boolean("bias", False)
    modules = (
        *common.attention_modules(hidden, mixer, qkv_bias=bias, o_bias=bias),
        *common.plain_mlp(hidden, width, bias=config.boolean("mlp_bias", False)),
        *common.norm("input_layernorm", hidden, bias=True),
        *common.norm("post_attention_layernorm", hidden, bias=True),
    )
    block = {**common.rope_parameters(config)}
    block.setdefault("partial_rotary_factor", 0.5)
    rope = common.rope_cache(
        config, mixer.head_size, parameters=block, max_position=config.size("max_position_embeddings", 8192)
    )
    tied = common.tied(config)
    return decoder(
        config, name="NemotronForCausalLM", family="nemotron", tied=tied,
        layers=(_group(config, modules, mixer, width, gated=False),),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=tied, rope=(rope,), head_allocated_first=True,
            final_norm=common.norm("norm", hidden, bias=True),
        ),
    )  # fmt: skip


def _plain_heads(config: ModelConfig, *, rope: bool = True) -> Attention:
    """One KV head per query head of hidden_size // heads."""
    return grouped_attention(
        config, plain_head_dim(config), num_kv_heads=config.num_attention_heads, rope=rope,
        sliding_window=common.cache_sliding_window(config),
    )  # fmt: skip


def _attention(
    hidden: int, mixer: Attention, prefix: str, qkv: str, out: str, *, bias: bool = True
) -> Modules:
    return common.attention_modules(
        hidden, mixer, prefix=prefix, qkv_bias=bias, o_bias=bias, qkv=qkv, out=out
    )


def _group(config: ModelConfig, modules: Modules, mixer: Attention, width: int, *, gated: bool) -> LayerGroup:
    return LayerGroup(
        indices=tuple(range(config.num_hidden_layers)), modules=modules, mixers=(mixer,),
        feed_forward=DenseMLP(intermediate_size=width, gated=gated),
    )  # fmt: skip


def _model(
    config: ModelConfig, name: str, family: str, modules: Modules, mixer: Attention, width: int, *,
    extra: Modules = (), rope: tuple[Tensor, ...] = (), tied: bool = False, head_bias: bool = False,
    gated: bool = False, final_norm: Modules | None = None,
) -> Architecture:  # fmt: skip
    """Everything on every stage; `tied` is the config class's default."""
    hidden, is_tied = config.hidden_size, common.tied(config, default=tied)
    final = common.norm("final_layernorm", hidden, bias=True) if final_norm is None else final_norm
    outside: tuple[Placed, ...] = common.every_stage_placement(
        config.vocab_size, hidden, tied=is_tied, rope=rope, final_norm=final, head_bias=head_bias,
        norm_on=Placement.EVERY,
    )  # fmt: skip
    return decoder(
        config, name=name, family=family, tied=is_tied, layers=(_group(config, modules, mixer, width, gated=gated),),
        outside=(outside[0], *everywhere(extra), *outside[1:]),
    )  # fmt: skip
