"""Every command that may ask the Hub, against a server gone bad: one line, in bounded time, and nothing kept of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults.hostile_hub import HostileHub
from faults.running import Done, environment, one_line, run

WAYS = (
    "trickled_head", "trickled_body", "silent", "redirected_in_a_circle", "redirected_to_a_file", "too_short", "too_long",
    "gzip_bomb", "html", "no_http", "closed_at_once", "endless_headers", "teapot",
)  # fmt: skip
GPU = ("--gpu", "H100-80GB")
COMMANDS = {
    "plan": ("plan", *GPU, "--model", "{model}"),
    "plan --weights headers": ("plan", *GPU, "--weights", "headers", "--model", "{model}"),
    "a pasted line": ("plan", *GPU, "--", "vllm", "serve", "{model}"),
    "size": ("size", *GPU, "--max-model-len", "4096", "--concurrency", "1", "--model", "{model}"),
    "compare": ("compare", "--tp 1", "--tp 2", *GPU, "--model", "{model}"),
    "dry-run": ("dry-run", *GPU, "--vllm-version", "0.26.0", "--model", "{model}"),
}


@pytest.fixture(scope="module")
def hub() -> Iterator[HostileHub]:
    with HostileHub() as server:
        yield server


def asking(hub: HostileHub, home: Path) -> dict[str, str]:
    """An environment in which the hostile server is the Hub, and patience is short."""
    return environment(
        HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.url, HF_HOME=str(home), NO_PROXY="*", HF_HUB_ETAG_TIMEOUT="1",
        HF_HUB_DOWNLOAD_TIMEOUT="1",
    )  # fmt: skip


MODELS = tuple(f"{behaved}/{way}" for behaved in ("bad", "good") for way in WAYS)


@pytest.fixture(scope="module")
def answers(hub: HostileHub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Done, float, Path]]:
    """`plan` of every model, with the seconds it took and its cache folder: all at once, as most of it is waiting."""
    folder = tmp_path_factory.mktemp("homes")

    def ask(model: str) -> tuple[Done, float, Path]:
        home, started = folder / model, time.monotonic()
        done = run("plan", *GPU, "--model", model, env=asking(hub, home), timeout=120)
        return done, time.monotonic() - started, home

    with ThreadPoolExecutor(len(MODELS)) as pool:
        return dict(zip(MODELS, pool.map(ask, MODELS), strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_a_hub_gone_bad_is_one_line(model: str, answers: dict[str, tuple[Done, float, Path]]) -> None:
    done, seconds, home = answers[model]
    one_line(done, model)
    assert seconds < 90  # of which a busy machine may need most to start 26 interpreters
    assert sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) < 100_000


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_survives_it(name: str, hub: HostileHub, tmp_path: Path) -> None:
    words = [word.format(model="bad/html") for word in COMMANDS[name]]
    one_line(run(*words, env=asking(hub, tmp_path)), "does not answer like a Hugging Face Hub")


def test_explain_goes_on_without_a_model_that_the_hub_does_not_give(hub: HostileHub, tmp_path: Path) -> None:
    log = b"(EngineCore pid=1) INFO 10-01 10:00:00 [gpu_worker.py:384] Available KV cache memory: 3.00 GiB\n"
    done = run(
        "explain", "--model", "bad/html", "--vllm-version", "0.26.0", env=asking(hub, tmp_path), stdin=log
    )
    assert "Traceback" not in done.error
    assert done.code in (0, 1, 2, 3)


def test_offline_asks_nothing(hub: HostileHub, tmp_path: Path) -> None:
    before = len(hub.asked)
    one_line(
        run("plan", *GPU, "--model", "bad/html", "--offline", env=asking(hub, tmp_path)), "network is off"
    )
    assert len(hub.asked) == before


def test_settings_that_the_hub_library_cannot_read_are_one_line(hub: HostileHub, tmp_path: Path) -> None:
    env = {**asking(hub, tmp_path), "HF_HUB_DOWNLOAD_TIMEOUT": "soon"}
    one_line(run("plan", *GPU, "--model", "bad/html", env=env), "HF_", "soon")
