"""Fifty clients at once against a real `vllm-capacity web`: answers, errors, and how long they waited.

    python benchmarks/web_load.py                         # 50 clients, 30 s, a table
    python benchmarks/web_load.py --check                 # exits 1 at the first error, or where a probe had to wait

Every client asks one thing after the other without a pause: plans of ten models mostly, the catalogues, a log, the page. Beside
them one probe asks for /healthz twice a second, which must be answered at once whatever the load.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b",
    "google/gemma-3-27b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct", "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "Qwen/Qwen2.5-VL-7B-Instruct", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "meta-llama/Llama-3.1-405B",
)  # fmt: skip
LOG = b"""\
INFO 11-30 08:00:01 [core.py:98] Initializing a V1 LLM engine (v0.26.0) with config: model='Qwen/Qwen3-8B', dtype=torch.bfloat16
INFO 11-30 08:00:09 [gpu_worker.py:357] Available KV cache memory: 50.01 GiB
"""
PROBE_SECONDS = 2.0
"""The longest that /healthz may take under load: the event loop is never blocked, but it shares the processor."""
ANSWER_SECONDS = 60


@dataclass
class Tally:
    """What the clients saw. `errors` counts by what went wrong."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, seconds: float, error: str | None) -> None:
        with self.lock:
            if error is None:
                self.seconds.setdefault(what, []).append(seconds)
            else:
                self.errors[f"{what}: {error}"] += 1


@dataclass(frozen=True)
class Ask:
    """One request and how often it is made, relative to the others."""

    name: str
    method: str
    path: str
    weight: int
    body: bytes = b""
    media_type: str = "application/json"


def asks() -> list[Ask]:
    plans = [
        Ask("plan", "POST", "/api/v1/plan", 6,
            json.dumps({"model": model, "gpu": "H200", "flags": {"tensor_parallel_size": 2}}).encode())
        for model in MODELS
    ]  # fmt: skip
    return [
        *plans,
        Ask("explain", "POST", "/api/v1/explain", 1, LOG, "text/plain"),
        Ask("models", "GET", "/api/v1/models?search=qwen", 3),
        Ask("gpus", "GET", "/api/v1/gpus", 3),
        Ask("page", "GET", "/", 2),
        Ask("health", "GET", "/healthz", 2),
    ]


def ask(connection: http.client.HTTPConnection, one: Ask) -> str | None:
    """None, or what went wrong."""
    headers = {"Content-Type": one.media_type} if one.body else {}
    connection.request(one.method, one.path, one.body or None, headers)
    answer = connection.getresponse()
    document = answer.read()
    if answer.status != 200:
        return f"status {answer.status} {document[:200]!r}"
    if one.name == "plan" and b'"verdict"' not in document:
        return "an answer without a verdict"
    return None


def client(port: int, number: int, end: float, tally: Tally) -> None:
    chosen, choices = random.Random(number), asks()
    weights = [one.weight for one in choices]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    while time.monotonic() < end:
        (one,) = chosen.choices(choices, weights)
        begun = time.monotonic()
        try:
            error = ask(connection, one)
        except (OSError, http.client.HTTPException) as trouble:
            error = f"{type(trouble).__name__} {trouble}"
            connection.close()
        tally.add(one.name, time.monotonic() - begun, error)


def probe(port: int, end: float, tally: Tally) -> None:
    while time.monotonic() < end:
        begun = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
            error = ask(connection, Ask("probe", "GET", "/healthz", 1))
            connection.close()
        except (OSError, http.client.HTTPException) as trouble:
            error = f"{type(trouble).__name__} {trouble}"
        tally.add("probe", time.monotonic() - begun, error)
        time.sleep(0.5)


def load(port: int, clients: int, seconds: float) -> Tally:
    """The whole load; ends when the last client has its last answer."""
    tally = Tally()
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=client, args=(port, n, end, tally)) for n in range(clients)]
    threads.append(threading.Thread(target=probe, args=(port, end, tally)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


class Server:
    """The program itself, on a free port of 127.0.0.1, for the time of a `with` block."""

    def __enter__(self) -> Server:
        self._said = tempfile.NamedTemporaryFile("w+b")
        words = [
            sys.executable,
            "-c",
            "from vllm_capacity.cli import main; main()",
            "web",
            "--no-browser",
            "--port",
            "0",
        ]
        self._process = subprocess.Popen(words, stderr=self._said, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)", self.said())) is None:
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {self.said()}")
            time.sleep(0.05)
        self.port = int(found[1])
        return self

    def said(self) -> str:
        return Path(self._said.name).read_text(errors="replace")

    def __exit__(self, *_exc: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._said.close()


def report(tally: Tally, clients: int, seconds: float) -> str:
    every = sum(len(times) for times in tally.seconds.values())
    lines = [f"{clients} clients, {seconds:g} s: {every} answers ({every / seconds:.0f} a second), "
             f"{sum(tally.errors.values())} errors", f"{'':<10}{'answers':>9}{'p50 s':>9}{'p95 s':>9}{'most s':>9}"]  # fmt: skip
    for name, times in sorted(tally.seconds.items()):
        ordered = sorted(times)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        lines.append(
            f"{name:<10}{len(times):>9}{statistics.median(times):>9.3f}{p95:>9.3f}{ordered[-1]:>9.3f}"
        )
    return "\n".join([*lines, *(f"{count} x {what}" for what, count in tally.errors.most_common(10))])


def missed(tally: Tally) -> list[str]:
    """What breaks the targets, in words."""
    found = [f"{sum(tally.errors.values())} errors"] if tally.errors else []
    found += [f"no answer to {one.name}" for one in asks() if not tally.seconds.get(one.name)]
    slowest = statistics.median(tally.seconds.get("probe") or [float("inf")])
    if slowest > PROBE_SECONDS:
        found.append(f"/healthz took {slowest:.1f} s in the median, more than {PROBE_SECONDS:g} s")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    options = parser.parse_args()
    with Server() as server:
        tally = load(server.port, options.clients, options.seconds)
    print(report(tally, options.clients, options.seconds))
    troubles = missed(tally)
    for trouble in troubles:
        print(f"missed: {trouble}")
    return 1 if options.check and troubles else 0


if __name__ == "__main__":
    sys.exit(main())
