"""The stand-in for the CUDA driver builds with the system's compiler, once."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
from vllm_capacity.errors import InputError
from vllm_capacity.validate.dry_run.stub import build_stub

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("cc", "gcc", "clang")), reason="no C compiler here"
)


@needs_compiler
def test_it_is_built_once_and_answers(tmp_path: Path):
    path = build_stub(tmp_path)
    assert path.name == "libcuda.so.1"
    built = path.stat().st_mtime_ns
    assert build_stub(tmp_path) == path
    assert path.stat().st_mtime_ns == built
    library = ctypes.CDLL(str(path))
    assert library.cuInit(0) == 100  # CUDA_ERROR_NO_DEVICE
    count = ctypes.c_int(-1)
    assert library.cudaGetDeviceCount(ctypes.byref(count)) == 0
    assert count.value > 0


def test_a_compiler_that_fails_is_named(tmp_path: Path):
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho 'stub.c: no space left' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(InputError, match=r"broken-cc cannot build .*: stub\.c: no space left"):
        build_stub(tmp_path / "cache", compiler=str(broken))
    assert not list((tmp_path / "cache").rglob("libcuda*"))


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="/no/cc: cannot be started"):
        build_stub(tmp_path / "cache", compiler="/no/cc")
