"""The block that an eager model's last hidden states lie in where the profile run splits no block of 20 MiB and more.

PyTorch then hands out the smallest cached block that is at least as large and less than 20 MiB larger: a tensor of an
earlier operation's size may hold a smaller one. Which one is free depends on the order of the layers' allocations, which
this replays. Source: c10/cuda/CUDACachingAllocator.cpp: get_free_block (torch 2.14); the layers' and their attention's
forward: locals keep their tensors until they return or are bound again (0.33.0).
"""

from __future__ import annotations

from vllm_capacity.activations.layers import attention_width, mla_workspace_tokens, state_space_width
from vllm_capacity.activations.live import Sizes, kv_share, share
from vllm_capacity.architecture.modules import (
    Attention,
    DenseMLP,
    FeedForward,
    Mixer,
    MultiHeadLatentAttention,
)
from vllm_capacity.calibration import l2_cache
from vllm_capacity.context import RankContext
from vllm_capacity.units import block
from vllm_capacity.weights.allocator import LARGE_SEGMENT, LOAD_MAX_SPLIT, Block, CachingAllocator


def rest_of_final_block(ctx: RankContext, sizes: Sizes) -> int:
    """Bytes by which the block of the final hidden states is larger than they are; 0 where blocks are split."""
    n_bytes = sizes.tokens * sizes.hidden * sizes.el
    if not sizes.limited:
        return 0
    if ctx.engine.compiled or n_bytes < LOAD_MAX_SPLIT:
        return block(n_bytes, 1) - n_bytes
    return _replay(ctx, sizes) - n_bytes


def most_of_final_block(ctx: RankContext, sizes: Sizes) -> int:
    """The same where a compiled model's last hidden states lie in the block of the buffer that flushed the L2 cache while kernels
    were timed: seen in gpt-oss-120b (0.33.0); which tensor takes it depends on what is alive, which is not replayed.
    """
    n_bytes, flush = sizes.tokens * sizes.hidden * sizes.el, l2_cache(ctx.device).n_bytes
    rest = rest_of_final_block(ctx, sizes)
    if not (sizes.limited and ctx.engine.compiled) or n_bytes < LOAD_MAX_SPLIT:
        return rest
    return flush - n_bytes if n_bytes <= flush < n_bytes + LARGE_SEGMENT else rest


def _replay(ctx: RankContext, sizes: Sizes) -> int:
    """Size of the block of the last layer's output.

    The first layer's input becomes the residual and stays; later ones are normed in place and held by the caller.
    """
    pool, token = CachingAllocator(LOAD_MAX_SPLIT), sizes.tokens * sizes.el
    pool.allocate(token * sizes.hidden)
    current, caller = pool.allocate(token * sizes.hidden), None
    placed = sorted(((i, kind) for kind, _ in ctx.layers for i in kind.indices), key=lambda pair: pair[0])
    for _, group in placed:
        for mixer in group.mixers[:1]:
            output = _mix(pool, token, mixer, ctx, sizes)
            if current is not caller:
                pool.free(current)
            current = output
        made = _feed_forward(pool, token, group.feed_forward, sizes)
        if made is not None:
            if current is not caller:
                pool.free(current)
            current = made
        if caller is not None and caller is not current:
            pool.free(caller)
        caller = current
    return current.size


def _mix(pool: CachingAllocator, token: int, mixer: Mixer, ctx: RankContext, sizes: Sizes) -> Block:
    """Projections, then the attention's output, then that of its last projection, which stays."""
    if isinstance(mixer, Attention):
        q, k = share(mixer.num_heads, sizes.tp), kv_share(mixer.num_kv_heads, sizes.tp)
        widths = [q * mixer.head_size + k * (mixer.head_size + mixer.head_size_v)]
    elif isinstance(mixer, MultiHeadLatentAttention):
        heads, latent = share(mixer.num_heads, sizes.tp), mixer.kv_lora_rank
        widths = [
            heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim),
            latent + mixer.qk_rope_head_dim,
            latent,
        ]
        if mixer.q_lora_rank:
            widths = [mixer.q_lora_rank, mixer.q_lora_rank, *widths]
    else:
        widths = [2 * share(state_space_width(mixer), sizes.tp)]
    held = [pool.allocate(token * width) for width in (*widths, attention_width(mixer, sizes.tp))]
    if isinstance(mixer, MultiHeadLatentAttention):
        dummy = share(mixer.num_heads, sizes.tp) * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        pool.free(pool.allocate(mla_workspace_tokens(ctx) * dummy * sizes.el))
    output = pool.allocate(token * sizes.hidden)
    for tensor in held:
        pool.free(tensor)
    return output


def _feed_forward(
    pool: CachingAllocator, token: int, feed_forward: FeedForward | None, sizes: Sizes
) -> Block | None:
    """The output: an MLP's, the routed experts', or the sum of theirs and the shared experts'."""
    if feed_forward is None:
        return None
    if isinstance(feed_forward, DenseMLP):
        return _mlp(pool, token, share(feed_forward.intermediate_size, sizes.tp), sizes.hidden)
    shared = None
    if feed_forward.shared_intermediate_size:
        width = share(feed_forward.shared_intermediate_size, sizes.tp)
        shared = _mlp(pool, token, width, sizes.hidden)
    routed = pool.allocate(token * sizes.hidden)
    if shared is None:
        return routed
    result = pool.allocate(token * sizes.hidden)
    pool.free(shared)
    pool.free(routed)
    return result


def _mlp(pool: CachingAllocator, token: int, width: int, hidden: int) -> Block:
    gate_up, activated = pool.allocate(token * 2 * width), pool.allocate(token * width)
    pool.free(gate_up)
    output = pool.allocate(token * hidden)
    pool.free(activated)
    return output
