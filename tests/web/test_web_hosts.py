"""The Host header: a page of another site that gives its name this server's address (DNS rebinding) gets nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from vllm_capacity.cli import run
from vllm_capacity.web.hosts import is_address, names_of
from vllm_capacity.web.settings import WebSettings

from web.running import running
from web.serving import LLAMA, Served, problem, serving

FOREIGN = "rebound.example:8000"


@pytest.fixture(scope="module")
def named() -> Iterator[Served]:
    """A server that has a name of its own, with its page."""
    with serving(
        WebSettings(allowed_hosts=("localhost", "capacity.example.org", "*.inside.example"))
    ) as served:
        yield served


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]:8000", "10.1.2.3", "capacity.example.org",
        "capacity.example.org:443", "a.inside.example", "a.b.inside.example:80",
    ],
)  # fmt: skip
def test_names_and_addresses_that_lead_here_are_answered(named: Served, host: str) -> None:
    assert named.client.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        FOREIGN, "localhost.rebound.example", "inside.example", "xinside.example", "example.org", "127.0.0.1.rebound.example",
        "127.0.0.1@rebound.example", "999.1.1.1", "[::1", "[rebound.example]", "localhost, rebound.example", "",
    ],
)  # fmt: skip
def test_any_other_is_a_problem_that_names_the_option(named: Served, host: str) -> None:
    answer = named.client.get("/healthz", headers={"host": host})
    assert "--allow-host" in problem(answer, 421, "host-not-allowed")["detail"]


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/api/v1/models", "/api/v1/openapi.json", "/no/such", "/_nicegui/x"]
)
def test_no_address_of_the_server_answers_a_foreign_name(named: Served, path: str) -> None:
    problem(named.client.get(path, headers={"host": FOREIGN}), 421, "host-not-allowed")


def test_a_foreign_name_gets_no_plan(named: Served) -> None:
    answer = named.client.post("/api/v1/plan", json={"model": LLAMA}, headers={"host": FOREIGN})
    problem(answer, 421, "host-not-allowed")


@pytest.mark.parametrize(("host", "status"), [("localhost", b"101"), (FOREIGN, b"403")])
def test_the_pages_socket_is_held_to_it_too(named: Served, host: str, status: bytes) -> None:
    asked = (
        f"GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket&client_id=x&next_message_id=0&implicit_handshake=false "
        f"HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", named.port), timeout=20) as connection:
        connection.sendall(asked.encode())
        assert connection.recv(1000).split(b" ")[1] == status


def test_a_request_without_a_name_is_not_answered(named: Served) -> None:
    with socket.create_connection(("127.0.0.1", named.port), timeout=20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert connection.recv(1000).split(b" ")[1] == b"421"


def test_under_a_prefix_it_holds_as_well() -> None:
    with serving(WebSettings(page=False, root_path="/capacity")) as served:
        assert served.client.get("/capacity/healthz", headers={"host": "localhost"}).status_code == 200
        problem(served.client.get("/capacity/healthz", headers={"host": FOREIGN}), 421, "host-not-allowed")


def test_the_command_answers_the_names_that_it_is_given() -> None:
    with running("--host", "localhost", "--allow-host", "capacity.example.org") as program:
        for host, status in (("capacity.example.org", 200), ("localhost", 200), ("rebound.example", 421)):
            assert program.client.get("/healthz", headers={"host": host}).status_code == status


def test_any_name_can_be_allowed() -> None:
    with serving(WebSettings(page=False, allowed_hosts=("*",))) as served:
        assert served.client.get("/healthz", headers={"host": FOREIGN}).status_code == 200


@pytest.mark.parametrize(
    "name", ["https://x.example", "x.example:80", "*x.example", "a.*.example", "", "a b", "x/y"]
)
def test_a_name_that_is_none_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["web", "--no-browser", "--allow-host", name]) == 2
    out = capsys.readouterr()
    assert out.err.count("\n") == 1
    assert "--allow-host" in out.err


def test_a_server_is_known_by_the_name_it_listens_on() -> None:
    assert names_of("Capacity.Example.org") == ("capacity.example.org",)
    assert names_of("0.0.0.0") == names_of("::") == (socket.gethostname().lower(),)


def test_what_is_an_address() -> None:
    assert all(map(is_address, ("127.0.0.1", "127.0.0.1:1", "[fe80::1]", "[::ffff:1.2.3.4]:80", "0.0.0.0")))
    assert not any(
        map(is_address, ("localhost", "1.2.3.4.5", "::1", "[1.2.3.4]", "1.2.3.4:x", "1.2.3.4 ", ""))
    )
