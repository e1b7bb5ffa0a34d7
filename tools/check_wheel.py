"""Install a wheel as a user does, in an empty environment, and use it away from its sources.

    python tools/check_wheel.py WHEEL          # base installation; the extras for users resolve, but for `gpu`
    python tools/check_wheel.py WHEEL --gpu    # `gpu` too, beside the newest vLLM (a minute; nothing is installed)

Asks the package index. Exits 1 with the command that failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from pathlib import Path

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
USES = (
    ("--version",),
    ("plan", "--model", MODEL, "--gpu", "H100-80GB"),
    ("plan", "--model", MODEL, "--gpu", "H100-80GB", "--json"),
    ("plan", "--model", MODEL, "--gpu", "H100-80GB", "--emit", "kubernetes"),
    (
        "size",
        "--model",
        MODEL,
        "--gpu",
        "H100-80GB,L40S",
        "--max-gpus",
        "2",
        "--max-model-len",
        "8k",
        "--concurrency",
        "8",
    ),
    ("models", "llama-3.1"),
    ("gpus", "h100"),
    ("schema",),
)
"""Commands that read the catalogues, the flag tables, the calibration and the schemas."""

DEVELOPERS = ("test", "docs")
"""Extras that are installed where the project is worked on, not by its users."""


class CheckError(Exception):
    """What did not hold, in one message."""


def run(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise CheckError(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def install(wheel: Path, folder: Path) -> Path:
    """The `bin` of a new environment that holds the wheel and what it asks for."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    run([environment / "bin" / "python", "-m", "pip", "install", "-q", wheel], folder)
    run([environment / "bin" / "python", "-m", "pip", "check"], folder)
    return environment / "bin"


def check_files(wheel: Path, python: Path, folder: Path) -> int:
    """Everything of the wheel lies in one package of site-packages, byte for byte; gives the number of files."""
    packages = Path(
        run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).strip()
    )
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        tops = {name.partition("/")[0] for name in names}
        if tops != {"vllm_capacity"}:
            raise CheckError(f"top-level packages: {sorted(tops)}")
        for name in names:
            if (packages / name).read_bytes() != archive.read(name):
                raise CheckError(f"{name} is installed otherwise than packed")
    return len(names)


def check_use(bin_folder: Path, folder: Path) -> None:
    tool = bin_folder / "vllm-capacity"
    for use in USES:
        if not run([tool, *use], folder).strip():
            raise CheckError(f"{' '.join(use)}: no output")
    commands = run(
        [bin_folder / "python", "-c", "from vllm_capacity.cli import COMMANDS; print(*COMMANDS)"], folder
    )
    for command in commands.split():
        run([tool, command, "--help"], folder)
    for package in ("vllm_capacity", "vllm_capacity.validate"):
        run([bin_folder / "python", "-c", f"import {package}"], folder)


def extras_of(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name)).get_all("Provides-Extra") or []


def resolve(wheel: Path, extra: str, python: Path, folder: Path) -> dict[str, str]:
    """Package -> version that pip would install for an extra; nothing is installed."""
    command = [python, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "--report", "-"]
    report = json.loads(run([*command, f"{wheel}[{extra}]"], folder))
    return {item["metadata"]["name"].lower(): item["metadata"]["version"] for item in report["install"]}


def check(wheel: Path, folder: Path, *, gpu: bool) -> None:
    bin_folder = install(wheel, folder)
    python = bin_folder / "python"
    count = check_files(wheel, python, folder)
    check_use(bin_folder, folder)
    print(f"{wheel.name}: {count} files installed, one package, every command runs")
    for extra in extras_of(wheel):
        if extra in DEVELOPERS or (extra == "gpu" and not gpu):
            continue
        chosen = resolve(wheel, extra, python, folder)
        shown = f", vllm {chosen['vllm']} beside torch {chosen['torch']}" if extra == "gpu" else ""
        print(f"[{extra}] resolves: {len(chosen)} packages{shown}")
        if extra == "gpu":
            source = "from vllm_capacity.releases import newest_release; print(newest_release().version)"
            newest = run([python, "-c", source], folder).strip()
            if chosen["vllm"] != newest:
                raise CheckError(
                    f"[gpu] gives vllm {chosen['vllm']}, the newest release known here is {newest}"
                )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--gpu", action="store_true", help="also resolve the extra `gpu`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(options.wheel.resolve(), Path(folder).resolve(), gpu=options.gpu)
        except CheckError as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
