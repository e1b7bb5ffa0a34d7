"""Ctrl-C and SIGTERM in every long command: one line, the documented exit code, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm_capacity.validate.record import RunRecord, RunRequest, RunStatus, append_record, read_records

from faults.hostile_hub import HostileHub
from faults.running import COMMAND, environment

DATA = Path(__file__).parents[1] / "data"
GPU = ("--gpu", "H100-80GB")
MARK = "FAULTS_MARK"


def marked(mark: str) -> list[int]:
    """Living processes whose environment holds the mark: a started command, its children and theirs."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Started:
    """A command in the foreground of a terminal of its own, as far as signals go."""

    def __init__(self, arguments: tuple[str, ...], env: dict[str, str], cwd: Path, stdin: int) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env={**env, MARK: self.mark},
            cwd=cwd,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def wait_for(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not ready():
            if self.process.poll() is not None:
                raise AssertionError(self.process.communicate()[1].decode()[-2000:])
            assert time.monotonic() < deadline, "never got that far"
            time.sleep(0.02)

    def stop(self, number: signal.Signals, code: int, line: str, *, times: int = 1) -> None:
        """Sends the signal to the whole group, as a terminal does, and checks how everything ends."""
        for _ in range(times):
            os.killpg(self.process.pid, number)
            time.sleep(0.3 if times > 1 else 0)
        _, error = self.process.communicate(timeout=60)
        assert self.process.returncode == code, error.decode()[-2000:]
        lines = [text for text in error.decode().splitlines() if text.strip()]
        assert lines[-1] == f"vllm-capacity: error: {line}"
        assert not any("Traceback" in text or "KeyboardInterrupt" in text for text in lines), error.decode()[
            -3000:
        ]
        assert marked(self.mark) == []


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun: list[Started] = []

    def begin(*arguments: str, env: dict[str, str] | None = None, stdin: int = subprocess.DEVNULL) -> Started:
        begun.append(Started(arguments, environment() if env is None else env, tmp_path, stdin))
        return begun[-1]

    yield begin
    for started in begun:
        for pid in marked(started.mark):
            os.kill(pid, signal.SIGKILL)
        started.process.wait()
        for stream in (started.process.stdout, started.process.stderr):
            if stream is not None:
                stream.close()


SIGNALS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]


# -- commands without engines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code", "line"), SIGNALS)
def test_size_ends_with_its_helpers(start: Start, number: signal.Signals, code: int, line: str) -> None:
    begun = start("size", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--every-layout", "--all", "--max-gpus", "256",
                  "--max-model-len", "8192", "--concurrency", "64")  # fmt: skip
    helpers = 2 if (os.cpu_count() or 1) > 1 else 0
    begun.wait_for(lambda: len(marked(begun.mark)) >= 1 + helpers)
    time.sleep(0.5)
    begun.stop(number, code, line)


@pytest.mark.parametrize(("number", "code", "line"), SIGNALS)
def test_explain_waiting_for_more_of_a_log(
    start: Start, number: signal.Signals, code: int, line: str
) -> None:
    reading, writing = os.pipe()
    begun = start("explain", stdin=reading)
    os.close(reading)
    os.write(writing, b"INFO 10-01 10:00:00 [core.py:97] Initializing a V1 LLM engine\n" * 1000)
    begun.wait_for(lambda: _waits_in_read(begun.process.pid))
    begun.stop(number, code, line)
    os.close(writing)


def _waits_in_read(pid: int) -> bool:
    """Whether the process has taken what the pipe held and sleeps."""
    taken = int(
        next(x for x in Path(f"/proc/{pid}/io").read_text().splitlines() if x.startswith("rchar")).split()[1]
    )
    return taken > 60_000 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("mode", ["config", "headers"])
def test_a_hub_that_hangs(start: Start, mode: str, tmp_path: Path) -> None:
    with HostileHub() as hub:
        env = environment(HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path), NO_PROXY="*",
                          HF_HUB_ETAG_TIMEOUT="60", HF_HUB_DOWNLOAD_TIMEOUT="60")  # fmt: skip
        begun = start("plan", *GPU, "--weights", mode, "--model", "bad/silent", env=env)
        begun.wait_for(lambda: bool(hub.asked))
        begun.stop(signal.SIGINT, 130, "interrupted")


def test_headers_of_shards_that_hang(start: Start, tmp_path: Path) -> None:
    """The threads that read shards are left alone, not waited for."""
    program = (
        "import sys, vllm_capacity.inputs.safetensors_headers as h, vllm_capacity.cli as cli, time\n"
        "cli.group.main = lambda **_: h._in_parallel(lambda name: time.sleep(600), ['a', 'b', 'c'], None)\n"
        "print('ready', flush=True)\n"
        "cli.main()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment(HF_HUB_DOWNLOAD_TIMEOUT="60")) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=20)
    assert (process.returncode, error.decode()) == (130, "vllm-capacity: error: interrupted\n")


def test_refine_in_the_middle(start: Start) -> None:
    records = DATA / "records" / "h200_vllm_0.26.0.jsonl"
    begun = start("refine", *[str(records)] * 8, "--output", "calibration.yaml")
    begun.wait_for(lambda: _processor_s(begun.process.pid) > 1.0)
    begun.stop(signal.SIGINT, 130, "interrupted")


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- commands that start engines ----------------------------------------------------------------------------------


@pytest.fixture
def engines(tmp_path: Path) -> dict[str, str]:
    """An environment with two idle GPUs (a script in place of nvidia-smi) and the stand-in engine, which hangs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(
        "#!/bin/sh\necho '0, NVIDIA H200, 143771, 4, 580.1'\necho '1, NVIDIA H200, 143771, 4, 580.1'\n"
    )
    script.chmod(0o755)
    tape = tmp_path / "tape.json"
    answers = json.loads((DATA / "records" / "answers_h200_0.26.0.json").read_text())
    tape.write_text(json.dumps(answers["llama31-8b-t2048"]))
    return environment(
        PATH=f"{folder}:{os.environ['PATH']}", PYTHONPATH=str(DATA / "fake_engine"), FAKE_ENGINE_TAPE=str(tape),
        FAKE_ENGINE_DIE="load_model:hang", CUDA_VISIBLE_DEVICES="0,1",
    )  # fmt: skip


VALIDATE = ("validate", "--python", sys.executable, "--records", "records.jsonl")
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(("number", "code", "line"), SIGNALS)
@pytest.mark.parametrize("times", [1, 3])
def test_validate_ends_its_engine(
    start: Start, engines: dict[str, str], number: signal.Signals, code: int, line: str, times: int
) -> None:
    """Also where an impatient user presses Ctrl-C again while the engine is being ended."""
    begun = start(
        *VALIDATE, "--model", LLAMA, "--max-num-batched-tokens", "2048", "--max-num-seqs=64", env=engines
    )
    begun.wait_for(
        lambda: len(marked(begun.mark)) >= 3
    )  # the command, the engine and what the engine started
    begun.stop(number, code, line, times=times)


def test_a_matrix_ends_all_its_engines_and_keeps_what_was_measured(
    start: Start, engines: dict[str, str], tmp_path: Path
) -> None:
    run = f"model: {LLAMA}, flags: {{max_num_batched_tokens: 2048, max_num_seqs: 64}}"
    (tmp_path / "matrix.yaml").write_text(
        f"runs:\n  - {{name: quick, {run}, env: {{FAKE_ENGINE_DIE: ''}}}}\n"
        f"  - {{name: one, {run}}}\n  - {{name: two, {run}}}\n"
    )
    begun = start(*VALIDATE, "--matrix", "matrix.yaml", env=engines)
    records = tmp_path / "records.jsonl"
    begun.wait_for(lambda: len(marked(begun.mark)) >= 5 and records.exists() and records.stat().st_size > 0)
    begun.stop(signal.SIGINT, 130, "interrupted")
    assert [(r.name, r.status) for r in read_records(records, tolerate_tail=False)] == [
        ("quick", RunStatus.OK)
    ]


def test_dry_run_ends_its_engine_side(start: Start, tmp_path: Path) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(
        f"#!{sys.executable}\nimport subprocess, sys, time\n"
        "if sys.argv[1] == '-c':\n    print('0.26.0')\n    sys.exit(0)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\ntime.sleep(600)\n"
    )
    stand_in.chmod(0o755)
    begun = start("dry-run", "--gpu", "H200", "--model", "Qwen/Qwen3-8B", "--python", str(stand_in))
    begun.wait_for(lambda: len(marked(begun.mark)) >= 3)
    begun.stop(signal.SIGINT, 130, "interrupted", times=2)


def test_a_run_that_could_not_be_recorded_is_not_begun(
    start: Start, engines: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "records.jsonl").mkdir()
    begun = start(*VALIDATE, "--model", LLAMA, env=engines)
    _, error = begun.process.communicate(timeout=60)
    assert begun.process.returncode == 2
    assert error.decode().startswith("vllm-capacity: error: --records records.jsonl: cannot be written")
    assert not (tmp_path / "validate-work" / "logs").exists()


@pytest.mark.parametrize(
    ("flag", "value"), [("--limit", "nan"), ("--limit", "0s"), ("--requests", "-1"), ("--prompt-tokens", "0")]
)
def test_numbers_that_cannot_be_are_one_line(
    start: Start, engines: dict[str, str], flag: str, value: str
) -> None:
    begun = start(*VALIDATE, "--model", LLAMA, flag, value, env=engines)
    _, error = begun.process.communicate(timeout=60)
    assert begun.process.returncode == 2
    assert error.decode().startswith(f"vllm-capacity: error: {flag}: ")
    assert error.count(b"\n") == 1


def test_records_that_are_there_are_not_touched_by_an_interruption(
    start: Start, engines: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "records.jsonl"
    append_record(
        path, RunRecord(tool_version="0", request=RunRequest(name="old", model="m"), status=RunStatus.OK)
    )
    before = path.read_bytes()
    begun = start(
        *VALIDATE, "--model", LLAMA, "--max-num-batched-tokens", "2048", "--max-num-seqs=64", env=engines
    )
    begun.wait_for(lambda: len(marked(begun.mark)) >= 3)
    begun.stop(signal.SIGINT, 130, "interrupted")
    assert path.read_bytes() == before
