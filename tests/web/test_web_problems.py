"""Every kind of problem, asked for over the wire, and everything that must not be read."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.catalogue import find_entry
from vllm_capacity.web.problems import KINDS, problem_of
from vllm_capacity.web.settings import WebSettings

from web.serving import LLAMA, LONG, Served, problem, serving, wait_until

LOGS = Path(__file__).parents[1] / "data" / "logs" / "scenarios"

BAD_JSON = {
    "nothing": b"",
    "no JSON": b"model=x",
    "no object": b'["plan"]',
    "no UTF-8": b'{"model": "\xff"}',
    "a key twice": b'{"model": "a", "model": "b"}',
    "NaN": b'{"model": "a", "flags": {"x": NaN}}',
    "nested without end": b'{"flags": ' + b'{"a":' * 100_000,
    "lists without end": b"[" * 200_000,
    "many lists": b'{"config": {"a": [' + b"[]," * 300_000 + b"0]}}",
    "a number of a million digits": b'{"concurrency": ' + b"9" * 1_000_000 + b"}",
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_a_body_that_is_no_json_to_read(server: Served, name: str) -> None:
    for path in ("/api/v1/plan", "/api/v1/size"):
        problem(server.post(path, BAD_JSON[name]), 400, "bad-json")


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown member": ({"model": LLAMA, "gpus": "H200"}, "/gpus"),
    "a member of another type": ({"model": LLAMA, "concurrency": "many"}, "/concurrency"),
    "a negative count": ({"model": LLAMA, "concurrency": -1}, "/concurrency"),
    "a config that is a text": ({"config": "{}"}, "/config"),
    "a side file without its config": ({"model": LLAMA, "hf_quant_config": {}}, ""),
    "a revision of a pasted config": ({"config": {}, "revision": "main"}, ""),
    "an endless name": ({"model": "a" * 5000}, "/model"),
    "an unknown way to read weights": ({"model": LLAMA, "weights": "pickle"}, "/weights"),
    "a flag that is no flag": ({"flags": {"environment": {"A": "1"}}}, ""),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_entry_of_the_wrong_form_is_pointed_at(server: Served, name: str) -> None:
    body, pointer = INVALID[name]
    members = problem(server.plan(**body), 422, "invalid")
    assert [error["pointer"] for error in members["errors"]] == [pointer]
    assert members["errors"][0]["detail"] in members["detail"]


CANNOT = {
    "no model": ({}, "model"),
    "an unknown GPU": ({"model": LLAMA, "gpu": "H101"}, "H101"),
    "an unknown flag": ({"model": LLAMA, "flags": {"max_modle_len": 1}}, "max_model_len"),
    "an unknown release": ({"model": LLAMA, "vllm_version": "9.9.9"}, "9.9.9"),
    "an unknown architecture": ({"config": {"architectures": ["NoSuchForCausalLM"]}}, "NoSuchForCausalLM"),
    "a config that is none": ({"config": {"hidden_size": -1, "architectures": ["LlamaForCausalLM"]}}, "hidden_size"),
    "an unknown word in a pasted line": ({"command": "rm -rf /"}, "vllm serve"),
    "a flag with an object": ({"model": LLAMA, "flags": {"max_num_seqs": {"a": 1}}}, "max-num-seqs"),
    "a flag with a list": ({"model": LLAMA, "flags": {"dtype": ["bfloat16"]}}, "dtype"),
    "degrees that are no numbers": ({"model": LLAMA, "flags": {"tensor_parallel_size": [1, "x"]}}, "1,x"),
    "too many degrees": ({"model": LLAMA, "flags": {"tensor_parallel_size": list(range(1, 99))}}, "16"),
}  # fmt: skip


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_planned_says_why_in_the_words_of_the_command_line(server: Served, name: str) -> None:
    body, word = CANNOT[name]
    assert word in problem(server.plan(**body), 422, "cannot-plan")["detail"]


def test_a_quantisation_block_that_vllm_refuses_carries_its_reason(server: Served) -> None:
    block = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "INT3"}}
    members = problem(server.plan(config={"architectures": ["LlamaForCausalLM"], "quantization_config": block}),
                      422, "refused")  # fmt: skip
    assert members["reason"] == "unsupported_by_release"


def test_size_and_explain_have_their_problems_too(server: Served) -> None:
    members = problem(server.post("/api/v1/size", {"model": LLAMA}), 422, "cannot-plan")
    assert "--concurrency" in members["detail"]
    for body in (
        {"model": LLAMA, "concurrency": 1, "trace": "/etc/passwd"},
        {"model": LLAMA, "prices": "/etc/passwd"},
    ):
        problem(server.post("/api/v1/size", body), 422, "invalid")
    problem(server.explain(b"hello\nworld\n"), 422, "cannot-plan")
    problem(server.explain(b""), 422, "cannot-plan")
    problem(server.explain(b"x", model="a" * 300), 422, "invalid")
    problem(server.explain(b"x", file="/etc/passwd"), 422, "invalid")
    problem(server.get("/api/v1/models", limit="5"), 422, "invalid")


# -- nothing of the server's machine is read ------------------------------------------------------------------------


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A model folder that the command line would read."""
    entry = find_entry(LLAMA)
    assert entry is not None
    (tmp_path / "config.json").write_text(json.dumps(entry.config))
    (tmp_path / "flags.yaml").write_text("max-num-seqs: 7\n")
    return tmp_path


def test_no_spelling_of_a_path_is_read_as_a_model(server: Served, planted: Path) -> None:
    relative = os.path.relpath(planted)
    spellings = [
        str(planted), f"{planted}/config.json", f"file:{planted}", f"file://{planted}/config.json", relative,
        f"./{relative}", f"{planted}/../{planted.name}", "~", "~root/x", "/etc/passwd", "../../etc/passwd", "..", ".",
        "C:\\models\\x", "\\\\host\\share", "http://127.0.0.1:9/x", "https://huggingface.co/a/b", "a/b/c", "etc/../passwd",
        "a/b\n", "", " ", "a b", "models--a--b", "\x00", "%2e%2e/x",
    ]  # fmt: skip
    for spelling in spellings:
        answer = server.plan(model=spelling)
        assert answer.status_code in (403, 422), spelling
        answer = server.plan(command=f"vllm serve {spelling!r}")
        assert answer.status_code in (403, 422), spelling
        answer = server.post(
            "/api/v1/size", {"model": spelling, "concurrency": 1, "flags": {"max_model_len": 99}}
        )
        assert answer.status_code in (403, 422), spelling
    assert "reads no paths" in problem(server.plan(model=str(planted)), 422, "cannot-plan")["detail"]


def test_a_folder_beside_the_server_is_not_taken_for_a_model(
    planted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`plan --model owner/name` reads ./owner/name where that exists; the server does not."""
    place = tmp_path_factory.mktemp("cwd")
    (place / "owner").mkdir()
    (place / "owner" / "name").symlink_to(planted)
    monkeypatch.chdir(place)
    with serving(WebSettings(page=False, workers=1)) as served:
        problem(served.plan(model="owner/name"), 403, "hub-not-allowed")


def test_no_flag_names_a_file_to_read(server: Served, planted: Path) -> None:
    file = planted / "flags.yaml"
    for body in (
        {"command": f"vllm serve {LLAMA} --config {file}"},
        {"command": f"vllm serve {LLAMA} --config={file}"},
        {"command": f"vllm serve --config {file} {LLAMA}"},
        {"command": f"docker run vllm/vllm-openai:v0.26.0 --model {LLAMA} --config {file}"},
    ):
        assert "is not read here" in problem(server.plan(**body), 422, "cannot-plan")["detail"]
    problem(server.plan(model=LLAMA, flags={"config": str(file)}), 422, "invalid")
    problem(server.plan(model=LLAMA, flags={"model": str(planted)}), 422, "invalid")
    problem(server.plan(model=LLAMA, calibration=str(file)), 422, "invalid")
    draft = {"model": str(planted), "num_speculative_tokens": 3, "method": "eagle"}
    answer = server.plan(model=LLAMA, gpu="H200", flags={"speculative_config": draft})
    assert "is not counted" in json.dumps(answer.json()["warnings"])  # the draft's config was not looked at


def test_no_log_names_a_file_to_read(server: Served, planted: Path) -> None:
    """The model of the log is a folder that is there; so is the file of flags in the command line that it echoes."""
    healthy = (LOGS / "healthy_llama.log").read_text()
    assert server.explain(healthy.encode()).json()["predicted"]
    of_folder = server.explain(healthy.replace(LLAMA, str(planted)).encode()).json()
    assert "reads no paths" in json.dumps(of_folder["missing"])
    assert not of_folder["predicted"]
    told = server.explain(healthy.encode(), model=str(planted)).json()
    assert "reads no paths" in json.dumps(told["missing"])
    without_args = "".join(line for line in healthy.splitlines(True) if "non-default" not in line)
    with_file = f"$ vllm serve {LLAMA} --config {planted}/flags.yaml\n" + without_args
    assumed = json.dumps(server.explain(with_file.encode()).json()["assumptions"])
    assert "--config names a file" in assumed


def test_a_pasted_config_is_data_and_nothing_in_it_is_followed(server: Served, planted: Path) -> None:
    entry = find_entry(LLAMA)
    assert entry is not None
    config = {
        **entry.config,
        "_name_or_path": str(planted),
        "auto_map": {"AutoConfig": f"{planted}/code.py--Config", "AutoModelForCausalLM": "code.Model"},
        "custom_pipelines": {"x": {"impl": "os.system"}},
        "trust_remote_code": True,
        "__reduce__": ["os.system", ["touch /tmp/x"]],
    }
    (planted / "code.py").write_text("raise SystemExit('executed')")
    answer = server.plan(config=config, gpu="H200", flags={"trust_remote_code": True})
    plain = server.plan(config=dict(entry.config), gpu="H200")
    assert answer.status_code == 200, answer.text
    assert answer.json()["ranks"] == plain.json()["ranks"]


HOSTILE = {
    "a billion layers": {"num_hidden_layers": 10**9},
    "layers as text": {"num_hidden_layers": "many"},
    "endless vocabulary": {"vocab_size": 10**30},
    "infinity": {"hidden_size": float("inf")},
    "heads of zero": {"num_attention_heads": 0},
    "a million experts": {"num_local_experts": 10**6, "architectures": ["MixtralForCausalLM"]},
    "a list for a number": {"hidden_size": [1, 2]},
    "layer kinds without end": {"layer_types": ["full_attention"] * 100_000},
    "ignore lists to match": {"quantization_config": {"quant_method": "fp8", "ignore": ["re:(a+)+$" * 50] * 50}},
    "a pattern that explodes": {
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["re:^(([a-z._0-9])+)+!$"],
            "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
        }
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_config_is_answered_and_harms_nobody_else(hasty: Served, name: str) -> None:
    entry = find_entry(LLAMA)
    assert entry is not None
    body = json.dumps({"config": {**entry.config, **HOSTILE[name]}, "gpu": "H200"}).encode()
    answer = hasty.post("/api/v1/plan", body)
    assert answer.status_code in (200, 400, 422, 504), answer.text
    if answer.status_code != 200:
        problem(answer, answer.status_code, answer.json()["type"].rpartition("/")[2])
    assert hasty.plan(model=LLAMA).status_code == 200


@pytest.mark.parametrize("flags", [
    {"data_parallel_size": 10**9}, {"tensor_parallel_size": 10**15}, {"pipeline_parallel_size": 2**40},
    {"max_model_len": 2**60}, {"max_num_batched_tokens": 2**61}, {"num_gpu_blocks_override": 2**61},
    {"compilation_config": {"cudagraph_capture_sizes": list(range(1, 200_000))}},
])  # fmt: skip
def test_hostile_flags_are_answered_and_harm_nobody_else(hasty: Served, flags: dict[str, Any]) -> None:
    answer = hasty.plan(model=LLAMA, gpu="H200", flags=flags)
    assert answer.status_code in (200, 422, 504), answer.text
    assert hasty.plan(model=LLAMA).status_code == 200


@pytest.fixture(scope="module")
def hasty() -> Any:
    """A server of little patience."""
    settings = WebSettings(
        page=False, workers=2, plan_seconds=2, size_seconds=0.5, waiting_slow=2, body_seconds=1
    )
    with serving(settings) as served:
        yield served


# -- the protocol's own problems ------------------------------------------------------------------------------------


def test_an_unknown_address(server: Served) -> None:
    for path in ("/api/v1/plans", "/api/v1/plan/", "/api", "/api/v2/plan", "/nothing", "/"):
        problem(server.get(path), 404, "not-found")
    problem(server.post("/api/v1/plans", {}), 404, "not-found")


def test_an_address_asked_with_another_method_says_which_it_knows(server: Served) -> None:
    for method, path, allowed in (
        ("GET", "/api/v1/plan", "POST"),
        ("DELETE", "/api/v1/size", "POST"),
        ("PUT", "/api/v1/explain", "POST"),
        ("POST", "/api/v1/models", "GET"),
        ("POST", "/healthz", "GET"),
    ):
        answer = server.client.request(method, path)
        problem(answer, 405, "method-not-allowed")
        assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "headers",
    [{}, {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"},
     {"content-type": "application/json", "content-encoding": "gzip"}],
)  # fmt: skip
def test_a_body_of_another_type(server: Served, headers: dict[str, str]) -> None:
    answer = server.client.post("/api/v1/plan", content=b"{}", headers=headers)
    problem(answer, 415, "media-type")


def test_json_with_a_charset_is_json(server: Served) -> None:
    headers = {"content-type": "application/JSON; charset=utf-8"}
    body = json.dumps({"model": LLAMA}).encode()
    assert server.client.post("/api/v1/plan", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/plan", "/api/v1/size", "/api/v1/explain"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_refused_whether_or_not_its_length_is_announced(
    server: Served, path: str, chunked: bool
) -> None:
    settings = server.app.state.settings
    limit = settings.log_body_bytes if path.endswith("explain") else settings.json_body_bytes
    headers = {"content-type": "text/plain" if path.endswith("explain") else "application/json"}
    with httpx.Client(base_url=server.client.base_url, timeout=60) as client:
        body = (b"a" * 65536 for _ in range(limit // 65536 + 2)) if chunked else b"a" * (limit + 1)
        answer = client.post(path, content=body, headers=headers)
    assert problem(answer, 413, "too-large")["limit"] == limit


@pytest.mark.parametrize("path", ["/api/v1/plan", "/api/v1/explain", "/elsewhere"])
def test_chunks_beyond_the_limit_are_refused_as_soon_as_they_are_seen(server: Served, path: str) -> None:
    """Byte by byte over a socket: what is sent is one chunk more than the limit and never the end."""
    settings = server.app.state.settings
    limit = settings.json_body_bytes if path.endswith("plan") else settings.log_body_bytes
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as wire:
        kind = "application/json" if path.endswith("plan") else "text/plain"
        wire.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n".encode())  # fmt: skip
        chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"
        try:
            for _ in range(limit // 65536 + 1):
                wire.sendall(chunk)
        except OSError:
            pass
        answer = wire.recv(65536)
    status = answer.split(b" ", 2)[1]
    assert status in (b"413", b"404")
    assert (status == b"404") == (path == "/elsewhere")  # refused without reading on
    assert b"application/problem+json" in answer


def test_a_body_that_trickles_is_given_up(hasty: Served) -> None:
    for path in ("/api/v1/plan", "/api/v1/explain"):
        with socket.create_connection(("127.0.0.1", hasty.port), timeout=30) as wire:
            kind = "application/json" if path.endswith("plan") else "text/plain"
            wire.sendall(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
            begun = time.monotonic()
            answer = wire.recv(65536)
            assert 0.5 < time.monotonic() - begun < 10
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"slow-body" in answer


def test_work_that_takes_too_long_is_stopped(hasty: Served) -> None:
    begun = time.monotonic()
    members = problem(hasty.post("/api/v1/size", LONG), 504, "timeout")
    assert members["limit"] == 0.5
    assert time.monotonic() - begun < 20
    assert hasty.plan(model=LLAMA).status_code == 200


def test_more_requests_than_may_wait_are_told_to_come_back() -> None:
    settings = WebSettings(page=False, workers=2, size_seconds=3, waiting_slow=1)
    with serving(settings) as served:
        served.plan(model=LLAMA)  # the workers are there
        first = threading.Thread(target=served.post, args=("/api/v1/size", LONG))
        first.start()
        wait_until(lambda: served.app.state.pool.waiting["size"] == 1)
        with httpx.Client(base_url=served.client.base_url, timeout=60) as client:
            answer = client.post("/api/v1/size", json=LONG)
        problem(answer, 503, "busy")
        assert int(answer.headers["retry-after"]) > 0
        first.join()


def test_a_worker_that_dies_costs_one_answer_and_no_more() -> None:
    with serving(WebSettings(page=False, workers=1)) as served:
        assert served.plan(model=LLAMA).status_code == 200
        (process,) = served.app.state.pool.processes
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(served.post("/api/v1/size", LONG)))
        asking.start()
        wait_until(lambda: served.app.state.pool.idle == 0)
        os.kill(process, signal.SIGKILL)
        asking.join()
        problem(answers[0], 500, "unexpected")
        assert served.plan(model=LLAMA).status_code == 200


def test_a_broken_calibration_file_of_the_machine_is_told_and_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vllm-capacity").mkdir()
    (tmp_path / "vllm-capacity" / "calibration.yaml").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with serving(WebSettings(page=False, workers=1)) as served:
        members = problem(served.plan(model=LLAMA), 422, "cannot-plan")
        assert "calibration" in members["detail"]
        assert served.plan(model=LLAMA, calibration="none").status_code == 200


# -- what problems say ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_the_type_of_a_problem_leads_to_its_explanation(server: Served, name: str) -> None:
    told = server.get(f"/api/v1/problems/{name}").json()
    assert told["status"] == KINDS[name].status
    assert told["meaning"]
    problem(server.get("/api/v1/problems/none"), 404, "not-found")


def test_a_foreseen_error_keeps_its_words_and_an_unforeseen_one_its_secrets() -> None:
    assert problem_of(InputError("unknown GPU 'x'")).detail == "unknown GPU 'x'"
    assert problem_of(RefusedError(Reason.INVALID_LAYOUT, "not divisible")).extra == {
        "reason": "invalid_layout"
    }
    assert problem_of(MemoryError()).kind.status == 422
    unforeseen = problem_of(KeyError("/home/someone/secret"))
    assert unforeseen.kind.status == 500
    assert "secret" not in unforeseen.detail
    assert "KeyError" in unforeseen.detail
