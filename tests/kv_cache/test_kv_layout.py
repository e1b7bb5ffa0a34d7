"""The layout of the KV cache: `get_supported_kv_cache_layouts` and `resolve_kv_cache_layout`, 0.33.0."""

from __future__ import annotations

import pytest
from kv_building import engine
from vllm_capacity.attention_backends import AttentionBackend
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import RefusedError
from vllm_capacity.kv_cache.layout import PREFERENCE, resolve_layout
from vllm_capacity.kv_cache.specs import FullAttentionSpec, KVCacheSpec, MambaSpec
from vllm_capacity.releases import get_release

FULL = FullAttentionSpec(block_size=16, num_kv_heads=8, head_size=128)
WIDE = FullAttentionSpec(block_size=16, num_kv_heads=4, head_size=256)


def resolved(
    *layouts: tuple[str, ...] | None,
    specs: tuple[KVCacheSpec, ...] = (FULL,),
    release: str = "0.33.0",
    asked: str = "",
) -> str:
    backends = [AttentionBackend(name=str(n), layouts=these) for n, these in enumerate(layouts)]
    environment = {"VLLM_KV_CACHE_LAYOUT": asked} if asked else {}
    return resolve_layout(
        specs, backends, engine(args=EngineArgs(environment=environment)), get_release(release)
    )


def test_backends_that_leave_it_open_get_the_preferred_one() -> None:
    assert resolved(None, None) == PREFERENCE[0] == "LBNHC"
    assert resolved() == "LBNHC"


def test_a_single_choice_counts() -> None:
    assert resolved(("LBHNC",)) == "LBHNC"
    assert resolved(("BLHNC", "BLNHC"), None) == "BLHNC"


def test_several_choices_are_intersected_and_the_most_wanted_first() -> None:
    assert resolved(("LBHNC", "LBNHC"), ("LBNHC", "BLHNC")) == "LBNHC"
    assert resolved(("LBNHC", "BLHNC"), ("LBHNC", "LBNHC")) == "LBNHC"
    assert resolved(("BLNHC", "LBNHC"), ("LBNHC", "BLNHC"), ("BLNHC", "LBNHC")) == "BLNHC"


def test_pages_of_two_shapes_need_blocks_or_layers_outside_of_heads() -> None:
    """8 heads of 128 and 4 of 256 fill pages of the same size: the heads stand in the way of packing them."""
    assert FULL.page_size_bytes == WIDE.page_size_bytes
    assert resolved(("LHBNC", "BLNHC")) == "LHBNC"
    assert resolved(("LHBNC", "BLNHC"), specs=(FULL, WIDE)) == "BLNHC"
    with pytest.raises(RefusedError, match="need a block-compact layout"):
        resolved(("LHBNC",), specs=(FULL, WIDE))


def test_one_declaration_keeps_its_order_and_several_that_of_vllms_list() -> None:
    """`get_supported_kv_cache_layouts`: identical declarations keep their order, ties of others that of `KVCacheLayout`."""
    one = ("LHBNC", "BLNHC", "BLHNC")
    assert resolved(one, one, specs=(FULL, WIDE)) == "BLNHC"
    assert resolved(one, ("LHBNC", "BLHNC", "BLNHC"), specs=(FULL, WIDE)) == "BLHNC"


def test_shapes_are_those_of_slots() -> None:
    """`resolve_kv_cache_layout`: num_heads of a packed page are its slots; a state is one head and one state."""
    packed = FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, num_head_slots=16, state_content_bytes=256
    )
    assert packed.page_size_bytes == FULL.page_size_bytes
    assert resolved(("LHBNC", "BLNHC"), specs=(FULL, packed)) == "BLNHC"
    token = FullAttentionSpec(block_size=1, num_kv_heads=1, head_size=128)
    state = MambaSpec(block_size=16, shapes=((256,),), dtypes=("bfloat16",))
    assert token.page_size_bytes == state.page_size_bytes
    assert resolved(("LHBNC", "BLNHC"), specs=(token, state)) == "LHBNC"


def test_the_variable_wins_where_every_backend_can_read_it() -> None:
    assert resolved(("LBNHC", "LBHNC"), asked="hnd") == "LBHNC"
    with pytest.raises(RefusedError, match="VLLM_KV_CACHE_LAYOUT=NHD does not satisfy"):
        resolved(("LBHNC",), asked="NHD")


def test_before_0_29_0_there_is_one_layout() -> None:
    assert resolved(("LBHNC",), release="0.28.0") == "LBNHC"
