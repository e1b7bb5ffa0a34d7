"""The installed vLLM decides the release where none is named."""

from __future__ import annotations

from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from vllm_capacity.request import installed_vllm


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("vllm-0.26.0.dist-info", "0.26.0"),
        ("vllm-0.26.0+cu129.dist-info", "0.26.0"),
        ("vllm-0.33.0+cpu.dist-info", "0.33.0"),
        ("vllm_capacity-0.1.0.dist-info", None),
        ("vllm-nccl-cu12-2.18.1.dist-info.txt", None),
    ],
)
def test_version_comes_from_the_distribution(folder: str, expected: str | None, tmp_path: Path):
    (tmp_path / "site" / folder).mkdir(parents=True)
    assert installed_vllm((str(tmp_path / "missing"), str(tmp_path / "site"))) == expected


def test_first_on_the_path_wins(tmp_path: Path):
    for site, release in (("a", "0.26.0"), ("b", "0.33.0")):
        (tmp_path / site / f"vllm-{release}.dist-info").mkdir(parents=True)
    assert installed_vllm((str(tmp_path / "b"), str(tmp_path / "a"))) == "0.33.0"


def test_installers_still_name_the_folder_so():
    """The rule holds for a distribution that pip did install here."""
    folder = Path(str(distribution("pydantic").locate_file(""))) / f"pydantic-{version('pydantic')}.dist-info"
    assert folder.is_dir()
