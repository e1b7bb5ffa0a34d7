"""Fifty clients for thirty seconds without an error: benchmarks/web_load.py in CI."""

from __future__ import annotations

import socket

import web_load


def test_fifty_clients_for_thirty_seconds_without_an_error() -> None:
    with web_load.Server() as server:
        tally = web_load.load(server.port, clients=50, seconds=30)
        said = server.said()
    assert web_load.missed(tally) == [], web_load.report(tally, 50, 30)
    assert said.count("\n") == 1, said  # its address, and no complaint


def test_the_check_fails_where_nobody_answers() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        tally = web_load.load(closed.getsockname()[1], clients=2, seconds=0.2)
    assert tally.errors
    assert any("errors" in trouble for trouble in web_load.missed(tally))
    assert any("no answer to plan" in trouble for trouble in web_load.missed(tally))


def test_a_refusal_is_an_error_and_no_quick_answer() -> None:
    with web_load.Server() as server:
        wrong = web_load.Ask("plan", "POST", "/api/v1/plan", 1, b'{"model": "no/such"}')
        connection = web_load.http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        assert "status 403" in str(web_load.ask(connection, wrong))
        connection.close()
