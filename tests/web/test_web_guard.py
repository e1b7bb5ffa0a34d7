"""What a worker may touch, and that the server opens no connection unless it is told that it may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub.server import HubServer, Repository
from vllm_capacity.inputs.catalogue import find_entry

from web.running import Program, running
from web.serving import LLAMA, problem

REACHES = {
    "a file of the machine": "open('/etc/hostname')",
    "a file by its descriptor's call": "import os; os.open('/etc/hostname', os.O_RDONLY)",
    "a file beside": "import pathlib; pathlib.Path(__file__).read_text()",
    "a link to a file": "import os; open(LINK)",
    "a path that climbs out": "import vllm_capacity; open(vllm_capacity.__path__[0] + '/../' * 30 + 'etc/hostname')",
    "a folder": "import os; os.listdir('/')",
    "the folder it runs in": "import os; os.listdir()",
    "a file to write": "open(LINK + '.new', 'w')",
    "one of our own files to write": "import vllm_capacity; open(vllm_capacity.__file__, 'a')",
    "a file to remove": "import os; os.remove(LINK)",
    "a connection": "import socket; socket.create_connection(('127.0.0.1', 9))",
    "a name": "import socket; socket.getaddrinfo('localhost', 80)",
    "an address": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9/')",
    "a child": "import subprocess; subprocess.run(['true'])",
    "a fork": "import os; os.fork()",
    "a shell": "import os; os.system('true')",
    "a library": "import ctypes; ctypes.CDLL('libc.so.6')",
}
OPENED = ("a file of the machine", "a connection", "a child")
NEEDED = {
    "a module that nothing has imported yet": "import wave",
    "a plan of another model and release": (
        "from vllm_capacity.web.requests import PlanRequest, plan_document\n"
        "r = PlanRequest(model='deepseek-ai/DeepSeek-V3', flags={'tensor_parallel_size': 8}, vllm_version='0.19.0')\n"
        "assert plan_document(r, WebSettings())['ranks']"
    ),
    "the modules of the other commands": "import vllm_capacity.diagnosis.diagnose, vllm_capacity.sizing.ask",
}
PROGRAM = """
import contextlib, ctypes, json, os, pathlib, socket, subprocess, sys, urllib.request
from vllm_capacity.web import guard
from vllm_capacity.web.worker import prepare
from vllm_capacity.web.settings import WebSettings
LINK, (closed, opened) = sys.argv[1], json.loads(sys.argv[2])
prepare(WebSettings())

def attempt(code):
    try:
        exec(code, globals())
    except guard.GuardError as error:
        return f"guarded: {error}"
    except OSError as error:
        return f"tried: {error}"
    return "done"

results = {name: attempt(code) for name, code in closed.items()}
with guard.opened():
    results |= {f"opened {name}": attempt(code) for name, code in opened.items()}
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What came of each attempt, all in one process that is closed as a worker is."""
    place = tmp_path_factory.mktemp("reach")
    (place / "reach.py").write_text(PROGRAM)
    (place / "link").symlink_to("/etc/hostname")
    attempts = json.dumps([{**REACHES, **NEEDED}, {name: REACHES[name] for name in OPENED}])
    words = [sys.executable, "-P", str(place / "reach.py"), str(place / "link"), attempts]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    results: dict[str, str] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("what", REACHES)
def test_a_worker_cannot_reach(reached: dict[str, str], what: str) -> None:
    assert reached[what].startswith("guarded: ")


@pytest.mark.parametrize("what", OPENED)
def test_the_same_is_reached_where_the_guard_lets_through(reached: dict[str, str], what: str) -> None:
    """So the test above does not pass because the reach was no reach."""
    assert reached[f"opened {what}"].startswith(("done", "tried: "))


@pytest.mark.parametrize("what", NEEDED)
def test_what_a_plan_needs_is_within_reach(reached: dict[str, str], what: str) -> None:
    assert reached[what] == "done"


# -- connections ----------------------------------------------------------------------------------------------------

WATCH = """
import os, sys
def hook(event, args, file=open(os.environ["WATCH_FILE"], "a", buffering=1)):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        target = args[1] if event == "socket.connect" else args[0]
        file.write(f"{event} {target!r}\\n")
sys.addaudithook(hook)
"""
"""Loaded by every Python of the server, its workers among them: writes down each connection that is tried."""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    entry = find_entry("Qwen/Qwen3-8B")
    assert entry is not None
    config = json.dumps(entry.config).encode()
    with HubServer(
        {"good/plain": Repository({"config.json": config}), "slow/one": Repository({}, delay_s=3)}
    ) as hub:
        yield hub


def watched(tmp_path: Path, hub: HubServer, *options: str, folder: Path | None = None) -> Any:
    place = tmp_path / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text(WATCH)
    (tmp_path / "watched").touch()
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    environment = {
        "PYTHONPATH": path, "WATCH_FILE": str(tmp_path / "watched"), "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    return running(*options, environment=environment, folder=folder)


def ask_everything(program: Program) -> None:
    client, text = program.client, {"content-type": "text/plain"}
    for model in (LLAMA, "good/plain", "no/such", "Qwen/Qwen3-8", "a" * 90, "a/" + "b" * 90):
        for extra in ({}, {"revision": "main"}, {"weights": "headers"}):
            client.post("/api/v1/plan", json={"model": model, "gpu": "H200", **extra})
        load = {"concurrency": 1, "gpus": ["H200"], "flags": {"max_model_len": 99}}
        client.post("/api/v1/size", json={"model": model, **load})
        log = f"$ vllm serve {model}\nAvailable KV cache memory: 5.01 GiB"
        client.post("/api/v1/explain", content=log, params={"model": model}, headers=text)
    client.post("/api/v1/plan", json={"command": "vllm serve good/plain", "gpu": "H200"})
    for path in ("/api/v1/models", "/api/v1/gpus", "/healthz", "/api/v1/openapi.json", "/", "/nothing"):
        client.get(path)


def test_without_allow_hub_no_process_of_the_server_tries_a_connection(
    tmp_path: Path, hub: HubServer
) -> None:
    with watched(tmp_path, hub) as program:
        ask_everything(program)
        members = problem(
            program.client.post("/api/v1/plan", json={"model": "good/plain"}), 403, "hub-not-allowed"
        )
        assert "--allow-hub" in members["detail"]
    tried = (tmp_path / "watched").read_text().splitlines()
    own = [line for line in tried if not line.startswith("socket.getaddrinfo '127.0.0.1'")]  # to listen on it
    assert own == []
    assert hub.requests == []


def test_with_allow_hub_a_model_of_the_hub_is_planned(tmp_path: Path, hub: HubServer) -> None:
    """And so the watch of the test above does see connections, and the Hub does hear them."""
    beside = tmp_path / "cwd" / "good" / "plain"  # `plan --model good/plain` would read this one
    beside.mkdir(parents=True)
    (beside / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}')
    with watched(tmp_path, hub, "--allow-hub", folder=tmp_path / "cwd") as program:
        answer = program.client.post("/api/v1/plan", json={"model": "good/plain", "gpu": "H200"})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        local = program.client.post("/api/v1/plan", json={"model": "Qwen/Qwen3-8B", "gpu": "H200"}).json()
        assert document["ranks"] == local["ranks"]
        assert "Hugging Face Hub" in document["model"]["source"]
        members = problem(program.client.post("/api/v1/plan", json={"model": "no/such"}), 422, "cannot-plan")
        assert "no/such" in members["detail"]
        for spelling in ("/etc/passwd", "../x", hub.url, "file:///etc/passwd"):
            members = problem(
                program.client.post("/api/v1/plan", json={"model": spelling}), 422, "cannot-plan"
            )
            assert "reads no paths" in members["detail"]
        assert program.client.get("/healthz").json()["allow_hub"] is True
    assert any("socket.connect" in line for line in (tmp_path / "watched").read_text().splitlines())
    assert any("good/plain" in path for _, path, *_ in hub.requests)
