"""An error says which flag, file or key to change, in one line, with exit code 2."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from vllm_capacity.cli import run
from vllm_capacity.inputs.flags import flags_for
from vllm_capacity.releases import newest_release

ROOT = Path(__file__).parents[2]
LLAMA = ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100-80GB"]
LOCAL = ["--gpu", "H100-80GB", "--model"]

WRONG = [
    (["plan", "--gpu", "H100-80GB"], "--model"),
    (["plan", "--model", "no/such-model", "--offline", "--gpu", "H200"], "no/such-model"),
    (["plan", "--model", "./nowhere", "--gpu", "H200"], "./nowhere"),
    (["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "H101"], "--gpu"),
    (["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "H200", "--gpu-memory", "24GiB"], "--gpu-memory"),
    (["plan", "--model", "Qwen/Qwen3-8B", "--gpu-memory", "24GiB"], "--compute-capability"),
    (["plan", "--model", "Qwen/Qwen3-8B", "--gpu-memory", "24 apples", "--compute-capability", "8.9"], "--gpu-memory"),
    (["plan", "--model", "Qwen/Qwen3-8B", "--gpu-memory", "24GiB", "--compute-capability", "x"], "--compute-capability"),
    (["plan", *LLAMA, "--free-memory", "900GiB"], "--free-memory"),
    (["plan", *LLAMA, "--free-memory", "9GiB", "--used-memory", "9GiB"], "--used-memory"),
    (["plan", *LLAMA, "--vllm-version", "0.99.0"], "0.99.0"),
    (["plan", *LLAMA, "--tp", "two"], "--tensor-parallel-size"),
    (["plan", *LLAMA, "--tp", "0"], "--tensor-parallel-size"),
    (["plan", *LLAMA, "--max-model-len", "long"], "--max-model-len"),
    (["plan", *LLAMA, "--gpu-memory-utilization", "92"], "--gpu-memory-utilization"),
    (["plan", *LLAMA, "--kv-cache-dtype", "fp7"], "--kv-cache-dtype"),
    (["plan", *LLAMA, "--attention-backend", "NONE_SUCH"], "--attention-backend"),
    (["plan", *LLAMA, "--quantization", "none-such"], "--quantization"),
    (["plan", *LLAMA, "--block-size", "x"], "--block-size"),
    (["plan", *LLAMA, "--hf-overrides", "{"], "--hf-overrides"),
    (["plan", *LLAMA, "--compilation-config", '{"mode": 9}'], "--compilation-config"),
    (["plan", *LLAMA, "--no-such-flag", "1"], "--no-such-flag"),
    (["plan", *LLAMA, "--env", "NOVALUE"], "--env"),
    (["plan", *LLAMA, "--env", "VLLM_NO_SUCH=1"], "VLLM_NO_SUCH"),
    (["plan", *LLAMA, "--calibration", "nowhere.yaml"], "nowhere.yaml"),
    (["plan", *LLAMA, "--concurrency", "0"], "--concurrency"),
    (["plan", *LLAMA, "--explain", "nothing"], "--explain"),
    (["plan", *LLAMA, "--emit", "kubernetes", "--tp", "1,2"], "--tensor-parallel-size"),
    (["plan", *LLAMA, "--plot", "nowhere/x.svg"], "nowhere/x.svg"),
    (["plan", *LLAMA, "--plot", "x.doc"], "--plot"),
    (["plan", "--gpu", "H200", "--", "vllm", "bench", "serve"], "vllm serve"),
    (["size", "--model", "Qwen/Qwen3-8B"], "--concurrency"),
    (["size", "--model", "Qwen/Qwen3-8B", "--concurrency", "4"], "--max-model-len"),
    (["size", "--model", "Qwen/Qwen3-8B", "--trace", "nowhere.jsonl", "--gpu", "H200"], "nowhere.jsonl"),
    (["size", "--model", "Qwen/Qwen3-8B", "--concurrency", "4", "--max-model-len", "8k", "--node", "h100"], "--node"),
    (["size", "--model", "Qwen/Qwen3-8B", "--concurrency", "4", "--max-model-len", "8k", "--vendor", "x"], "--vendor"),
    (["compare", "--gpu", "H200"], "compare"),
    (["explain", "nowhere.log"], "nowhere.log"),
    (["validate"], "--model"),
    (["validate", "--replay", "nowhere.jsonl"], "nowhere.jsonl"),
    (["refine", "nowhere.jsonl"], "nowhere.jsonl"),
    (["plan", "--modle", "x"], "--modle"),
    (["plann"], "plann"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_the_error_is_one_line_that_names_what_to_change(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = run(arguments)
    shown = capsys.readouterr()
    assert code == 2, shown.out
    assert len(shown.err.strip().splitlines()) == 1
    assert shown.err.startswith("vllm-capacity: error: ")
    assert named in shown.err


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"architectures": ["NoSuchForCausalLM"]}, "NoSuchForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"quantization_config": {"quant_method": 4}}, "quant_method"),
        ({"quantization_config": {"quant_method": "none-such"}}, "none-such"),
        ({"rope_scaling": {"rope_type": "none-such", "factor": 2.0}}, "none-such"),
    ],
)
def test_a_broken_config_is_named_by_its_key(
    change: dict[str, object], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": 512,
        "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
        "vocab_size": 1000, "max_position_embeddings": 2048,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert run(["plan", *LOCAL, str(path)]) == 0
    capsys.readouterr()
    path.write_text(json.dumps(config | change))
    assert run(["plan", *LOCAL, str(path)]) == 2
    shown = capsys.readouterr()
    assert len(shown.err.strip().splitlines()) == 1
    assert named in shown.err


def input_errors() -> list[tuple[str, str]]:
    """(place, source of the message) of every InputError with a text of its own; the web API has keys, no flags."""
    found = []
    for tree in ("capacity", "validate"):
        for path in sorted((ROOT / tree).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
                if (
                    name == "InputError"
                    and "web" not in path.parts
                    and isinstance(node.args[0], ast.Constant | ast.JoinedStr)
                ):
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.args[0])))
    return found


def test_a_flag_in_an_error_is_spelt_as_one():
    """`--moe-backend`, not moe_backend: a reader copies it."""
    names = {name for name in flags_for(newest_release()) if "_" in name and name not in CONFIG_KEYS}
    wrong = [
        (place, sorted(bare))
        for place, text in input_errors()
        if (bare := names & set(re.findall(r"(?<![\w.{])[a-z]+(?:_[a-z]+)+", re.sub(r"\{[^}]*\}", "", text))))
    ]
    assert wrong == []


CONFIG_KEYS = {"quantization_config", "hf_overrides"}
"""Names that are a model's own keys as well."""
