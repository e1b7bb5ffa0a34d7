"""The engine side without vLLM: a stand-in interpreter, a real child process, that replays recorded answers
(tests/data/dry_run/answers_0.26.0.json) or misbehaves as asked.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.validate.dry_run.job import describe_gpu
from vllm_capacity.validate.dry_run.session import Session

DATA = Path(__file__).parents[1] / "data" / "dry_run"
RECORDED = json.loads((DATA / "answers_0.26.0.json").read_text())["answers"]
HELLO, SELF_TEST, QWEN, KV = RECORDED

STAND_IN = """#!{python}
import json, os, signal, subprocess, sys, time
if sys.argv[1] == "-c":
    print({version!r})
    sys.exit(0)
script = json.loads(open({script!r}).read())
replies = os.fdopen(int(sys.argv[-1]), "w", buffering=1)
for step in script:
    line = sys.stdin.readline()
    if not line:
        break
    request = json.loads(line)
    with open({log!r}, "a") as log:
        log.write(line)
    if step == "die":
        print("Traceback: the machine is on fire", file=sys.stderr, flush=True)
        sys.exit(3)
    if step == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == "hang":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)
    if step == "garbage":
        replies.write("not json\\n")
        continue
    answer = dict(step)
    if "id" in request:
        answer.setdefault("id", request["id"])
    replies.write(json.dumps(answer) + "\\n")
sys.stdin.readline()
"""


def answer(recorded: dict[str, Any]) -> dict[str, Any]:
    """A recorded answer, to whatever number is asked now."""
    return {key: value for key, value in recorded.items() if key != "id"}


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., Path]:
    """Path of an interpreter that answers with these steps; what it was asked is in `requests` beside it."""

    def make(steps: list[Any], version: str = "0.26.0") -> Path:
        script = tmp_path / "script.json"
        script.write_text(json.dumps(steps))
        path = tmp_path / "python"
        path.write_text(
            STAND_IN.format(
                python=sys.executable, script=str(script), version=version, log=str(tmp_path / "requests")
            )
        )
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def start(tmp_path: Path, stand_in: Callable[..., Path]) -> Callable[..., Session]:
    def begin(steps: list[Any], **limits: float) -> Session:
        return Session(
            str(stand_in(steps)), describe_gpu(find_device("H200")), stub=tmp_path, warm_up=tmp_path, **limits
        )

    return begin


def living(session: int) -> list[int]:
    """Processes of a session, zombies left out."""
    from vllm_capacity.validate.processes import members

    return [pid for pid in members(session) if pid != os.getpid()]
