"""`vllm-capacity web` as its users meet it: start, stop, one-line errors, the browser, a proxy's prefix."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from vllm_capacity.cli import run
from vllm_capacity.web.settings import WebSettings

from web.running import PROGRAM, running
from web.serving import LLAMA, Served, problem, serving, wait_until


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["web", "--no-browser", *words]) == 2
    out = capsys.readouterr()
    assert not out.out
    assert out.err.count("\n") == 1
    return out.err


def test_a_port_in_use_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = one_line(capsys, "--port", port)
    assert port in line
    assert "--port" in line


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "x" * 300, "1.2.3.4.5"])
def test_a_host_that_is_not_here_is_one_line_and_exit_code_2(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert host in one_line(capsys, "--host", host, "--port", "0")


@pytest.mark.parametrize(
    "words", [("--port", "99999"), ("--port", "http"), ("--root-path", "/a?b"), ("--root-path", "a//b"), ("--reload",)]
)  # fmt: skip
def test_other_options_that_make_no_sense(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert words[0] in one_line(capsys, *words)


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "nicegui"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; from vllm_capacity.cli import main; main(['web'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'vllm-capacity[web]'" in done.stderr


def test_help_and_other_commands_import_nothing_of_the_web() -> None:
    for words in (["web", "--help"], ["plan", "--model", LLAMA, "--json"], ["--help"]):
        code = (
            "import sys; from vllm_capacity.cli import run; run(sys.argv[1:]); "
            "sys.exit(any(name in sys.modules for name in ('fastapi', 'starlette', 'uvicorn', 'nicegui', 'asyncio')))"
        )
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, timeout=60)
        assert done.returncode == 0, words


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly_and_leaves_no_process_behind(how: signal.Signals) -> None:
    with running() as program:
        assert program.client.post("/api/v1/plan", json={"model": LLAMA}).status_code == 200
        wait_until(lambda: len(program.workers()) == WebSettings().workers)
        workers = program.workers()
        program.process.send_signal(how)
        assert program.process.wait(20) == 0
        wait_until(lambda: not any(_runs(worker) for worker in workers), 10)
        assert program.said().count("\n") == 1
        assert "Traceback" not in program.said()


def test_workers_end_with_a_server_that_is_killed() -> None:
    with running() as program:
        wait_until(lambda: len(program.workers()) == WebSettings().workers)
        workers = program.workers()
        program.process.kill()
        program.process.wait(20)
        wait_until(lambda: not any(_runs(worker) for worker in workers), 20)


def _runs(process: int) -> bool:
    try:
        return b"Z" not in Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("wanted", [True, False])
def test_the_browser_opens_unless_told_not_to(wanted: bool, tmp_path: Path) -> None:
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/opened\n')
    script.chmod(0o755)
    with running(environment={"BROWSER": str(script)}, browser=wanted) as program:
        opened = tmp_path / "opened"
        if wanted:
            wait_until(opened.is_file)
            wait_until(lambda: opened.read_text() == f"{program.url}/\n")
        else:
            time.sleep(1)
            assert not opened.exists()


def test_it_listens_where_it_is_told_and_nowhere_else() -> None:
    with running() as program:
        port = int(program.url.rpartition(":")[2])
        elsewhere = _other_address()
        if elsewhere is None:
            pytest.skip("this machine has no other address")
        with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
            socket.create_connection((elsewhere, port), timeout=2)


def _other_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address would be used
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return None if address.startswith("127.") else address


def test_an_address_of_version_6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    with running("--host", "::1") as program:
        assert "//[::1]:" in program.url


# -- behind a proxy -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prefixed() -> object:
    with serving(WebSettings(page=False, root_path="/tools/capacity", workers=1)) as served:
        yield served


@pytest.mark.parametrize("prefix", ["", "/tools/capacity"])
def test_a_prefix_works_whether_or_not_the_proxy_strips_it(prefixed: Served, prefix: str) -> None:
    assert prefixed.get(f"{prefix}/healthz").json()["status"] == "ok"
    assert prefixed.post(f"{prefix}/api/v1/plan", {"model": LLAMA}).status_code == 200
    members = problem(prefixed.post(f"{prefix}/api/v1/plan", {"model": "no/such"}), 403, "hub-not-allowed")
    assert members["type"] == "/tools/capacity/api/v1/problems/hub-not-allowed"
    assert prefixed.get(f"{prefix}/api/v1/problems/busy").json()["status"] == 503
    problem(prefixed.client.get(f"{prefix}/api/v1/plan"), 405, "method-not-allowed")
    problem(prefixed.client.get(f"{prefix}/api/v1/none"), 404, "not-found")
    settings = prefixed.app.state.settings
    too_large = prefixed.post(f"{prefix}/api/v1/plan", b"a" * (settings.json_body_bytes + 1))
    assert problem(too_large, 413, "too-large")["limit"] == settings.json_body_bytes


def test_openapi_names_the_prefix_as_its_server(prefixed: Served) -> None:
    assert prefixed.get("/api/v1/openapi.json").json()["servers"] == [{"url": "/tools/capacity"}]


def test_the_command_takes_a_prefix() -> None:
    with running("--root-path", "capacity/") as program:
        assert program.client.get("/capacity/healthz").status_code == 200
        assert program.client.get("/capacity/api/v1/gpus", params={"search": "h200"}).status_code == 200
        assert httpx.get(f"{program.url}/healthz").status_code == 200


def test_the_program_is_in_the_help() -> None:
    done = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, env=os.environ, timeout=60)
    assert "web" in done.stdout
