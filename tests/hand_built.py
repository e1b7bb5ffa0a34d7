"""Layers of models whose family builder may be missing: enough for activations and graphs, without modules
(no weights).
"""

from __future__ import annotations

from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    DenseMLP,
    FeedForward,
    LayerGroup,
    MixtureOfExperts,
)


def _decoder(
    hidden: int, vocab: int, layers: int, heads: int, kv_heads: int, head_size: int, feed_forward: FeedForward
) -> Architecture:
    mixer = Attention(num_heads=heads, num_kv_heads=kv_heads, head_size=head_size, head_size_v=head_size)
    group = LayerGroup(indices=tuple(range(layers)), modules=(), mixers=(mixer,), feed_forward=feed_forward)
    return Architecture(
        name="hand-built",
        family="hand-built",
        hidden_size=hidden,
        vocab_size=vocab,
        num_hidden_layers=layers,
        layers=(group,),
        outside=(),
        dtype="bfloat16",
        is_multimodal=True,
    )


HAND_BUILT = {
    "google/gemma-3-4b-it": _decoder(2560, 262208, 34, 8, 4, 256, DenseMLP(intermediate_size=10240)),
    "google/gemma-3-12b-it": _decoder(3840, 262208, 48, 16, 8, 256, DenseMLP(intermediate_size=15360)),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": _decoder(
        5120, 131072, 40, 32, 8, 128, DenseMLP(intermediate_size=32768)
    ),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _decoder(
        5120,
        202048,
        48,
        40,
        8,
        128,
        MixtureOfExperts(
            num_experts=16, top_k=1, hidden_size=5120, intermediate_size=8192, shared_intermediate_size=8192
        ),
    ),
}
"""By model id; dimensions from the public config.json files."""
