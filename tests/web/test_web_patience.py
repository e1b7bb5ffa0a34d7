"""A slow request holds up neither the event loop nor the plans of others, however many of them come."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from vllm_capacity.web.settings import WebSettings

from web.serving import LLAMA, LONG, Served, serving, wait_until


@pytest.fixture(scope="module")
def busy() -> Iterator[Served]:
    """A server whose slow lane is full for the whole of these tests, and overfull."""
    settings = WebSettings(page=False, workers=3, size_seconds=60, waiting_slow=4)
    with serving(settings) as served:
        served.plan(model=LLAMA)
        stop = threading.Event()
        askers = [threading.Thread(target=_keep_asking, args=(served, stop)) for _ in range(6)]
        for asker in askers:
            asker.start()
        wait_until(lambda: served.app.state.pool._waiting["size"] == 4)
        yield served
        stop.set()
        served.app.state.pool.lanes["size"] = served.app.state.pool.lanes["plan"]
        for worker in list(served.app.state.pool._alive):  # what still runs is of no interest
            worker._process.kill()
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
    assert busy.app.state.pool._waiting["size"] == 4
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
        wait_until(lambda: pool._waiting["plan"] >= 6)
        idle = []
        for _ in range(50):
            idle.append(pool._idle.qsize())
            time.sleep(0.01)
        assert min(idle) >= 1
    finally:
        stop.set()
        for thread in floods:
            thread.join()
