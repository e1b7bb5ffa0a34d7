"""The runner against a stand-in engine: real child processes, recorded answers, deaths on demand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.validate.record import Requests, RunRequest
from vllm_capacity.validate.runner import RunnerSettings

DATA = Path(__file__).parents[1] / "data"
FAKE_ENGINE = DATA / "fake_engine"

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "vocab_size": 128256,
}


@pytest.fixture(scope="session")
def answers() -> dict[str, Any]:
    """What the workers of two recorded H200 runs of vLLM 0.26.0 answered (tests/data/README.md)."""
    recorded: dict[str, Any] = json.loads((DATA / "records" / "answers_h200_0.26.0.json").read_text())
    return recorded


@pytest.fixture
def make_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]
) -> Callable[..., RunRequest]:
    """A request whose engine is the stand-in, answering with a recorded run."""
    monkeypatch.setenv("PYTHONPATH", str(FAKE_ENGINE))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))

    def make(name: str = "run", answer: str = "llama31-8b-t2048", die: str = "", **fields: Any) -> RunRequest:
        tape = tmp_path / f"tape-{answer}.json"
        tape.write_text(json.dumps(answers[answer]))
        flags = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, **fields.pop("flags", {})}
        env = {"FAKE_ENGINE_TAPE": str(tape), "FAKE_ENGINE_DIE": die, **fields.pop("env", {})}
        batch = fields.pop("requests", Requests(count=2, prompt_tokens=8, output_tokens=3))
        return RunRequest(name=name, model=str(model), flags=flags, env=env, requests=batch, **fields)

    return make


@pytest.fixture
def settings(tmp_path: Path) -> RunnerSettings:
    return RunnerSettings(python=sys.executable, work=tmp_path / "work", nvidia_smi="no-such-nvidia-smi")
