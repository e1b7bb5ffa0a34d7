"""The stand-in for the CUDA driver: compiled once, with the system's C compiler."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from vllm_capacity.errors import InputError

SOURCE = Path(__file__).with_name("stub.c")
SONAME = "libcuda.so.1"


def cache_folder() -> Path:
    """Where compiled stubs are kept: $VLLM_CAPACITY_CACHE, else the user's cache folder."""
    given = os.environ.get("VLLM_CAPACITY_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-capacity"


def build_stub(folder: Path | None = None, compiler: str | None = None) -> Path:
    """The compiled stub, made if it is not there. Raises InputError where no compiler works."""
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source + sysconfig.get_platform().encode()).hexdigest()[:16]
    target = (folder or cache_folder()) / f"stub-{key}" / SONAME
    if target.exists():
        return target
    command = (
        compiler or os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if command is None:
        raise InputError(
            "dry-run needs a C compiler once, to build its stand-in for the CUDA driver: install gcc or set CC"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}")
    try:
        done = subprocess.run(
            [command, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{SONAME}", "-o", str(partial), str(SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise InputError(f"{command} cannot build dry-run's stand-in for the CUDA driver: {last}")
        os.replace(partial, target)
    except OSError as error:
        raise InputError(f"{command}: cannot be started ({error.strerror})") from None
    finally:
        partial.unlink(missing_ok=True)
    return target
