"""Run the tests that reach our dependencies at the ends of their ranges, each end in an environment of its own.

    python tools/test_dependency_ends.py                 # the lowest versions that pyproject.toml admits
    python tools/test_dependency_ends.py --end newest    # the newest on the index
    python tools/test_dependency_ends.py --all           # every test, not only those that reach a dependency

The lowest: each dependency of the base installation and of the extras `web` and `plots` is pinned to the version behind its
`>=`; what they depend on, and the test tools, are the newest that go with those. Asks the package index.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("web", "plots")
REACHING = (
    "tests/cli",  # click
    "tests/hub",  # huggingface_hub
    "tests/inputs",  # PyYAML, configs
    "tests/web/test_web_api.py",  # fastapi, uvicorn
    "tests/web/test_web_command.py",  # uvicorn
    "tests/web/page",  # nicegui
    "tests/report/test_plan_page.py",  # jinja2
    "tests/sizing/test_plots.py",  # matplotlib
    "tests/sizing/test_compare.py",  # rich
    "tests/validate/test_record.py",  # pydantic
    "tests/test_plan_against_vllm.py",
)
"""Tests that reach a dependency's own functions; the rest is arithmetic."""


def pins(project: dict[str, object]) -> dict[str, str]:
    """Package -> the version behind `>=`. ValueError for a range that is open below."""
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})  # type: ignore[assignment]
    requirements: list[str] = [*project["dependencies"]]  # type: ignore[misc]
    requirements += [line for extra in EXTRAS for line in extras.get(extra, ())]
    found = {}
    for requirement in requirements:
        match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?>=([0-9.]+)(,.*)?", requirement)
        if match is None:
            raise ValueError(f"{requirement}: no lowest version")
        found[match[1]] = match[2]
    return found


def environment_with(folder: Path, constraints: dict[str, str]) -> Path:
    """Python of a new environment that holds this project, its test tools, and the given versions."""
    venv.create(folder / "environment", with_pip=True)
    python = folder / "environment" / "bin" / "python"
    names = folder / "constraints.txt"
    names.write_text("".join(f"{name}=={version}\n" for name, version in constraints.items()))
    extras = ",".join((*EXTRAS, "test"))
    pip = [str(python), "-m", "pip", "install", "-q", "-c", str(names), "-e", f"{ROOT}[{extras}]"]
    subprocess.run(pip, check=True)
    return python


def versions(python: Path, names: list[str]) -> str:
    source = (
        "import sys, importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]), sep=', ')"
    )
    return subprocess.run(
        [python, "-c", source, *names], check=True, capture_output=True, text=True
    ).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--end", choices=("lowest", "newest"), default="lowest")
    parser.add_argument("--all", action="store_true", help="every test")
    parser.add_argument(
        "--python", type=Path, help="an environment that holds an end already: only run the tests"
    )
    options, pytest_arguments = parser.parse_known_args()
    lowest = pins(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])
    with tempfile.TemporaryDirectory() as folder:
        python = options.python or environment_with(Path(folder), lowest if options.end == "lowest" else {})
        print(f"{options.end}: {versions(python, list(lowest))}", flush=True)
        chosen = [] if options.all else [name for name in REACHING if (ROOT / name).exists()]
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", *chosen, *pytest_arguments]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
