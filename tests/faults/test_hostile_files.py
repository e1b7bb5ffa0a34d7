"""Files from strangers for every option that reads one: exit code 2 and one line, in bounded time and memory."""

from __future__ import annotations

import json
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm_capacity import cli
from vllm_capacity.calibration import load_calibration
from vllm_capacity.errors import LONGEST, CapacityError, InputError
from vllm_capacity.inputs.catalogue import find_entry
from vllm_capacity.inputs.text_files import MAX_BYTES, parse_yaml, read_yaml
from vllm_capacity.sizing.price_file import read_prices
from vllm_capacity.validate.dry_run.golden import read_list
from vllm_capacity.validate.matrix import load_matrix
from vllm_capacity.validate.record import read_records

from faults.running import COMMAND, MODEL, one_line, run

SIZE = (
    "size",
    "--model",
    "Qwen/Qwen3-8B",
    "--gpu",
    "H100-80GB",
    "--max-model-len",
    "4096",
    "--concurrency",
    "1",
)
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
MERGES = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{<<: [{','.join(['*' + chr(97 + i)] * 9)}]}}\n" for i in range(20)
)
HOSTILE_YAML: dict[str, bytes] = {
    "a billion laughs": LAUGHS.encode(),
    "a billion merged keys": MERGES.encode(),
    "a list that holds itself": b"a: &a [*a]\n",
    "a mapping that holds itself": b"hf-overrides: &a {b: *a}\n",
    "more aliases than any file needs": b"a: &a 1\nb: [" + b"*a," * 2000 + b"]\n",
    "a tag that would run a program": b"a: !!python/object/apply:os.system ['touch pwned']\n",
    "a tag that would import a module": b"a: !!python/module:antigravity\n",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep mappings": b"{a: " * 100_000,
    "bytes that are no text": b"a: \xff\xfe",
    "UTF-16": "a: 1".encode("utf-16"),
    "a NUL": b"a: \0b",
    "an integer of 6000 digits": b"max-model-len: " + b"9" * 6000,
    "an impossible date": b"a: 2020-99-99\n",
    "an empty integer": b"a: !!int ''\n",
    "a boolean that is none": b"a: !!bool perhaps\n",
    "a timestamp that is none": b"a: !!timestamp now\n",
    "base64 that is none": b"a: !!binary '\xc3\xa4'\n",
    "keys that cannot be keys": b"? [a, b]\n: 1\n",
    "an unfinished quotation": b"a: 'b",
    "a list": b"- a\n",
    "nothing": b"",
    "escape sequences": b'a: "\\e[2J\\e]0;title\\a"\n',
    "too much": b"a: 1\n" * (MAX_BYTES // 4),
}
READERS: dict[str, Callable[[Path], object]] = {
    "--prices": read_prices,
    "--matrix": load_matrix,
    "--calibration": load_calibration,
    "--update-golden": read_list,
    "records": read_records,
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of error of a run in this process that ended with 2."""
    assert cli.run(list(arguments)) == 2
    error = capsys.readouterr().err
    assert error.startswith("vllm-capacity: error: ")
    assert error.count("\n") == 1
    assert error.rstrip("\n").isprintable()
    assert len(error) <= LONGEST + 100
    return error


# -- YAML ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_a_hostile_flag_file_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "flags.yaml"
    file.write_bytes(HOSTILE_YAML[name])
    refused(("plan", *MODEL, "--", "vllm", "serve", "Qwen/Qwen3-8B", "--config", str(file)), capsys)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", HOSTILE_YAML)
def test_hostile_files_of_every_other_kind_are_one_error(name: str, reader: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(HOSTILE_YAML[name])
    try:
        found = READERS[reader](file)
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        if reader == "records":
            assert found == []  # a line without an end is what a crash leaves: no record, and no error
        else:
            assert (reader, name) == ("--calibration", "nothing")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("value", ["{", "9" * 6000, "2020-99-99", "&a [*a]", "!!python/name:os.system"])
def test_a_hostile_flag_of_validate_is_one_line(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(
        ("validate", "--model", "Qwen/Qwen3-8B", "--max-model-len", value, "--python", "no-such-python"),
        capsys,
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(alphabet="ab:-?[]{},&*!|>'\"%@`#<=~ \n\t0123456789.eE+_\\xu", max_size=60))
def test_any_text_is_values_or_one_error(text: str) -> None:
    try:
        parse_yaml(text, "t")
    except InputError as error:
        assert str(error).isprintable()  # noqa: PT017


def test_merges_and_aliases_of_a_real_file_still_work(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(b"\xef\xbb\xbfbase: &b {x: 1}\r\nmore: {<<: *b, y: [*b]}\r\n")
    assert read_yaml(file, "m") == {"base": {"x": 1}, "more": {"x": 1, "y": [{"x": 1}]}}


# -- size ---------------------------------------------------------------------------------------------------------


def megabytes_at_most(limit: int) -> Callable[[], None]:
    """For `before`: the child may not have more memory than this."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))


@pytest.fixture(scope="module")
def hundred_megabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("big") / "config.json"
    with file.open("wb") as out:
        out.write(b'{"a": "')
        for _ in range(100):
            out.write(b"x" * 1_000_000)
        out.write(b'"}')
    (file.parent / "big.yaml").symlink_to(file)
    return file


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--gpu", "H100-80GB", "--model", "{json}"),
        ("plan", *MODEL, "--calibration", "{json}"),
        ("plan", *MODEL, "--", "vllm", "serve", "Qwen/Qwen3-8B", "--config", "{yaml}"),
        (*SIZE, "--prices", "{yaml}"),
        (
            "size",
            "--model",
            "Qwen/Qwen3-8B",
            "--gpu",
            "H100-80GB",
            "--concurrent-users",
            "3",
            "--trace",
            "{json}",
        ),
        ("explain", "{json}"),
    ],
)
def test_100_megabytes_are_refused_without_being_held(
    arguments: tuple[str, ...], hundred_megabytes: Path
) -> None:
    yaml = hundred_megabytes.parent / "big.yaml"
    words = [word.format(json=hundred_megabytes, yaml=yaml) for word in arguments]
    # without 100 MB of room beside the interpreter and its libraries, reading it all could not succeed
    one_line(run(*words, before=megabytes_at_most(350)))


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--gpu", "H100-80GB", "--model", "/dev/zero"),
        ("plan", *MODEL, "--calibration", "/dev/zero"),
        (*SIZE, "--prices", "/dev/zero"),
        (
            "size",
            "--model",
            "Qwen/Qwen3-8B",
            "--gpu",
            "H100-80GB",
            "--concurrent-users",
            "3",
            "--trace",
            "/dev/zero",
        ),
    ],
)
def test_files_without_an_end_are_refused(arguments: tuple[str, ...]) -> None:
    one_line(run(*arguments, before=megabytes_at_most(600), timeout=30), "/dev/zero")


# -- JSON ---------------------------------------------------------------------------------------------------------


def config_text(**changes: Any) -> str:
    entry = find_entry("Qwen/Qwen3-8B")
    assert entry is not None
    return json.dumps({**entry.config, **changes})


CONFIG = config_text()
HOSTILE_JSON: dict[str, bytes] = {
    "deep objects": b'{"a":' * 100_000,
    "deep lists": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "an integer of 6000 digits": CONFIG[:-1].encode() + b', "x": ' + b"9" * 6000 + b"}",
    "more layers than atoms": config_text(num_hidden_layers=10**80).encode(),
    "infinitely many layers": CONFIG.replace(
        '"num_hidden_layers": 36', '"num_hidden_layers": 1e999'
    ).encode(),
    "NaN": CONFIG[:-1].encode() + b', "x": NaN}',
    "a key twice": CONFIG[:-1].encode() + b', "hidden_size": 1}',
    "half a surrogate pair": CONFIG[:-1].encode() + rb', "x": "\ud800"}',
    "a byte order mark": b"\xef\xbb\xbf" + CONFIG.encode(),
    "UTF-16": CONFIG.encode("utf-16"),
    "NULs": bytes(1000),
    "a NUL in a name": CONFIG.replace("Qwen3ForCausalLM", r"Qwen3\u0000ForCausalLM").encode(),
    "escape sequences in a name": CONFIG.replace("Qwen3ForCausalLM", r"\u001b[2J\u001b]0;x\u0007\n").encode(),
    "a name of a megabyte": CONFIG.replace("Qwen3ForCausalLM", "A" * 1_000_000).encode(),
    "a module path as a name": CONFIG.replace("Qwen3ForCausalLM", "os:system").encode(),
    "nothing": b"",
    "a list": b"[]",
}


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_a_hostile_config_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(HOSTILE_JSON[name])
    refused(("plan", "--gpu", "H100-80GB", "--model", str(file)), capsys)


@pytest.mark.parametrize(
    "name", ["deep objects", "an integer of 6000 digits", "half a surrogate pair", "NULs", "a list"]
)
def test_hostile_lines_of_a_record_file_are_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_bytes(HOSTILE_JSON[name] + b"\n")
    assert "records.jsonl:1" in refused(("refine", str(file)), capsys)
    assert "records.jsonl:1" in refused(("validate", "--replay", str(file)), capsys)


def test_a_model_folder_with_a_pipe_in_it_does_not_wait_for_its_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    os.mkfifo(tmp_path / "model.safetensors")
    one_line(run("plan", "--gpu", "H100-80GB", "--model", str(tmp_path), "--weights", "headers", timeout=20),
             "no safetensors files")  # fmt: skip
    assert run("plan", "--gpu", "H100-80GB", "--model", str(tmp_path), timeout=20).code == 0
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    one_line(run("plan", "--gpu", "H100-80GB", "--model", str(tmp_path), timeout=20), "has no config.json")


# -- safetensors --------------------------------------------------------------------------------------------------


def safetensors(header: bytes | dict[str, Any], length: int | None = None, data: int = 0) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data)


def tensor(*offsets: int, shape: tuple[int, ...] = (2,), dtype: str = "BF16") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE_HEADERS: dict[str, bytes] = {
    "a length beyond the file": safetensors(b"{}", 1_000_000),
    "a length of 2^63": safetensors(b"{}", 1 << 63),
    "the largest length": safetensors(b"{}", (1 << 64) - 1),
    "no length": safetensors(b"", 0),
    "a cut length": b"\1\2\3",
    "nothing": b"",
    "bytes that are no text": safetensors(b'{"\xff": 1}'),
    "deep JSON": safetensors(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "tensors on top of each other": safetensors({"a": tensor(0, 4), "b": tensor(2, 6)}, data=6),
    "a hole": safetensors({"a": tensor(100, 104)}, data=104),
    "data beyond the file": safetensors({"a": tensor(0, 2 * 10**9, shape=(10**9,))}),
    "data that no tensor owns": safetensors({"a": tensor(0, 4)}, data=4000),
    "a negative size": safetensors({"a": tensor(0, 4, shape=(-2,))}, data=4),
    "sizes beyond any memory": safetensors({"a": tensor(0, 1 << 125, shape=(1 << 62, 1 << 62))}),
    "offsets backwards": safetensors({"a": tensor(4, 0)}, data=4),
    "an integer of 6000 digits": safetensors(b'{"a": ' + b"9" * 6000 + b"}"),
    "escape sequences": safetensors({"\x1b[2J\n\0": tensor(0, 4, dtype="X")}, data=4),
    "a pickle": b"\x80\x04\x95" + b"cos\nsystem\n(S'touch pwned'\ntR.",
}


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
def test_a_hostile_safetensors_header_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors").write_bytes(HOSTILE_HEADERS[name])
    plan = ("plan", "--gpu", "H100-80GB", "--model", str(tmp_path))
    assert "model.safetensors" in refused((*plan, "--weights", "headers"), capsys)
    # without being asked for the headers a plan goes on with the config and says so
    assert cli.run([*plan, "--json"]) == 0
    assert any("model.safetensors" in warning for warning in json.loads(capsys.readouterr().out)["warnings"])
    assert not (tmp_path / "pwned").exists()


HOSTILE_INDEXES: dict[str, bytes] = {
    "deep JSON": b"[" * 100_000,
    "bytes that are no text": b"\xff\xfe\x00",
    "an absolute path": b'{"weight_map": {"a": "/etc/passwd"}}',
    "a path upwards": b'{"weight_map": {"a": "../../secret.safetensors"}}',
    "a NUL": rb'{"weight_map": {"a": "a\u0000.safetensors"}}',
    "half a surrogate pair": rb'{"weight_map": {"a": "\ud800.safetensors"}}',
    "a name longer than any": b'{"weight_map": {"a": "' + b"a" * 5000 + b'.safetensors"}}',
    "an integer of 6000 digits": b'{"weight_map": ' + b"9" * 6000 + b"}",
}


@pytest.mark.parametrize("name", HOSTILE_INDEXES)
def test_a_hostile_index_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "model.safetensors.index.json").write_bytes(HOSTILE_INDEXES[name])
    refused(("plan", "--gpu", "H100-80GB", "--model", str(tmp_path), "--weights", "headers"), capsys)


# -- what an error may hold ---------------------------------------------------------------------------------------


@given(st.text(max_size=100))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_an_error_is_one_printable_line_whatever_it_quotes(text: str) -> None:
    line = str(CapacityError(f"the file says {text} here"))
    assert line.isprintable()
    assert len(line) <= 200


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    line = str(CapacityError("begin " + "x" * 100_000 + " end"))
    assert line.startswith("begin ")
    assert line.endswith(" end")
    assert len(line) < LONGEST + 10


def test_the_command_line_of_these_tests_is_the_installed_one() -> None:
    assert run("--version").out.startswith("vllm-capacity "), COMMAND
