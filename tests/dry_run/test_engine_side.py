"""What of the engine side runs without torch: the ledger, the fork, the refusal to start, and what it may import."""

from __future__ import annotations

import ast
import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from vllm_capacity.validate.dry_run.session import ENGINE_SIDE

PACKAGE = ENGINE_SIDE / "vllm_dry_run"


@pytest.fixture(autouse=True)
def engine_side(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ENGINE_SIDE))
    yield
    for name in [name for name in sys.modules if name.startswith("vllm_dry_run")]:
        del sys.modules[name]


class Storage:
    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes

    def nbytes(self) -> int:
        return self._n_bytes


def test_ledger_counts_rounded_live_bytes_and_their_peak():
    from vllm_dry_run.tensor_ledger import TensorLedger

    ledger = TensorLedger()
    kept, passing = Storage(1000), Storage(4096)
    ledger.add(kept, "a")
    ledger.add(kept, "a view of it")
    ledger.add(passing, "b")
    assert (ledger.current, ledger.exact, ledger.peak) == (1024 + 4096, 5096, 5120)
    del passing
    gc.collect()
    assert (ledger.current, ledger.exact, ledger.peak) == (1024, 1000, 5120)
    ledger.reset_peak()
    assert ledger.peak == 1024


def test_ledger_keeps_what_was_alive_at_the_peak():
    from vllm_dry_run.tensor_ledger import TensorLedger

    ledger = TensorLedger()
    ledger.keep_peak = True
    first, second = Storage(512), Storage(1024)
    ledger.add(first, "first")
    ledger.add(second, "second")
    del second
    gc.collect()
    third = Storage(512)
    ledger.add(third, "third")
    assert [a.operator for a in ledger.at_peak.values()] == ["first", "second"]


def test_a_fork_brings_back_what_it_made_and_leaves_nothing():
    from vllm_dry_run import server

    assert server._in_fork(lambda: {"ok": True, "pid": os.getpid()})["pid"] != os.getpid()


def test_a_forks_exception_and_death_are_answers():
    from vllm_dry_run import server

    def fails() -> dict:
        raise ValueError("too little memory")

    failed = server._in_fork(fails)
    assert (failed["error"]["type"], failed["error"]["message"]) == ("ValueError", "too little memory")
    died = server._in_fork(lambda: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[arg-type,return-value]
    assert died["error"]["type"] == "ChildDied"
    assert died["error"]["message"] == "the rank's process ended with signal 9"


def test_engine_side_imports_nothing_of_this_tool():
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(name.startswith("vllm_capacity") for name in names), path


def test_engine_side_travels_with_the_package():
    names = {path.name for path in PACKAGE.glob("*.py")}
    assert {"server.py", "worker.py", "tensor_ledger.py", "fake_tensors.py"} <= names
    assert (Path(PACKAGE).parents[1] / "stub.c").exists()
