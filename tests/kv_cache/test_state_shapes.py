"""Shapes and dtypes of recurrent states: what `MambaStateShapeCalculator` and `MambaStateDtypeCalculator`
(vllm/model_executor/layers/mamba/mamba_utils.py) of 0.22.0, 0.26.0 and 0.33.0 return for these arguments.
"""

from __future__ import annotations

import pytest
from vllm_capacity.architecture.modules import StateSpace, StateSpaceKind
from vllm_capacity.errors import RefusedError
from vllm_capacity.kv_cache.state_shapes import Shapes, state_dtypes, state_shapes
from vllm_capacity.releases import get_release

MAMBA1 = StateSpace(kind=StateSpaceKind.MAMBA1, conv_kernel=4, inner_size=8192, state_size=16)
MAMBA2 = StateSpace(kind=StateSpaceKind.MAMBA2, conv_kernel=4, inner_size=4096, n_groups=8, num_heads=64,
                    head_dim=64, state_size=128)  # fmt: skip
ONE_GROUP = StateSpace(kind=StateSpaceKind.MAMBA2, conv_kernel=4, inner_size=4096, n_groups=1, num_heads=64,
                       head_dim=64, state_size=128)  # fmt: skip
GDN = StateSpace(kind=StateSpaceKind.GATED_DELTA_NET, conv_kernel=4, num_key_heads=16, num_value_heads=32,
                 key_head_dim=128, value_head_dim=96)  # fmt: skip
KDA = StateSpace(kind=StateSpaceKind.KIMI_DELTA, conv_kernel=4, num_heads=32, head_dim=128)
NARROW_KEYS = StateSpace(kind=StateSpaceKind.KIMI_DELTA, conv_kernel=4, num_heads=32, head_dim=128,
                         num_key_heads=16, key_head_dim=64)  # fmt: skip
SHORT = StateSpace(kind=StateSpaceKind.SHORT_CONV, conv_kernel=3, inner_size=2048)
LINEAR = StateSpace(kind=StateSpaceKind.LINEAR_ATTENTION, num_heads=64, head_dim=96)


@pytest.mark.parametrize(
    ("mixer", "tp", "release", "drafts", "shapes"),
    [
        (MAMBA1, 2, "0.33.0", 0, ((3, 4096), (4096, 16))),
        (MAMBA2, 2, "0.26.0", 2, ((5, 3072), (32, 64, 128))),
        (ONE_GROUP, 8, "0.26.0", 0, ((3, 768), (8, 64, 128))),
        (GDN, 4, "0.26.0", 2, ((5, 1792), (8, 96, 128))),
        (KDA, 2, "0.22.0", 2, ((3, 2048), (3, 2048), (3, 2048), (16, 128, 128))),
        (NARROW_KEYS, 2, "0.22.0", 2, ((3, 2048), (3, 512), (3, 512), (16, 128, 128))),
        (KDA, 2, "0.26.0", 2, ((3, 6144), (16, 128, 128))),
        (NARROW_KEYS, 2, "0.26.0", 2, ((3, 3072), (16, 128, 128))),
        (NARROW_KEYS, 2, "0.33.0", 2, ((5, 3072), (16, 128, 128))),
        (SHORT, 2, "0.26.0", 2, ((2, 1024),)),
        (SHORT, 2, "0.33.0", 2, ((4, 1024),)),
        (LINEAR, 8, "0.33.0", 0, ((8, 96, 96),)),
    ],
)
def test_shapes_are_vllms(mixer: StateSpace, tp: int, release: str, drafts: int, shapes: Shapes) -> None:
    found = state_shapes(mixer, tp, get_release(release), speculative_tokens=drafts)
    assert found == shapes
    assert all(type(size) is int for shape in found for size in shape)


def test_a_dimension_that_tp_does_not_divide_is_refused() -> None:
    """`divide` (vllm/distributed/utils.py) asserts."""
    with pytest.raises(RefusedError, match="4096 is not divisible by 3"):
        state_shapes(StateSpace(kind=StateSpaceKind.MAMBA1, inner_size=4096), 3, get_release("0.33.0"))


@pytest.mark.parametrize(
    ("release", "conv", "ssm", "dtypes"),
    [
        ("0.22.0", "auto", "auto", ("bfloat16", "bfloat16", "bfloat16", "float32")),
        ("0.22.0", "float16", "bfloat16", ("float16", "float16", "float16", "float32")),
        ("0.26.0", "float16", "bfloat16", ("float16", "float32")),
        ("0.33.0", "auto", "auto", ("bfloat16", "float32")),
        ("0.33.0", "auto", "bfloat16", ("bfloat16", "bfloat16")),
    ],
)
def test_kimi_deltas_recurrent_state_is_fp32_until_a_flag_rules_it(
    release: str, conv: str, ssm: str, dtypes: tuple[str, ...]
) -> None:
    assert (
        state_dtypes(KDA, "bfloat16", get_release(release), cache_dtype=conv, ssm_cache_dtype=ssm) == dtypes
    )
