"""What is on disk after a full disk, a kill in the middle of a write, two writers at once, a read-only home."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_capacity.calibration import load_calibration, render
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.safetensors_format import TensorInfo
from vllm_capacity.inputs.safetensors_headers import (
    CheckpointHeaders,
    _cache_file,
    _store_cached,
    load_cached,
)
from vllm_capacity.validate.record import (
    RunRecord,
    RunRequest,
    RunStatus,
    append_record,
    read_records,
    write_file,
)

from faults.running import COMMAND, MODEL, environment, files_end_at, one_line, run, without_root_rights

LOG = Path(__file__).parents[1] / "data" / "logs"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def record(name: str, kilobytes: int = 0) -> RunRecord:
    log = ["x" * 1000] * kilobytes
    return RunRecord(tool_version="0", request=RunRequest(name=name, model="m"), status=RunStatus.OK, log=log)


def names(path: Path) -> list[str]:
    return [r.name for r in read_records(path, tolerate_tail=False)]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; skips where this user may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)],
                             capture_output=True, check=False)  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip("mounting needs root; RLIMIT_FSIZE stands for a full disk in the other tests")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


# -- full disks ---------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up_loses_no_record(tiny_disk: Path) -> None:
    """The one that did not fit is kept elsewhere, and the error says where."""
    path, kept, told = tiny_disk / "records.jsonl", 0, ""
    while not told:
        try:
            append_record(path, record(f"run{kept}", kilobytes=20))
            kept += 1
        except InputError as error:
            told = str(error)
    assert kept >= 3
    assert names(path) == [f"run{n}" for n in range(kept)]
    assert [p.name for p in tiny_disk.iterdir()] == ["records.jsonl"]
    assert "No space left on device" in told
    rescued = Path(told.rpartition(" is kept in ")[2])
    assert names(rescued) == [f"run{kept}"]
    rescued.unlink()


def test_explain_on_a_full_disk_is_one_line_and_loses_nothing(tiny_disk: Path) -> None:
    path = tiny_disk / "records.jsonl"
    append_record(path, record("first"))
    (tiny_disk / "ballast").write_bytes(bytes(4096))
    with suppress_full(), (tiny_disk / "ballast").open("ab") as ballast:
        while True:
            ballast.write(bytes(4096))
            ballast.flush()
    log = next(iter(sorted(LOG.glob("**/*.log"))))
    done = run("explain", str(log), "--records", str(path), "--offline")
    one_line(done, "cannot be written (No space left on device)", "the record is kept in ")
    assert names(path) == ["first"]
    Path(done.error.strip().rpartition(" is kept in ")[2]).unlink()


class suppress_full:  # noqa: N801 - a context manager, used like a function
    """Ends quietly when the disk is full."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, OSError)


APPEND = """
import sys
from pathlib import Path
from vllm_capacity.validate.record import RunRecord, RunRequest, RunStatus, append_record
name, path, count, kilobytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
for number in range(count):
    append_record(path, RunRecord(tool_version="0", request=RunRequest(name=f"{name}{number}", model="m"),
                                  status=RunStatus.OK, log=["x" * 1000] * kilobytes))
    print(number, flush=True)
"""


def test_a_record_beyond_a_file_size_limit_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    append_record(path, record("first"))
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", APPEND, "big", str(path), "1", "100"],
        env=environment(TMPDIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1"),
        preexec_fn=files_end_at(50_000),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "cannot be written (File too large); nor could the record be kept" in done.stderr
    assert path.read_bytes() == before
    assert not [p for p in tmp_path.iterdir() if "replacing" in p.name]


@pytest.mark.parametrize("what", ["refine", "plot"])
def test_other_outputs_on_a_full_disk_are_one_line(what: str, tmp_path: Path) -> None:
    if what == "plot":
        env = environment(PYTHONDONTWRITEBYTECODE="1")
        done = run("plan", *MODEL, "--plot", str(tmp_path / "plot.png"), before=files_end_at(1000), env=env)
        one_line(done, "plot.png")
        return
    records = Path(__file__).parents[1] / "data" / "records"
    lines = (records / "h200_vllm_0.26.0.jsonl").read_text().splitlines(keepends=True)
    file = tmp_path / "records.jsonl"
    file.write_text("".join(lines[:6]))
    target = tmp_path / "calibration.yaml"
    target.write_text("measurements:\n")
    done = run("refine", str(file), "--output", str(target), before=files_end_at(100), timeout=120,
               env=environment(PYTHONDONTWRITEBYTECODE="1"))  # fmt: skip
    one_line(done, "calibration.yaml: cannot be written")
    assert target.read_text() == "measurements:\n"


# -- killed in the middle -----------------------------------------------------------------------------------------


def test_a_kill_in_the_middle_of_appending_loses_nothing(tmp_path: Path) -> None:
    """Every record that the writer reported is there and whole, at whatever moment SIGKILL came."""
    path, chance, told = tmp_path / "records.jsonl", random.Random(13), 0
    for attempt in range(6):
        with subprocess.Popen([sys.executable, "-c", APPEND, f"try{attempt}-", str(path), "1000", "500"],
                              stdout=subprocess.PIPE, text=True, env=environment()) as writer:  # fmt: skip
            assert writer.stdout is not None
            writer.stdout.readline()  # the first one is written: what follows is kill time
            time.sleep(chance.uniform(0.0, 0.05))
            writer.kill()
            told += 1 + len(writer.stdout.read().split())
        found = names(path)
        assert told <= len(found) <= told + attempt + 1  # at most one more than told per kill
    append_record(path, record("after"))
    assert names(path)[-1] == "after"
    assert [p.name for p in tmp_path.iterdir()] == ["records.jsonl"], "leftovers of the killed are gone"


REPLACE = """
import sys
from pathlib import Path
from vllm_capacity.validate.record import write_file
texts = [Path(name).read_text() for name in sys.argv[2:]]
write_file(Path(sys.argv[1]), texts[0])
print("ready", flush=True)
while True:
    for text in texts:
        write_file(Path(sys.argv[1]), text)
"""


def test_a_kill_in_the_middle_of_writing_the_calibration_leaves_a_whole_one(tmp_path: Path) -> None:
    built_in = load_calibration("none").measurements
    texts = []
    for number in range(2):
        text = render(built_in[number:] * 200)
        (tmp_path / f"text{number}").write_text(text)
        texts.append(text)
    target, chance = tmp_path / "home" / "calibration.yaml", random.Random(7)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", REPLACE, str(target), str(tmp_path / "text0"), str(tmp_path / "text1")],
                              stdout=subprocess.PIPE, text=True, env=environment()) as writer:  # fmt: skip
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(chance.uniform(0.005, 0.08))
            writer.kill()
        assert target.read_text() in texts


STORE = """
import sys
from vllm_capacity.inputs.safetensors_format import TensorInfo
from vllm_capacity.inputs.safetensors_headers import CheckpointHeaders, _store_cached
headers = CheckpointHeaders(tuple(TensorInfo(f"t{i}", "BF16", (2, 4), 16) for i in range(20000)), 1, "here", None)
print("ready", flush=True)
while True:
    _store_cached("a/b", sys.argv[1], headers)
"""


def test_a_kill_in_the_middle_of_caching_headers_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    chance = random.Random(11)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", STORE, COMMIT], stdout=subprocess.PIPE, text=True,
                              env=environment(HF_HOME=str(tmp_path))) as writer:  # fmt: skip
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(chance.uniform(0.02, 0.2))
            writer.kill()
        kept = load_cached("a/b", COMMIT)
        assert kept is None or len(kept.tensors) == 20_000


# -- two at once --------------------------------------------------------------------------------------------------


def test_writers_at_once_lose_no_record(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, name, str(path), "25", "20"], stdout=subprocess.DEVNULL,
                         env=environment())
        for name in ("a", "b", "c")
    ]  # fmt: skip
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            read_records(path, tolerate_tail=False)  # a reader in between sees whole lines only
        time.sleep(0.02)
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert sorted(names(path)) == sorted(f"{name}{n}" for name in "abc" for n in range(25))
    assert [p.name for p in tmp_path.iterdir()] == ["records.jsonl"]


# -- permissions and odd places -----------------------------------------------------------------------------------


def test_permissions_and_links_of_a_record_file_survive(tmp_path: Path) -> None:
    real = tmp_path / "real.jsonl"
    append_record(real, record("a"))
    umask = os.umask(0)
    os.umask(umask)
    assert real.stat().st_mode & 0o777 == 0o666 & ~umask
    real.chmod(0o600)
    link = tmp_path / "link.jsonl"
    link.symlink_to(real)
    append_record(link, record("b"))
    assert link.is_symlink()
    assert names(real) == ["a", "b"]
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", ["/dev/null", "/dev/full", "folder"])
def test_what_is_no_file_is_never_replaced(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / place  # an absolute place stays itself
    for write in (lambda: append_record(path, record("a")), lambda: write_file(path, "text")):
        with pytest.raises(InputError, match="cannot be written") as caught:
            write()
        kept = str(caught.value).partition(" is kept in ")[2]
        if kept:
            Path(kept).unlink()
    assert not path.is_file()
    assert path.exists()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "readonly"
    folder.mkdir()
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def test_a_read_only_home_does_not_matter_to_a_plan(read_only: Path) -> None:
    home = environment(HOME=str(read_only), XDG_CONFIG_HOME="", XDG_CACHE_HOME="")
    done = run("plan", *MODEL, "--json", env=home, prefix=without_root_rights())
    assert (done.code, done.error) == (0, "")
    assert json.loads(done.out)
    assert not list(read_only.iterdir())


def test_a_home_that_cannot_be_read_does_not_matter_to_a_plan(tmp_path: Path) -> None:
    """Not even the user's calibration file can be looked for: the built-in one counts."""
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0)
    done = run("plan", *MODEL, "--json", env=environment(HOME=str(locked)), prefix=without_root_rights())
    locked.chmod(0o755)
    assert (done.code, done.error) == (0, "")


def test_records_in_a_read_only_folder_are_one_line(read_only: Path) -> None:
    log = next(iter(sorted(LOG.glob("**/*.log"))))
    done = run(
        "explain",
        str(log),
        "--records",
        str(read_only / "r.jsonl"),
        "--offline",
        prefix=without_root_rights(),
    )
    one_line(done, "cannot be written (Permission denied)", "the record is kept in ")
    Path(done.error.strip().rpartition(" is kept in ")[2]).unlink()


def test_a_calibration_without_permission_is_one_line(read_only: Path, tmp_path: Path) -> None:
    file = tmp_path / "calibration.yaml"
    file.write_text("measurements:\n")
    file.chmod(0)
    one_line(
        run("plan", *MODEL, "--calibration", str(file), prefix=without_root_rights()), "Permission denied"
    )


# -- caches -------------------------------------------------------------------------------------------------------


HEADERS = CheckpointHeaders((TensorInfo("a", "BF16", (2, 4), 16),), 1, "here", COMMIT)
BROKEN_CACHES = {
    "cut": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "another format": lambda text: '{"version": 7}',
    "another repository": lambda text: text.replace("a/b", "c/d"),
    "another commit": lambda text: text.replace(COMMIT, "f" * 40),
    "deep": lambda text: "[" * 100_000,
    "numbers that are none": lambda text: text.replace("16", "1e999"),
    "an unknown dtype": lambda text: text.replace("BF16", "BF17"),
    "sizes beyond any memory": lambda text: text.replace("[2,4]", f"[{10**30},4]"),
    "a list": lambda text: "[]",
}


@pytest.mark.parametrize("name", BROKEN_CACHES)
def test_a_broken_cache_of_headers_counts_as_none_and_is_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    _store_cached("a/b", COMMIT, HEADERS)
    file = _cache_file("a/b", COMMIT)
    assert load_cached("a/b", COMMIT) is not None
    file.write_text(BROKEN_CACHES[name](file.read_text()))
    assert load_cached("a/b", COMMIT) is None
    _store_cached("a/b", COMMIT, HEADERS)
    kept = load_cached("a/b", COMMIT)
    assert kept is not None
    assert kept.tensors == HEADERS.tensors


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    _store_cached("a/b", COMMIT, HEADERS)
    assert load_cached("a/b", COMMIT) is None


@pytest.mark.parametrize(
    "text", ['measurements:\n  cut:\n    component: "nccl"\n    by', "\0\1\2", "<html>", "{}"]
)
def test_a_broken_calibration_of_the_user_is_one_line_with_a_way_out(text: str, tmp_path: Path) -> None:
    file = tmp_path / "vllm-capacity" / "calibration.yaml"
    file.parent.mkdir()
    file.write_text(text)
    home = environment(XDG_CONFIG_HOME=str(tmp_path))
    one_line(run("plan", *MODEL, env=home), "calibration file", str(file))
    assert run("plan", *MODEL, "--calibration", "none", env=home).code == 0


def test_the_signals_of_these_tests_are_real() -> None:
    with subprocess.Popen([*COMMAND, "explain", "-"], stdin=subprocess.PIPE, env=environment()) as process:
        process.kill()
        assert process.wait() == -signal.SIGKILL
