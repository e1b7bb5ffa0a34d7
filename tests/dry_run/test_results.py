"""From recorded answers of the engine side to ledger, JSON and differences.

The answers are what vLLM 0.26.0's own worker did with Qwen3-8B, eager, at 16,384 tokens and 1,024 sequences
(tests/data/dry_run). A real H200 run of the same (tests/data/runs/h200_vllm_0.26.0.jsonl, `qwen3-8b-eager`) measured an
activation peak of 1,778,401,792 bytes and 50,730 blocks.
"""

from __future__ import annotations

import json

import pytest
from vllm_capacity.cli import run
from vllm_capacity.errors import InputError
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.report.schema import plan_schema
from vllm_capacity.validate.dry_run import terms
from vllm_capacity.validate.dry_run.differences import differences
from vllm_capacity.validate.dry_run.ranks import choose_ranks, stage_of, stages_run

from dry_run.conftest import HELLO, KV, QWEN, SELF_TEST, answer

MEASURED_PEAK = 1_778_401_792
CUBLAS_WORKSPACE = 32 << 20
FLAGS = [
    "--model", "Qwen/Qwen3-8B", "--gpu", "H200", "--enforce-eager", "--usage", "offline", "--max-model-len", "32768",
    "--max-num-batched-tokens", "16384", "--max-num-seqs", "1024",
]  # fmt: skip


@pytest.fixture(autouse=True)
def stub_cache(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_CAPACITY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def dry_run(stand_in, capsys):
    """The command's JSON over recorded answers."""

    def call(*more: str, qwen=QWEN, kv=KV) -> dict:
        python = stand_in([HELLO, answer(SELF_TEST), answer(qwen), answer(kv)])
        code = run(["dry-run", *FLAGS, "--python", str(python), "--json", *more])
        captured = capsys.readouterr()
        assert code in (0, 1, 3), captured.err
        return json.loads(captured.out)

    return call


def test_eager_peak_is_the_measured_one(dry_run):
    result = dry_run()
    [rank] = result["ranks"]
    assert rank["activation_peak_bytes"] == MEASURED_PEAK
    by_name = {t["name"]: t for t in rank["terms"]}
    assert by_name["eager_peak"]["bytes"] == MEASURED_PEAK - CUBLAS_WORKSPACE
    assert result["dry_run"]["not_exact"] == {}


def test_json_has_the_shape_of_a_plan(dry_run):
    import jsonschema

    result = dry_run()
    result.pop("dry_run")
    jsonschema.validate(result, plan_schema())


def test_a_compiled_run_has_the_plans_compiled_peak_and_says_so(stand_in, capsys):
    """Weights and KV cache from the configured run, the eager peak beside them, the rest from the plan, marked."""
    flags = [flag for flag in FLAGS if flag != "--enforce-eager"]
    run(["plan", *flags, "--vllm-version", "0.26.0", "--json"])
    planned = json.loads(capsys.readouterr().out)["ranks"][0]["activation_peak_bytes"]
    configured = {key: value for key, value in QWEN["result"].items() if not key.startswith("profile")}
    steps = [HELLO, answer(SELF_TEST), {"ok": True, "result": configured}, answer(QWEN), answer(KV)]
    run(["dry-run", *flags, "--python", str(stand_in(steps)), "--json"])
    result = json.loads(capsys.readouterr().out)
    [rank] = result["ranks"]
    by_name = {t["name"]: t for t in rank["terms"]}
    assert by_name["eager_peak"]["bytes"] == MEASURED_PEAK - CUBLAS_WORKSPACE
    assert rank["activation_peak_bytes"] >= planned > 0
    assert "compiled_less_eager" in result["dry_run"]["unseen_terms"]
    assert "the run is compiled" in result["dry_run"]["not_exact"]["activation"][0]


def test_terms_say_where_they_come_from(dry_run):
    result = dry_run()
    unseen = set(result["dry_run"]["unseen_terms"])
    assert {"cuda_context", "cublas_workspace", "allocator_rounding"} <= unseen
    for t in result["ranks"][0]["terms"]:
        assert (t["name"] in unseen) == t["note"].startswith("from the analytical plan"), t["name"]


def test_weights_by_group_add_up_to_vllms_figure(dry_run):
    [rank] = dry_run()["ranks"]
    weights = [t for t in rank["terms"] if t["account"] == "weights" and t["name"] != "allocator_rounding"]
    assert sum(t["bytes"] for t in weights) == QWEN["result"]["weights_exact_bytes"]
    assert {"embedding", "attention", "mlp", "lm_head", "norms"} <= {t["name"] for t in weights}


def test_formulas_give_their_bytes(dry_run):
    from vllm_capacity.ledger import evaluate

    for t in dry_run()["ranks"][0]["terms"]:
        assert evaluate(t["formula"], t["values"]) == t["bytes"], t["name"]


def test_the_peak_lists_tensors_with_vllms_lines(dry_run):
    [detail] = dry_run("--top", "3")["dry_run"]["ranks"]
    largest = detail["profile"]["tensors"][0]
    assert (
        largest["bytes"] == 16384 * 24576 * 2
    )  # gate_up_proj's output: tokens x 2 x intermediate_size, bfloat16
    assert largest["lines"][0].startswith("vllm/model_executor/layers/")


@pytest.mark.parametrize(
    ("phase", "kind", "term"),
    [
        ("load_exactness", "values_read", "weights"),
        ("load_exactness", "imitated_operators", "weights"),
        ("load_exactness", "skipped_operators", "load_peak"),
        ("profile_exactness", "skipped_operators", "activation"),
        ("profile_exactness", "values_read", "activation"),
        ("profile_exactness", "copied_to_host", "activation"),
    ],
)
def test_what_was_not_followed_makes_its_term_not_exact(dry_run, phase, kind, term):
    touched = {**QWEN["result"], phase: {**QWEN["result"][phase], kind: {"vllm/somewhere.py:1 f": 2}}}
    result = dry_run(qwen={"ok": True, "result": touched})
    assert any("vllm/somewhere.py:1 f" in why for why in result["dry_run"]["not_exact"][term])


def test_vllms_refusal_is_the_verdict(dry_run):
    error = {
        "type": "ValueError",
        "message": "No available memory for the cache blocks. Try increasing it.",
        "where": [],
    }
    result = dry_run(kv={"ok": False, "error": error})
    assert result["verdict"]["status"] == "does_not_start"
    assert result["verdict"]["reason"] == "no_kv_memory"


def test_a_broken_worker_is_no_refusal(stand_in, capsys):
    error = {"type": "KeyError", "message": "'x'", "where": ["vllm/model_executor/models/llama.py:1 f"]}
    python = stand_in([HELLO, answer(SELF_TEST), {"ok": False, "error": error}])
    assert run(["dry-run", *FLAGS, "--python", str(python)]) == 2
    assert "KeyError: 'x' (at vllm/model_executor/models/llama.py:1 f)" in capsys.readouterr().err


def test_a_broken_plan_formula_does_not_touch_the_dry_run(dry_run, monkeypatch):
    """The engine side uses none of this tool's terms."""
    import vllm_capacity.planner as planner
    from vllm_capacity.weights.terms import weight_terms

    right = dry_run()
    monkeypatch.setattr(
        planner, "weight_terms", lambda ctx, ep=0, **more: tuple(weight_terms(ctx, ep, **more)[1:])
    )
    broken = dry_run()
    assert broken["ranks"][0]["weights_bytes"] == right["ranks"][0]["weights_bytes"]
    assert broken["ranks"][0]["activation_peak_bytes"] == right["ranks"][0]["activation_peak_bytes"]
    assert broken["kv_cache"] == right["kv_cache"]


def test_check_finds_nothing_where_the_plan_is_right_and_the_term_where_it_is_wrong(
    stand_in, capsys, monkeypatch
):
    def check() -> dict[str, dict]:
        python = stand_in([HELLO, answer(SELF_TEST), answer(QWEN), answer(KV)])
        run(["plan", *FLAGS, "--check", "dry-run", "--python", str(python), "--json"])
        rows = json.loads(capsys.readouterr().out)["check"]
        return {row["name"]: row for row in rows if not row["equal"]}

    assert check() == {}
    import vllm_capacity.planner as planner
    from vllm_capacity.weights.terms import weight_terms

    monkeypatch.setattr(
        planner,
        "weight_terms",
        lambda ctx, ep=0, **more: tuple(t for t in weight_terms(ctx, ep, **more) if t.name != "mlp"),
    )
    found = check()
    assert found["weights.mlp"]["plan"] == 0
    assert found["weights.mlp"]["dry_run"] == 36 * 3 * 4096 * 12288 * 2


def test_differences_skip_ranks_that_were_not_run(dry_run):
    result = dry_run()
    plan = {**result, "ranks": [*result["ranks"], {**result["ranks"][0], "rank": 1}]}
    assert {row.rank for row in differences(plan, result)} == {None, 0}


def test_ranks():
    layout = ParallelConfig(tp=2, pp=3)
    assert choose_ranks("ends", layout) == (0, 2, 4)
    assert choose_ranks("all", layout) == (0, 1, 2, 3, 4, 5)
    assert choose_ranks("5,0", layout) == (0, 5)
    assert choose_ranks("ends", ParallelConfig(tp=4, dp=2, expert_parallel=True)) == (0, 7)
    assert stage_of(7, ParallelConfig(tp=2, pp=2, dp=2)) == 1
    assert stages_run((0, 5), layout) is False
    assert stages_run((1, 3, 4), layout) is True
    with pytest.raises(InputError, match="ranks 0 to 5"):
        choose_ranks("6", layout)
    with pytest.raises(InputError, match="write ends, all"):
        choose_ranks("first", layout)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model.embed_tokens.weight", "embedding"),
        ("model.layers.*.self_attn.qkv_proj.weight", "attention"),
        ("model.layers.*.mlp.experts.w13_weight", "experts"),
        ("model.layers.*.mlp.gate.weight", "router"),
        ("model.layers.*.input_layernorm.weight", "norms"),
        ("lm_head.weight", "lm_head"),
        ("language_model.model.layers.*.mlp.down_proj.weight", "mlp"),
        ("visual.blocks.*.attn.qkv.weight", "encoder"),
    ],
)
def test_a_parameters_role_is_the_plans(name, role):
    assert terms.role(name) == role


def test_other_releases_and_pythons_are_refused(stand_in, capsys):
    assert run(["dry-run", *FLAGS, "--python", str(stand_in([], version="0.11.0"))]) == 2
    assert "--python has 0.11.0" in capsys.readouterr().err


def test_an_architecture_that_the_plan_does_not_know_is_run_all_the_same(stand_in, capsys, tmp_path):
    folder = tmp_path / "new"
    folder.mkdir()
    base = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "vocab_size": 151936,
    }
    (folder / "config.json").write_text(json.dumps({**base, "architectures": ["BrandNewForCausalLM"]}))
    flags = ["--model", str(folder), *FLAGS[2:]]
    assert run(["plan", *flags, "--vllm-version", "0.26.0"]) == 2
    assert "vllm-capacity dry-run" in capsys.readouterr().err
    python = stand_in([HELLO, answer(SELF_TEST), answer(QWEN), answer(KV)])
    assert run(["dry-run", *flags, "--python", str(python), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ranks"][0]["activation_peak_bytes"] == MEASURED_PEAK - CUBLAS_WORKSPACE
    assert result["dry_run"]["unseen_terms"] == []
    assert any("no analytical plan" in text for text in result["warnings"])
