"""A slow request holds up neither the event loop nor the plans of others, however many of them come."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from vllm_capacity.web.settings import WebSettings

from web.serving import LLAMA, LONG, Served, problem, serving, wait_until


@pytest.fixture(scope="module")
def busy() -> Iterator[Served]:
    """A server whose slow lane is full for the whole of these tests, and overfull."""
    settings = WebSettings(page=False, workers=3, size_seconds=60, waiting_slow=4)
    with serving(settings) as served:
        wait_until(lambda: len(served.app.state.pool.processes) == 3)
        stop = threading.Event()
        askers = [threading.Thread(target=_keep_asking, args=(served, stop)) for _ in range(6)]
        for asker in askers:
            asker.start()
        wait_until(lambda: served.app.state.pool.waiting["size"] == 4)
        yield served
        stop.set()
        served.app.state.pool.lanes["size"] = served.app.state.pool.lanes["plan"]
        for process in served.app.state.pool.processes:  # what still runs is of no interest
            os.kill(process, signal.SIGKILL)
        for asker in askers:
            asker.join()


def _keep_asking(served: Served, stop: threading.Event) -> None:
    with httpx.Client(base_url=served.client.base_url, timeout=120) as client:
        while not stop.is_set():
            client.post("/api/v1/size", json=LONG)
            time.sleep(0.05)


def seconds_of(work: object) -> float:
    begun = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - begun


def test_health_answers_at_once(busy: Served) -> None:
    times = [seconds_of(lambda: busy.get("/healthz").raise_for_status()) for _ in range(20)]
    assert statistics.median(times) < 0.1


def test_plans_are_answered_all_the_while(busy: Served) -> None:
    times = [seconds_of(lambda: busy.plan(model=LLAMA, gpu="H200").raise_for_status()) for _ in range(10)]
    assert busy.app.state.pool.waiting["size"] == 4
    assert statistics.median(times) < 1.0


def test_a_flood_of_plans_leaves_the_page_its_worker(busy: Served) -> None:
    """The API may hold all workers but one: a job of the page finds one idle."""
    stop = threading.Event()

    def flood() -> None:
        with httpx.Client(base_url=busy.client.base_url, timeout=60) as client:
            while not stop.is_set():
                client.post("/api/v1/plan", json={"model": "deepseek-ai/DeepSeek-V3"})

    floods = [threading.Thread(target=flood) for _ in range(8)]
    for thread in floods:
        thread.start()
    try:
        pool = busy.app.state.pool
        wait_until(lambda: pool.waiting["plan"] >= 6)
        idle = []
        for _ in range(50):
            idle.append(pool.idle)
            time.sleep(0.01)
        assert min(idle) >= 1
    finally:
        stop.set()
        for thread in floods:
            thread.join()


def test_work_that_nobody_waits_for_any_more_is_stopped() -> None:
    with serving(WebSettings(page=False, workers=1)) as served:
        served.plan(model=LLAMA)
        (before,) = served.app.state.pool.processes
        with (
            httpx.Client(base_url=served.client.base_url, timeout=0.5) as client,
            pytest.raises(httpx.ReadTimeout),
        ):
            client.post("/api/v1/size", json=LONG)
        wait_until(lambda: served.app.state.pool.waiting["size"] == 0, 10)
        assert served.plan(model=LLAMA).status_code == 200
        assert before not in served.app.state.pool.processes


def test_a_short_job_whose_client_left_costs_no_worker() -> None:
    with serving(WebSettings(page=False, workers=1)) as served:
        served.plan(model=LLAMA)
        before = served.app.state.pool.processes
        with socket.create_connection(("127.0.0.1", served.port)) as wire:
            body = json.dumps({"model": LLAMA}).encode()
            head = (
                "POST /api/v1/plan HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}"
            )
            wire.sendall(head.encode() + b"\r\n\r\n" + body)
        assert served.plan(model=LLAMA).status_code == 200
        assert served.app.state.pool.processes == before


def test_a_server_whose_workers_do_not_start_says_so_and_still_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vllm_capacity.web.pool.command", lambda settings: [sys.executable, "-c", "raise SystemExit"]
    )
    begun = time.monotonic()
    with serving(WebSettings(page=False, workers=2, wait_seconds=1)) as served:
        assert served.get("/healthz").json()["workers"] == 0
        problem(served.plan(model=LLAMA), 503, "busy")
    assert time.monotonic() - begun < 15


def test_a_worker_that_died_while_it_had_nothing_to_do_costs_no_answer() -> None:
    with serving(WebSettings(page=False, workers=2)) as served:
        pool = served.app.state.pool
        wait_until(lambda: pool.idle == 2)
        before = pool.processes
        for process in before:
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: not any(worker.alive for worker in pool._alive))
        assert served.plan(model=LLAMA).status_code == 200
        wait_until(lambda: len(pool.processes) == 2)
        assert not set(before) & set(pool.processes)
