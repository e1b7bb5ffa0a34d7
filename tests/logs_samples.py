"""Lines as vLLM prints them: its own format strings (tests/data/logs/formats.json) filled with known
values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

FORMATS = Path(__file__).parent / "data" / "logs" / "formats.json"

TEXTS: tuple[tuple[str, str], ...] = (
    (r"VLLM_VERSION", "0.26.0"),
    (r"_log_prefix_for_engine", ""),
    (
        r"device_name|device_type|^\?$|pools|kv_cache_device|kv_cache_location|^device$|^label$|^prefix$",
        "GPU",
    ),
    (r"engine_index|engine_idx|num_engines|len\(self\.engine", "3"),
    (r"\.device_?$|init_snapshot\.device", "cuda:0"),
    (r"get_caller_info", "flashinfer.py:612:forward"),
    (r"timestamp", "1777000000.5"),
    (r"auto_measure", "True"),
    (r"non_default_args", "{'model': 'some/model', 'tensor_parallel_size': 2}"),
    (r"^vllm_config$|^self$", "model='some/model', dtype=torch.bfloat16, max_seq_len=4096"),
    (r"model_config\.model$|^model_name|load_config|^model$", "some/model"),
    (r"modality", "image"),
    (r"mode\.name", "FULL"),
    (r"graph_groups|join", "PIECEWISE=51 (largest=512), FULL=35 (largest=256)"),
    (r"fs_name", "EXT4"),
    (r"fingerprint", "0f1e2d3c"),
    (r"shm_path", "/dev/shm"),
    (r"allocation_name", "the message queue"),
    (r"^task$", "embed"),
    (r"kv_cache_memory$", "GPU: 12.25 GiB"),
    (r"vllm_flash_attn_version", "3"),
    (r"^name$|^selected_backend|AttentionBackendEnum|valid_str", "FLASH_ATTN"),
    (r"backend|cls\.__name__|kernel", "FLASH_ATTN"),
    (r"_log_prefix_for_engine|is_dummy|encoder_msg|log_prefix", ""),
    (r"estimated_msg", ""),
    (r"num_.*_reqs|current_platform", "GPU"),
    (r"phase|reason|error", "word"),
)
"""Pattern on the printed expression -> what it prints where that is no figure."""


@dataclass(frozen=True)
class Sample:
    """One filled line; `figures` are its numbers in order."""

    name: str
    releases: tuple[str, ...]
    level: str
    text: str
    figures: tuple[float, ...]
    values: tuple[str, ...]
    printed: dict[str, str]
    """Expression -> the text that stands for it."""


def data() -> Any:
    return json.loads(FORMATS.read_text(encoding="utf-8"))


def samples() -> Iterator[Sample]:
    for name, rows in data()["lines"].items():
        for row in rows:
            yield fill(name, row)


def fill(name: str, row: Any) -> Sample:
    """Numbers differ from each other, so that a swapped pair of figures shows."""
    arguments: list[Any] = []
    figures: list[float] = []
    printed: dict[str, Any] = {}
    specs = {
        int(field): spec or ""
        for _, field, spec, _ in Formatter().parse(row["template"])
        if field is not None
    }
    for index, expression in enumerate(row["values"]):
        spec = specs[index]
        text: Any = next((t for pattern, t in TEXTS if re.search(pattern, expression)), None)
        if text is not None and spec.endswith(("d", "f")):
            text = int(text) if text.isdecimal() else None
        value: Any
        if expression in printed and expression != "?":
            value = printed[expression]
        elif text is not None:
            value = text
        elif spec.endswith("d") or spec == ",":
            value = 1_000 + 37 * (index + 1)
            figures.append(float(value))
        elif spec.endswith("f"):
            digits = int(re.search(r"\.(\d+)f", spec)[1]) if "." in spec else 6
            value = round(10 * (index + 1) + 0.1234, digits)
            figures.append(float(format(value, spec)))
        elif (re.search(r"(?i)gib", expression) and "limit" not in expression) or "format_gib" in expression:
            value = f"{10 * (index + 1) + 0.25:g}"
            figures.append(float(value))
        elif "utilization" in expression:
            value = 0.9
            figures.append(0.9)
        else:
            value = (
                5_000_000 + 77 * (index + 1)
                if re.search("limit|bytes|available_kv", expression)
                else 100 + 7 * (index + 1)
            )
            if "_str" in expression or ":," in expression:
                figures.append(float(value))
                value = f"{value:,}"
            else:
                figures.append(float(value))
        arguments.append(value)
        printed[expression] = value
    return Sample(
        name,
        tuple(row["releases"]),
        row["level"],
        row["template"].format(*arguments),
        tuple(figures),
        tuple(row["values"]),
        {e: format(a, specs[i]) for i, (e, a) in enumerate(zip(row["values"], arguments, strict=True))},
    )
