"""Multi-head latent attention: modules, rope cache and mixer, shared by DeepSeek, GLM, Kimi and others.

Source: `DeepseekV2MLAAttention` and `Indexer`, vllm/model_executor/models/deepseek_v2.py:555-690, 940-1130
(0.26.0).
"""

from __future__ import annotations

from dataclasses import replace

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import (
    Indexer,
    Linear,
    Module,
    MultiHeadLatentAttention,
    Shard,
    Tensor,
)
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def mla_mixer(
    config: ModelConfig, *, indexer: Indexer | None = None, shared_top_k: int = 0
) -> MultiHeadLatentAttention:
    """The latent attention that the config describes; `q_lora_rank` null means a plain query projection."""
    return MultiHeadLatentAttention(
        num_heads=config.num_attention_heads,
        q_lora_rank=None if config.get("q_lora_rank") is None else config.size("q_lora_rank"),
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_nope_head_dim=config.integer("qk_nope_head_dim"),
        qk_rope_head_dim=config.integer("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
        indexer=indexer,
        shared_top_k=shared_top_k,
    )


def mla_modules(
    hidden_size: int, mixer: MultiHeadLatentAttention, release: Release, *, prefix: str = "self_attn"
) -> tuple[Module, ...]:
    """Projections and norms.

    The down projections and the indexer are whole on every tp rank (`disable_tp=True`).
    """
    heads, latent, rope = mixer.num_heads, mixer.kv_lora_rank, mixer.qk_rope_head_dim
    query = heads * (mixer.qk_nope_head_dim + rope)
    modules: tuple[Module, ...]
    if mixer.q_lora_rank is not None:
        modules = (
            Linear(
                name=f"{prefix}.fused_qkv_a_proj",
                inputs=hidden_size,
                outputs=(mixer.q_lora_rank, latent + rope),
                shard=Shard.REPLICATED,
            ),
            *common.norm(f"{prefix}.q_a_layernorm", mixer.q_lora_rank),
            Linear(name=f"{prefix}.q_b_proj", inputs=mixer.q_lora_rank, outputs=(query,), shard=Shard.COLUMN),
        )
    else:
        modules = (
            Linear(
                name=f"{prefix}.kv_a_proj_with_mqa",
                inputs=hidden_size,
                outputs=(latent + rope,),
                shard=Shard.REPLICATED,
            ),
            Linear(name=f"{prefix}.q_proj", inputs=hidden_size, outputs=(query,), shard=Shard.COLUMN),
        )
    modules += (
        *common.norm(f"{prefix}.kv_a_layernorm", latent),
        Linear(
            name=f"{prefix}.kv_b_proj",
            inputs=latent,
            outputs=(heads * (mixer.qk_nope_head_dim + mixer.v_head_dim),),
            shard=Shard.COLUMN,
        ),
        Linear(
            name=f"{prefix}.o_proj", inputs=heads * mixer.v_head_dim, outputs=(hidden_size,), shard=Shard.ROW
        ),
    )
    if mixer.indexer is not None and mixer.q_lora_rank is not None:
        modules += _indexer_modules(
            hidden_size, mixer.q_lora_rank, mixer.indexer, release, f"{prefix}.indexer"
        )
    return (*modules, *common.attention_scales(f"{prefix}.mla_attn"))


def _indexer_modules(
    hidden_size: int, q_lora_rank: int, indexer: Indexer, release: Release, prefix: str
) -> tuple[Module, ...]:
    size, heads = indexer.head_size, indexer.num_heads
    modules: tuple[Module, ...] = (
        Linear(name=f"{prefix}.wq_b", inputs=q_lora_rank, outputs=(size * heads,), shard=Shard.REPLICATED),
    )
    if release.has("indexer_fused_wk"):
        modules += (
            Linear(
                name=f"{prefix}.wk_weights_proj",
                inputs=hidden_size,
                outputs=(size, heads),
                shard=Shard.REPLICATED,
                quantised=False,
            ),
        )
    else:
        modules += (
            Linear(name=f"{prefix}.wk", inputs=hidden_size, outputs=(size,), shard=Shard.REPLICATED),
            Linear(
                name=f"{prefix}.weights_proj",
                inputs=hidden_size,
                outputs=(heads,),
                shard=Shard.REPLICATED,
                quantised=False,
            ),
        )
    if release.has("sparse_index_groups"):
        # each layer that computes its own top-k opens a group (SparseMLAIndexGroupBuilder.register_layer,
        # v1/attention/backends/mla/index_group.py:349-405, 0.33.0)
        for name, shape in (("physical_topk_indices", (indexer.top_k,)), ("valid_topk_counts", ())):
            modules += (
                Tensor(name=f"{prefix}.{name}", shape=shape, dtype="int32", buffer=True, per_decode_row=True),
            )
    # vLLM's LayerNorm keeps fp32 parameters (layers/layernorm.py)
    return (*modules, *common.norm(f"{prefix}.k_norm", size, bias=True, dtype="float32"))


def mla_rope(config: ModelConfig, *, name: str = "rotary_emb.cos_sin_cache") -> Tensor:
    """Any scaling becomes DeepSeek's YaRN; with the custom op on (FlashInfer's kernel) its cache is fp32.

    Source: deepseek_v2.py:1068-1085, rotary_embedding/deepseek_scaling_rope.py:61-67 and base.py:58-61
    (0.26.0).
    """
    block = dict(common.rope_parameters(config))
    size = config.size("qk_rope_head_dim")
    eager = None
    if block["rope_type"] != "default":
        block["rope_type"] = "deepseek_yarn"
        eager = "float32" if size in (64, 128, 256, 512) else None
    cache = common.rope_cache(
        config, size, parameters=block, name=name, max_position=config.size("max_position_embeddings", 8192)
    )
    return replace(cache, eager_dtype=eager)
