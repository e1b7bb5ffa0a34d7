"""LoRA, speculative decoding and offloading: against published parameter counts and vLLM's own shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded import H200, run_named
from vllm_capacity.activations.live import Sizes
from vllm_capacity.activations.workspace import shared_workspace
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.context import RankContext
from vllm_capacity.inputs.models import load_model
from vllm_capacity.ledger import Allocator, Component, MemoryTerm
from vllm_capacity.overheads import overhead_terms
from vllm_capacity.overheads.speculative import speculative_terms
from vllm_capacity.releases import get_release
from vllm_capacity.units import GIB, MIB
from vllm_capacity.weights.rank import rank_weights


def context(model: str | None = None, *, tp: int = 1, **others: Any) -> RankContext:
    """Llama-3.1-8B on H200 as recorded, or another model in its place, with flags in `others`."""
    ctx = run_named("h200/llama31-8b").context()
    engine = replace(
        ctx.engine, parallel=replace(ctx.engine.parallel, tp=tp), args=replace(ctx.engine.args, others=others)
    )
    if model is None:
        return replace(ctx, engine=engine)
    config = load_model(model, offline=True)
    architecture = build_architecture(config, ctx.release)
    layers = tuple((group, len(group.indices)) for group in architecture.layers)
    return replace(
        ctx,
        config=config,
        architecture=architecture,
        layers=layers,
        engine=replace(engine, quantization=None),
        device=H200,
    )


def unquantised(model: str, **others: Any) -> RankContext:
    ctx = context(model, **others)
    return replace(ctx, config=replace(ctx.config, quantization=None))


def offloading(**others: Any) -> RankContext:
    """A release whose model runner V2 obeys the flags; 0.26.0's, which was recorded, does not."""
    return replace(context(**others), release=get_release("0.28.0"))


def named(ctx: RankContext, name: str) -> MemoryTerm:
    return next(t for t in overhead_terms(ctx) if t.name == name)


def test_adapter_parameters_equal_pefts_count_for_all_linear_layers() -> None:
    """PEFT prints 41,943,040 trainable parameters for rank 16 on Llama-3.1-8B with all linear layers as
    targets; vLLM also
    reserves matrices for embedding and head, which that count leaves out."""
    hidden, vocab = 4096, 128256
    linear = adapters(enable_lora=True, max_lora_rank=16) // 2 - 16 * 2 * (hidden + vocab)
    assert linear == 41_943_040


def adapters(**flags: Any) -> int:
    """Bytes of the matrices alone."""
    found = named(context(**flags), "lora_adapters")
    return found.n_bytes - int(found.values["blocks"])


def test_slots_and_rank_scale_adapters() -> None:
    one = adapters(enable_lora=True, max_lora_rank=16)
    assert adapters(enable_lora=True, max_loras=4, max_lora_rank=64) == 16 * one


def test_fully_sharded_adapters_divide_what_others_repeat() -> None:
    """At tp 2 the A of column layers and the B of row layers are whole on each rank unless
    --fully-sharded-loras is given.
    """
    usual = adapters(tp=2, enable_lora=True, max_lora_rank=16)
    sharded = adapters(tp=2, enable_lora=True, max_lora_rank=16, fully_sharded_loras=True)
    per_layer = 16 * (3 * 4096 + 2 * 4096 + 2 * 4096) * 2
    assert usual - sharded == 32 * per_layer // 2


def test_experts_have_adapters_of_their_own() -> None:
    dense = named(context("Qwen/Qwen3-8B", enable_lora=True), "lora_adapters").n_bytes
    moe = named(context("Qwen/Qwen3-30B-A3B", enable_lora=True), "lora_adapters").n_bytes
    experts = 16 * 128 * 48 * (2 * (2048 + 768) + 768 + 2048) * 2
    assert moe > experts > dense


def test_mtp_layer_of_deepseek_v3_has_its_published_size() -> None:
    """The DeepSeek-V3 repository: 11.5 billion parameters of the MTP module are its own."""
    ctx = unquantised(
        "deepseek-ai/DeepSeek-V3", speculative_config={"method": "deepseek_mtp", "num_speculative_tokens": 1}
    )
    weights = next(t for t in speculative_terms(ctx) if t.name == "draft_weights")
    assert weights.n_bytes / 2 == pytest.approx(11.5e9, rel=0.01)


def test_an_unknown_draft_is_named_and_bounded_not_guessed() -> None:
    ctx = context(
        speculative_config={"method": "eagle3", "model": "someone/draft", "num_speculative_tokens": 3}
    )
    weights = named(ctx, "draft_weights")
    assert weights.n_bytes == 0
    assert weights.high > 0
    assert "not known" in weights.note


def test_eagle3_draft_by_its_config() -> None:
    """Eagle3LlamaForCausalLM: first qkv reads 2 H, fc maps 3 H to H, head over 32,000 draft tokens."""
    draft = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "max_position_embeddings": 2048,
        "rope_theta": 500000.0,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "num_hidden_layers": 1,
        "draft_vocab_size": 32000,
        "vocab_size": 128256,
    }
    ctx = context(speculative_config={"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3})
    ctx = replace(ctx, config=replace(ctx.config, facts={**ctx.config.facts, "draft_config": draft}))
    dummy = replace(ctx, engine=replace(ctx.engine, args=replace(ctx.engine.args, others={
        **ctx.engine.args.others, "load_format": "dummy"})))  # fmt: skip
    layer = 6144 * 2 * 4096 + 4096 * 4096 + 3 * 14336 * 4096 + 3 * 4096
    elements = layer + 3 * 4096 * 4096 + 32000 * 4096 + 4096
    # beside them the head's own rope cache and four fp32 scales
    assert named(ctx, "draft_weights").n_bytes == elements * 2 + 8 * 32000 + 2048 * 128 * 2 + 16
    assert named(ctx, "draft_weights").n_bytes - 32000 * 4096 * 2 == named(dummy, "draft_weights").n_bytes


def test_ngram_needs_neither_weights_nor_buffers() -> None:
    ctx = context(speculative_config={"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4})
    assert sum(t.n_bytes for t in overhead_terms(ctx) if t.component is Component.SPECULATIVE) == 0


def test_offloaded_weights_leave_the_gpu_and_are_pinned_on_the_host() -> None:
    terms = [t for t in overhead_terms(offloading(cpu_offload_gb=4)) if t.component is Component.OFFLOAD]
    device = sum(t.n_bytes for t in terms if t.allocator is not Allocator.HOST)
    host = sum(t.n_bytes for t in terms if t.allocator is Allocator.HOST)
    assert device == -4 * GIB
    assert host == 4 * GIB


def test_no_more_than_the_layers_can_be_offloaded() -> None:
    ctx = offloading(cpu_offload_gb=1000)
    layers = sum(g.n_bytes for s in rank_weights(ctx).layers for g in s.groups if not g.buffer)
    assert named(ctx, "offloaded_weights").n_bytes == layers


def test_prefetch_offload_keeps_slots_for_the_layers_on_their_way() -> None:
    ctx = offloading(offload_group_size=8, offload_num_in_group=2, offload_prefetch_step=1)
    slots, moved = named(ctx, "prefetch_slots"), named(ctx, "offloaded_weights")
    assert moved.n_bytes == 8 * slots.n_bytes


def test_sleep_mode_pins_the_weights_on_the_host() -> None:
    assert named(context(enable_sleep_mode=True), "sleeping_weights").allocator is Allocator.HOST


def test_kv_offloading_size_is_shared_by_the_ranks() -> None:
    assert named(context(tp=2, kv_offloading_size=64), "offloaded_kv_cache").n_bytes == 32 * GIB


def test_indexer_workspace_of_deepseek_v32_is_the_825_mib_of_vllms_comment() -> None:
    """v1/attention/backends/mla/indexer.py: 40 * 163840 * 132 = 865,075,200 bytes; plus 1 MiB for top-k."""
    ctx = context("deepseek-ai/DeepSeek-V3.2", tp=8)
    ctx = replace(ctx, engine=replace(ctx.engine, max_model_len=163840, max_num_batched_tokens=1024))
    (workspace,) = shared_workspace(ctx, Sizes.of(ctx))
    assert workspace.n_bytes == 40 * 163840 * 132 + MIB


def test_the_workspace_is_the_largest_request_not_the_sum() -> None:
    """With 8,192 tokens the experts of DeepSeek-V3.2 ask for more than its indexer."""
    ctx = context("deepseek-ai/DeepSeek-V3.2", tp=8)
    ctx = replace(ctx, engine=replace(ctx.engine, max_model_len=163840, max_num_batched_tokens=8192))
    (workspace,) = shared_workspace(ctx, Sizes.of(ctx))
    assert workspace.name == "moe_workspace"
    assert workspace.n_bytes == 2 * 8192 * 8 * 7168 * 2
