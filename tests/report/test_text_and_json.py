"""What `size` and `explain` print for people is in their JSON, and the JSON is what its schema says (`plan` and `compare`:
tests/test_whole_plan_properties.py)."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from shown_numbers import NUMBER, only_in_text, values_in
from vllm_capacity.cli.engine_options import NAMES
from vllm_capacity.cli.size import command
from vllm_capacity.diagnosis.diagnose import diagnose
from vllm_capacity.diagnosis.rebuild import Given
from vllm_capacity.logs.reader import read_log
from vllm_capacity.report.explain_schema import explain_schema
from vllm_capacity.report.explain_text import diagnosis_to_dict, explain_lines
from vllm_capacity.report.size_data import answer_to_dict
from vllm_capacity.report.size_schema import size_schema
from vllm_capacity.report.size_text import print_answer
from vllm_capacity.sizing.ask import ask

LOGS = Path(__file__).parents[1] / "data" / "logs" / "scenarios"
NAMES_OF_LOGS = sorted(json.loads((LOGS / "expected.json").read_text(encoding="utf-8")))

questions = st.fixed_dictionaries(
    {
        "--model": st.sampled_from(
            ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V2-Lite",
             "ibm-granite/granite-4.0-h-tiny")
        ),
        "--gpu": st.sampled_from(("H100-80GB", "L40S", "L4,H200", "MI300X", "RTX-4090")),
        "--max-model-len": st.sampled_from(("4K", "32000")),
        "--concurrency": st.sampled_from(("1", "7", "96")),
        "--max-gpus": st.sampled_from(("2", "4")),
        "--vllm-version": st.sampled_from(("0.26.0", "0.33.0")),
    },
    optional={
        "--gpus-per-node": st.sampled_from(("2", "8")),
        "--kv-cache-dtype": st.just("fp8"),
        "--gpu-memory-utilization": st.just("0.8"),
        "--max-num-seqs": st.just("16"),
    },
)  # fmt: skip


@settings(max_examples=24, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
          phases=(Phase.explicit, Phase.generate))  # fmt: skip
@given(question=questions)
def test_size_shows_no_number_that_its_json_has_not(question: dict[str, str]) -> None:
    words = [word for pair in question.items() for word in pair] + ["--no-variants"]
    options: dict[str, Any] = dict(command.make_context("size", words).params)
    flags = {name: options.pop(name) for name in NAMES}
    report = ask(options.pop("command_line"), flags, options).answer()
    data = json.loads(json.dumps(answer_to_dict(report)))
    jsonschema.validate(data, size_schema())
    text = io.StringIO()
    print_answer(report, Console(file=text, width=100_000, highlight=False, emoji=False), top=12)
    assert len(NUMBER.findall(text.getvalue())) > 3
    assert only_in_text(text.getvalue(), data, set(derived(data))) == []
    for row in data["rows"]:
        assert row["headroom"] == pytest.approx(row["sequences"] / data["demand"]["sequences"] - 1)
        assert row["total_kv_cache_size_tokens"] == (
            row["kv_cache_size_tokens"] * row["data_parallel_size"] * row["replicas"]
        )


def derived(data: dict[str, Any]) -> Iterator[str]:
    """How the table writes shares, kilowatts and layouts."""
    yield str(len(data["rows"]) - 12)
    for row in data["rows"]:
        yield f"{100 * row['headroom']:+.0f}"
        yield f"{(row['power_watts'] or 0) / 1000:.1f}"
        yield f"{row['decode_tokens_per_second_ceiling'] or 0:,.0f}"
    yield f"{data['demand']['mean_tokens']:,.0f}"
    for item in data["sensitivities"]:
        for value in (item["now"], item["last"], *item["beyond"]):
            yield from NUMBER.findall(value)
        if item["distance"] is not None:
            yield from (
                f"+{100 * item['distance']:.0f}",
                f"-{100 * item['distance']:.0f}",
                f"{100 * item['distance']:.0f}",
            )
    for words in (*data["demand"]["how"], *(row["margin_basis"] for row in data["rows"])):
        yield from NUMBER.findall(words)


@cache
def explained(name: str) -> tuple[dict[str, Any], str]:
    with (LOGS / name).open("rb") as file:
        record = read_log(file)
    diagnosis = diagnose(record, Given(offline=True))
    data: dict[str, Any] = json.loads(json.dumps(diagnosis_to_dict(record, diagnosis)))
    return data, "\n".join(explain_lines(record, diagnosis))


@pytest.mark.parametrize("name", NAMES_OF_LOGS)
def test_explain_shows_no_number_that_its_json_has_not(name: str) -> None:
    data, shown = explained(name)
    jsonschema.validate(data, explain_schema())
    inside = {
        number for value in values_in(data) if isinstance(value, str) for number in NUMBER.findall(value)
    }
    inside |= {f"{value:g}" for value in values_in(data["start"]) if isinstance(value, (int, float))}
    inside |= set(compared_with_the_log(data))
    shown = re.sub(r"\S*\.\.\.$", "", shown, flags=re.MULTILINE)  # a long line of the log is cut anywhere
    assert len(NUMBER.findall(shown)) > 1
    assert only_in_text(" ".join(shown.split()), data, inside) == []


def compared_with_the_log(data: dict[str, Any]) -> Iterator[str]:
    """Figures of "Predicted against logged": two digits but for tokens, their difference, and that in per cent."""
    for row in data["predicted"]:
        scale, digits = (2**30 if row["unit"] == "bytes" else 1), (0 if row["unit"] == "tokens" else 2)
        error = row["predicted"] - row["logged"]
        for value in (row["predicted"], row["logged"]):
            yield f"{value / scale:,.{digits}f}"
        yield f"{error / scale:+,.{digits}f}"
        if row["logged"]:
            yield f"{100 * error / row['logged']:+.1f}"


def test_a_number_that_json_has_not_is_noticed() -> None:
    data, shown = explained("sampler_warmup.log")
    assert only_in_text(shown + "\n4,711 tokens more", data, set(NUMBER.findall(shown))) == ["4,711"]
