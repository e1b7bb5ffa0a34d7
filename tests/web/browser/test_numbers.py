"""The page, the command line and the library say the same, and nothing leaves the server."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

from vllm_capacity import plan
from vllm_capacity.answer import Plan

from web.browser.visiting import Visitor
from web.running import PROGRAM

TEN = [
    ("meta-llama/Llama-3.1-8B-Instruct", "H100-80GB", 1),
    ("meta-llama/Llama-3.1-70B-Instruct", "H100-80GB", 4),
    ("Qwen/Qwen3-30B-A3B", "H100-80GB", 2),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "H200-141GB", 2),
    ("google/gemma-3-27b-it", "A100-80GB", 2),
    ("deepseek-ai/DeepSeek-V3", "H200-141GB", 8),
    ("openai/gpt-oss-120b", "H100-80GB", 2),
    ("mistralai/Mixtral-8x7B-Instruct-v0.1", "H100-80GB", 2),
    ("microsoft/phi-4", "L40S", 2),
    ("ai21labs/Jamba-v0.1", "H200-141GB", 2),
]
"""Dense, mixtures of experts, latent attention, hybrids, sliding windows, state space; one to eight GPUs."""
RELEASE = "0.26.0"


def from_the_command_line(case: tuple[str, str, int]) -> dict[str, object]:
    model, gpu, tp = case
    words = [
        "plan",
        "--json",
        "--no-suggestions",
        "--vllm-version",
        RELEASE,
        "--model",
        model,
        "--gpu",
        gpu,
        "--tp",
        str(tp),
    ]
    done = subprocess.run([PROGRAM, *words], capture_output=True, check=False)
    return dict(json.loads(done.stdout))


def test_ten_models_have_the_same_numbers_everywhere(visit: Visitor):
    with ThreadPoolExecutor(2) as threads:
        printed = list(threads.map(from_the_command_line, TEN))
    for (model, gpu, tp), document in zip(TEN, printed, strict=True):
        made = plan(model, gpu=gpu, tensor_parallel_size=tp, vllm_version=RELEASE, suggestions=False)
        assert isinstance(made, Plan), model
        visit.open(f"?model={model}&gpu={gpu}&tp={tp}&vllm={RELEASE}")
        visit.verdict(model)
        rank = min(document["ranks"], key=lambda rank: rank["num_blocks_own"])  # type: ignore[attr-defined]
        library = {
            "tokens": made.kv_cache.size_tokens,
            "concurrency": made.kv_cache.max_concurrency,
            "longest": made.verdict.max_model_len_that_fits,
            "used": made.tightest.device_used_bytes,
        }
        command = {
            "tokens": document["kv_cache"]["size_tokens"],  # type: ignore[index]
            "concurrency": document["kv_cache"]["max_concurrency"],  # type: ignore[index]
            "longest": document["verdict"]["max_model_len_that_fits"],  # type: ignore[index]
            "used": rank["device_used_bytes"],
        }
        assert visit.figures() == library == command, model


def test_the_page_asks_nobody_but_its_own_server(visit: Visitor):
    page = visit.open()
    visit.verdict("It starts")
    visit.choose("model", "gemma-3-27b", "google/gemma-3-27b-it")
    visit.verdict("gemma-3-27b-it")
    page.get_by_role("button", name="Compare layouts").click()
    page.get_by_role("button", name="Read a log").click()
    page.wait_for_load_state("networkidle")
    loaded = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert len(loaded) > 5
    assert [name for name in loaded if not name.startswith(visit.site)] == []
    assert visit.outbound == []
    assert visit.errors == []
