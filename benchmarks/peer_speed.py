"""How long other tools take for the same question, beside `plan --json`, as ratios of processes run in turn.

    python benchmarks/peer_speed.py --peer hf-mem=VENV/bin/python --peer accelerate=VENV/bin/python \\
        --peer vllm-wizard=VENV/bin/python --peer aiconfigurator=VENV/bin/python

Each peer is installed in an environment of its own, outside of this project (docs/speed.md says how); none is part of CI. The
question is Llama-3.1-8B on one H100. What a tool can only fetch it gets from a Hub on this machine, without a network's delay:

- plan, vllm-wizard: a local config.json
- aiconfigurator: its own copy of the config; its command, and its memory function alone in a fresh process
- hf-mem, accelerate: the Hub on this machine, as they read nothing else; plan is asked through it as well

Exits 1 if any peer answers faster than `plan` does, in CPU time or by the clock.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from plan_speed import PLAN, Cost, local_config, process_cost

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from hub.server import COMMIT, HubServer, Repository

MODEL = "peers/llama-8b"
"""An id that no catalogue has, so that every tool asks the Hub."""
LAYERS, HIDDEN, KV, FEED_FORWARD, VOCAB = 32, 4096, 1024, 14336, 128256
WEIGHTS_BYTES = 16_060_522_496


class PeerHub(HubServer):
    """The Hub of the tests, and the two answers of its API that the peers read."""

    def answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = request.path.partition("?")[0]
        files = self.repositories[MODEL].files
        if path.startswith(f"/api/models/{MODEL}/tree/"):
            listed = [{"path": name, "type": "file", "size": len(data)} for name, data in files.items()]
            self._send(request, 200, json.dumps(listed).encode(), body)
        elif path == f"/api/models/{MODEL}":
            config = json.loads(files["config.json"])
            known = {
                "id": MODEL, "modelId": MODEL, "sha": COMMIT, "library_name": "transformers", "tags": [],
                "siblings": [{"rfilename": name} for name in files],
                "config": {"architectures": config["architectures"], "model_type": config["model_type"]},
            }  # fmt: skip
            self._send(request, 200, json.dumps(known).encode(), body)
        else:
            super().answer(request, body=body)

    def _send_file(
        self, request: BaseHTTPRequestHandler, repository: Repository, data: bytes, body: bool
    ) -> None:
        """Of the weights only what the header takes is there, but the file's size is told as it would be."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range") or "")
        if not request.path.endswith(".safetensors") or (body and not wanted):
            super()._send_file(request, repository, data, body)
            return
        total = len(data) + WEIGHTS_BYTES
        headers = {"ETag": '"weights"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if wanted is None:
            self._send(request, 200, b"", body, headers, size=total)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or total - 1), total - 1)
        part = data[first : last + 1]
        part += bytes(last + 1 - first - len(part))
        self._send(request, 206, part, body, headers | {"Content-Range": f"bytes {first}-{last}/{total}"})


def safetensors_header() -> bytes:
    """How a file with the weights of Llama-3.1-8B begins."""
    layer = {
        "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN),
        "self_attn.v_proj": (KV, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (FEED_FORWARD, HIDDEN), "mlp.up_proj": (FEED_FORWARD, HIDDEN),
        "mlp.down_proj": (HIDDEN, FEED_FORWARD),
    }  # fmt: skip
    shapes = {
        f"model.layers.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()
    }
    shapes |= {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    shapes["model.norm.weight"] = (HIDDEN,)
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    assert end == WEIGHTS_BYTES
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@dataclass(frozen=True)
class Contest:
    """One command of a peer, and ours for the same source of the config."""

    name: str
    peer: Sequence[str]
    ours: Sequence[str]


HF_MEM = """
import os, sys, httpx2
build = httpx2.AsyncClient.build_request
httpx2.AsyncClient.build_request = lambda self, method, url, **rest: build(
    self, method, str(url).replace("https://huggingface.co", os.environ["HF_ENDPOINT"]), **rest)
from hf_mem.cli import main
sys.exit(main())
"""
"""hf-mem names its host in its sources: the request goes to HF_ENDPOINT instead."""
KV_CACHE = """
from aiconfigurator_core.sdk.memory import estimate_kv_cache
print(estimate_kv_cache("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm", "0.24.0", max_num_tokens=8192, max_batch_size=256,
    memory_fraction_kind="of_total", memory_fraction_value=0.92))
"""


def contests(peers: Mapping[str, str], config: Path) -> list[Contest]:
    """What is run for the peers that are here."""
    local = (*PLAN, "--model", str(config))
    hub = (*PLAN, "--model", MODEL)
    found = []
    if python := peers.get("vllm-wizard"):
        program = str(Path(python).with_name("vllm-wizard"))
        command = (
            program,
            "plan",
            "--model",
            str(config.parent),
            "--gpu",
            "H100",
            "--vram-gb",
            "80",
            "--json",
        )
        found.append(Contest("vllm-wizard plan --json", command, local))
    if python := peers.get("hf-mem"):
        command = (python, "-c", HF_MEM, "--model-id", MODEL, "--experimental", "--json-output")
        found.append(Contest("hf-mem, plan of a local config", command, local))
        found.append(Contest("hf-mem, plan through the Hub too", command, (*hub, "--weights", "headers")))
    if python := peers.get("accelerate"):
        program = str(Path(python).with_name("accelerate"))
        found.append(Contest("accelerate estimate-memory", (program, "estimate-memory", MODEL), hub))
    if python := peers.get("aiconfigurator"):
        program = str(Path(python).with_name("aiconfigurator"))
        estimate = ("cli", "estimate", "--model-path", "meta-llama/Meta-Llama-3.1-8B", "--system", "h100_sxm")
        found.append(Contest("aiconfigurator cli estimate", (program, *estimate, "--backend", "vllm"), local))
        found.append(Contest("aiconfigurator estimate_kv_cache", (python, "-c", KV_CACHE), local))
    return found


def measured(contest: Contest, environment: Mapping[str, str], pairs: int) -> list[tuple[Cost, Cost]]:
    """(peer, ours) of runs in turn, after one of each that warms the caches of the disk."""
    commands = contest.peer, contest.ours
    runs = []
    for turn in range(pairs + 1):
        costs = []
        for command in commands:
            with (
                tempfile.TemporaryDirectory() as home
            ):  # nothing of the Hub is cached from one run to the next
                costs.append(process_cost(command, {**environment, "HF_HOME": home}))
        if turn:
            runs.append((costs[0], costs[1]))
    return runs


def version(python: str, name: str) -> str:
    source = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([python, "-c", source], capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    peers = dict(pair.split("=", 1) for pair in options.peer)
    for name, python in peers.items():
        print(f"{name} {version(python, name)}", end=", ")
    print(f"vllm-capacity {importlib.metadata.version('vllm-capacity')}, Python {sys.version.split()[0]}")
    slower = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = local_config(folder)
        files = {"config.json": config.read_bytes(), "model.safetensors": safetensors_header()}
        with PeerHub({MODEL: Repository(files)}) as hub:
            environment = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
            environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_TELEMETRY": "1"}
            environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
            print(f"{'peer':<34} {'peer, CPU s':>12} {'plan, CPU s':>12} {'CPU':>7} {'wall clock':>11}")
            for contest in contests(peers, config):
                runs = measured(contest, environment, options.pairs)
                cpu = statistics.median(peer.cpu / ours.cpu for peer, ours in runs)
                wall = statistics.median(peer.wall / ours.wall for peer, ours in runs)
                theirs = statistics.median(peer.cpu for peer, _ in runs)
                mine = statistics.median(ours.cpu for _, ours in runs)
                print(f"{contest.name:<34} {theirs:>12.2f} {mine:>12.2f} {cpu:>6.1f}x {wall:>10.1f}x")
                slower += min(cpu, wall) < 1
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
