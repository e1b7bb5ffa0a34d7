"""Gemma 3n: alternating updates, low-rank residuals, per-layer inputs, shared KV caches; a MobileNet and a conformer tower.

Source: vllm/model_executor/models/gemma3n.py, gemma3n_mm.py (0.26.0 and 0.33.0). The last `num_kv_shared_layers` layers use
another layer's cache; they hold all weights until 0.29, only the queries' since 0.30. No pipeline parallelism.
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, grouped_attention, layer_caches, layer_kinds
from vllm_capacity.architecture.hunyuan import per_layer
from vllm_capacity.architecture.mobilenet_v5 import mobilenet
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    DenseMLP,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Placement,
    Shard,
    Tensor,
    VocabEmbedding,
)
from vllm_capacity.architecture.vision import everywhere, linear, multimodal, vision_part
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.config_defaults import class_defaults, fill
from vllm_capacity.inputs.model_config import ModelConfig, SubConfig
from vllm_capacity.releases.release import Release

SLIDING = "sliding_attention"
_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    "post_per_layer_input_norm",
)  # fmt: skip


def gemma3n(config: ModelConfig, release: Release) -> Architecture:
    """Gemma3nForCausalLM."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    kinds = layer_kinds(config, [SLIDING if (i + 1) % 5 else "full_attention" for i in range(layers)])
    first_shared = layers - config.integer("num_kv_shared_layers", 15)
    query_only = release.has("gemma3n_shared_layers_query_only")
    size = config.size("head_dim", 256)

    def build(kind: tuple[str, bool, int], indices: tuple[int, ...]) -> LayerGroup:
        layer_type, shared, width = kind
        mixer = grouped_attention(
            config, size, qk_norm=True, shares_kv=shared,
            sliding_window=config.integer("sliding_window", 512) or None if layer_type == SLIDING else None,
        )  # fmt: skip
        modules = (
            *_alternating_updates(config),
            *_attention(config, mixer, query_only=query_only and shared),
            *common.gated_mlp(hidden, width),
            *_low_rank(config),
            *_per_layer_input(config),
            *(module for name in _NORMS for module in common.norm(name, hidden)),
        )
        return LayerGroup(
            indices=indices, modules=modules, mixers=(mixer,), feed_forward=DenseMLP(intermediate_size=width)
        )

    tied = common.tied(config, default=True)
    blocks = {kind: common.rope_parameters(config, kind) for kind in kinds}
    return replace(
        decoder(
            config,
            name="Gemma3nForCausalLM",
            family="gemma3n",
            tied=tied,
            layers=common.group_layers(
                [(kinds[i], i >= first_shared, per_layer(config, "intermediate_size", i)) for i in range(layers)], build
            ),
            logits_soft_cap=config.get("final_logit_softcapping") is not None,
            outside=common.place(
                embed=common.embedding(config.vocab_size, hidden), head=common.lm_head(config.vocab_size, hidden),
                tied=tied, final_norm=common.norm("norm", hidden), embed_on=Placement.EVERY,
                head_on=Placement.EVERY, norm_on=Placement.EVERY, head_allocated_first=True,
                rope=layer_caches(config, size, kinds, blocks), extra=_outside(config),
            ),
        ),
        supports_pp=False,
    )  # fmt: skip


def _attention(config: ModelConfig, mixer: Attention, *, query_only: bool) -> tuple[Module, ...]:
    hidden, size, bias = config.hidden_size, mixer.head_size, config.boolean("attention_bias", False)
    # v_norm has no weight: its ones are a plain tensor
    unweighted = Tensor(name="self_attn.v_norm.weight", shape=(size,), buffer=True)
    if query_only:
        width = mixer.num_heads * size
        return (
            Linear(name="self_attn.q_proj", inputs=hidden, outputs=(width,), shard=Shard.COLUMN, bias=bias),
            Linear(name="self_attn.o_proj", inputs=width, outputs=(hidden,), shard=Shard.ROW, bias=bias),
            *common.attention_scales(),
            *common.norm("self_attn.q_norm", size),
        )
    return (
        *common.attention_modules(hidden, mixer, qkv_bias=bias, o_bias=bias, qk_norm=common.head_norms(size)),
        unweighted,
    )


def _alternating_updates(config: ModelConfig) -> tuple[Module, ...]:
    """Gemma3nAltUp, whole on every rank; the output scale is fp32."""
    hidden, inputs = config.hidden_size, config.size("altup_num_inputs", 4)
    return (
        *((Tensor(name="altup.correct_output_scale", shape=(hidden,), dtype="float32"),)),
        linear("altup.correction_coefs", inputs, inputs, Shard.REPLICATED, bias=False),
        linear("altup.prediction_coefs", inputs, inputs * inputs, Shard.REPLICATED, bias=False),
        linear("altup.modality_router", hidden, inputs, Shard.REPLICATED, bias=False),
        *common.norm("altup.router_norm", hidden),
        Tensor(name="altup.router_input_scale", shape=(), buffer=True),
    )


def _low_rank(config: ModelConfig) -> tuple[Module, ...]:
    """Gemma3nLaurelBlock."""
    hidden, rank = config.hidden_size, config.size("laurel_rank", 64)
    return (
        linear("laurel.linear_left", hidden, rank, Shard.COLUMN, bias=False),
        linear("laurel.linear_right", rank, hidden, Shard.ROW, bias=False),
        *common.norm("laurel.post_laurel_norm", hidden),
    )


def _per_layer_input(config: ModelConfig) -> tuple[Module, ...]:
    hidden, inputs = config.hidden_size, config.size("hidden_size_per_layer_input", 256)
    return (
        linear("per_layer_input_gate", hidden, inputs, Shard.REPLICATED, bias=False),
        linear("per_layer_projection", inputs, hidden, Shard.REPLICATED, bias=False),
    )


def _outside(config: ModelConfig) -> tuple[Placed, ...]:
    hidden, inputs = config.hidden_size, config.size("hidden_size_per_layer_input", 256)
    total, streams = inputs * config.num_hidden_layers, config.size("altup_num_inputs", 4) - 1
    rows = config.size("vocab_size_per_layer_input", 262144)
    scales = ("embed_scale", "embed_scale_per_layer", "per_layer_input_scale", "per_layer_projection_scale")
    return (
        *everywhere(
            (
                VocabEmbedding(name="embed_tokens_per_layer", rows=rows, columns=total),
                linear("per_layer_model_projection", hidden, total, Shard.COLUMN, bias=False),
                *common.norm("per_layer_projection_norm", inputs),
                *(Tensor(name=name, shape=(), buffer=True) for name in scales),
            )
        ),
        *everywhere((linear("altup_projections.0", hidden, hidden, Shard.COLUMN, bias=False),), streams),
        *everywhere(
            (linear("altup_unembed_projections.0", hidden, hidden, Shard.COLUMN, bias=False),), streams
        ),
    )


def gemma3n_multimodal(config: ModelConfig, release: Release) -> Architecture:
    """Gemma3nForConditionalGeneration: image and audio towers, each left out on its own; per-layer embeddings kept."""
    text = gemma3n(config, release)
    vision, audio = vision_part(config), _audio_part(config)
    images = (*mobilenet(config, vision), *_embedder(config, "embed_vision", vision))
    sounds = (*_conformer(audio), *_embedder(config, "embed_audio", audio))
    shape = (config.num_hidden_layers, config.size("hidden_size_per_layer_input", 256))
    buffer = Tensor(name="per_layer_embeddings", shape=shape, buffer=True, per_token=True)
    both = multimodal(text, "Gemma3nForConditionalGeneration", images, modalities=("image",), tp_data=False)
    tower = tuple(replace(placed, modalities=("audio",)) for placed in sounds)
    return replace(both, outside=(*tower, *everywhere((buffer,)), *both.outside))


def _audio_part(config: ModelConfig) -> SubConfig:
    return SubConfig(config.name, "audio_config", fill(config.audio or {}, class_defaults("gemma3n_audio")))


def _embedder(config: ModelConfig, prefix: str, part: SubConfig) -> tuple[Placed, ...]:
    """Gemma3nMultimodalEmbedder: a small vocabulary, norms, a projection divided by its inputs."""
    width = part.size("hidden_size")
    return everywhere(
        (
            VocabEmbedding(name=f"{prefix}.embedding", rows=part.size("vocab_size", 128), columns=width),
            *common.norm(f"{prefix}.hard_embedding_norm", width),
            *common.norm(f"{prefix}.soft_embedding_norm", width),
            linear(f"{prefix}.embedding_projection", width, config.hidden_size, Shard.ROW, bias=False),
            # without weight: its ones are a plain tensor
            Tensor(
                name=f"{prefix}.embedding_post_projection_norm.weight",
                shape=(config.hidden_size,),
                buffer=True,
            ),
        )
    )


def _conformer(audio: SubConfig) -> tuple[Placed, ...]:
    """Transformers' Gemma3nAudioEncoder, whole on every rank."""
    hidden, heads = audio.size("hidden_size", 1536), audio.size("conf_num_attention_heads", 8)
    channels, kernels = _pair(audio, "sscp_conv_channel_size"), _kernels(audio)
    strides = audio.get("sscp_conv_stride_size", [[2, 2], [2, 2]])
    features = audio.size("input_feat_size", 128)
    for stride in strides if isinstance(strides, (list, tuple)) else ():
        features //= (
            max(1, stride[-1]) if isinstance(stride, (list, tuple)) and type(stride[-1]) is int else 1
        )
    chunk, left = audio.size("conf_attention_chunk_size", 12), audio.size("conf_attention_context_left", 13)
    context = chunk + max(0, left - 1) + audio.integer("conf_attention_context_right", 0)
    conv, layer = "audio_tower.subsample_conv_projection", "audio_tower.conformer.0"

    def whole(name: str, inputs: int, outputs: int) -> Linear:
        return linear(f"{layer}.{name}", inputs, outputs, Shard.REPLICATED, bias=False, quantised=False)

    feed = tuple(
        module
        for half in ("ffw_layer_start", "ffw_layer_end")
        for module in (
            *common.norm(f"{layer}.{half}.pre_layer_norm", hidden),
            whole(f"{half}.ffw_layer_1", hidden, 4 * hidden),
            whole(f"{half}.ffw_layer_2", 4 * hidden, hidden),
            *common.norm(f"{layer}.{half}.post_layer_norm", hidden),
        )
    )
    attention, relative = "attention.attn", "attention.attn.relative_position_embedding"
    blocks: tuple[Module, ...] = (
        *feed,
        *common.norm(f"{layer}.attention.pre_attn_norm", hidden),
        Tensor(name=f"{layer}.{attention}.per_dim_scale", shape=(hidden // heads,)),
        whole(f"{relative}.pos_proj", hidden, hidden),
        *(whole(f"{attention}.{name}", hidden, hidden) for name in ("q_proj", "k_proj", "v_proj")),
        whole("attention.post", hidden, hidden),
        *common.norm(f"{layer}.attention.post_norm", hidden),
        *common.norm(f"{layer}.lconv1d.pre_layer_norm", hidden),
        whole("lconv1d.linear_start", hidden, 2 * hidden),
        Tensor(
            name=f"{layer}.lconv1d.depthwise_conv1d.weight",
            shape=(hidden, 1, audio.size("conf_conv_kernel_size", 5)),
        ),
        *common.norm(f"{layer}.lconv1d.conv_norm", hidden),
        whole("lconv1d.linear_end", hidden, hidden),
        *common.norm(f"{layer}.norm", hidden),
        *(Tensor(name=f"{layer}.gradient_clipping.{i}", shape=(), buffer=True) for i in range(5)),
        Tensor(name=f"{layer}.{attention}.q_scale", shape=(), buffer=True),
        Tensor(name=f"{layer}.{attention}.softcap", shape=(), dtype="float32", buffer=True),
        Tensor(
            name=f"{layer}.{attention}.local_causal_valid_mask",
            shape=(chunk, context),
            dtype="bool",
            buffer=True,
        ),
        Tensor(
            name=f"{layer}.{relative}.inv_timescales", shape=(1, 1, hidden // 2), dtype="float32", buffer=True
        ),
    )
    first, second = channels
    ends: tuple[Module, ...] = (
        Tensor(name=f"{conv}.conv_0.conv.weight", shape=(first, 1, *kernels[0])),
        *common.norm(f"{conv}.conv_0.norm", first),
        Tensor(name=f"{conv}.conv_1.conv.weight", shape=(second, first, *kernels[1])),
        *common.norm(f"{conv}.conv_1.norm", second),
        linear(
            f"{conv}.input_proj_linear",
            second * features,
            hidden,
            Shard.REPLICATED,
            bias=False,
            quantised=False,
        ),
    )
    return (*everywhere(ends), *everywhere(blocks, audio.size("conf_num_hidden_layers", 12)))


def _pair(part: SubConfig, key: str, value: object = None) -> tuple[int, int]:
    found = part.get(key, [128, 32]) if value is None else value
    if not (
        isinstance(found, (list, tuple)) and len(found) == 2 and all(type(v) is int and v > 0 for v in found)
    ):
        raise InputError(f"{part.model}: {part.part}: {key!r} must hold pairs of positive integers")
    return found[0], found[1]


def _kernels(part: SubConfig) -> tuple[tuple[int, int], tuple[int, int]]:
    key = "sscp_conv_kernel_size"
    found = part.get(key, [[3, 3], [3, 3]])
    if not isinstance(found, (list, tuple)) or len(found) != 2:
        raise InputError(f"{part.model}: {part.part}: {key!r} must hold two pairs")
    return _pair(part, key, found[0]), _pair(part, key, found[1])
