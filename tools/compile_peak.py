"""Settles on a GPU where the activation peak of a cold start comes from. Needs one GPU and an installed vLLM.

    python tools/compile_peak.py FOLDER_WITH_CONFIG_JSON --tokens 2048 --sequences 64

Each case starts the engine in a fresh process with dummy weights and prints its figures in bytes.
For Llama-3.1-8B, 2,048 tokens and 64 sequences on H200 with vLLM 0.26.0, `plan` says 1,084,246,016 cold and
260,048,896 warm; the cases differ as follows if the cause is what `capacity/activations/compile.py` says.

    cold             empty caches                                     the cold figure
    warm             the caches of `cold`                             the warm figure
    cache_disabled   VLLM_DISABLE_COMPILE_CACHE=1, empty caches       the cold figure
    combo_off        combo kernels off, empty caches                  the cold figure: not the cause
    autotune_late    triton.autotune_at_compile_time off, empty       no vocabulary matrix
    eager            --enforce-eager                                  the eager figure
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

NO_COMBO = {"combo_kernels": False, "benchmark_combo_kernel": False}
CASES: dict[str, dict[str, Any]] = {
    "cold": {},
    "warm": {"caches_of": "cold"},
    "cache_disabled": {"environment": {"VLLM_DISABLE_COMPILE_CACHE": "1"}},
    "combo_off": {"inductor": NO_COMBO},
    "autotune_late": {"inductor": {"triton.autotune_at_compile_time": False}},
    "eager": {"eager": True},
}


def start(folder: str, tokens: int, sequences: int, case: dict[str, Any]) -> None:
    """In a child: one engine start, its figures as one JSON line."""
    from vllm import LLM  # type: ignore[import-not-found, unused-ignore]

    compilation: dict[str, Any] = {"cudagraph_capture_sizes": [1, 8]}
    if "inductor" in case:
        compilation["inductor_compile_config"] = case["inductor"]
    llm = LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        max_model_len=8192,
        max_num_batched_tokens=tokens,
        max_num_seqs=sequences,
        enforce_eager=bool(case.get("eager")),
        compilation_config=compilation,
    )
    executor = llm.llm_engine.model_executor
    worker = executor.driver_worker.worker
    figures = {
        "peak_activation": int(worker.peak_activation_memory),
        "non_torch": int(worker.non_torch_memory),
        "graph_estimate": int(getattr(worker, "cudagraph_memory_estimate", 0)),
        "available_kv": int(worker.available_kv_cache_memory_bytes),
        "weights": int(worker.model_runner.model_memory_usage),
    }
    print("FIGURES " + json.dumps(figures), flush=True)


def main() -> None:
    """Every case in a process of its own, cheapest question first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--case", choices=sorted(CASES))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        start(given.folder, given.tokens, given.sequences, CASES[given.case])
        return
    roots: dict[str, str] = {}
    for name in [given.case] if given.case else CASES:
        case = CASES[name]
        root = roots.get(case.get("caches_of", "")) or tempfile.mkdtemp(prefix=f"compile-peak-{name}-")
        roots[name] = root
        environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CACHE_ROOT": f"{root}/vllm",
            "TORCHINDUCTOR_CACHE_DIR": f"{root}/inductor",
            "TRITON_CACHE_DIR": f"{root}/triton",
            **case.get("environment", {}),
        }
        command = [sys.executable, __file__, given.folder, "--case", name, "--child"]
        command += ["--tokens", str(given.tokens), "--sequences", str(given.sequences)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        line = next((x for x in done.stdout.splitlines() if x.startswith("FIGURES ")), "")
        print(f"{name:16} {line[8:] or done.stderr.strip().splitlines()[-1:]}", flush=True)


if __name__ == "__main__":
    main()
