"""Groups, blocks, concurrency and refusals equal to vLLM's planner, for random specs on fifteen releases.

`tests/data/kv_planner/cases.jsonl` was computed with each release's own planning functions
(v1/core/kv_cache_utils.py, kv_cache_planning.py) and spec classes, executed on specs drawn at random; the last ones were
drawn until they noticed changes of our rules that no other test did (docs/mutation.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kv_building import kv_layers_from_specs, plan
from vllm_capacity.errors import RefusedError
from vllm_capacity.kv_cache import specs as kv_specs
from vllm_capacity.kv_cache.specs import KVCacheSpec, KVQuantMode

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data/kv_planner/cases.jsonl").read_text().splitlines()
]


def spec_of(values: dict[str, Any]) -> KVCacheSpec:
    fields = {key: value for key, value in values.items() if key != "type"}
    if "kv_quant_mode" in fields:
        fields["kv_quant_mode"] = KVQuantMode(fields["kv_quant_mode"])
    if "shapes" in fields:
        fields["shapes"] = tuple(map(tuple, fields["shapes"]))
        fields["dtypes"] = tuple(fields["dtypes"])
    spec: KVCacheSpec = getattr(kv_specs, values["type"])(**fields)
    return spec


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case['release']}" for i, case in enumerate(CASES)])
def test_plan_equals_vllms(case: dict[str, Any]) -> None:
    kinds = [spec_of(values) for values in case["specs"]]
    layers = kv_layers_from_specs([kinds[i] for i in case["layers"]], 16, layout=case["layout"])
    settings = case["settings"] | {"cudagraph_mode": "NONE"}
    stages = tuple(map(tuple, case["stages"]))
    if "raises" in case:
        with pytest.raises(RefusedError) as caught:
            plan(layers, case["available"], case["release"], stages=stages, **settings)
        assert str(caught.value) == case["raises"]
        return
    result = plan(layers, case["available"], case["release"], stages=stages, **settings)
    if "refusal" in case:
        assert result.refusal is not None
        assert result.refusal.message == case["refusal"]
        return
    assert result.refusal is None
    groups = [[list(group.layers) for group in stage.groups] for stage in result.stages]
    blocks = [[group.spec.block_size, group.spec.page_size_bytes] for group in result.stages[0].groups]
    assert groups == case["groups"]
    assert blocks == case["blocks"]
    assert result.num_blocks == case["num_blocks"]
    assert result.max_concurrency == case["max_concurrency"]
    assert result.max_model_len == case["max_model_len"]
