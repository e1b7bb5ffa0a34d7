"""Numbers and tables inside pages that are otherwise written by hand: `<!-- fact: NAME -->...<!-- /fact -->`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median

from accuracy import DATA, cases
from vllm_capacity.calibration import load_calibration
from vllm_capacity.inputs.catalogue import model_ids
from vllm_capacity.inputs.gpus import list_devices
from vllm_capacity.releases import supported_releases
from vllm_capacity.validate.compare import compare
from vllm_capacity.validate.matrix import load_matrix
from vllm_capacity.validate.planning import plan_request
from vllm_capacity.validate.record import RunRecord, read_records
from vllm_capacity.validate.refine import predict_again
from vllm_capacity.vocabulary import QUANTITIES

ROOT = Path(__file__).resolve().parent.parent


def accuracy_line() -> str:
    """How far planned KV caches are from recorded ones, in one sentence."""
    errors = sorted(
        abs(figure.error) / case.device_bytes
        for case in cases()
        if (figure := case.figure("available_kv")) is not None
    )
    nine_in_ten = errors[math.ceil(0.9 * len(errors)) - 1]
    return (
        f"Over {len(errors)} recorded runs the planned KV cache is off by {median(errors):.3%} of the GPU's memory (median), "
        f"nine runs in ten by at most {nine_in_ten:.2%}, the worst by {errors[-1]:.1%}"
    )


def counts() -> str:
    releases = supported_releases()
    return (
        f"{len(model_ids())} models and {len(list_devices())} GPUs are bundled; "
        f"{len(releases)} vLLM releases are known, {releases[0]} to {releases[-1]}."
    )


def measured() -> str:
    """A table of the shipped constants, by component."""
    rows: dict[str, list[int]] = {}
    for entry in load_calibration("none").measurements:
        row = rows.setdefault(entry.component, [0, 0])
        row[0] += 1
        row[1] += entry.measured
    lines = ["", "| component | entries | with runs behind them |", "|---|---|---|"]
    lines += [f"| `{name}` | {entries} | {with_runs} |" for name, (entries, with_runs) in rows.items()]
    return "\n".join([*lines, ""])


def arcee_module() -> str:
    """The module that docs/adding-a-model-family.md writes."""
    name = "capacity/architecture/arcee.py"
    code = (Path(__file__).parent.parent / name).read_text(encoding="utf-8")
    return f'\n\n```python title="{name}"\n{code}```\n\n'


def vocabulary() -> str:
    """A table of the quantities that several answers have."""
    lines = ["", "| in text | in JSON | unit | what it is | vLLM |", "|---|---|---|---|---|"]
    for key, item in QUANTITIES.items():
        lines.append(f"| {item.word} | `{key}` | {item.unit} | {item.meaning} | {item.vllm or '-'} |")
    return "\n".join([*lines, ""])


KINDS = (
    ("llama-3.1-8b-cache-filled", "dense"),
    ("llama-3.1-8b-cache-hit", "dense, second start"),
    ("qwen3-30b-a3b-cache-filled", "experts"),
    ("qwen3-30b-a3b-cache-hit", "experts, second start"),
    ("deepseek-v2-lite", "latent attention (MLA)"),
    ("gemma-3-27b-text (2)", "sliding window"),
    ("granite-4.0-h-tiny", "state space, experts"),
    ("nemotron-nano-9b-v2", "state space"),
    ("gpt-oss-20b", "mxfp4 experts"),
    ("qwen3-8b-fp8-block", "block fp8"),
    ("llama-3.1-8b-tp2", "dense, two GPUs"),
    ("qwen3-30b-a3b-tp2", "experts, two GPUs"),
    ("llama-3.1-8b-pp2", "dense, two stages"),
)
"""Recorded runs of vLLM 0.26.0, one of each kind of model and layout."""


def comparison() -> str:
    """Predicted beside measured for one run of each kind; with two ranks the one with the larger error."""
    tokens = {
        name: compare(predict_again(run, load_calibration("none")), run) for name, run in _records().items()
    }
    lines = [
        "| run | kind | KV cache tokens predicted | measured | weights | activation peak | non-torch | graph estimate "
        "| available for KV cache |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, kind in KINDS:
        row = tokens[name].row("kv_cache_size_tokens")
        assert row is not None
        figures = [
            max(
                (r.error for r in tokens[name].rows if r.name == term and r.error is not None),
                key=abs,
                default=None,
            )
            for term in ("weights", "activation_peak", "non_torch", "graph_estimate", "available_kv")
        ]
        cells = ["" if error is None else f"{error / 2**20:+,.1f}" if error else "0" for error in figures]
        lines.append(f"| `{name}` | {kind} | {row.predicted:,} | {row.measured:,} | {' | '.join(cells)} |")
    return "\n" + "\n".join(lines) + "\n"


def predictions() -> str:
    """What is planned for the runs on four and eight GPUs; the largest figure of any rank."""
    calibration = load_calibration("none")
    lines = [
        "| run | KV cache tokens | weights GiB | activation peak GiB | non-torch GiB | before the snapshot GiB "
        "| available for KV cache GiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in load_matrix(ROOT / "validate" / "matrices" / "h200_x8.yaml"):
        quiet = run.model_copy(update={"env": {**run.env, "NCCL_NVLS_ENABLE": "0"}})
        plan = plan_request(quiet, "0.26.0", "H200", calibration)
        before = max(
            sum(
                t["bytes"]
                for t in rank["terms"]
                if t["lifetime"] == "before_snapshot" and t["allocator"] != "host"
            )
            for rank in plan["ranks"]
        )
        keys = ("weights_bytes", "activation_peak_bytes", "non_torch_bytes")
        cells = [*(max(rank[key] for rank in plan["ranks"]) for key in keys), before]
        cells.append(min(rank["available_kv_bytes"] for rank in plan["ranks"]))
        figures = " | ".join(f"{cell / 2**30:.2f}" for cell in cells)
        lines.append(f"| `{run.name}` | {plan['kv_cache']['size_tokens']:,} | {figures} |")
    return "\n" + "\n".join(lines) + "\n"


def _records() -> dict[str, RunRecord]:
    """Records of 0.26.0 by the names that docs/accuracy.md gives them."""
    found: dict[str, RunRecord] = {}
    for run in read_records(DATA / "records" / "h200_vllm_0.26.0.jsonl", tolerate_tail=False):
        again = sum(name.partition(" (")[0] == run.name for name in found)
        found[run.name if not again else f"{run.name} ({again + 1})"] = run
    return found


FACTS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy_line,
    "counts": counts,
    "calibration": measured,
    "comparison": comparison,
    "predictions": predictions,
    "arcee-module": arcee_module,
    "vocabulary": vocabulary,
}
