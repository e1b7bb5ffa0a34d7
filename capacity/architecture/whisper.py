"""Whisper: an audio encoder and a decoder with self- and cross-attention, each with a KV cache of its own.

Source: vllm/model_executor/models/whisper.py (0.26.0 and 0.33.0); pipeline parallelism is not supported.
"""

from __future__ import annotations

from vllm_capacity.architecture import common
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    AttentionKind,
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
from vllm_capacity.architecture.vision import block, everywhere
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases.release import Release


def whisper(config: ModelConfig, release: Release) -> Architecture:
    """WhisperForConditionalGeneration."""
    del release
    hidden, layers = config.size("d_model"), config.size("decoder_layers")
    width, heads = config.size("decoder_ffn_dim"), config.size("decoder_attention_heads")
    if hidden % heads:
        raise InputError(f"{config.name}: d_model {hidden} is not a multiple of {heads} attention heads")
    size = hidden // heads
    own = Attention(num_heads=heads, num_kv_heads=heads, head_size=size, head_size_v=size, rope=False)
    cross = Attention(
        num_heads=heads,
        num_kv_heads=heads,
        head_size=size,
        head_size_v=size,
        kind=AttentionKind.CROSS,
        rope=False,
    )
    modules: tuple[Module, ...] = (
        *common.attention_modules(hidden, own, qkv_bias=True, o_bias=True, out="out_proj"),
        *common.norm("self_attn_layer_norm", hidden, bias=True),
        *_cross_attention(hidden),
        *common.norm("encoder_attn_layer_norm", hidden, bias=True),
        *common.plain_mlp(hidden, width, bias=True, up="fc1", down="fc2"),
        *common.norm("final_layer_norm", hidden, bias=True),
    )
    vocabulary = config.vocab_size
    # nn.Embedding: neither padded nor divided (whisper.py:563)
    embed = VocabEmbedding(
        name="model.decoder.embed_tokens", rows=vocabulary, columns=hidden, pad_to=1, sharded=False
    )
    outside: tuple[Placed, ...] = (
        *_encoder(config, hidden),
        Placed(module=embed, placement=Placement.EVERY),
        *everywhere(
            (
                Tensor(
                    name="model.decoder.embed_positions.weight",
                    shape=(config.size("max_target_positions", 448), hidden),
                ),
                *common.norm("model.decoder.layer_norm", hidden, bias=True),
            )
        ),
        # proj_out is always tied
        Placed(
            module=common.lm_head(vocabulary, hidden),
            placement=Placement.EVERY,
            shares_storage_with=embed.name,
            allocated_first=True,
        ),
    )
    return Architecture(
        name="WhisperForConditionalGeneration",
        family="whisper",
        hidden_size=hidden,
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        layers=(
            LayerGroup(
                indices=tuple(range(layers)), modules=modules, mixers=(own, cross),
                feed_forward=DenseMLP(intermediate_size=width, gated=False),
            ),
        ),
        outside=outside,
        dtype=common.checkpoint_dtype(config),
        is_multimodal=True,
        is_encoder_decoder=True,
        tie_word_embeddings=True,
        supports_pp=False,
    )  # fmt: skip


def _cross_attention(hidden: int) -> tuple[Module, ...]:
    """WhisperCrossAttention: queries of the decoder, keys and values of the encoder's states (heads all divide)."""
    prefix = "encoder_attn"
    return (
        Linear(name=f"{prefix}.q_proj", inputs=hidden, outputs=(hidden,), shard=Shard.COLUMN, bias=True),
        Linear(
            name=f"{prefix}.kv_proj", inputs=hidden, outputs=(hidden, hidden), shard=Shard.COLUMN, bias=True
        ),
        Linear(name=f"{prefix}.out_proj", inputs=hidden, outputs=(hidden,), shard=Shard.ROW, bias=True),
        *common.attention_scales(prefix),
    )


def _encoder(config: ModelConfig, hidden: int) -> tuple[Placed, ...]:
    prefix = "model.encoder"
    mels, positions = config.size("num_mel_bins", 80), config.size("max_source_positions", 1500)
    blocks = block(
        f"{prefix}.layers.0", hidden, config.size("encoder_ffn_dim"), qkv="self_attn.qkv_proj",
        out="self_attn.out_proj", norms=("self_attn_layer_norm", "final_layer_norm"),
        heads=config.size("encoder_attention_heads"),
    )  # fmt: skip
    return (
        *everywhere(
            (
                Tensor(name=f"{prefix}.conv1.weight", shape=(hidden, mels, 3)),
                Tensor(name=f"{prefix}.conv1.bias", shape=(hidden,)),
                Tensor(name=f"{prefix}.conv2.weight", shape=(hidden, hidden, 3)),
                Tensor(name=f"{prefix}.conv2.bias", shape=(hidden,)),
                Tensor(name=f"{prefix}.embed_positions.weight", shape=(positions, hidden)),
                *common.norm(f"{prefix}.layer_norm", hidden, bias=True),
            )
        ),
        *everywhere(blocks, config.size("encoder_layers")),
    )
