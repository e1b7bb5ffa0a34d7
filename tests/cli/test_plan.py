"""The `plan` command as its users meet it: exit codes, one-line errors, JSON that keeps its schema."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from vllm_capacity.cli import run
from vllm_capacity.ledger import evaluate
from vllm_capacity.report.schema import plan_schema

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
PROGRAM = str(Path(sys.executable).with_name("vllm-capacity"))


def plan(*arguments: str) -> list[str]:
    return ["plan", "--vllm-version", "0.26.0", *arguments]


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    run(plan("--json", *arguments))
    return json.loads(capsys.readouterr().out)


@cache
def schema() -> Any:
    return plan_schema()


# -- bad input: one line on stderr, exit code 2 ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (plan(), ["--model"]),
        (plan("--model"), ["--model"]),
        (plan("--model", LLAMA, "--gpu", "H101"), ["H101", "H100"]),
        (plan("--model", LLAMA, "--gpu", "H100", "--gpu-memory", "80GiB"), ["--gpu-memory"]),
        (plan("--model", LLAMA, "--gpu-memory", "80GiB"), ["--compute-capability"]),
        (
            plan("--model", LLAMA, "--gpu-memory", "eighty", "--compute-capability", "9.0"),
            ["--gpu-memory", "24GiB"],
        ),
        (
            plan("--model", LLAMA, "--gpu-memory", "80GiB", "--compute-capability", "nine"),
            ["--compute-capability"],
        ),
        (plan("--model", LLAMA, "--gpu", "H100-80GB", "--used-memory", "500GiB"), ["--used-memory"]),
        (
            plan("--model", LLAMA, "--gpu", "H100-80GB", "--free-memory", "1GiB", "--used-memory", "1GiB"),
            ["exclude"],
        ),
        (plan("--model", LLAMA, "--tp", "0"), ["tensor-parallel-size"]),
        (plan("--model", LLAMA, "--tp", "two"), ["tensor-parallel-size"]),
        (plan("--model", LLAMA, "--max-model-len", "32x"), ["max-model-len", "32k"]),
        (plan("--model", LLAMA, "--gpu-memory-utilization", "1.5"), ["gpu"]),
        (plan("--model", LLAMA, "--max-modle-len", "32k"), ["--max-modle-len", "--max-model-len"]),
        (
            plan("--model", LLAMA, "--env", "VLLM_MAX_MODEL_LEN=4096"),
            ["VLLM_MAX_MODEL_LEN", "--max-model-len"],
        ),
        (plan("--model", LLAMA, "--env", "nonsense"), ["NAME=VALUE"]),
        (plan("--model", LLAMA, "--hf-overrides", "{"), ["hf-overrides"]),
        (plan("--model", LLAMA, "--usage", "somewhere"), ["--usage"]),
        (plan("--model", LLAMA, "--explain", "nothing_like_it"), ["no such term"]),
        (["plan", "--model", LLAMA, "--vllm-version", "0.18.0"], ["0.18.0"]),
        (["plan", "--model", LLAMA, "--vllm-version", "9.9.9"], ["9.9.9"]),
        (["plan", "--model", LLAMA, "--calibration", "/no/such/file.yaml"], ["calibration"]),
        (["nothing"], ["nothing"]),
        (["models", "--bogus"], ["--bogus"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
):
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '"text"', '{"model_type": "no_such_type"}', '{"architectures": ["Nothing"]}', "\x00\xff"],
)
def test_a_malformed_config_is_one_line(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="latin-1")
    assert run(plan("--model", str(path))) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_missing_folder_says_what_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(plan("--model", str(tmp_path / "nowhere"))) == 2
    assert "config.json" in capsys.readouterr().err


def test_offline_never_asks_the_hub(capsys: pytest.CaptureFixture[str]):
    assert run(plan("--model", "someone/some-model-nobody-catalogued", "--offline")) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_architecture_names_itself_and_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLN"], "model_type": "llama"})
    )
    assert run(plan("--model", str(tmp_path))) == 2
    err = capsys.readouterr().err
    assert "LlamaForCausalLN" in err
    assert "LlamaForCausalLM" in err


# -- verdicts and exit codes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--gpu", "H200"], 0, None),
        (["--gpu", "H200", "--used-memory", "60GiB"], 1, "free_below_requested"),
        (["--gpu", "L4"], 1, "one_request_does_not_fit"),
        (["--gpu", "T4", "--dtype", "float16", "--max-model-len", "2048"], 1, None),
        (["--gpu", "H200", "--tp", "3"], 1, "invalid_layout"),
        (["--gpu", "H200", "--kv-cache-memory-bytes", "1000000"], 1, None),
    ],
)
def test_the_exit_code_tells_the_verdict(
    arguments: list[str], code: int, reason: str | None, capsys: pytest.CaptureFixture[str]
):
    assert run(plan("--model", LLAMA, *arguments, "--json")) == code
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["status"] == {0: "starts", 1: "does_not_start", 3: "too_close"}[code]
    if reason:
        assert verdict["reason"] == reason


def test_an_invalid_layout_is_refused_in_vllms_words(capsys: pytest.CaptureFixture[str]):
    verdict = json_of(capsys, "--model", LLAMA, "--gpu", "H200", "--tp", "3")["verdict"]
    assert verdict["message"] == (
        "Total number of attention heads (32) must be divisible by tensor parallel size (3)."
    )


def test_a_verdict_that_its_interval_straddles_is_too_close(capsys: pytest.CaptureFixture[str]):
    arguments = ("--model", LLAMA, "--gpu", "H100-80GB", "--tp", "2", "--max-num-seqs", "16",
                 "--hf-overrides", '{"max_position_embeddings": 4000000}')  # fmt: skip
    base = json_of(capsys, *arguments, "--max-model-len", "32k")
    rank, per_token = base["ranks"][0], base["kv_cache"]["marginal_bytes_per_token"]
    assert rank["available_kv_low_bytes"] < rank["available_kv_bytes"] < rank["available_kv_high_bytes"]
    for n_bytes, status in (
        ((rank["available_kv_low_bytes"] + rank["available_kv_bytes"]) // 2, "too_close"),
        ((rank["available_kv_high_bytes"] + rank["available_kv_bytes"]) // 2, "too_close"),
        (rank["available_kv_low_bytes"] * 9 // 10, "starts"),
        (rank["available_kv_high_bytes"] * 11 // 10, "does_not_start"),
    ):
        report = json_of(capsys, *arguments, "--max-model-len", str(int(n_bytes // per_token)))
        assert report["verdict"]["status"] == status


def test_no_start_is_promised_on_gpus_without_recorded_runs(capsys: pytest.CaptureFixture[str]):
    report = json_of(capsys, "--model", LLAMA, "--gpu", "MI300X")
    assert report["verdict"]["status"] == "too_close"
    assert report["kv_cache"]["num_blocks"] > 0


def test_several_degrees_give_a_column_each(capsys: pytest.CaptureFixture[str]):
    report = json_of(capsys, "--model", LLAMA, "--gpu", "H200", "--tp", "1,2,3")
    jsonschema.validate(report, schema())
    assert [p["engine"]["tensor_parallel_size"] for p in report["plans"]] == [1, 2, 3]
    assert [p["verdict"]["status"] for p in report["plans"]] == ["starts", "starts", "does_not_start"]
    assert run(plan("--model", LLAMA, "--gpu", "H200", "--tp", "1,2,3")) == 0
    text = capsys.readouterr().out
    assert "tp 1" in text
    assert "divisible by tensor parallel" in " ".join(text.split())


# -- what is printed ------------------------------------------------------------------------------------------------

VARIETY = (
    ("--model", LLAMA, "--gpu", "H100-80GB"),
    ("--model", LLAMA, "--gpu", "H200", "--tp", "2", "--pp", "2", "--kv-cache-dtype", "fp8"),
    ("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "H200", "--tp", "4", "--enable-expert-parallel", "--dp", "2"),
    ("--model", "Qwen/Qwen3-235B-A22B", "--gpu", "B200", "--tp", "8", "--concurrency", "4"),
    ("--model", LLAMA, "--gpu", "RTX4090", "--enforce-eager"),
    ("--model", "deepseek-ai/DeepSeek-V3", "--gpu", "H200", "--tp", "8"),
    ("--model", LLAMA, "--gpu", "H200", "--max-model-len", "auto", "--usage", "offline"),
)


@pytest.mark.parametrize("arguments", VARIETY)
@pytest.mark.parametrize("release", ["0.26.0", "0.33.0"])
def test_json_keeps_its_schema_and_its_sums(
    arguments: tuple[str, ...], release: str, capsys: pytest.CaptureFixture[str]
):
    run(["plan", "--vllm-version", release, *arguments, "--json"])
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema())
    assert len(report["ranks"]) == (
        report["engine"]["tensor_parallel_size"]
        * report["engine"]["pipeline_parallel_size"]
        * report["engine"]["data_parallel_size"]
    )
    assert [rank["rank"] for rank in report["ranks"]] == list(range(len(report["ranks"])))
    for rank in report["ranks"]:
        accounts: dict[str, int] = {}
        for t in rank["terms"]:
            accounts[t["account"]] = accounts.get(t["account"], 0) + t["bytes"]
            assert t["low_bytes"] <= t["bytes"] <= t["high_bytes"], t["name"]
            assert t["source"] or not t["bytes"], t["name"]
        assert accounts["weights"] == rank["weights_bytes"]
        assert accounts["activation"] == rank["activation_peak_bytes"]
        assert accounts["non_torch"] == rank["non_torch_bytes"]
        assert accounts.get("cuda_graphs", 0) == rank["graph_actual_bytes"]
        inside = sum(accounts.get(a, 0) for a in ("weights", "activation", "non_torch", "runner_buffers"))
        assert rank["available_kv_bytes"] == rank["requested_bytes"] - inside - rank["graph_applied_bytes"]


@pytest.mark.parametrize("arguments", VARIETY)
@pytest.mark.parametrize("release", ["0.26.0", "0.33.0"])
def test_every_formula_evaluates_to_its_bytes(
    arguments: tuple[str, ...], release: str, capsys: pytest.CaptureFixture[str]
):
    run(["plan", "--vllm-version", release, *arguments, "--json"])
    for rank in json.loads(capsys.readouterr().out)["ranks"]:
        for t in rank["terms"]:
            assert evaluate(t["formula"], t["values"]) == t["bytes"], t["name"]


MIB_2 = 2 << 20


def test_explain_prints_an_expression_that_evaluates_to_the_bytes(capsys: pytest.CaptureFixture[str]):
    run(plan("--model", LLAMA, "--gpu", "H200", "--explain", "penalty_counts"))
    out = capsys.readouterr().out
    expression, _, n_bytes = (
        next(line for line in out.splitlines() if "numbers" in line).partition("numbers")[2].rpartition("=")
    )
    # PyTorch's blocks of 20 MiB and more are multiples of 2 MiB
    assert evaluate(expression.strip(), {}) == int(n_bytes) == -(-1024 * 128256 * 4 // MIB_2) * MIB_2


def test_every_component_is_listed_with_a_reason_where_it_is_zero(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "160")
    run(plan("--model", LLAMA, "--gpu", "H200"))
    out = capsys.readouterr().out
    for component in ("weights", "kv_cache", "activation", "workspace", "flashinfer", "nccl", "custom_all_reduce",
                      "cuda_graphs", "runner_buffers", "cuda_context", "lora"):  # fmt: skip
        assert f"\n{component} " in out, component
    assert "flashinfer 0 B: FLASH_ATTN" in out
    assert "FLASH_ATTN" in next(line for line in out.splitlines() if line.startswith("flashinfer"))


def test_the_headline_is_what_vllm_will_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "160")
    kv = json_of(capsys, "--model", LLAMA, "--gpu", "H200")["kv_cache"]
    run(plan("--model", LLAMA, "--gpu", "H200"))
    line = f"GPU KV cache size: {kv['size_tokens']:,} tokens, Maximum concurrency for 131,072 tokens per request: "
    assert f"{line}{kv['max_concurrency']:.2f}x" in capsys.readouterr().out


def test_suggestions_do_what_they_promise(capsys: pytest.CaptureFixture[str]):
    arguments = ("--model", LLAMA, "--gpu", "L4")
    base = json_of(capsys, *arguments)
    assert base["verdict"]["suggestions"]
    for suggestion in base["verdict"]["suggestions"]:
        changed = json_of(capsys, *arguments, *suggestion["flags"])
        effect = suggestion["effect"]
        assert effect["starts"] == (changed["verdict"]["status"] == "starts")
        assert (
            effect["kv_cache_size_tokens_delta"]
            == changed["kv_cache"]["size_tokens"] - base["kv_cache"]["size_tokens"]
        )
        before = min(rank["available_kv_bytes"] for rank in base["ranks"])
        after = min(rank["available_kv_bytes"] for rank in changed["ranks"])
        assert effect["available_kv_bytes_delta"] == after - before


def test_the_least_utilisation_is_the_least(capsys: pytest.CaptureFixture[str]):
    arguments = ("--model", LLAMA, "--gpu", "H200", "--concurrency", "3")
    answer = json_of(capsys, *arguments)["verdict"]["concurrency"]
    assert answer["fits"]
    at = json_of(capsys, *arguments, "--gpu-memory-utilization", str(answer["min_gpu_memory_utilization"]))
    below = json_of(
        capsys,
        *arguments,
        "--gpu-memory-utilization",
        str(round(answer["min_gpu_memory_utilization"] - 0.0001, 4)),
    )
    assert at["verdict"]["concurrency"]["fits"]
    assert not below["verdict"]["concurrency"]["fits"]


def test_the_largest_length_fits_and_the_next_does_not(capsys: pytest.CaptureFixture[str]):
    arguments = ("--model", LLAMA, "--gpu", "L4")
    fits = json_of(capsys, *arguments)["verdict"]["max_model_len_that_fits"]
    assert json_of(capsys, *arguments, "--max-model-len", str(fits))["verdict"]["status"] in (
        "starts",
        "too_close",
    )
    beyond = json_of(capsys, *arguments, "--max-model-len", str(fits + 16))
    assert beyond["verdict"]["reason"] == "one_request_does_not_fit"


def test_human_lengths_are_vllms(capsys: pytest.CaptureFixture[str]):
    assert json_of(capsys, "--model", LLAMA, "--max-model-len", "32k")["engine"]["max_model_len"] == 32_000
    assert json_of(capsys, "--model", LLAMA, "--max-model-len", "32K")["engine"]["max_model_len"] == 32_768


def test_a_pasted_docker_line_gives_model_flags_and_release(capsys: pytest.CaptureFixture[str]):
    code = run(["plan", "--gpu", "H200", "--json", "--", "docker", "run", "--gpus", "all", "vllm/vllm-openai:v0.26.0",
                "--model", LLAMA, "--max-num-seqs", "256"])  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["vllm_version"] == "0.26.0"
    assert report["engine"]["max_num_seqs"] == 256


def test_the_emitted_line_plans_the_same(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ("--model", LLAMA, "--gpu", "H200", "--max-num-seqs", "64", "--kv-cache-dtype", "fp8")
    run(plan(*arguments))
    serve = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("vllm serve"))
    again = json_of(capsys, "--gpu", "H200", "--", *serve.split())
    assert again["kv_cache"] == json_of(capsys, *arguments)["kv_cache"]


# -- as a program ----------------------------------------------------------------------------------------------------


def test_a_local_plan_imports_nothing_heavy(tmp_path: Path):
    from vllm_capacity.inputs.catalogue import find_entry

    entry = find_entry(LLAMA)
    assert entry is not None
    (tmp_path / "config.json").write_text(json.dumps(dict(entry.config)))
    script = (
        "import sys; from vllm_capacity.cli import run; "
        f"code = run(['plan', '--model', {str(tmp_path)!r}, '--gpu', 'H200', '--json']); "
        "heavy = {'torch', 'transformers', 'vllm', 'rich', 'huggingface_hub'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_no_width_breaks_the_report(columns: str):
    environment = {
        "COLUMNS": columns,
        "NO_COLOR": "1",
        "LC_ALL": "C",
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
    }
    result = subprocess.run(
        [PROGRAM, *plan("--model", LLAMA, "--gpu", "H200")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "\x1b" not in result.stdout


def test_version_names_the_releases_it_knows(capsys: pytest.CaptureFixture[str]):
    assert run(["--version"]) == 0
    assert "0.33.0" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "models", "gpus", "schema"])
def test_help_starts_with_a_sentence_and_two_examples(command: str, capsys: pytest.CaptureFixture[str]):
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n  vllm-capacity ") >= 2


def test_schema_is_published(capsys: pytest.CaptureFixture[str]):
    assert run(["schema"]) == 0
    jsonschema.Draft202012Validator.check_schema(json.loads(capsys.readouterr().out))
