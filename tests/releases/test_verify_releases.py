"""The script that holds the tables to the wheels finds differences; what of it needs no wheel holds here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from vllm_capacity.releases import supported_releases
from vllm_capacity.releases.wheels import WHEELS

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    for name in ("verify_releases", "wheel_source"):
        sys.modules.pop(name, None)
    import verify_releases

    yield verify_releases
    for name in ("verify_releases", "wheel_source"):
        sys.modules.pop(name, None)


CACHE = """
class CacheConfig:
    # a comment
    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)
    \"\"\"A docstring.\"\"\"
"""


def wheel_with(tool, folder: Path, version: str = "0.26.0", **files: str):
    """An unpacked wheel: METADATA as the table expects it, and files (config__cache is config/cache.py)."""
    row = next(row for row in WHEELS if row.version == version)
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\nRequires-Dist: torch=={row.torch.version}\n"
        f"Requires-Dist: flashinfer-python=={row.flashinfer}\nRequires-Dist: transformers{row.transformers}\n"
    )
    for name, text in files.items():
        path = folder / "vllm" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tool.WheelSource(folder)


def test_every_feature_has_a_marker_and_every_marker_a_feature(tool):
    assert list(tool.check_markers(yaml.safe_load((TOOLS / "markers.yaml").read_text()))) == []


def test_reviewed_functions_have_hashes_of_releases_that_were_read(tool):
    reviewed = yaml.safe_load((TOOLS / "reviewed.yaml").read_text())
    assert len(reviewed) > 90
    for place, history in reviewed.items():
        assert history, place
        assert set(history) <= set(supported_releases()), place


def test_a_wheel_as_the_table_says_shows_no_difference_in_its_pins(tool, tmp_path):
    assert list(tool.check_pins(wheel_with(tool, tmp_path / "wheel"))) == []


def test_a_wheel_with_another_torch_differs(tool, tmp_path):
    wheel = wheel_with(tool, tmp_path / "wheel")
    wheel.metadata = wheel.metadata.replace("torch==2.11.0", "torch==2.12.0")
    assert list(tool.check_pins(wheel)) == [
        "0.26.0: METADATA asks for torch==2.12.0, the table says ==2.11.0"
    ]


def test_a_doctored_default_is_named(tool, tmp_path):
    markers = {
        "utilization_default_092": yaml.safe_load((TOOLS / "markers.yaml").read_text())[
            "utilization_default_092"
        ]
    }
    sound = wheel_with(tool, tmp_path / "sound", config__cache=CACHE)
    doctored = wheel_with(tool, tmp_path / "doctored", config__cache=CACHE.replace("0.92", "0.95"))
    assert list(tool.check_features(sound, markers)) == []
    (line,) = tool.check_features(doctored, markers)
    assert line.startswith("0.26.0: the table has utilization_default_092, the wheel does not show it")


def test_a_changed_function_is_listed_for_review(tool, tmp_path):
    place = "config/cache.py: CacheConfig"
    sound = wheel_with(tool, tmp_path / "sound", config__cache=CACHE)
    doctored = wheel_with(tool, tmp_path / "doctored", config__cache=CACHE.replace("0.92", "0.95"))
    reviewed = {place: {"0.20.0": tool.digest(sound.find("config/cache.py", "CacheConfig"))}}
    assert list(tool.check_functions(sound, reviewed)) == []
    assert list(tool.check_functions(doctored, reviewed)) == [f"0.26.0: review {place}"]


def test_comments_docstrings_and_layout_change_no_hash(tool, tmp_path):
    sound = wheel_with(tool, tmp_path / "sound", config__cache=CACHE)
    other = CACHE.replace("# a comment", "# another").replace("A docstring", "Another")
    other = other.replace("Field(default=0.92, ", "Field(\n        default=0.92,\n        ")
    assert other.count("another") == other.count("Another") == 1
    laid_out = wheel_with(tool, tmp_path / "other", config__cache=other)
    assert tool.digest(sound.find("config/cache.py")) == tool.digest(laid_out.find("config/cache.py"))


def test_a_zipped_wheel_reads_like_an_unpacked_one(tool, tmp_path):
    import zipfile

    folder = tmp_path / "wheel"
    unpacked = wheel_with(tool, folder, config__cache=CACHE)
    packed = tmp_path / "vllm-0.26.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in folder.rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
    (zipped,) = tool.find_wheels([packed])
    assert zipped.version == unpacked.version
    assert zipped.files("config") == unpacked.files("config") == ["config/cache.py"]
    assert tool.digest(zipped.find("config/cache.py")) == tool.digest(unpacked.find("config/cache.py"))
