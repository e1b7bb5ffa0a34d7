"""Rules of single specs and groups at their edges, each by hand from vLLM's sentence named with it (0.33.0 where no release is
given). Written because changes of them went unnoticed (docs/mutation.md).
"""

from __future__ import annotations

from typing import Any

import pytest
from kv_building import GIB, engine, kv_layers_from_specs, plan
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.kv_cache.grouping import group_layers
from vllm_capacity.kv_cache.merging import is_uniform_type
from vllm_capacity.kv_cache.packing import approximate_gcd
from vllm_capacity.kv_cache.planning import fill, kv_pool, minimal_kv_bytes, request_limits, tokens_per_block
from vllm_capacity.kv_cache.pool import blocks_per_request, bytes_per_block
from vllm_capacity.kv_cache.specs import (
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheGroup,
    KVCacheSpec,
    KVQuantMode,
    LayerRun,
    MambaSpec,
    MLAAttentionSpec,
    RequestLimits,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases import get_release

HEADS: dict[str, Any] = {"num_kv_heads": 8, "head_size": 128}
FULL = FullAttentionSpec(block_size=16, **HEADS)
SINGLE = FullAttentionSpec(block_size=1, **HEADS)
WINDOW = SlidingWindowSpec(block_size=16, **HEADS, sliding_window=1024)
STATE = MambaSpec(block_size=64, shapes=((4, 8),), dtypes=("bfloat16",))
HYBRID: list[KVCacheSpec] = [
    FULL if i % 4 == 3 else MambaSpec(block_size=32768, shapes=((8000,),), dtypes=("bfloat16",),
                                      page_size_padded=FULL.page_size_bytes)
    for i in range(12)
]  # fmt: skip
"""As tests/kv_cache/test_planning.py: one attention layer after every three states, pages alike."""
BLOCK = 4 * FULL.page_size_bytes
LIMITS = RequestLimits(max_model_len=64, in_flight_tokens=16)


# -- pages that one request may need ------------------------------------------------------------
def test_undivided_requests_are_whole() -> None:
    assert FULL.max_pages(LIMITS) == 4
    assert FULL.max_pages(RequestLimits(max_model_len=64, in_flight_tokens=16, kv_shards=2)) == 2


@pytest.mark.parametrize(("window", "pages"), [(17, 2 + 1), (18, 3 + 1)])
def test_a_window_keeps_one_token_less_than_its_length(window: int, pages: int) -> None:
    """`SlidingWindowSpec.max_admission_blocks_per_request`: window - 1 + in flight, and one block."""
    spec = SlidingWindowSpec(block_size=16, **HEADS, sliding_window=window)
    assert spec.max_pages(RequestLimits(max_model_len=4096, in_flight_tokens=16)) == pages


def test_rings_take_one_block_and_encoders_none() -> None:
    """`CircularBufferSpec.max_memory_usage_bytes`, `EncoderOnlyAttentionSpec.max_memory_usage_bytes`."""
    assert CircularBufferSpec(block_size=8, **HEADS).max_pages(LIMITS) == 1
    assert EncoderOnlyAttentionSpec(block_size=16, **HEADS).max_pages(LIMITS) == 0


def test_speculative_states_are_added_to_all_blocks_from_0_22_0_on() -> None:
    """`MambaSpec.max_memory_usage_bytes`, mode 'all', 0.21.0 and 0.26.0."""
    spec = MambaSpec(block_size=16, shapes=((4,),), dtypes=("bfloat16",), num_speculative_blocks=2)
    for adds, extra in ((True, 2), (False, 0)):
        limits = RequestLimits(
            max_model_len=64, in_flight_tokens=16, mamba_cache_mode="all", mamba_all_adds_speculative=adds
        )
        assert spec.max_pages(limits) == 4 + extra


def test_latent_windows_with_scales() -> None:
    """0.26.0: unpadded_page_size_bytes adds two fp32 scales for each token and head."""
    spec = SlidingWindowMLASpec(
        block_size=64, num_kv_heads=1, head_size=512, dtype="int8", sliding_window=128,
        kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD,
    )  # fmt: skip
    assert spec.page_size_bytes == 64 * (512 + 8)


def test_strides_are_aligned_where_a_kernel_block_is_smaller_than_the_block() -> None:
    """`get_block_stride_alignment`: 1 where the block is one kernel block, and where nothing is asked."""
    whole = FullAttentionSpec(block_size=16, **HEADS, kernel_block_alignment=64)
    split = FullAttentionSpec(block_size=64, **HEADS, kernel_block_alignment=16)
    assert (whole.stride_alignment_bytes, FULL.stride_alignment_bytes, STATE.stride_alignment_bytes) == (
        1,
        1,
        1,
    )
    assert split.stride_alignment_bytes == FULL.page_size_bytes


# -- grouping -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "lower", "best"),
    [([7, 11], 7, 7), ([7, 11], 12, 12), ([62, 22, 21], 22, 22), ([20, 20, 40], 20, 20), ([5, 9, 13], 1, 1),
     ([30, 31], 2, 31), ([4, 4], 4, 4), ([3], 0, 3), ([6, 10, 15], 0, 1)],
)  # fmt: skip
def test_the_group_size_that_pads_least(values: list[int], lower: int, best: int) -> None:
    """What `_approximate_gcd` (v1/core/kv_cache_planning.py, 0.33.0) returns."""
    assert approximate_gcd(values, lower) == best


def _grouped(specs: list[KVCacheSpec], release: str) -> tuple[KVCacheGroup, ...]:
    return group_layers(kv_layers_from_specs(specs, 16), get_release(release))


def test_states_beside_compressed_latents_are_not_modelled_where_vllm_has_a_rule_of_its_own() -> None:
    """`_get_kv_cache_groups_glm5_next` of 0.30.0 and 0.31.0: states, compressed latents, rings and nothing else."""
    plain = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, page_size_padded=64 * 576 * 2)
    compressed = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=576, tokens_per_state=2)
    ring = CircularBufferSpec(block_size=8, num_kv_heads=1, head_size=128)
    for specs in ([STATE, plain, compressed], [STATE, compressed, ring]):
        for release in ("0.30.0", "0.31.0"):
            with pytest.raises(InputError, match="by a rule that is not modelled"):
                _grouped([*specs, *specs], release)
    assert len(_grouped([STATE, compressed] * 2, "0.32.0")) == 2, "the general rule again"
    state = MambaSpec(
        block_size=64, shapes=((4, 8),), dtypes=("bfloat16",), page_size_padded=FULL.page_size_bytes
    )
    assert len(_grouped([state, FULL], "0.31.0")) == 2, "full attention has another rule"
    wide = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=1024)
    state = MambaSpec(
        block_size=64, shapes=((4, 8),), dtypes=("bfloat16",), page_size_padded=wide.page_size_bytes
    )
    assert len(_grouped([state, wide], "0.31.0")) == 2, "nothing is compressed"
    latents = MLAAttentionSpec(block_size=128, num_kv_heads=1, head_size=576, tokens_per_state=2)
    whole = MLAAttentionSpec(block_size=128, num_kv_heads=1, head_size=132, dtype="uint8")
    assert len(_grouped([latents, whole], "0.31.0")) == 1, "no states"


@pytest.mark.parametrize(
    ("release", "sentence"),
    [
        (
            "0.22.0",
            "The page size of the layer is not divisible by the maximum page size. Cannot unify by adjusting",
        ),
        (
            "0.26.0",
            r"Layer 1: .* only supported for attention layers whose backend indexes KV pages by the block stride",
        ),
        ("0.33.0", "Layer 1: .* only supported for non-MLA attention layers."),
    ],
)
def test_pages_that_do_not_divide_are_refused_in_the_words_of_the_release(
    release: str, sentence: str
) -> None:
    """`unify_kv_cache_spec_page_size` (v1/core/kv_cache_utils.py, kv_cache_planning.py)."""
    latent = MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=576)
    wide = SlidingWindowMLASpec(block_size=16, num_kv_heads=1, head_size=5000, sliding_window=128)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_size=200, sliding_window=128)
    specs: list[KVCacheSpec] = [window, latent] * 2 if release != "0.33.0" else [wide, latent, window] * 2
    with pytest.raises(RefusedError, match=sentence):
        _grouped(specs, release)


def test_a_padded_page_that_does_not_grow_with_its_block_is_refused() -> None:
    """`unify_kv_cache_spec_page_size` makes the block twice as large and asserts that the page is."""
    wide = FullAttentionSpec(block_size=64, **HEADS)
    padded = SlidingWindowSpec(
        block_size=16, **HEADS, sliding_window=512, page_size_padded=wide.page_size_bytes // 2
    )
    with pytest.raises(RefusedError, match="page size is not divisible"):
        _grouped([wide, padded] * 4, "0.33.0")


def test_layers_of_a_window_that_do_not_pair_up_are_refused() -> None:
    """0.26.0: `_get_kv_cache_groups_uniform_groups` asserts that every page size has as many layers."""
    common: dict[str, Any] = {"num_kv_heads": 1, "alignment": 576, "model_version": "deepseek_v4"}
    narrow, wide = (
        MLAAttentionSpec(block_size=64, head_size=size, dtype="float32", **common) for size in (64, 128)
    )
    small, large = (
        SlidingWindowMLASpec(block_size=8, head_size=size, dtype="float32", sliding_window=128, **common)
        for size in (512, 1024)
    )
    assert plan([narrow, wide, small, large] * 2).num_blocks > 0
    with pytest.raises(RefusedError, match="same number of layers per page size"):
        plan([narrow, wide, small, large, large] * 2)


def test_hidden_states_that_fit_no_page_are_refused_up_to_0_29_0() -> None:
    """0.26.0 asserts that a token fits (`replace(spec, page_size_padded=...)`); `_ensure_min_page_size` since 0.30.0."""
    hidden = HiddenStateCacheSpec(block_size=16, num_kv_heads=4, head_size=8192)
    specs: list[KVCacheSpec] = [FULL, WINDOW, FULL, WINDOW, hidden]
    small = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=1, head_size=64, sliding_window=64)
    assert len(_grouped(specs, "0.26.0")) == 3
    narrow: list[KVCacheSpec] = [small, window, small, window, hidden]
    with pytest.raises(
        RefusedError, match="Hidden states of 65536 bytes per token do not fit a page of 4096"
    ):
        _grouped(narrow, "0.26.0")
    assert [group.spec.page_size_bytes for group in _grouped(narrow, "0.30.0")] == [65536] * 3


def test_hidden_states_beside_one_group() -> None:
    """Their page is the common one (kv_cache_planning.py: get_kv_cache_groups)."""
    hidden = HiddenStateCacheSpec(block_size=16, num_kv_heads=1, head_size=2048)
    assert [group.spec.page_size_bytes for group in _grouped([WINDOW, hidden, WINDOW], "0.33.0")] == [
        65536
    ] * 2


@pytest.mark.parametrize(("release", "window"), [("0.20.2", 32768), ("0.22.0", 33792)])
def test_a_window_kept_as_full_attention_lost_its_scales_at_first(release: str, window: int) -> None:
    """`unify_hybrid_kv_cache_specs` rebuilt the spec without `kv_quant_mode`; bytes of 0.22.0 by its own planner."""
    mode: dict[str, Any] = {
        "block_size": 16,
        **HEADS,
        "dtype": "int8",
        "kv_quant_mode": KVQuantMode.INT8_PER_TOKEN_HEAD,
    }
    specs = [FullAttentionSpec(**mode), SlidingWindowSpec(**mode, sliding_window=512)] * 4
    found = plan(specs, release=release, hybrid_kv_cache_manager_disabled=True)
    assert found.bytes_per_block == 4 * 33792 + 4 * window


def test_latent_windows_alone_are_refused_where_they_belong_to_latents() -> None:
    """`_get_kv_cache_groups_uniform_groups` of 0.26.0 puts the full latents first."""
    windows = [
        SlidingWindowMLASpec(
            block_size=block, num_kv_heads=1, head_size=512, dtype="float32", sliding_window=2 * block
        )
        for block in (4, 8)
    ]
    with pytest.raises(RefusedError, match="Some layers are not assigned to any group"):
        _grouped([*windows, *windows], "0.26.0")


def test_the_first_layer_says_what_is_of_its_type() -> None:
    """`is_uniform_with_collection` of the first spec: windows take latent ones with them, not the other way round."""
    window = SlidingWindowSpec(block_size=16, **HEADS, sliding_window=128)
    latent = SlidingWindowMLASpec(block_size=16, num_kv_heads=1, head_size=512, sliding_window=128)
    assert is_uniform_type([window, latent], get_release("0.33.0"))
    assert not is_uniform_type([latent, window], get_release("0.33.0"))


def test_slots_are_those_of_the_groups_on_the_stage() -> None:
    """`_pool_bytes_per_block`, 0.23.0 to 0.26.0: the most layers of each page size that a group here has."""

    def group(head_size: int, layers: tuple[int, ...]) -> KVCacheGroup:
        spec = MLAAttentionSpec(block_size=64, num_kv_heads=1, head_size=head_size, dtype="uint8")
        return KVCacheGroup(UniformTypeKVCacheSpecs(block_size=64, runs=(LayerRun(spec, layers),)), layers)

    groups = (group(512, (0, 1, 2)), group(512, ()), group(512, (4, 5)), group(128, (6,)))
    assert bytes_per_block(groups, get_release("0.25.0"), block_outermost=False) == 64 * (3 * 512 + 128)


def test_without_layers_there_is_nothing_to_promote() -> None:
    assert plan([], hybrid_kv_cache_manager_disabled=True).num_blocks == 1


def test_states_are_never_of_one_type_with_attention_that_is_not_divided() -> None:
    """Only attention has `dcp_sharded`; what has not counts as not divided."""
    whole = FullAttentionSpec(block_size=64, **HEADS, dcp_sharded=False)
    assert is_uniform_type([whole, whole], get_release("0.33.0"))
    assert not is_uniform_type([whole, STATE], get_release("0.33.0"))
    with pytest.raises(InputError, match="layers of kind encoder-only attention"):
        is_uniform_type([EncoderOnlyAttentionSpec(block_size=16, **HEADS)], get_release("0.33.0"))


# -- the pool -----------------------------------------------------------------------------------
def test_a_model_without_a_cache_has_nothing_of_a_pool() -> None:
    free = plan([])
    assert (free.bytes_per_block, free.marginal_bytes_per_token, free.fixed_bytes_per_sequence) == (0, 0.0, 0)
    assert (free.pool_tokens, free.blocks_for(100)) == (0, 0)
    assert minimal_kv_bytes(kv_layers_from_specs([], 16), engine(), get_release("0.33.0")) == 0


def test_encoder_states_of_no_token_take_no_block() -> None:
    """`CrossAttentionSpec.max_memory_usage_bytes` of no encoder tokens; concurrency has nothing to divide by."""
    for release in ("0.26.0", "0.33.0"):
        found = plan([CrossAttentionSpec(block_size=16, **HEADS)] * 4, release=release)
        assert (found.blocks_per_request, found.max_concurrency) == (0, 0.0)
    assert blocks_per_request((KVCacheGroup(FULL, ()),), LIMITS, get_release("0.26.0")) == 0


@pytest.mark.parametrize(("release", "shards"), [("0.25.1", 2 * 2), ("0.26.0", 2)])
def test_prompts_divided_over_ranks_shard_the_cache_up_to_0_25_1(release: str, shards: int) -> None:
    """`FullAttentionSpec.max_memory_usage_bytes`: dcp x pcp, dcp alone from 0.26.0 on."""
    both = engine(parallel=ParallelConfig(dcp=2, pcp=2))
    limits = request_limits(both, get_release(release))
    assert (limits.kv_shards, limits.encoder_tokens) == (shards, 0)


def test_up_to_0_19_1_printed_tokens_are_those_of_all_shards() -> None:
    """`_report_kv_cache_config`: num_blocks // groups x block size x dcp x pcp."""
    blocks = plan([FULL] * 4, release="0.19.0").num_blocks
    assert plan([FULL] * 4, release="0.19.0", dcp=2).size_tokens == blocks * 16 * 2
    assert (
        plan([FULL] * 4, release="0.19.0", parallel=ParallelConfig(dcp=2, pcp=3)).size_tokens
        == blocks * 16 * 6
    )


def test_tokens_behind_a_block() -> None:
    """A block of a divided layer is one on every shard."""
    two = RequestLimits(max_model_len=64, in_flight_tokens=16, kv_shards=2)
    everything = RequestLimits(max_model_len=64, in_flight_tokens=16, mamba_cache_mode="all")
    whole = FullAttentionSpec(block_size=16, **HEADS, dcp_sharded=False)
    assert (tokens_per_block(FULL, two), tokens_per_block(whole, two)) == (32, 16)
    assert (tokens_per_block(STATE, everything), tokens_per_block(WINDOW, everything)) == (64, None)
    assert tokens_per_block(STATE, LIMITS) is None


@pytest.mark.parametrize(
    ("specs", "blocks", "tokens"),
    [
        ([FULL] * 4, 1, 0),
        ([FULL] * 4, 2, 16),
        ([SINGLE] * 4, 2, 1),
        ([WINDOW] * 4, 2, 0),
        ([WINDOW] * 4, 3, 16),
    ],
)
def test_small_pools(specs: list[KVCacheSpec], blocks: int, tokens: int) -> None:
    """Block 0 is nobody's; a window may lie across one block more than it fills."""
    found = plan(specs, blocks * 4 * specs[0].page_size_bytes, max_model_len=4096)
    assert found.num_blocks == blocks
    if specs[0] is WINDOW and tokens:
        assert found.blocks_for(tokens) == blocks - 1
        return
    assert (found.pool_tokens, type(found.pool_tokens)) == (tokens, int)


def test_a_pool_that_holds_one_token_of_two_groups() -> None:
    """A block of the full layer, two of the window's; a second token takes one more of each."""
    window = SlidingWindowSpec(block_size=1, **HEADS, sliding_window=8)
    found = plan([SINGLE, window] * 2, (1 + 3) * 2 * SINGLE.page_size_bytes, max_model_len=64)
    assert (found.num_blocks, found.blocks_for(1), found.blocks_for(2)) == (4, 3, 5)
    assert found.pool_tokens == 1
    less = plan([SINGLE, window] * 2, 3 * 2 * SINGLE.page_size_bytes, max_model_len=64)
    assert (less.num_blocks, less.pool_tokens) == (3, 0)


def test_sinks_take_whole_blocks() -> None:
    """`SinkFullAttentionManager`: sink_len // block_size blocks."""
    sinks = SinkFullAttentionSpec(block_size=16, **HEADS, sink_len=72)
    found = plan([sinks] * 4, GIB, max_model_len=4096).pool_tokens
    assert (found, type(found)) == ((4096 - 1 - 4) * 16, int)


def test_states_of_drafts_are_the_sequence_s_own() -> None:
    """1 + 2 blocks a sequence: 100 usable blocks hold 33 of the longest."""
    spec = MambaSpec(block_size=512, shapes=((4, 8),), dtypes=("bfloat16",), num_speculative_blocks=2)
    found = plan([spec] * 4, 101 * 4 * 64, max_model_len=512, cudagraph_mode="NONE")
    assert (found.num_blocks, found.pool_tokens) == (101, 33 * 512)


# -- refusals -----------------------------------------------------------------------------------
def test_one_byte_is_memory() -> None:
    """`_check_enough_kv_cache_memory` asks for more than 0 bytes first."""
    refusal = plan([FULL] * 4, 1).refusal
    assert refusal is not None
    assert refusal.reason is Reason.ONE_REQUEST_DOES_NOT_FIT
    none = plan([FULL] * 4, 0).refusal
    assert none is not None
    assert (none.reason, none.needed_bytes, none.estimated_max_model_len) == (Reason.NO_KV_MEMORY, 0, 0)


@pytest.mark.parametrize(("release", "aside"), [("0.20.2", False), ("0.22.0", True)])
def test_refusals_speak_of_cpu_memory_since_the_flag_rules_it(release: str, aside: bool) -> None:
    """`_check_enough_kv_cache_memory`, v1/core/kv_cache_utils.py."""
    none, little = plan([FULL] * 4, 0, release).refusal, plan([FULL] * 4, BLOCK, release).refusal
    assert none is not None
    assert little is not None
    assert ("this flag also controls CPU memory reservation on the CPU backend" in none.message) is aside
    assert ("(which also controls CPU memory on the CPU backend)" in little.message) is aside


@pytest.mark.parametrize(("tokens", "auto"), [(1, True), (1, False), (2, False), (0, False)])
def test_the_longest_request_may_be_one_token(tokens: int, auto: bool) -> None:
    """`_estimate_max_model_len_from_groups` searches from 1 on."""
    memory = tokens * 4 * SINGLE.page_size_bytes + 1
    found = plan([SINGLE] * 4, memory, max_model_len=64, max_model_len_auto=auto)
    if auto:
        assert (found.refusal, found.max_model_len) == (None, tokens)
        return
    assert found.refusal is not None
    assert found.refusal.estimated_max_model_len == tokens
    said = f"the estimated maximum model length is {tokens}. "
    assert (said in found.refusal.message) is (tokens > 0)


def test_a_search_asks_for_no_estimate() -> None:
    pool = kv_pool(kv_layers_from_specs([FULL] * 4, 16), engine(max_model_len=4096), get_release("0.26.0"))
    refusal = fill(pool, [100 * BLOCK], in_words=False).refusal
    assert refusal is not None
    assert refusal.estimated_max_model_len == 0
    assert "estimated" not in refusal.message


@pytest.mark.parametrize(
    ("specs", "release", "mode", "cap"),
    [
        (HYBRID, "0.19.1", "FULL", 200),
        (HYBRID, "0.19.1", "PIECEWISE", None),
        (HYBRID, "0.26.0", "PIECEWISE", None),
        ([FULL] * 12, "0.19.1", "FULL", None),
    ],
)
def test_states_cap_full_graphs_up_to_0_19_1(
    specs: list[KVCacheSpec], release: str, mode: str, cap: int | None
) -> None:
    """vLLM cut the capture sizes to the state blocks before it refused instead (v1/worker/gpu_model_runner.py)."""
    layers = max(len(group.layers) for group in _grouped(specs, release))
    found = plan(specs, 200 * layers * FULL.page_size_bytes, release, max_model_len=1024, cudagraph_mode=mode)
    assert found.num_blocks == 200
    assert found.graph_size_cap == cap


@pytest.mark.parametrize("layout", ["LBNHC", "BLNHC"])
def test_full_graphs_need_a_state_block_per_sequence_in_packed_groups_too(layout: str) -> None:
    """`resolve_cudagraph_mode_and_sizes`; uniform groups hold several specs (0.29.0 on)."""
    small = MambaSpec(block_size=32768, shapes=((8000,),), dtypes=("bfloat16",))
    large = MambaSpec(block_size=32768, shapes=((9000,),), dtypes=("bfloat16",))
    specs: list[KVCacheSpec] = [FULL, small, large] * 4
    found = plan(
        specs, 100 * 12 * FULL.page_size_bytes, "0.33.0", layout=layout, max_model_len=64, max_num_seqs=5000
    )
    assert found.refusal is not None
    assert found.refusal.reason is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS
    full = plan([FULL, WINDOW] * 4, 100 * BLOCK, "0.33.0", layout=layout, max_model_len=64, max_num_seqs=5000)
    assert full.refusal is None
