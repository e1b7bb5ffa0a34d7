"""The wheel holds exactly what the tree does: a forgotten subpackage or data file must fail."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TREES = {"capacity": "vllm_capacity", "validate": "vllm_capacity/validate"}
DATA = {".yaml", ".json", ".typed", ".c", ".gz"}


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)], check=True, capture_output=True
    )
    (wheel,) = out.glob("*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_tree_and_nothing_else(wheel_names: set[str]):
    expected = {"vllm_capacity/models.yaml"}
    for folder, package in TREES.items():
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and (path.suffix == ".py" or path.suffix in DATA):
                expected.add(f"{package}/{path.relative_to(ROOT / folder).as_posix()}")
    assert wheel_names == expected


def test_no_top_level_package_but_ours(wheel_names: set[str]):
    assert {name.split("/")[0] for name in wheel_names} == {"vllm_capacity"}
