"""Configs from a real HTTP server that speaks the Hub's protocol, in a process of its own with HF_ENDPOINT
set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.server import COMMIT, HubServer, Repository

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}
CONFIG_BYTES = json.dumps(CONFIG).encode()
SIDE_FILE = json.dumps(
    {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
).encode()

PROGRAM = """
import json, sys
from vllm_capacity.errors import CapacityError
from vllm_capacity.inputs.models import load_model
arguments = json.loads(sys.argv[1])
try:
    config = load_model(arguments.pop("spec"), **arguments)
except CapacityError as error:
    print(type(error).__name__ + ": " + str(error), file=sys.stderr)
    sys.exit(2)
print(json.dumps({
    "name": config.name, "source": config.source, "hidden_size": config.hidden_size,
    "quantization": config.quantization and dict(config.quantization), "facts": dict(config.facts),
}))
"""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    repositories = {
        "good/plain": Repository({"config.json": CONFIG_BYTES}),
        "good/modelopt": Repository({"config.json": CONFIG_BYTES, "hf_quant_config.json": SIDE_FILE}),
        "good/redirected": Repository({"config.json": CONFIG_BYTES}, redirect=True),
        "good/revisions": Repository({"config.json": CONFIG_BYTES}, revisions=("main", "v2", COMMIT)),
        "gated/model": Repository({"config.json": CONFIG_BYTES}, gated=True, token="hf_right"),
        "bad/empty": Repository({"README.md": b"# nothing"}),
        "bad/html": Repository({"config.json": b"<html>"}),
        "bad/huge": Repository({"config.json": CONFIG_BYTES}, claimed_size=100 * 1000**2),
        "bad/limited": Repository({"config.json": CONFIG_BYTES}, status=429, retry_after=37),
        "bad/broken": Repository({"config.json": CONFIG_BYTES}, status=500),
        "bad/slow": Repository({"config.json": CONFIG_BYTES}, delay_s=30),
        "bad/truncated": Repository({"config.json": CONFIG_BYTES * 3000}, truncate=True),
    }
    with HubServer(repositories) as server:
        yield server


class Answer:
    def __init__(self, run: subprocess.CompletedProcess[str]) -> None:
        self.code = run.returncode
        self.error = run.stderr.strip()
        self.value = json.loads(run.stdout) if run.returncode == 0 else {}


def ask(
    url: str, home: Path, spec: str, *, environment: dict[str, str] | None = None, **arguments: object
) -> Answer:
    """`load_model` in a new interpreter, as huggingface_hub reads its settings when imported."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    clean |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "*", **(environment or {})}
    run = subprocess.run(
        [
            os.environ.get("HUB_TEST_PYTHON", sys.executable),
            "-c",
            PROGRAM,
            json.dumps({"spec": spec, **arguments}),
        ],
        capture_output=True,
        text=True,
        env=clean,
        timeout=60,
    )
    return Answer(run)


def downloads(hub: HubServer) -> list[str]:
    """The files whose contents were asked for."""
    return [path for method, path, _, _ in hub.requests if method == "GET" and "/resolve/" in path]


def refused(answer: Answer, *parts: str) -> None:
    """One line on stderr, an InputError, with every part in it."""
    assert answer.code == 2, answer.error
    assert answer.error.startswith("InputError: ")
    assert "\n" not in answer.error
    for part in parts:
        assert part in answer.error


def test_a_config_is_read_and_the_source_names_endpoint_and_commit(hub: HubServer, tmp_path: Path) -> None:
    answer = ask(hub.url, tmp_path, "good/plain")
    assert answer.value["hidden_size"] == 256
    assert (
        answer.value["source"]
        == f"Hugging Face Hub ({hub.url.removeprefix('http://')}, commit {COMMIT[:12]})"
    )
    assert answer.value["facts"] == {"commit": COMMIT}
    assert (tmp_path / "hub" / "models--good--plain" / "snapshots" / COMMIT / "config.json").exists()


def test_nothing_but_the_answer_is_printed(hub: HubServer, tmp_path: Path) -> None:
    assert ask(hub.url, tmp_path, "good/plain").error == ""


def test_the_second_read_of_the_same_commit_downloads_nothing(hub: HubServer, tmp_path: Path) -> None:
    ask(hub.url, tmp_path, "good/plain")
    hub.requests.clear()
    assert ask(hub.url, tmp_path, "good/plain").code == 0
    assert "/good/plain/resolve/main/config.json" not in downloads(hub)


def test_the_modelopt_side_file_gives_the_quantisation_block(hub: HubServer, tmp_path: Path) -> None:
    block = ask(hub.url, tmp_path, "good/modelopt").value["quantization"]
    assert block["quant_method"] == "modelopt"
    assert block["quantization"]["kv_cache_quant_algo"] == "FP8"


def test_redirects_to_another_host_are_followed(hub: HubServer, tmp_path: Path) -> None:
    assert ask(hub.url, tmp_path, "good/redirected").value["hidden_size"] == 256


def test_a_revision_is_asked_for(hub: HubServer, tmp_path: Path) -> None:
    assert ask(hub.url, tmp_path, "good/revisions", revision="v2").code == 0
    assert any("/resolve/v2/" in path for _, path, _, _ in hub.requests)


def test_a_missing_revision_is_named(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "good/plain", revision="v9"), "no revision 'v9'")


def test_a_gated_model_says_accept_the_licence_and_set_the_token(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "gated/model"), "is gated", f"{hub.url}/gated/model", "HF_TOKEN")


def test_a_wrong_token_for_a_gated_model_says_so(hub: HubServer, tmp_path: Path) -> None:
    answer = ask(hub.url, tmp_path, "gated/model", environment={"HF_TOKEN": "hf_wrong"})
    refused(answer, "gated", "your token may not read it")


def test_the_right_token_opens_a_gated_model(hub: HubServer, tmp_path: Path) -> None:
    assert (
        ask(hub.url, tmp_path, "gated/model", environment={"HF_TOKEN": "hf_right"}).value["hidden_size"]
        == 256
    )


def test_an_unknown_model_suggests_known_ones(hub: HubServer, tmp_path: Path) -> None:
    refused(
        ask(hub.url, tmp_path, "Qwen/Qwen3-30B-A3BB"),
        "neither in the bundled catalogue",
        "Qwen/Qwen3-30B-A3B",
    )


def test_a_repository_without_config_json_says_so(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "bad/empty"), "has no config.json")


def test_a_config_that_is_not_json_says_so(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "bad/html"), "config.json of bad/html is not JSON")


def test_a_config_of_100_megabytes_is_refused_before_it_travels(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "bad/huge"), "100,000,000 bytes")
    assert not list(tmp_path.rglob("config.json"))


def test_a_rate_limit_says_when_to_try_again(hub: HubServer, tmp_path: Path) -> None:
    started = time.monotonic()
    refused(ask(hub.url, tmp_path, "bad/limited"), "429", "try again in 37 s")
    assert time.monotonic() - started < 30  # huggingface_hub 0.34 backs off for 23 s by itself


def test_a_server_error_is_named(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "bad/broken"), "500")


def test_a_slow_server_is_given_up(hub: HubServer, tmp_path: Path) -> None:
    answer = ask(hub.url, tmp_path, "bad/slow", environment={"HF_HUB_ETAG_TIMEOUT": "1"})
    refused(answer, "did not answer within")


def test_a_truncated_file_is_not_used(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "bad/truncated"), "bad/truncated")


def test_without_a_server_the_network_is_blamed(tmp_path: Path) -> None:
    refused(ask("http://127.0.0.1:9", tmp_path, "good/plain"), "cannot be reached", "HF_ENDPOINT")


def test_offline_uses_the_cache_and_says_so(hub: HubServer, tmp_path: Path) -> None:
    ask(hub.url, tmp_path, "good/modelopt")
    hub.requests.clear()
    for answer in (
        ask(hub.url, tmp_path, "good/modelopt", environment={"HF_HUB_OFFLINE": "1"}),
        ask(hub.url, tmp_path, "good/modelopt", offline=True),
    ):
        assert answer.value["source"] == f"Hugging Face cache on this machine (commit {COMMIT[:12]})"
        assert answer.value["quantization"]["quant_method"] == "modelopt"
    assert not hub.requests


def test_offline_without_a_cached_copy_says_what_to_do(hub: HubServer, tmp_path: Path) -> None:
    refused(ask(hub.url, tmp_path, "good/plain", offline=True), "not in the cache", "--offline")
    assert not hub.requests


def test_a_cached_copy_serves_when_the_hub_is_down(hub: HubServer, tmp_path: Path) -> None:
    ask(hub.url, tmp_path, "good/plain")
    answer = ask("http://127.0.0.1:9", tmp_path, "good/plain")
    assert answer.value["source"].startswith("Hugging Face cache")


def test_the_catalogue_answers_before_the_hub(hub: HubServer, tmp_path: Path) -> None:
    answer = ask(hub.url, tmp_path, "qwen/qwen3-8b")
    assert answer.value["source"].startswith("bundled catalogue")
    assert answer.value["name"] == "Qwen/Qwen3-8B"
    assert not hub.requests


def test_a_token_is_sent_to_the_endpoint_only(hub: HubServer, tmp_path: Path) -> None:
    ask(hub.url, tmp_path, "good/redirected", environment={"HF_TOKEN": "hf_secret"})
    cdn = [authorisation for _, path, _, authorisation in hub.requests if path.startswith("/cdn/")]
    assert cdn
    assert set(cdn) == {None}
