"""Wheel and sdist hold exactly what the tree does: a forgotten subpackage or data file must fail."""

from __future__ import annotations

import ast
import email
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TREES = {"capacity": "vllm_capacity", "validate": "vllm_capacity/validate"}
DATA = {".yaml", ".json", ".typed", ".c", ".gz", ".j2", ".css"}
BESIDE = ("tests", "benchmarks", "container", "docs", "tools")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel built from it, so that nothing left in the tree can get in."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel_names(distributions: Path) -> set[str]:
    (wheel,) = distributions.glob("*.whl")
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def sdist_names(distributions: Path) -> set[str]:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


@pytest.fixture(scope="module")
def metadata(distributions: Path) -> email.message.Message:
    """What an index and pip know of the wheel."""
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def files(folder: str) -> set[str]:
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(ROOT).as_posix() for path in found}


def package_files(folder: str) -> set[str]:
    return {name for name in files(folder) if Path(name).suffix in {".py", *DATA}}


def test_the_wheel_holds_the_tree_and_nothing_else(wheel_names: set[str]):
    expected = {"vllm_capacity/models.yaml"}
    for folder, package in TREES.items():
        expected |= {package + name.removeprefix(folder) for name in package_files(folder)}
    assert wheel_names == expected


def test_no_file_of_the_packages_is_of_a_kind_that_the_wheel_leaves_out():
    for folder in TREES:
        assert files(folder) == package_files(folder)


def test_the_wheel_of_the_tree_is_the_wheel_of_the_sdist_whatever_an_earlier_build_left(
    distributions: Path, tmp_path: Path
):
    left = tmp_path / "build" / "lib" / "vllm_capacity" / "gone.py"
    left.parent.mkdir(parents=True)
    left.write_text("raise SystemExit('a module that the tree no longer has')")
    settings = tmp_path / "settings.cfg"
    settings.write_text(f"[build]\nbuild_base = {tmp_path / 'build'}\n")
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(settings)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (of_tree,), (of_sdist,) = tmp_path.glob("*.whl"), distributions.glob("*.whl")
    assert contents(of_tree) == contents(of_sdist)


def test_an_index_would_show_it_without_complaint(distributions: Path):
    command = [
        sys.executable,
        "-m",
        "twine",
        "--no-color",
        "check",
        "--strict",
        *map(str, distributions.iterdir()),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_the_metadata_is_complete(metadata: email.message.Message):
    from vllm_capacity import __version__

    assert metadata["Name"] == "vllm-capacity"
    assert metadata["Version"] == __version__
    assert metadata["Summary"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "vllm" in metadata["Keywords"].split(",")
    assert metadata["Requires-Python"] == ">=3.11"
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    minors = {
        c.rpartition(".")[2] for c in classifiers if c.startswith("Programming Language :: Python :: 3.")
    }
    assert minors == {"11", "12", "13", "14"}
    assert str(metadata.get_payload()).startswith("# vllm-capacity")


def test_every_dependency_says_why_it_is_there_and_from_which_version_on():
    """One per line, with a reason; a lowest version for all that users get (tools/test_dependency_ends.py runs it)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    users = {name for extra in ("web", "plots") for name in extras.get(extra, ())}
    for requirement in (*project["dependencies"], *users):
        assert ">=" in requirement, requirement
    for requirement in (*project["dependencies"], *(name for extra in extras.values() for name in extra)):
        lines = [line for line in text.splitlines() if line.strip().startswith(f'"{requirement}"')]
        assert lines, requirement
        assert all("# " in line for line in lines), requirement


def test_no_top_level_package_but_ours(wheel_names: set[str]):
    assert {name.split("/")[0] for name in wheel_names} == {"vllm_capacity"}


def test_the_sdist_holds_all_that_its_tests_need(sdist_names: set[str]):
    expected = {
        "models.yaml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "mkdocs.yml",
        "pyproject.toml",
        "Containerfile",
        ".dockerignore",
        ".ci/run",
    }
    for folder in BESIDE:
        expected |= files(folder)
    for folder in TREES:
        expected |= package_files(folder)
    assert expected <= sdist_names


def test_no_module_hides_a_name_that_the_package_gives_out():
    """`import package.name` sets the package's attribute `name` to the module, whatever was there before."""
    import vllm_capacity

    modules = {path.stem for folder in TREES for path in (ROOT / folder).glob("*.py")}
    modules |= {path.parent.name for path in (ROOT / "capacity").glob("*/__init__.py")}
    assert not modules & set(vllm_capacity.__all__)


def test_base_dependencies_are_all_that_the_package_imports():
    """Imports of anything else are in what an extra is for, or in code that runs inside vLLM's own environment only."""
    web = {"fastapi", "starlette", "uvicorn", "nicegui"}
    allowed = {
        "click",
        "pydantic",
        "yaml",
        "rich",
        "huggingface_hub",
        "jinja2",
        "markupsafe",
        "vllm_capacity",
        *sys.stdlib_module_names,
    }
    for path in (ROOT / "capacity").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            extra = {"matplotlib"} if path.name == "plots.py" else web if "web" in path.parts else set()
            assert {name.partition(".")[0] for name in names} <= allowed | extra, path
