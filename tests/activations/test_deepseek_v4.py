"""DeepSeek V4's weights and activation peak against the worker of vLLM 0.26.0 and 0.33.0, run on tensors without storage
(`dry-run`, docs/dry-run.md): eager, H200, context of 30,000 tokens, 1,024 sequences, fp8 KV cache, models cut to their
first layers. Weights are tensors as they are, without what the allocator rounds up.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan
from vllm_capacity.budget import Account
from vllm_capacity.validate.planning import planner_for
from vllm_capacity.validate.record import RunRecord, read_records

FLASH, PRO = "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro"
SIX = {"num_hidden_layers": 6, "compress_ratios": [0, 0, 4, 128, 4, 128, 0]}
TWO = {"num_hidden_layers": 2, "compress_ratios": [0, 0, 0]}
FIVE_OF_PRO = {"num_hidden_layers": 5, "compress_ratios": [128, 128, 4, 128, 4, 0]}


def planned(
    model: str, cut: dict[str, object], tokens: int, release: str = "0.26.0", **flags: object
) -> Plan:
    given: dict[str, object] = {
        "kv_cache_dtype": "fp8",
        "max_model_len": 30000,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": 1024,
        "gpu_memory_utilization": 0.95,
        "enforce_eager": True,
        "hf_overrides": cut,
    }
    answer = plan(model, gpu="H200", vllm_version=release, **(given | flags))
    assert isinstance(answer, Plan)
    return answer


@pytest.mark.parametrize(
    ("model", "cut", "tokens", "flags", "weights", "peak"),
    [
        pytest.param(FLASH, SIX, 16384, {}, 24_672_320_804, 5_427_954_176, id="output-projection"),
        pytest.param(
            FLASH, SIX, 16384, {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            12_968_029_476, 5_943_853_056, id="padded-queries",
        ),
        pytest.param(
            FLASH, SIX, 8192, {"tensor_parallel_size": 4, "enable_expert_parallel": True},
            6_830_668_068, 2_854_486_016, id="mostly-padding",
        ),
        pytest.param(FLASH, TWO, 16384, {}, 10_083_788_740, 5_258_084_864, id="window-alone"),
        pytest.param(PRO, FIVE_OF_PRO, 8192, {"tensor_parallel_size": 4}, 19_267_390_476, 4_112_777_216, id="pro"),
    ],
)  # fmt: skip
def test_weights_and_peak_are_vllms(
    model: str, cut: dict[str, object], tokens: int, flags: dict[str, object], weights: int, peak: int
) -> None:
    rank = planned(model, cut, tokens, **flags).ranks[0]
    rounding = next(t.n_bytes for t in rank.terms if t.name == "allocator_rounding")
    assert rank.budget.totals[Account.WEIGHTS] - rounding == weights
    assert rank.budget.totals[Account.ACTIVATION] == rank.activation.n_bytes == peak


@pytest.mark.parametrize(
    ("model", "cut", "tokens", "flags", "weights", "peak"),
    [
        pytest.param(FLASH, SIX, 16384, {}, 24_135_487_524, 5_444_751_872, id="indexer-beside-queries"),
        pytest.param(
            FLASH, SIX, 16384, {"tensor_parallel_size": 2, "enable_expert_parallel": True},
            12_431_190_052, 5_715_941_888, id="rows-shared",
        ),
        pytest.param(PRO, FIVE_OF_PRO, 8192, {"tensor_parallel_size": 4}, 18_797_664_908, 3_896_791_552, id="pro"),
    ],
)  # fmt: skip
def test_weights_and_peak_on_humming_experts(
    model: str, cut: dict[str, object], tokens: int, flags: dict[str, object], weights: int, peak: int
) -> None:
    """The same dry-runs with vLLM 0.33.0. Grouped experts sort with two small tensors more than the plan counts."""
    rank = planned(model, cut, tokens, "0.33.0", **flags).ranks[0]
    rounding = next(t.n_bytes for t in rank.terms if t.name == "allocator_rounding")
    assert rank.budget.totals[Account.WEIGHTS] - rounding == weights
    assert 0 <= peak - rank.activation.n_bytes <= (2048 if "enable_expert_parallel" in flags else 0)


def test_hopper_alone_prefers_humming_and_only_since_0_32() -> None:
    """Per token: two outputs of 4,096 bf16 values for each of 6 experts, in front of them inputs of 2,048 values (16-bit
    before 0.33), or the output itself. Marlin's first buffer has 4,096 values for each expert.
    """

    def workspace(release: str, **flags: object) -> int:
        rank = planned(FLASH, SIX, 4096, release, **flags).ranks[0]
        return next(t.n_bytes for t in rank.terms if t.name == "moe_workspace") // 4096

    assert workspace("0.31.0") == 2 * 6 * 4096 * 2
    assert workspace("0.32.0") == 6 * (4096 + 2048) * 2
    assert workspace("0.33.0") == 6 * (4096 * 2 + 2048)
    assert workspace("0.33.0", moe_backend="marlin") == workspace("0.31.0")


def test_the_indexer_decides_small_batches_unless_the_sampler_does() -> None:
    """512 MiB of dummy logits do not shrink with the batch (layers/sparse_attn_indexer.py, profile branch)."""
    phases = {p.name: p.n_bytes for p in planned(FLASH, SIX, 2048, max_num_seqs=8).ranks[0].activation.phases}
    assert phases["indexer"] == max(phases.values())
    fewer = planned(
        FLASH, SIX, 2048, max_num_seqs=8, environment={"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": "256"}
    )
    assert (
        phases["indexer"] - {p.name: p.n_bytes for p in fewer.ranks[0].activation.phases}["indexer"]
        == 256 << 20
    )


def test_compiled_releases_hold_one_set_of_streams_and_end_a_piece_with_two_outputs() -> None:
    """Up to 0.22 the model is compiled and cut at its attention operation; tokens x streams x hidden is 512 MiB."""
    compiled = {"enforce_eager": False, "tensor_parallel_size": 2}
    old = {p.name: p for p in planned(FLASH, SIX, 16384, "0.22.0", **compiled).ranks[0].activation.phases}
    new = {p.name: p for p in planned(FLASH, SIX, 16384, "0.23.0", **compiled).ranks[0].activation.phases}
    assert "mixing" not in new
    held = {name: t.n_bytes for name in ("queries",) for t in old[name].terms if t.name == "residual_streams"}
    assert {t.n_bytes for t in new["queries"].terms if t.name == "residual_streams"} == {2 * held["queries"]}
    assert new["queries"].n_bytes - old["queries"].n_bytes == held["queries"] + 16384 * 4096 * 2


def test_index_lists_of_the_metadata_builders() -> None:
    """H200, vLLM 0.26.0, six layers: three groups of windows, both ratios, three kinds of compressor states. The start
    allocated 139,446,400 bytes beside the KV cache itself between profiling and warm-up, block tables among them.
    """
    rank = planned(FLASH, SIX, 16384).ranks[0]
    named = {t.name: t.n_bytes for t in rank.terms}
    assert named["sparse_attention_indices"] == 93_372_416
    assert "mla_chunked_prefill_workspace" not in named
    rest = 139_446_400 - named["sparse_attention_indices"] - named["block_tables"] - named["slot_mappings"]
    assert 0 <= rest < 1 << 20


def test_the_graph_estimate_holds_dummy_logits_and_the_side_streams_workspaces() -> None:
    """Mixed batches are captured without attention metadata: the indexer's profile branch runs, and three products of
    small batches have a stream, hence a cuBLAS workspace, each (32 MiB on Hopper). An H200 start allocated those 96 MiB in
    its first batch of 16 tokens (eager, vLLM 0.26.0).
    """
    graphs = {"enforce_eager": False, "compilation_config": {"cudagraph_capture_sizes": [1, 8]}}
    estimates = [
        planned(
            FLASH, cut, 16384, environment={"VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": str(megabytes)}, **graphs
        )
        .ranks[0]
        .budget.graph_estimate_bytes
        for cut, megabytes in ((SIX, 512), (SIX, 256), (TWO, 512))
    ]
    assert estimates[0] - estimates[1] == 256 << 20
    assert estimates[0] - estimates[2] > (512 + 3 * 32) << 20


RECORDS = Path(__file__).parents[1] / "data" / "records" / "h200_deepseek_v4_0.26.0.jsonl"


@pytest.mark.parametrize("record", read_records(RECORDS), ids=lambda r: r.request.name)
def test_what_an_h200_measured(record: RunRecord) -> None:
    """Peaks of the layers are met to the byte; where the sampler's is higher, two of its blocks are 1 MiB smaller than planned.
    What is planned for the KV cache is within 2 MiB.
    """
    version = record.versions["vllm"]
    plan_of = planner_for(version, record.gpus, None, record.environment)
    answer = plan_of(record.request)["ranks"][0]
    for rank in record.ranks:
        assert rank.profiling is not None
        assert rank.profiling.result is not None
        over = answer["activation_peak_bytes"] - rank.profiling.result["torch_peak_increase"]
        assert 0 <= over <= (2 << 20 if "t8192" in record.request.name else 0)
        assert abs(answer["available_kv_bytes"] - rank.profiling.returned) <= 2 << 20
