"""MiniMax-M3: grouped-query attention that is block-sparse in most layers, with an indexer's key cache beside it.

Source: vllm/models/minimax_m3/nvidia/model.py, common/indexer.py, common/vision.py (0.33.0): queries and one key of the
indexer are slices of the qkv projection; norms per head; an fp32 router and correction bias; embedding on the first and head
on the last pipeline stage.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import (
    decoder,
    dense_feed_forward,
    grouped_attention,
    moe_feed_forward,
)
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    FeedForward,
    Indexer,
    LayerGroup,
    Linear,
    Module,
    Placed,
    Placement,
    QkvLinear,
    Shard,
    Tensor,
)
from vllm_capacity.architecture.vision import block, everywhere, linear, multimodal, vision_part
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig, SubConfig
from vllm_capacity.releases.release import Release


def minimax_m3(config: ModelConfig, release: Release) -> Architecture:
    """MiniMaxM3SparseForCausalLM."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    sparse = config.sub("sparse_attention_config")
    indexed, routed = (
        _flags(config, sparse.values, "sparse_attention_freq"),
        _flags(config, config.text, "moe_layer_freq"),
    )
    size = config.size("head_dim")
    rotated = config.size("rotary_dim", size)

    def build(kind: tuple[bool, bool], indices: tuple[int, ...]) -> LayerGroup:
        is_indexed, is_routed = kind
        feed: tuple[Module, ...]
        feed_forward: FeedForward
        if is_routed:
            feed, feed_forward = _experts(config)
        else:
            feed, feed_forward = dense_feed_forward(config, config.size("dense_intermediate_size"))
        mixer = grouped_attention(
            config, size, qk_norm=True, indexer=_indexer(sparse) if is_indexed else None
        )
        return LayerGroup(
            indices=indices,
            modules=(
                *_attention(hidden, mixer),
                # the block-sparse layer is an attention layer of its own
                *(common.unmoved_scales(release) if is_indexed else ()),
                *feed,
                *common.norm("input_layernorm", hidden),
                *common.norm("post_attention_layernorm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    # one index head per KV head, replicated like them; rows padded to a multiple of four tokens
    heads = sparse.size("sparse_num_index_heads")
    buffer = Tensor(
        name="topk_indices_buffer", shape=(heads, sparse.size("sparse_topk_blocks")), shard_dim=0, kv_heads=heads,
        dtype="int32", buffer=True, per_token=True,
    )  # fmt: skip
    rope = common.rope_cache(config, size, rotary_dim=rotated)
    return decoder(
        config,
        name="MiniMaxM3SparseForCausalLM",
        family="minimax_m3",
        layers=common.group_layers(list(zip(indexed, routed, strict=True)), build),
        outside=common.llama_placement(
            config.vocab_size, hidden, tied=False, head_allocated_first=False,
            rope=(Placed(module=buffer, placement=Placement.EVERY), rope),
        ),
        num_layers=layers,
    )  # fmt: skip


def minimax_m3_multimodal(config: ModelConfig, release: Release) -> Architecture:
    """MiniMaxM3SparseForConditionalGeneration."""
    return multimodal(
        minimax_m3(config, release), "MiniMaxM3SparseForConditionalGeneration", _encoder(config)
    )


def _flags(config: ModelConfig, values: object, key: str) -> list[bool]:
    """One flag per layer."""
    found = values.get(key) if hasattr(values, "get") else None
    layers = config.num_hidden_layers
    if not isinstance(found, (list, tuple)) or len(found) < layers or not all(type(v) is int for v in found):
        raise InputError(
            f"{config.name}: config key {key!r} must be a list of integers, one for each of {layers} layers"
        )
    return [value != 0 for value in found[:layers]]


def _indexer(sparse: SubConfig) -> Indexer:
    return Indexer(
        num_heads=sparse.size("sparse_num_index_heads"),
        head_size=sparse.size("sparse_index_dim"),
        top_k=sparse.size("sparse_topk_blocks") * sparse.size("sparse_block_size"),
    )


def _attention(hidden: int, mixer: Attention) -> tuple[Module, ...]:
    index = mixer.indexer
    norms = common.head_norms(mixer.head_size)
    if index is not None:
        norms += (
            *common.norm("self_attn.index_q_norm", index.head_size),
            *common.norm("self_attn.index_k_norm", index.head_size),
        )
    return (
        QkvLinear(
            name="self_attn.qkv_proj", inputs=hidden, num_heads=mixer.num_heads, num_kv_heads=mixer.num_kv_heads,
            head_size=mixer.head_size, head_size_v=mixer.head_size_v,
            index_size=0 if index is None else index.head_size,
        ),
        Linear(
            name="self_attn.o_proj", inputs=mixer.num_heads * mixer.head_size, outputs=(hidden,), shard=Shard.ROW
        ),
        *common.attention_scales(),
        *norms,
    )  # fmt: skip


def _experts(config: ModelConfig) -> tuple[tuple[Module, ...], FeedForward]:
    return moe_feed_forward(
        config,
        num_experts=config.size("num_local_experts"),
        top_k=config.size("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
        shared=config.integer("n_shared_experts", 0) * config.size("shared_intermediate_size"),
        prefix="block_sparse_moe",
        gate_dtype="float32",
        correction_bias=config.boolean("use_routing_bias", False),
    )


def _encoder(config: ModelConfig) -> tuple[Placed, ...]:
    """MiniMaxVLVisionTransformer, a projector, and an MLP over merged patches."""
    vision = vision_part(config)
    hidden, text = vision.size("hidden_size", 1280), config.hidden_size
    patch, channels = vision.size("patch_size", 14), vision.size("num_channels", 3)
    compression = vision.get("img_token_compression_config") or {}
    if not isinstance(compression, dict):
        raise InputError(f"{config.name}: vision_config: 'img_token_compression_config' must be an object")
    inner = SubConfig(config.name, "img_token_compression_config", compression)
    merge, temporal = inner.size("spatial_merge_size", 2), inner.size("temporal_patch_size", 2)
    width = config.root.get("projector_hidden_size")
    width = width if type(width) is int and width > 0 else text
    heads = vision.size("num_attention_heads", 16)
    third = max(1, hidden // heads // 2 // 3)
    prefix = "vision_tower.vision_model"
    modules: tuple[Module, ...] = (
        Tensor(
            name=f"{prefix}.embeddings.patch_embedding.weight",
            shape=(hidden, channels * temporal * patch * patch),
        ),
        *common.norm(f"{prefix}.pre_layrnorm", hidden, bias=True),
        *(
            Tensor(name=f"{prefix}.inv_freq_{axis}", shape=(third,), dtype="float32", buffer=True)
            for axis in ("t", "h", "w")
        ),
        linear("vision_tower.multi_modal_projector.linear_1", hidden, width, Shard.COLUMN),
        linear("vision_tower.multi_modal_projector.linear_2", width, text, Shard.ROW),
        linear("vision_tower.patch_merge_mlp.linear_1", text * merge * merge, width, Shard.COLUMN),
        linear("vision_tower.patch_merge_mlp.linear_2", width, text, Shard.ROW),
    )
    blocks = block(
        f"{prefix}.encoder.layers.0", hidden, vision.size("intermediate_size", 5120), qkv="self_attn.qkv_proj",
        out="self_attn.out_proj", norms=("layer_norm1", "layer_norm2"), up="fc1", down="fc2", heads=heads,
    )  # fmt: skip
    return (*everywhere(modules), *everywhere(blocks, vision.size("num_hidden_layers", 32)))
