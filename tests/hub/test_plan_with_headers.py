"""`plan --weights` from end to end: a folder with real safetensors files, a Hub over HTTP, its cache, a terminal."""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest

from hub.server import COMMIT, HubServer, Repository

COMMAND = str(Path(sys.executable).with_name("vllm-capacity"))
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 9, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "head_dim": 32,
    "max_position_embeddings": 1024, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip
STORED_WIDTH = 384
"""Of the MLP in the files; the config says 256."""


def shard(index: int) -> dict[str, list[int]]:
    """The tensors of one layer, and in the first file what lies outside the layers: a tied head is stored too."""
    p = f"model.layers.{index}."
    tensors = {
        f"{p}self_attn.q_proj.weight": [128, 128],
        f"{p}self_attn.k_proj.weight": [64, 128],
        f"{p}self_attn.v_proj.weight": [64, 128],
        f"{p}self_attn.o_proj.weight": [128, 128],
        f"{p}mlp.gate_proj.weight": [STORED_WIDTH, 128],
        f"{p}mlp.up_proj.weight": [STORED_WIDTH, 128],
        f"{p}mlp.down_proj.weight": [128, STORED_WIDTH],
        f"{p}input_layernorm.weight": [128],
        f"{p}post_attention_layernorm.weight": [128],
    }
    if index == 0:
        tensors |= {
            "model.embed_tokens.weight": [512, 128],
            "lm_head.weight": [512, 128],
            "model.norm.weight": [128],
        }
    return tensors


def safetensors(tensors: dict[str, list[int]]) -> bytes:
    """A file in the format of https://github.com/huggingface/safetensors#format, bfloat16, zeros for data."""
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    data = json.dumps(header).encode()
    return struct.pack("<Q", len(data)) + data + bytes(offset)


SHARDS = {f"model-{i + 1:05}-of-00009.safetensors": shard(i) for i in range(9)}
ELEMENTS = sum(prod(shape) for tensors in SHARDS.values() for shape in tensors.values())
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {name: file for file, tensors in SHARDS.items() for name in tensors}}
    ).encode(),
    **{name: safetensors(tensors) for name, tensors in SHARDS.items()},
}
PARAMETERS = ELEMENTS - 512 * 128
"""The tied head counts once."""


@pytest.fixture
def hub() -> Iterator[HubServer]:
    without = {
        name: data for name, data in FILES.items() if not name.endswith((".safetensors", "index.json"))
    }
    with HubServer({"tiny/llama": Repository(FILES), "tiny/bin": Repository(without)}) as server:
        yield server


def environment(url: str, home: Path) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return clean | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "NO_PROXY": "*",
        "no_proxy": "*",
        "TERM": "xterm",
    }


def command(model: str, *arguments: str) -> list[str]:
    return [
        COMMAND,
        "plan",
        "--json",
        "--no-suggestions",
        "--gpu",
        "L4",
        "--gpu-memory-utilization",
        "0.5",
        "--model",
        model,
        *arguments,
    ]


def plan(url: str, home: Path, model: str, *arguments: str) -> Any:
    done = subprocess.run(
        command(model, *arguments), capture_output=True, text=True, env=environment(url, home), timeout=60
    )
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def folder(tmp_path: Path) -> str:
    path = tmp_path / "model"
    path.mkdir()
    for name, data in FILES.items():
        (path / name).write_bytes(data)
    return str(path)


def test_a_local_checkpoint_is_sized_by_its_headers(tmp_path: Path) -> None:
    model = folder(tmp_path)
    found = plan("http://127.0.0.1:9", tmp_path, model)
    assert found["model"]["parameters"] == PARAMETERS
    assert "safetensors headers of" in found["model"]["source"]
    assert found["host"]["checkpoint_bytes"] == 2 * ELEMENTS
    text = "\n".join(found["warnings"])
    assert "mlp.gate_up_proj is stored with [768, 128] where the config says [512, 128]" in text
    assert "lm_head is stored beside the embedding it is tied to" in text
    by_config = plan("http://127.0.0.1:9", tmp_path, model, "--weights", "config")
    assert by_config["model"]["parameters"] == PARAMETERS - 9 * 3 * 128 * 128
    assert "headers" not in "\n".join(by_config["warnings"])


def test_tensor_parallelism_divides_the_stored_sizes(tmp_path: Path) -> None:
    model = folder(tmp_path)
    terms = {t["name"]: t["bytes"] for t in plan("", tmp_path, model, "--tp", "2")["ranks"][0]["terms"]}
    assert terms["mlp"] == 9 * 3 * 128 * STORED_WIDTH * 2 // 2


def test_only_headers_travel_and_a_second_plan_needs_no_network(hub: HubServer, tmp_path: Path) -> None:
    first = plan(hub.url, tmp_path, "tiny/llama", "--weights", "headers")
    assert first["model"]["parameters"] == PARAMETERS
    ranges = [
        asked for method, path, asked, _ in hub.requests if method == "GET" and path.endswith(".safetensors")
    ]
    assert ranges
    assert all(ranges)
    again = plan("http://127.0.0.1:9", tmp_path, "tiny/llama", "--weights", "auto", "--offline")
    assert again["model"]["parameters"] == PARAMETERS
    assert again["model"]["source"].endswith("(cached)")


def test_auto_asks_the_network_for_no_header(hub: HubServer, tmp_path: Path) -> None:
    found = plan(hub.url, tmp_path, "tiny/llama")
    assert found["model"]["parameters"] == PARAMETERS - 9 * 3 * 128 * 128
    assert not [path for _, path, _, _ in hub.requests if path.endswith(".safetensors")]


def test_auto_finds_a_checkpoint_in_the_hub_s_cache(hub: HubServer, tmp_path: Path) -> None:
    """The layout of huggingface_hub's cache: refs/main names the commit, snapshots/<commit> holds the files."""
    plan(hub.url, tmp_path, "tiny/llama")
    snapshot = tmp_path / "hub" / "models--tiny--llama" / "snapshots" / COMMIT
    for name, data in FILES.items():
        if name != "config.json":
            (snapshot / name).write_bytes(data)
    assert plan(hub.url, tmp_path, "tiny/llama")["model"]["parameters"] == PARAMETERS


@pytest.mark.parametrize(
    ("mode", "words"), [("headers", "has no safetensors files"), ("everything", "'everything' is not one of")]
)
def test_headers_that_do_not_exist_are_one_line(
    hub: HubServer, tmp_path: Path, mode: str, words: str
) -> None:
    done = subprocess.run(
        command("tiny/bin", "--weights", mode), capture_output=True, text=True, timeout=60,
        env=environment(hub.url, tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_local_checkpoint_falls_back_to_the_config_and_says_so(tmp_path: Path) -> None:
    model = folder(tmp_path)
    (Path(model) / "model-00003-of-00009.safetensors").unlink()
    found = plan("", tmp_path, model)
    assert found["model"]["parameters"] == PARAMETERS - 9 * 3 * 128 * 128
    assert any(w.startswith("--weights auto:") and "lacks 1 of its 9 shards" in w for w in found["warnings"])


def test_a_terminal_sees_the_shards_arrive(hub: HubServer, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command("tiny/llama", "--weights", "headers"), stdout=subprocess.DEVNULL, stderr=theirs,
        env=environment(hub.url, tmp_path),
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while True:
            try:
                data = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            seen += data
        process.wait(timeout=60)
    os.close(ours)
    assert b"safetensors headers" in seen
    assert b"9/9" in seen
