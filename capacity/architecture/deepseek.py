"""DeepSeek V1, V2, V3, R1, V3.1, V3.2, Kimi K2 and GLM-5 (one vLLM class), GLM-4.7-Flash.

Source: vllm/model_executor/models/deepseek_v2.py (0.26.0): latent attention unless the config has no such
dimensions, an indexer where it has `index_topk`, layers sparse from `first_k_dense_replace` by
`moe_layer_freq`, embedding on the first and head on the last pipeline stage, never tied. Prediction (MTP)
layers of the checkpoint are not built.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
    plain_head_dim,
)
from vllm_capacity.architecture.mla import mla_mixer, mla_modules, mla_rope
from vllm_capacity.architecture.modules import (
    Architecture,
    FeedForward,
    Indexer,
    LayerGroup,
    Mixer,
    MixtureOfExperts,
    Module,
    Placed,
    Placement,
    Tensor,
)
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def deepseek(config: ModelConfig, release: Release) -> Architecture:
    """DeepseekForCausalLM: the first generation, ordinary attention."""
    return _deepseek(config, release, "DeepseekForCausalLM")


def deepseek_v2(config: ModelConfig, release: Release) -> Architecture:
    """DeepseekV2ForCausalLM."""
    return _deepseek(config, release, "DeepseekV2ForCausalLM")


def deepseek_v3(config: ModelConfig, release: Release) -> Architecture:
    """DeepseekV3ForCausalLM (also V3.2's up to 0.28)."""
    return _deepseek(config, release, "DeepseekV3ForCausalLM")


def deepseek_v32(config: ModelConfig, release: Release) -> Architecture:
    """DeepseekV32ForCausalLM: a module of its own since 0.29 (models/deepseek_v32), with the same tensors."""
    return _deepseek(config, release, "DeepseekV32ForCausalLM")


def glm_moe_dsa(config: ModelConfig, release: Release) -> Architecture:
    """GlmMoeDsaForCausalLM: GLM-5."""
    return _deepseek(config, release, "GlmMoeDsaForCausalLM")


def glm4_moe_lite(config: ModelConfig, release: Release) -> Architecture:
    """Glm4MoeLiteForCausalLM (GLM-4.7-Flash): DeepSeek's layers with GLM-4.5's fp32 router
    (glm4_moe_lite.py).
    """
    return _deepseek(config, release, "Glm4MoeLiteForCausalLM")


def _deepseek(config: ModelConfig, release: Release, name: str) -> Architecture:
    hidden, layers = config.hidden_size, config.num_hidden_layers
    uses_mha = config.text_model_type == "deepseek" or not (
        config.integer("qk_nope_head_dim", 0) or config.integer("qk_rope_head_dim", 0)
    )
    sparse = _sparse_layers(config)
    indexed = [not uses_mha and _has_indexer(config, i) for i in range(layers)]

    def build(kind: tuple[bool, bool], indices: tuple[int, ...]) -> LayerGroup:
        is_sparse, has_indexer = kind
        feed_forward: FeedForward
        modules, feed_forward = (
            deepseek_moe(config, glm="Lite" in name) if is_sparse else dense_feed_forward(config)
        )
        mixer: Mixer
        attention: tuple[Module, ...]
        if uses_mha:
            mixer = grouped_attention(config, plain_head_dim(config))
            attention = common.attention_modules(hidden, mixer)
        else:
            indexer = _indexer(config) if has_indexer else None
            # a layer without an indexer attends to what another's chose (`is_sparse=self.is_v32`, deepseek_v2.py:1143, 0.26.0)
            shared = (
                config.size("index_topk") if indexer is None and config.get("index_topk") is not None else 0
            )
            mixer = mla_mixer(config, indexer=indexer, shared_top_k=shared)
            attention = mla_modules(hidden, mixer, release)
            if any(indexed) and release.has("sparse_flash_attention_offsets"):
                attention += (_SPARSE_OFFSETS,)
        return LayerGroup(
            indices=indices,
            modules=(
                *attention,
                *modules,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    caches: tuple[Tensor | Placed, ...]
    if uses_mha:
        caches = (common.rope_cache(config, plain_head_dim(config)),)
    else:
        caches = (mla_rope(config),)
        if any(indexed) and not config.boolean("indexer_rope_interleave", False):
            # the other rotation style is another cache; it is the same one with `indexer_rope_interleave`
            where = tuple(i for i in range(layers) if indexed[i])
            caches += (
                Placed(
                    module=mla_rope(config, name="indexer_rope_emb.cos_sin_cache"),
                    placement=Placement.EVERY,
                    layers=where,
                ),
            )
    if config.get("index_topk") is not None and not uses_mha:
        caches = (
            Placed(
                module=Tensor(
                    name="topk_indices_buffer",
                    shape=(config.size("index_topk"),),
                    dtype="int32",
                    buffer=True,
                    per_token=True,
                ),
                placement=Placement.EVERY,
            ),
            *caches,
        )
    return decoder(
        config,
        name=name,
        family="deepseek",
        layers=common.group_layers(list(zip(sparse, indexed, strict=True)), build),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=False, head_allocated_first=False, rope=caches
        ),
    )


def _sparse_layers(config: ModelConfig) -> list[bool]:
    """Which layers have routed experts (deepseek_v2.py:1219-1223)."""
    if config.get("n_routed_experts") is None:
        return [False] * config.num_hidden_layers
    first, step = config.integer("first_k_dense_replace"), config.size("moe_layer_freq", 1)
    return [i >= first and i % step == 0 for i in range(config.num_hidden_layers)]


_SPARSE_OFFSETS = Tensor(
    name="self_attn.mla_attn.cu_seqlens_q_buffer",
    shape=(),
    dtype="int32",
    buffer=True,
    per_token=True,
    per_token_extra=1,
    backend="FLASH_ATTN_MLA_SPARSE",
)
"""One per layer of that backend, as long as the top-k buffer plus one.

Source: FlashAttnMLASparseImpl.__init__, v1/attention/backends/mla/flashattn_mla_sparse.py:208-212 (0.33.0).
"""


def _has_indexer(config: ModelConfig, layer: int) -> bool:
    """Layers that compute their own top-k; the others reuse it (deepseek_v2.py:1081-1100)."""
    if config.get("index_topk") is None:
        return False
    pattern = config.get("index_topk_pattern")
    if pattern is None:
        frequency, offset = config.size("index_topk_freq", 1), config.integer("index_skip_topk_offset", 2)
        return max(layer - offset + 1, 0) % frequency == 0
    return not (layer < len(pattern) and pattern[layer] == "S")


def _indexer(config: ModelConfig) -> Indexer:
    return Indexer(
        num_heads=config.size("index_n_heads"),
        head_size=config.size("index_head_dim"),
        top_k=config.size("index_topk"),
    )


def deepseek_moe(config: ModelConfig, *, glm: bool = False) -> tuple[tuple[Module, ...], MixtureOfExperts]:
    """DeepseekV2MoE: shared experts as one MLP; a correction bias with `topk_method` noaux_tc.

    `glm`: Glm4MoE instead, with an fp32 router, always a bias, and shared experts divided in every layout.
    """
    width = config.size("moe_intermediate_size")
    return moe_feed_forward(
        config,
        num_experts=config.size("n_routed_experts"),
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=width,
        shared=config.integer("n_shared_experts", 0) * width,
        shared_whole=not glm,
        gate_dtype="float32" if glm else None,
        correction_bias=glm or config.get("topk_method") == "noaux_tc",
    )
