"""docs/web.md says what the server does: its examples are sent, its tables are compared."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest
from vllm_capacity.cli.web import WITH_HUB_SECONDS, command
from vllm_capacity.web.problems import KINDS
from vllm_capacity.web.settings import WebSettings

from web.serving import Served

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
LOG = ROOT / "tests" / "data" / "logs" / "scenarios" / "sampler_warmup.log"
EXAMPLES = [line for line in PAGE.splitlines() if line.startswith("curl ")]
ADDRESS = "http://127.0.0.1:8000"


def sent(example: str, server: Served) -> httpx.Response:
    """What curl would send: -s, -H, --json and --data-binary @FILE are all that the examples use."""
    words = shlex.split(example)[1:]
    headers: dict[str, str] = {}
    body: bytes | None = None
    url = ""
    while words:
        word = words.pop(0)
        if word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "--json":
            body = words.pop(0).encode()
            headers["Content-Type"] = "application/json"
        elif word == "--data-binary":
            assert words.pop(0) == "@server.log"
            body = LOG.read_bytes()
        elif word != "-s":
            assert word.startswith(ADDRESS), word
            url = word.removeprefix(ADDRESS)
    return server.client.request("GET" if body is None else "POST", url, content=body, headers=headers)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_answered(server: Served, example: str) -> None:
    answer = sent(example, server)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document.get("verdict") or document.get("plans") or document.get("rows") or document.get("gpus")


def test_there_is_an_example_of_every_question() -> None:
    for path in ("/plan", "/size", "/explain", "/gpus"):
        assert any(f"/api/v1{path}" in example for example in EXAMPLES)


def test_the_problems_are_those_of_the_server() -> None:
    rows = re.findall(r"^\| (\d{3}) \| `([\w-]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [(str(k.status), k.name, f"{k.title}. {k.meaning}") for k in KINDS.values()]


def test_the_options_are_those_of_the_command() -> None:
    named = set(re.findall(r"`(--[\w-]+)", PAGE.partition("## The API")[0]))
    options = {word for parameter in command.params for word in parameter.opts}
    assert options - {"--help"} == named


def test_the_limits_are_those_of_the_server() -> None:
    s = WebSettings()
    limits = PAGE.partition("### Limits")[2].partition("The server itself")[0]
    for text in (
        f"| {s.json_body_bytes >> 20} MiB (", f"| {s.log_body_bytes >> 20} MiB, plain", f"is there | {s.body_seconds:g} s |",
        f"| {s.plan_seconds:g} s ({WITH_HUB_SECONDS:g} s with", f"| {s.size_seconds:g} s, {s.explain_seconds:g} s |",
        f"| {s.waiting}; {s.waiting_slow} of each |", f"for a worker | {s.wait_seconds:g} s |",
        f"| {s.worker_memory_bytes >> 30} GiB |",
    ):  # fmt: skip
        assert text in limits


def test_every_address_of_the_table_is_one_of_the_server(server: Served) -> None:
    paths = set(server.get("/api/v1/openapi.json").json()["paths"]) - {"/api/v1/problems/{name}"}
    table = PAGE.partition("## The API")[2].partition("```sh")[0]
    named = set(re.findall(r"`(?:GET|POST) (/[\w/.]+)`", table))
    assert named == paths | {"/api/v1/openapi.json"}
