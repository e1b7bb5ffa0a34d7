"""What a release, a GPU and a backend add to the spec of a layer; each rule by hand from the vLLM source named with it (0.33.0
where no release is given). Written because changes of them went unnoticed (docs/mutation.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kv_building import engine
from test_layers import layers_of
from vllm_capacity.architecture.modules import (
    Attention,
    AttentionKind,
    Indexer,
    Mixer,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.attention_backends import AttentionBackend
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model
from vllm_capacity.kv_cache.layer_specs import (
    Setting,
    _kernel_alignment,
    _pads,
    exports_gdn_states,
    layer_state_shapes,
)
from vllm_capacity.kv_cache.layers import _caches, _mixer_slots, _skipped_layers
from vllm_capacity.kv_cache.specs import MambaSpec, MLAAttentionSpec
from vllm_capacity.releases import get_release

CONFIG = load_model("Qwen/Qwen3-8B", offline=True)
ARCHITECTURE = build_architecture(CONFIG, get_release("0.33.0"))


def setting(release: str = "0.33.0", device: str = "H200", **changes: Any) -> Setting:
    return Setting(config=CONFIG, architecture=ARCHITECTURE, engine=engine(**changes), device=find_device(device),
                   release=get_release(release), skipped=frozenset())  # fmt: skip


def gdn(key_head_dim: int = 128) -> StateSpace:
    return StateSpace(kind=StateSpaceKind.GATED_DELTA_NET, conv_kernel=4, num_key_heads=16, num_value_heads=32,
                      key_head_dim=key_head_dim, value_head_dim=128)  # fmt: skip


@pytest.mark.parametrize(
    ("device", "key_head_dim", "exports"),
    [
        ("H200", 128, True), ("H200", 96, True), ("B200", 128, True), ("B200", 96, False), ("B300", 128, True),
        ("RTX PRO 6000", 128, True), ("RTX PRO 6000", 96, False), ("L40S", 128, False), ("A100-80GB", 128, False),
    ],
)  # fmt: skip
def test_flashinfers_prefill_of_gated_delta_nets_exports_states(
    device: str, key_head_dim: int, exports: bool
) -> None:
    """qwen_gdn_linear_attn.py:243-265: capability 9.0; the families of 10.0 and 12.0 with key heads of 128."""
    found = setting(device=device, mamba_cache_mode="align")
    assert exports_gdn_states([gdn(key_head_dim)], found) is exports


def test_states_are_exported_in_mode_align_where_every_layer_can() -> None:
    """`get_mamba_prefill_checkpoint_alignment` (layers/mamba/abstract.py): None unless every Mamba layer has one."""
    other = StateSpace(kind=StateSpaceKind.SHORT_CONV, conv_kernel=3, inner_size=2048)
    assert exports_gdn_states([gdn(), gdn()], setting(mamba_cache_mode="align"))
    assert not exports_gdn_states([gdn(), other], setting(mamba_cache_mode="align"))
    assert not exports_gdn_states([gdn()], setting(mamba_cache_mode="none"))
    assert not exports_gdn_states([gdn()], setting("0.32.0", mamba_cache_mode="align"))


@pytest.mark.parametrize("flag", ["use_replayssm", "use_kda_recoverssm"])
def test_layouts_of_states_that_are_not_modelled_are_refused(flag: str) -> None:
    with pytest.raises(InputError, match="are not modelled"):
        layer_state_shapes(gdn(), setting(args=EngineArgs(others={flag: True})))


@pytest.mark.parametrize(
    ("model", "release", "blocks"),
    [
        ("nvidia/Nemotron-H-8B-Base-8K", "0.31.0", 0), ("nvidia/Nemotron-H-8B-Base-8K", "0.32.0", 1),
        ("ai21labs/Jamba-v0.1", "0.33.0", 0),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.32.0", 0), ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.33.0", 1),
    ],
)  # fmt: skip
def test_prefill_checkpoints_take_a_block(model: str, release: str, blocks: int) -> None:
    """mamba_mixer2.py: get_kv_cache_spec, 0.32.0 on; qwen_gdn_linear_attn.py, 0.33.0; no other kind of state."""
    layers = layers_of(model, release, enable_prefix_caching=True, others={"mamba_cache_mode": "align"})
    states = [run.spec for run in layers.runs if isinstance(run.spec, MambaSpec)]
    assert {spec.num_prefill_checkpoint_blocks for spec in states} == {blocks}


@pytest.mark.parametrize(
    ("release", "role", "leader", "kernel"),
    [("0.29.0", "sparse", False, None), ("0.30.0", "indexer", True, None), ("0.32.0", "indexer", True, 64)],
)
def test_an_indexers_cache_is_a_spec_of_its_own(
    release: str, role: str, leader: bool, kernel: int | None
) -> None:
    """`SparseCacheRole` and `is_index_group_leader`, 0.30.0; kernel blocks of 64 kept whole
    (v1/attention/backends/mla/indexer.py: get_supported_kernel_block_sizes, v1/worker/utils.py), 0.32.0.
    """
    layers = layers_of("deepseek-ai/DeepSeek-V3.2", release, kv_cache_dtype="fp8", tensor_parallel_size=8)
    indexer, latent = (run.spec for run in layers.runs)
    assert isinstance(indexer, MLAAttentionSpec)
    assert isinstance(latent, MLAAttentionSpec)
    assert (indexer.cache_role, indexer.kernel_block_alignment, indexer.head_size) == (role, kernel, 128 + 4)
    assert type(indexer.head_size) is int
    assert (latent.cache_role, latent.is_index_group_leader) == ("sparse", leader)


def test_latents_without_an_indexer_lead_no_group() -> None:
    layers = layers_of("deepseek-ai/DeepSeek-V3", "0.33.0", tensor_parallel_size=8)
    assert {spec.is_index_group_leader for spec in _latents(layers.runs)} == {False}


def _latents(runs: Any) -> list[MLAAttentionSpec]:
    return [run.spec for run in runs if isinstance(run.spec, MLAAttentionSpec)]


@pytest.mark.parametrize(("release", "role"), [("0.30.0", "indexer")])
def test_the_keys_of_block_sparse_attention_have_that_role_too(release: str, role: str) -> None:
    """models/minimax_m3/common/indexer.py: MiniMaxM3IndexerCache.get_kv_cache_spec."""
    layers = layers_of("nvidia/MiniMax-M3-NVFP4", release, tensor_parallel_size=8)
    assert {spec.cache_role for spec in _latents(layers.runs)} == {role}


@pytest.mark.parametrize(
    ("release", "pads"),
    [("0.23.0", False), ("0.24.0", True), ("0.28.0", True), ("0.29.0", False), ("0.33.0", False)],
)
def test_backends_that_read_padded_pages(release: str, pads: bool) -> None:
    """`indexes_kv_by_block_stride` of the attention backends; TurboQuant's says no."""
    assert _pads(AttentionBackend(name="FLASH_ATTN"), get_release(release)) is pads
    assert _pads(AttentionBackend(name="TURBOQUANT"), get_release(release)) is False


def test_fixed_kernel_blocks_are_kept_whole_from_0_32_0_on() -> None:
    """`customize_attention_spec` (v1/worker/utils.py): the largest fixed kernel block; multiples split anywhere."""
    fixed = AttentionBackend(name="A", kernel_block_sizes=(32, 64), takes_multiples=False)
    multiples = AttentionBackend(name="B", kernel_block_sizes=(16,))
    anything = AttentionBackend(name="C", takes_multiples=False)
    newest = get_release("0.33.0")
    assert [_kernel_alignment(b, newest) for b in (fixed, multiples, anything)] == [64, None, None]
    assert [_kernel_alignment(b, get_release("0.31.0")) for b in (fixed, multiples, anything)] == [None] * 3


def test_up_to_0_19_1_a_hybrid_starts_from_blocks_of_16() -> None:
    """`HybridAttentionMambaModelConfig` (models/config.py, 0.19.1); a user's block and other models are left alone."""
    assert layers_of("LiquidAI/LFM2-1.2B", "0.19.1").block_size == 16
    assert layers_of("LiquidAI/LFM2-1.2B", "0.19.1", block_size=64).block_size == 64
    assert layers_of("deepseek-ai/DeepSeek-V3.2", "0.19.1", tensor_parallel_size=8).block_size == 64


def test_a_model_that_names_no_chunk_has_one_of_2048() -> None:
    """`get_mamba_chunk_size` (config/model.py): in mode 'all' a block is whole chunks; 76 tokens hold a state of Jamba."""
    layers = layers_of(
        "ai21labs/Jamba-v0.1", "0.26.0", enable_prefix_caching=True, others={"mamba_cache_mode": "all"}
    )
    assert (layers.block_size, layers.mamba_block_size) == (2048, 2048)


def test_an_unquantised_window_takes_as_many_of_its_tokens_as_fill_the_quantised_page() -> None:
    """`_largest_kernel_block_within` (attention.py, 0.30.0): 64 tokens in fp8 are 32 in bfloat16."""
    layers = layers_of("openai/gpt-oss-20b", "0.33.0", kv_cache_dtype="fp8", block_size=64,
                       others={"kv_cache_dtype_skip_layers": ["sliding_window"]})  # fmt: skip
    windows, full = (run.spec for run in layers.runs)
    assert (windows.block_size, full.block_size) == (32, 64)
    assert windows.page_size_bytes == full.page_size_bytes == 64 * 8 * 64 * 2


@pytest.mark.parametrize(
    ("dtype", "skip", "token"),
    [("turboquant_k8v4", True, 99328), ("turboquant_k8v4", False, 388), ("fp8", True, 512)],
)
def test_a_hybrids_blocks_hold_whole_packed_and_plain_tokens(dtype: str, skip: bool, token: int) -> None:
    """platforms/interface.py:831-841 (0.26.0): lcm of TurboQuant's slot, 256 + 128 + 4 bytes, and 1,024 plain ones, where
    layers are left plain; one head of 256 on each of four ranks. A state has 3 x 2,048 and 8 x 128 x 128 numbers.
    """
    others = {"kv_cache_dtype_skip_layers": ["3"]} if skip else {}
    layers = layers_of(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "0.26.0",
        kv_cache_dtype=dtype,
        tensor_parallel_size=4,
        others=others,
    )
    state = 2 * (3 * 2048 + 8 * 128 * 128)
    block = -(-state // (16 * token)) * 16
    if dtype.startswith("turboquant_") and skip:
        # `_align_heterogeneous_kv_block_size` then counts a token as one byte an element, and covers the state's page
        block = -(-block * token // (16 * 512)) * 16
    assert layers.block_size == block


# -- which layers have a cache --------------------------------------------------------------------
def test_caches_are_in_the_order_of_the_layers() -> None:
    """vLLM registers a layer's cache when it builds the layer: every sixth of gemma-3 is full."""
    layers = layers_of("google/gemma-3-4b-it")
    assert layers.layer_index == tuple(range(34))
    assert {run.layers for run in layers.runs} == {
        tuple(i for i in range(34) if i % 6 != 5), tuple(i for i in range(34) if i % 6 == 5)
    }  # fmt: skip


def test_drafts_stand_behind_the_last_layer_each_with_its_own_cache() -> None:
    drafts: tuple[Mixer, ...] = tuple(
        Attention(num_heads=8, num_kv_heads=8, head_size=size, head_size_v=size) for size in (64, 128)
    )
    caches = _caches(ARCHITECTURE, drafts, frozenset())
    assert caches.layer_index == (*range(36), 36, 37)
    assert [slot.mixer for slot in caches.slots][-2:] == list(drafts)
    assert caches.keys[-2:] == ((36,), (37,))


def test_layers_that_share_a_cache_or_only_encode_have_none() -> None:
    """`Attention.get_kv_cache_spec` returns None for both (layers/attention/attention.py)."""
    plain = Attention(num_heads=8, num_kv_heads=8, head_size=64, head_size_v=64)
    sparse = replace(plain, indexer=Indexer(num_heads=4, head_size=128, top_k=16))
    kinds = [plain, replace(plain, shares_kv=True), replace(plain, kind=AttentionKind.ENCODER_ONLY), sparse]
    assert [len(list(_mixer_slots(mixer))) for mixer in kinds] == [1, 0, 0, 2]


@pytest.mark.parametrize(
    ("layers", "skipped"),
    [(1, set()), (2, {"0", "1"}), (3, {"0", "2"}), (5, {"0", "1", "3", "4"}), (8, {"0", "1", "6", "7"})],
)
def test_turboquant_leaves_at_most_half_of_the_layers_alone(layers: int, skipped: set[str]) -> None:
    """`TurboQuantConfig.get_boundary_skip_layers` (turboquant/config.py:177-212): n = min(2, layers // 2) at each end."""
    architecture = replace(ARCHITECTURE, num_hidden_layers=layers)
    assert _skipped_layers(architecture, engine(kv_cache_dtype="turboquant_k8v4")) == skipped
    assert _skipped_layers(architecture, engine(kv_cache_dtype="fp8")) == set()


def test_only_cross_attention_keeps_encoder_states() -> None:
    """`max_num_encoder_input_tokens` of whisper: its 1,500 source positions."""
    assert layers_of("openai/whisper-large-v3").encoder_tokens == 1500
    assert layers_of("Qwen/Qwen3-8B").encoder_tokens == 0
