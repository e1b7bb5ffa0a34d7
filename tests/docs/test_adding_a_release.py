"""docs/adding-a-release.md: its steps, taken in a copy, make a release that plans, is documented and has its marker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from copied_package import Copy, parts

PAGE = "adding-a-release.md"
NEW, OLD = "0.34.0", "0.33.0"
ASKED = ("--model", "Qwen/Qwen3-8B", "--gpu", "H200", "--no-suggestions")
TABLES = ("capacity/inputs/flags/generated.json", "capacity/inputs/environment/generated.json")
MARKERS = """
import sys
sys.path.insert(0, "tools")
import yaml
from pathlib import Path
from verify_releases import shows
from wheel_source import WheelSource
markers = yaml.safe_load(Path("tools/markers.yaml").read_text())
wheel = WheelSource(Path(sys.argv[1]))
print(*(shows(wheel, markers[name]) for name in ("utilization_default_092", "utilization_default_093")))
"""
RELEASES = (
    "import sys; sys.path.insert(0, 'tools'); import write_release_docs; print(write_release_docs.page())"
)


def same_flags_and_variables(copy: Copy) -> None:
    """What the two generators write for a wheel that has those of the release before: no wheel is at hand here."""
    for name in TABLES:
        path = copy.folder / name
        text = path.read_text(encoding="utf-8").replace(f'"until": "{OLD}"', f'"until": "{NEW}"')
        table = json.loads(text)
        table["releases"].append(NEW)
        path.write_text(json.dumps(table), encoding="utf-8")


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    copy = Copy.make(tmp_path_factory.mktemp("release"))
    refused = copy.plan(*ASKED, "--vllm-version", NEW)
    assert refused.returncode == 2
    assert f"vLLM {NEW} was not read" in refused.stderr
    for block in parts(PAGE).values():
        copy.apply(block)
    same_flags_and_variables(copy)
    return copy


def share(plan: dict[str, object]) -> float:
    requested, total = plan["ranks"][0]["requested_bytes"], plan["gpu"]["cuda_total_bytes"]  # type: ignore[index]
    return round(requested / total, 4)


def test_the_new_release_plans_with_its_difference_and_the_old_ones_without(added: Copy) -> None:
    shares = {
        version: share(added.plan_json(*ASKED, "--vllm-version", version)) for version in (NEW, OLD, "0.19.0")
    }
    assert shares == {NEW: 0.93, OLD: 0.92, "0.19.0": 0.9}


def test_it_is_the_newest_and_says_that_no_run_is_recorded(added: Copy) -> None:
    done = added.plan(*ASKED)
    assert f"vLLM {NEW} (newest known" in done.stdout
    assert f"vLLM {NEW} itself: derived from its source, no run of it is recorded" in done.stdout


def test_the_page_of_releases_lists_the_row(added: Copy) -> None:
    written = added.python(RELEASES).stdout
    section = written.partition(f"### {NEW}")[2]
    assert "gpu_memory_utilization defaults to 0.93; before, 0.92" in section
    assert "utilization_default_093" in section


@pytest.mark.parametrize(
    ("default", "old_row", "new_row"), [("0.92", True, False), ("0.93", True, True), ("0.9", False, False)]
)
def test_markers_tell_wheels_apart(
    added: Copy, tmp_path: Path, default: str, old_row: bool, new_row: bool
) -> None:
    cache = tmp_path / "vllm" / "config" / "cache.py"
    cache.parent.mkdir(parents=True)
    cache.write_text(f"class CacheConfig:\n    gpu_memory_utilization: float = {default}\n")
    metadata = tmp_path / f"vllm-{NEW}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Name: vllm\nVersion: {NEW}\n")
    done = added.python(MARKERS, str(tmp_path))
    assert done.stdout.split() == [str(old_row), str(new_row)], done.stderr
