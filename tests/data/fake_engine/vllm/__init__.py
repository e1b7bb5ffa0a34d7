"""A `vllm` whose LLM drives workers in this process, in the order of the real engine."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.26.0"


class SamplingParams:
    def __init__(self, **values):
        self.values = values


class LLM:
    def __init__(self, model, worker_cls, skip_tokenizer_init, load_format, **flags):
        assert json.loads(Path(model, "config.json").read_text()), "a folder with config.json"
        assert skip_tokenizer_init
        assert load_format == "dummy"
        tape = json.loads(Path(os.environ["FAKE_ENGINE_TAPE"]).read_text())
        module, _, name = worker_cls.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        self.tape = tape
        self.workers = []
        for rank, answers in enumerate(tape["ranks"]):
            worker = cls(SimpleNamespace(flags=flags), rank, answers)
            self.workers.append(worker)
            worker.init_device()
            worker.load_model()
            available = worker.determine_available_memory()
            print(f"Available KV cache memory: {available / 2**30:.2f} GiB", flush=True)
            from vllm.v1.worker.gpu_worker import step

            step("kv_planning")
            worker.initialize_from_config(worker.kv_cache_config())
            worker.compile_or_warm_up_model()
        line = f"GPU KV cache size: {tape['tokens']:,} tokens"
        print(f"INFO 11-30 03:40:09 [kv_cache_utils.py:2177] {line}", flush=True)
        cache = SimpleNamespace(num_gpu_blocks=tape["ranks"][0]["num_blocks"])
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(cache_config=cache))

    def collective_rpc(self, method, args=()):
        return [getattr(worker, method)(*args) for worker in self.workers]

    def generate(self, prompts, sampling, use_tqdm):
        from vllm.v1.worker.gpu_worker import step

        step("requests")
        count = sampling.values["max_tokens"]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1] * count)]) for _ in prompts]
