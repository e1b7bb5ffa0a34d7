"""Every claim of docs/security.md names a test that exists, and its limits are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from vllm_capacity.inputs import config_json, safetensors_format, text_files
from vllm_capacity.inputs.model_config import MAX_DIMENSION
from vllm_capacity.logs.lines import MAX_LINE as LOG_LINE
from vllm_capacity.sizing.trace import MAX_LINE as TRACE_LINE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_section_with_claims_names_one() -> None:
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        if title != "What is not defended against":
            assert "`tests/" in section, title


def test_the_limits_are_those_of_the_code() -> None:
    assert (
        f"{config_json.MAX_CONFIG_BYTES >> 20} MiB, {config_json.MAX_CONTAINERS:,} objects and lists" in PAGE
    )
    assert f"{config_json.MAX_DEPTH} levels, 2^{MAX_DIMENSION.bit_length() - 1} per dimension" in PAGE
    assert f"{text_files.MAX_BYTES >> 20} MiB, {text_files.MAX_VALUES:,} values" in PAGE
    assert f"{text_files.MAX_ALIASES:,} aliases" in PAGE
    assert (
        f"{safetensors_format.MAX_HEADER_BYTES // 10**6} MB, {config_json.MAX_CONTAINERS:,} tensors" in PAGE
    )
    assert f"{LOG_LINE >> 10} KiB of each line" in PAGE
    assert f"{TRACE_LINE >> 20} MiB per line" in PAGE
