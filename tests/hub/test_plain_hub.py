"""The Hub's usual answers come without huggingface_hub, into the same cache; everything else is left to the library."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from vllm_capacity.inputs import hub_cache, plain_hub

from hub.server import COMMIT, HubServer, Repository
from hub.test_headers_from_hub import INDEX, SHARDS

CONFIG = json.dumps({"model_type": "llama"}).encode()
PROGRAM = """
import sys
from vllm_capacity.inputs.hub import fetch_config
from vllm_capacity.inputs.safetensors_headers import read_hub
config, headers = fetch_config("good/model"), read_hub("good/model")
print(config.config["model_type"], headers.n_files, config.commit == headers.commit, "huggingface_hub" in sys.modules)
"""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """The Hub of this process, in which huggingface_hub counts as not imported."""
    files = {"config.json": CONFIG, "model.safetensors.index.json": INDEX, **SHARDS}
    repositories = {
        "good/model": Repository(files),
        "good/elsewhere": Repository(files, redirect=True),
        "gated/model": Repository(files, gated=True, token="hf_right"),
    }
    for name in [
        name for name in os.environ if name.startswith(("HF_", "HUGG")) or name.lower().endswith("_proxy")
    ]:
        monkeypatch.delenv(name)
    for name in ("huggingface_hub", "google.colab"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(plain_hub, "_idle", [])
    with HubServer(repositories) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        yield server


def test_a_config_and_headers_take_one_request_a_file_and_no_library(hub: HubServer) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout.split() == ["llama", "2", "True", "False"], done.stderr
    assert sorted((method, path.rpartition("/")[2]) for method, path, _, _ in hub.requests) == [
        ("GET", "config.json"), ("GET", "hf_quant_config.json"), *[("GET", name) for name in SHARDS],
        ("GET", "model.safetensors.index.json"),
    ]  # fmt: skip


def test_the_library_finds_what_was_kept(hub: HubServer, tmp_path: Path) -> None:
    found = plain_hub.fetch("good/model", "config.json", None, 1000)
    assert isinstance(found, plain_hub.PlainFile)
    assert (found.path.read_bytes(), found.commit, found.endpoint) == (CONFIG, COMMIT, hub.url)
    cache = tmp_path / "hub"
    assert huggingface_hub.try_to_load_from_cache("good/model", "config.json", cache_dir=cache) == str(
        found.path
    )
    scanned = huggingface_hub.scan_cache_dir(cache)
    assert not scanned.warnings
    (repository,) = scanned.repos
    assert (repository.repo_id, repository.size_on_disk, set(repository.refs)) == (
        "good/model",
        len(CONFIG),
        {"main"},
    )
    assert found.path.is_symlink()


def test_what_the_library_kept_is_used(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # read once, at whoever's import
    cached = huggingface_hub.hf_hub_download(
        "good/model", "config.json", endpoint=hub.url, cache_dir=tmp_path / "hub"
    )
    hub.requests.clear()
    found = plain_hub.fetch("good/model", "config.json", None, 1000)
    assert isinstance(found, plain_hub.PlainFile)
    assert found.path == Path(cached)
    assert [method for method, *_ in hub.requests] == ["HEAD"]


def test_a_new_commit_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    old = hub_cache.keep_file("good/model", "config.json", "main", "f" * 40, "blob-of-old", b"{}")
    found = plain_hub.fetch("good/model", "config.json", None, 1000)
    assert isinstance(found, plain_hub.PlainFile)
    assert (found.commit, found.path.read_bytes(), old.read_bytes()) == (COMMIT, CONFIG, b"{}")
    assert hub_cache.cached_commit("good/model", None) == COMMIT


def test_a_file_that_is_not_there_is_told_from_no_answer(hub: HubServer) -> None:
    assert plain_hub.fetch("good/model", "hf_quant_config.json", None, 1000) is plain_hub.MISSING
    assert plain_hub.fetch("no/model", "config.json", None, 1000) is None


@pytest.mark.parametrize(
    ("repository", "revision", "limit"),
    [
        ("gated/model", None, 1000),  # a refusal
        ("good/elsewhere", None, 1000),  # a redirect to another host
        ("good/model", None, 10),  # too large
        ("good/model", "v9", 1000),  # no such revision
        ("good/model", "../main", 1000),
        ("good/../model", None, 1000),
    ],
)
def test_what_is_not_plain_is_the_librarys(
    hub: HubServer, repository: str, revision: str | None, limit: int
) -> None:
    assert plain_hub.fetch(repository, "config.json", revision, limit) is None
    assert not list(Path(os.environ["HF_HOME"]).rglob("config.json"))


def test_weights_elsewhere_are_read_without_the_token(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret\n")
    name = next(iter(SHARDS))
    start = plain_hub.start_of("good/elsewhere", name, None, 100, lambda first, size: len(first) + 50)
    assert start is not None
    assert (start.data, start.size, start.commit) == (SHARDS[name][:150], len(SHARDS[name]), COMMIT)
    sent = {path.split("/")[1] == "cdn": authorisation for _, path, _, authorisation in hub.requests}
    assert sent == {False: "Bearer hf_secret", True: None}


@pytest.mark.parametrize(
    "setting",
    [
        {"HTTPS_PROXY": "http://proxy:1"}, {"all_proxy": "http://proxy:1"}, {"HF_HUB_OFFLINE": "yes"},
        {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, {"HF_TOKEN_PATH": "/x"}, {"HF_OIDC_RESOURCE": "x"},
        {"HF_HUB_ETAG_TIMEOUT": "soon"}, {"HF_HUB_DOWNLOAD_TIMEOUT": "soon"}, {"HF_HOME": "$HOME/hf"},
        {"HUGGING_FACE_HUB_TOKEN": "hf_x"}, {"HF_ENDPOINT": "hub"}, {"HF_TOKEN": "hf_ö"}, {"TRANSFORMERS_OFFLINE": "1"},
    ],
)  # fmt: skip
def test_settings_that_are_not_read_here_are_the_librarys(
    hub: HubServer, setting: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain_hub.settings() is not None
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert plain_hub.settings() is None


def test_a_program_that_uses_the_library_keeps_using_it(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", huggingface_hub)
    assert plain_hub.settings() is None


def test_the_token_of_a_login_is_sent_unless_it_expires(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_right\n")
    found = plain_hub.settings()
    assert found is not None
    assert found.token == "hf_right"
    assert isinstance(plain_hub.fetch("gated/model", "config.json", None, 1000), plain_hub.PlainFile)
    (tmp_path / "stored_tokens").write_text("[me]\nhf_token = hf_right\nrefresh_token = r\n")
    assert plain_hub.settings() is None


def test_a_connection_that_the_server_dropped_is_made_again(hub: HubServer) -> None:
    assert plain_hub.fetch("good/model", "hf_quant_config.json", None, 1000) is plain_hub.MISSING
    (session,) = plain_hub._idle
    (connection,) = session._open.values()
    assert connection.sock is not None
    connection.sock.shutdown(socket.SHUT_RDWR)
    assert plain_hub.fetch("good/model", "hf_quant_config.json", None, 1000) is plain_hub.MISSING


def test_a_forked_process_makes_connections_of_its_own(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain_hub.fetch("good/model", "hf_quant_config.json", None, 1000) is plain_hub.MISSING
    (session,) = plain_hub._idle
    session.process += 1
    assert plain_hub.fetch("good/model", "hf_quant_config.json", None, 1000) is plain_hub.MISSING
    assert session not in plain_hub._idle
