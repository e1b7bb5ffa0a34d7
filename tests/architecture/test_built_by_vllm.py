"""Every family against what vLLM's own classes build, tensor by tensor, rank by rank
(tests/data/vllm_built).
"""

from __future__ import annotations

from collections import Counter

import pytest
from built import Case, cases, kv_layers
from vllm_capacity.units import round_up
from vllm_capacity.weights.rank import rank_weights

CASES = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)

UNREGISTERED = (
    "topk_indices",
    "valid_topk_counts",
    "cu_seqlens_q_buffer",
    "v_norm.weight",
    "router.norm.weight",
    "deepstack_input_embeds",
    "_layernorm.weight",
    "qk_norm.weight",
    "attn._",
    "per_layer_embeddings",
    "pre_projection_norm.weight",
    "post_projection_norm.weight",
    "_mtp_hidden_buffer",
    "hc_attn_fn_broadcast",
    "alibi_slopes",
)
"""What vLLM holds outside parameters and buffers: in the bytes, not in the table of tensors."""
DERIVED = ("hc_attn_fn_broadcast",)
"""What a model's own `load_weights` derives from its weights: these cases were built with dummy weights, which bypass it
(model_loader/dummy_loader.py: DummyModelLoader.load_weights, 0.26.0).
"""


@CASES
def test_tensors_are_those_that_vllm_constructs(case: Case) -> None:
    mine: Counter[tuple[int, str, bool]] = Counter()
    expected = case.tensors
    unregistered: set[tuple[int, str, bool]] = set()
    for group in rank_weights(case.context()).built:
        key = (group.tensor_bytes, group.dtype, group.buffer)
        mine[key] += group.count
        if group.buffer and any(part in group.name for part in UNREGISTERED):
            unregistered.add(key)
    differing = {key for key in mine | expected if mine[key] != expected[key] and key not in unregistered}
    assert {key: mine[key] for key in differing} == {key: expected[key] for key in differing}


@CASES
def test_bytes_after_loading_are_vllms(case: Case) -> None:
    weights = rank_weights(case.context())
    groups = [g for g in weights.groups if not any(part in g.name for part in DERIVED)]
    assert sum(round_up(g.tensor_bytes, 512) * g.count for g in groups) == case.facts["weights_bytes"]


@CASES
def test_parameters_on_the_rank_are_vllms(case: Case) -> None:
    assert rank_weights(case.context()).parameters_on_rank == case.facts["parameters_numel"]


@CASES
def test_layers_with_a_kv_cache_are_vllms(case: Case) -> None:
    assert kv_layers(case.context()) == case.kv_layers
