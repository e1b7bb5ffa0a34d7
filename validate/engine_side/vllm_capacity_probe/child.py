"""The process that owns one engine: starts it, asks its workers, runs a first batch, writes everything to its
journal.

usage: python -m vllm_capacity_probe.child REQUEST.json

REQUEST.json: {"engine": keyword arguments of vllm.LLM, "requests": {"count", "prompt_tokens",
"output_tokens"}}
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .journal import Journal, open_journal

WORKER = "vllm_capacity_probe.worker.MeasuredWorker"


def main(path: str) -> int:
    request = json.loads(Path(path).read_text())
    journal = open_journal("engine")
    journal.write("phase", phase="import")
    try:
        import vllm
    except ImportError as error:
        journal.write("error", phase="import", type="ImportError", message=str(error)[:1000])
        return 3
    try:
        _run(vllm, request, journal)
    except BaseException as error:
        text = traceback.format_exc()[-4000:]
        journal.write(
            "error", phase="engine", type=type(error).__name__, message=str(error)[:2000], traceback=text
        )
        raise
    journal.write("done")
    return 0


def _run(vllm: Any, request: dict[str, Any], journal: Journal) -> None:
    journal.write("phase", phase="start", vllm=vllm.__version__)
    begin = time.time()
    engine = vllm.LLM(worker_cls=WORKER, **request["engine"])
    journal.write("started", start_seconds=round(time.time() - begin, 3), blocks=_blocks(engine))
    try:
        engine.collective_rpc("capacity_probe", args=("ready", True))
        batch = request.get("requests") or {}
        if batch.get("count"):
            journal.write("phase", phase="requests")
            _generate(vllm, engine, journal, **batch)
            engine.collective_rpc("capacity_probe", args=("after_requests",))
    finally:
        journal.write("phase", phase="shutdown")
        core: Any = getattr(getattr(engine, "llm_engine", None), "engine_core", None)
        if hasattr(core, "shutdown"):
            core.shutdown()


def _blocks(engine: Any) -> int | None:
    config = getattr(getattr(engine, "llm_engine", None), "vllm_config", None)
    return getattr(getattr(config, "cache_config", None), "num_gpu_blocks", None)


def _generate(
    vllm: Any, engine: Any, journal: Journal, count: int, prompt_tokens: int, output_tokens: int
) -> None:
    """A batch of `count` requests of distinct prompts, each of exactly the given lengths."""
    # token ids stay below 1,000 and differ between requests, so that nothing is shared through the prefix
    # cache
    prompts = [
        {"prompt_token_ids": [3 + (7 * i + j) % 900 for j in range(prompt_tokens)]} for i in range(count)
    ]
    sampling = vllm.SamplingParams(max_tokens=output_tokens, ignore_eos=True, detokenize=False)
    begin = time.time()
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    journal.write(
        "requests",
        seconds_taken=round(time.time() - begin, 3),
        finished=len(outputs),
        generated=sum(len(o.outputs[0].token_ids) for o in outputs),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
