"""DeepSeek V4: latent attention over a window and compressed latents, four residual streams, hashed routing in the first
layers.

Source: vllm/models/deepseek_v4/attention.py, compressor.py, nvidia/model.py (0.26.0 and 0.33.0). Every layer has one KV
head of `head_dim`; `compress_ratios[i]` is 0 (window only), 4 (with an indexer) or 128. The last entry belongs to the
prediction layer, which is not built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_capacity.architecture import common
from vllm_capacity.architecture.decoder import decoder, moe_feed_forward
from vllm_capacity.architecture.modules import (
    Architecture,
    Compression,
    Indexer,
    LayerGroup,
    Linear,
    MixtureOfExperts,
    Module,
    MultiHeadLatentAttention,
    Placed,
    Placement,
    Shard,
    Tensor,
)
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def deepseek_v4(config: ModelConfig, release: Release) -> Architecture:
    """DeepseekV4ForCausalLM."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    ratios, hashed = _ratios(config), config.integer("num_hash_layers", 0)

    def build(kind: tuple[int, bool], indices: tuple[int, ...]) -> LayerGroup:
        ratio, is_hashed = kind
        mixer = _mixer(config, ratio)
        feed, feed_forward = _experts(config, hashed=is_hashed)
        return LayerGroup(
            indices=indices,
            modules=(
                *_stream_mixing(config, "hc_attn"),
                *_stream_mixing(config, "hc_ffn"),
                *_attention(config, mixer, ratio),
                *feed,
                *common.norm("attn_norm", hidden),
                *common.norm("ffn_norm", hidden),
            ),
            mixers=(mixer,),
            feed_forward=feed_forward,
        )

    return decoder(
        config,
        name="DeepseekV4ForCausalLM",
        family="deepseek_v4",
        layers=common.group_layers([(ratios[i], i < hashed) for i in range(layers)], build),
        outside=common.llama_placement(
            config.vocab_size,
            hidden,
            tied=False,
            head_allocated_first=False,
            rope=_outside(config, ratios, release),
        ),
    )


def _ratios(config: ModelConfig) -> list[int]:
    """Per layer the tokens behind one latent, 1 for none."""
    ratios, layers = config.integers("compress_ratios"), config.num_hidden_layers
    if ratios is None or len(ratios) < layers:
        raise InputError(
            f"{config.name}: config key 'compress_ratios' must have an entry for each of {layers} layers"
        )
    for ratio in ratios[:layers]:
        if ratio not in (0, 1, 4, 128):
            raise InputError(f"{config.name}: compress ratio {ratio} is not modelled; known: 0, 4, 128")
    return [max(1, ratio) for ratio in ratios[:layers]]


def _mixer(config: ModelConfig, ratio: int) -> MultiHeadLatentAttention:
    head, rope = config.size("head_dim"), config.size("qk_rope_head_dim")
    if rope >= head:
        raise InputError(f"{config.name}: qk_rope_head_dim {rope} must be smaller than head_dim {head}")
    indexer = None
    if ratio == 4:
        indexer = Indexer(
            num_heads=config.size("index_n_heads"),
            head_size=config.size("index_head_dim"),
            top_k=config.size("index_topk"),
        )
    return MultiHeadLatentAttention(
        num_heads=config.num_attention_heads,
        q_lora_rank=config.size("q_lora_rank"),
        kv_lora_rank=head - rope,
        qk_nope_head_dim=head - rope,
        qk_rope_head_dim=rope,
        v_head_dim=head,
        indexer=indexer,
        compression=Compression(sliding_window=config.size("sliding_window"), ratio=ratio),
    )


def _attention(config: ModelConfig, mixer: MultiHeadLatentAttention, ratio: int) -> tuple[Module, ...]:
    hidden, heads, head = config.hidden_size, config.num_attention_heads, config.size("head_dim")
    query, groups, rank = config.size("q_lora_rank"), config.size("o_groups"), config.size("o_lora_rank")
    if heads * head % groups:
        raise InputError(f"{config.name}: {heads} heads of {head} do not divide into o_groups {groups}")
    modules: tuple[Module, ...] = (
        # one for each query head that the kernel takes, 64 or 128: half as many once a rank has at most 64
        Tensor(
            name="attn.attn_sink",
            shape=(64 if heads <= 64 else 128,),
            dtype="float32",
            shard_dim=0,
            kv_heads=1 if heads <= 64 else 2,
        ),
        Linear(name="attn.fused_wqa_wkv", inputs=hidden, outputs=(query, head), shard=Shard.REPLICATED),
        *common.norm("attn.q_norm", query),
        Linear(name="attn.wq_b", inputs=query, outputs=(heads * head,), shard=Shard.COLUMN),
        *common.norm("attn.kv_norm", head),
        Linear(name="attn.wo_a", inputs=heads * head // groups, outputs=(groups * rank,), shard=Shard.COLUMN),
        Linear(name="attn.wo_b", inputs=groups * rank, outputs=(hidden,), shard=Shard.ROW),
    )
    if mixer.indexer is not None:
        index = mixer.indexer
        modules += (
            Linear(
                name="attn.indexer.wq_b", inputs=query, outputs=(index.num_heads * index.head_size,),
                shard=Shard.REPLICATED,
            ),
            Linear(
                name="attn.indexer.weights_proj", inputs=hidden, outputs=(index.num_heads,), shard=Shard.REPLICATED,
                quantised=False,
            ),
            *_compressor("attn.indexer.compressor", hidden, index.head_size, ratio),
        )  # fmt: skip
    if ratio > 1:
        modules += _compressor("attn.compressor", hidden, head, ratio)
    return modules


def _compressor(prefix: str, hidden: int, head: int, ratio: int) -> tuple[Module, ...]:
    """DeepseekCompressor: keys and scores of overlapping windows with ratio 4."""
    width = (2 if ratio == 4 else 1) * head
    return (
        Tensor(name=f"{prefix}.ape", shape=(ratio, width), dtype="float32"),
        Linear(
            name=f"{prefix}.fused_wkv_wgate", inputs=hidden, outputs=(width, width), shard=Shard.REPLICATED,
            quantised=False,
        ),
        *common.norm(f"{prefix}.norm", head),
    )  # fmt: skip


def _stream_mixing(config: ModelConfig, name: str) -> tuple[Module, ...]:
    """What mixes the `hc_mult` residual streams around one half of a layer."""
    streams = config.size("hc_mult")
    mixes = (2 + streams) * streams
    return (
        Tensor(name=f"{name}_fn", shape=(mixes, streams * config.hidden_size), dtype="float32"),
        Tensor(name=f"{name}_base", shape=(mixes,), dtype="float32"),
        Tensor(name=f"{name}_scale", shape=(3,), dtype="float32"),
    )


def _experts(config: ModelConfig, *, hashed: bool) -> tuple[tuple[Module, ...], MixtureOfExperts]:
    width = config.size("moe_intermediate_size")
    top_k = config.size("num_experts_per_tok")
    modules, feed_forward = moe_feed_forward(
        config,
        num_experts=config.size("n_routed_experts"),
        top_k=top_k,
        intermediate_size=width,
        shared=config.integer("n_shared_experts", 0) * width,
        shared_whole=True,
        prefix="ffn",
        correction_bias=not hashed and config.get("topk_method", "noaux_tc") == "noaux_tc",
    )
    if hashed:
        # the experts of each token id
        modules += (Tensor(name="ffn.gate.tid2eid", shape=(config.vocab_size, top_k), dtype="int32"),)
    return modules, feed_forward


def _compressed_rope(config: ModelConfig) -> Mapping[str, Any]:
    """YaRN where the config scales its rope at all (common/rope.py:9-52, 0.33.0); plain layers never do."""
    block = common.rope_parameters(config, "compress")
    return block if block["rope_type"] == "default" else {**block, "rope_type": "deepseek_yarn"}


def _outside(config: ModelConfig, ratios: list[int], release: Release) -> tuple[Placed, ...]:
    """Top-k buffer, the stream mixing of the head and of the embedding, and two rope caches in fp32: plain and compressed
    layers.
    """
    streams, rope = config.size("hc_mult"), config.size("qk_rope_head_dim")
    every: tuple[Module, ...] = (
        Tensor(
            name="topk_indices_buffer",
            shape=(config.size("index_topk"),),
            dtype="int32",
            buffer=True,
            per_token=True,
        ),
        Tensor(name="hc_head_fn", shape=(streams, streams * config.hidden_size), dtype="float32"),
        Tensor(name="hc_head_base", shape=(streams,), dtype="float32"),
        Tensor(name="hc_head_scale", shape=(1,), dtype="float32"),
    )
    placed = tuple(Placed(module=module, placement=Placement.EVERY) for module in every)
    if release.has("deepseek_v4_mtp_buffer_always"):
        # later releases only with a draft model, where it is the draft's
        buffer = Tensor(
            name="_mtp_hidden_buffer", shape=(streams * config.hidden_size,), buffer=True, per_token=True
        )
        placed += (Placed(module=buffer, placement=Placement.LAST),)
    if release.has("deepseek_v4_broadcast_mixing"):
        mixing = Tensor(
            name="hc_attn_fn_broadcast",
            shape=((2 + streams) * streams, config.hidden_size),
            dtype="float32",
            buffer=True,
        )
        placed += (Placed(module=mixing, placement=Placement.FIRST),)
    for name, plain in (("rotary_emb.window", True), ("rotary_emb.compressed", False)):
        where = tuple(i for i, ratio in enumerate(ratios) if (ratio == 1) is plain)
        block = {"rope_type": "default"} if plain else _compressed_rope(config)
        cache = common.rope_cache(
            config, rope, parameters=block, rotary_dim=rope, dtype="float32", name=f"{name}.cos_sin_cache"
        )
        placed += common.caches_at(cache, where)
    return placed
