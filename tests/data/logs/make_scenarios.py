"""Writes the scenario logs: synthetic starts in vLLM's own formats, with figures that vLLM's formulas allow.

    python tests/data/logs/make_scenarios.py

Nothing here is from a person's log. Where a published run showed the scenario, its figures are used (URL in
`origin`); the rest
follow from vLLM's arithmetic: requested = total x utilisation, available = requested - weights - activation
- non-torch - graphs.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "scenarios"
ISSUE = "https://github.com/vllm-project/vllm/issues/"


@dataclass
class Log:
    """Lines of one start. `worker`, `core` and `server` give the prefixes of that release's processes."""

    version: str = "0.26.0"
    lines: list[str] = field(default_factory=list)
    worker: str = "(EngineCore pid=312) "
    core: str = "(EngineCore pid=312) "
    server: str = "(APIServer pid=1) "

    def say(
        self, text: str, where: str = "gpu_worker.py:563", who: str | None = None, level: str = "INFO"
    ) -> Log:
        prefix = self.worker if who is None else who
        self.lines += [
            f"{prefix}{level} 04-22 10:00:{len(self.lines) % 60:02d} [{where}] {part}"
            for part in text.split("\n")
        ]
        return self

    def begin(self, model: str, **flags: Any) -> Log:
        self.say(f"vLLM API server version {self.version}", "api_server.py:1410", self.server)
        self.say(
            f"non-default args: {{'model_tag': {model!r}, "
            + ", ".join(f"{k!r}: {v!r}" for k, v in {"model": model, **flags}.items())
            + "}",
            "utils.py:325",
            self.server,
        )
        tp = flags.get("tensor_parallel_size", 1)
        self.say(
            f"Initializing a V1 LLM engine (v{self.version}) with config: model={model!r}, "
            f"speculative_config=None, tokenizer={model!r}, "
            f"dtype=torch.bfloat16, max_seq_len={flags.get('max_model_len', 131072)}, "
            f"tensor_parallel_size={tp}, "
            "compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>, 'cudagraph_mode': "
            "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}",
            "core.py:117",
            self.core,
        )
        return self.say(f"Starting to load model {model}...", "gpu_model_runner.py:5260")

    def loaded(self, gib: float | str) -> Log:
        return self.say(
            f"Model loading took {gib} GiB memory and 21.402311 seconds", "gpu_model_runner.py:5347"
        )

    def profiled(self, weights: float, peak: float, non_torch: float, graphs: float | None = None) -> Log:
        if graphs is not None:
            self.say(
                "Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35 (largest=256)",
                "gpu_model_runner.py:6612",
            )
            self.say(f"Estimated CUDA graph memory: {graphs:.2f} GiB total", "gpu_model_runner.py:6737")
        total = round(weights + peak + non_torch, 2)
        return self.say(
            f"Memory profiling takes 7.31 seconds. Total non KV cache memory: {total}GiB; torch peak memory "
            f"increase: {peak}GiB; "
            f"non-torch forward increase memory: {non_torch}GiB; weights memory: {weights}GiB.",
            "gpu_worker.py:559",
            level="DEBUG",
        )

    def available(self, gib: float | str) -> Log:
        return self.say(f"Available KV cache memory: {gib} GiB")

    def cache(self, tokens: int, length: int, concurrency: float) -> Log:
        if tuple(map(int, self.version.split("."))) >= (0, 28, 0):
            return self.say(
                f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} "
                f"tokens per request: {concurrency:.2f}x",
                "kv_cache_utils.py:1147",
                self.core,
            )
        self.say(f"GPU KV cache size: {tokens:,} tokens", "kv_cache_utils.py:2177", self.core)
        return self.say(
            f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x",
            "kv_cache_utils.py:2178",
            self.core,
        )

    def captured(self, gib: float, estimate: float | None = None) -> Log:
        self.say(f"Graph capturing finished in 9 secs, took {gib:.2f} GiB", "gpu_model_runner.py:6844")
        if estimate is not None:
            difference = abs(round(gib - estimate, 2))
            self.say(
                f"CUDA graph pool memory: {gib} GiB (actual), {estimate} GiB (estimated), "
                f"difference: {difference} GiB "
                f"({100 * difference / gib:.1f}%).",
                "gpu_worker.py:793",
            )
        return self

    def summary(self, free: float, total: float, share: float, usage: str, kv: float) -> Log:
        return self.say(
            f"Free memory on device ({free}/{total} GiB) on startup. Desired GPU memory utilization is "
            f"({share}, {round(total * share, 2)} GiB). "
            f"Actual usage is {usage}. Replace gpu_memory_utilization config with "
            "`--kv-cache-memory=40802189312` (38.0 GiB) to fit into "
            f"requested memory, or `--kv-cache-memory=42949672960` (40.0 GiB) to fully utilize gpu memory. "
            "Current kv cache memory in use "
            f"is {kv} GiB.",
            "gpu_worker.py:857",
        )

    def up(self) -> Log:
        return self.say("Application startup complete.", "on.py:62", self.server)

    def running(self, *rows: tuple[int, int, float, int]) -> Log:
        for running, waiting, usage, preempted in rows:
            extra = f", Preemptions: {preempted}" if preempted else ""
            self.say(
                f"Engine 000: Avg prompt throughput: 5210.4 tokens/s, Avg generation throughput: 890.2 "
                f"tokens/s, Running: {running} reqs, "
                f"Waiting: {waiting} reqs{extra}, GPU KV cache usage: {usage:.1f}%, Prefix cache hit "
                "rate: 12.1%",
                "loggers.py:311",
                self.server,
            )
        return self

    def fails(self, error: str, *functions: str, who: str | None = None) -> Log:
        who = self.worker if who is None else who
        self.say("EngineCore failed to start.", "core.py:1130", who, "ERROR")
        self.say("Traceback (most recent call last):", "core.py:1130", who, "ERROR")
        for number, function in enumerate(functions):
            self.say(
                f'  File "/usr/lib/python3/vllm/v1/worker/part.py", line {100 + number}, in {function}',
                "core.py:1130",
                who,
                "ERROR",
            )
            self.say(f"    {function}()", "core.py:1130", who, "ERROR")
        self.say(error, "core.py:1130", who, "ERROR")
        return self.say(
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "launcher.py:88",
            self.server,
            "ERROR",
        )

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def oom(
    tried: str,
    free: str,
    total: float,
    process: float,
    allocated: float,
    pools: str = "",
    gpu: int = 0,
    rest: str = "110.25 MiB",
) -> str:
    pool = f", with {pools} allocated in private pools (e.g., CUDA Graphs)" if pools else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried}. GPU {gpu} has a total "
        f"capacity of {total} GiB of which "
        f"{free} is free. Including non-PyTorch memory, this process has {process} GiB memory in use. Of "
        "the allocated memory "
        f"{allocated} GiB is allocated by PyTorch{pool}, and {rest} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated "
        "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


def request_refusal(tokens: int, needed: float, available: float, estimate: int) -> str:
    return (
        f"ValueError: To serve at least one request with the model's max seq len ({tokens}), ({needed} GiB "
        "KV cache is needed, which is "
        f"larger than the available KV cache memory ({available} GiB). Based on the available memory, the "
        "estimated maximum model length is "
        f"{estimate}. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
        "backend) or decreasing "
        "`max_model_len` when initializing the engine. See "
        "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
    )


def free_refusal(free: float, total: float, share: float, requested: float | None = None) -> str:
    return (
        f"ValueError: Free memory on device cuda:0 ({free}/{total} GiB) on startup is less than desired GPU "
        f"memory utilization ({share}, "
        f"{round(total * share, 2) if requested is None else requested} GiB). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes."
    )


NO_BLOCKS = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
    "initializing the engine. See "
    "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
START = ("run_engine_core", "__init__", "_initialize_kv_caches")
PROFILE = (*START, "determine_available_memory")
WARM = (*START, "initialize_from_config", "compile_or_warm_up_model")
LLAMA, QWEN, OSS = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b"

SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {}


def scenario(
    name: str,
    log: Log | str,
    cause: str | None,
    *,
    component: str | None = None,
    confidence: str | None = "high",
    missing_gib: float | None = None,
    figures: dict[str, Any] | None = None,
    flags: list[str] | None = None,
    observation: str | None = None,
    evidence: str | None = None,
    page: str | None = None,
    origin: str = "",
) -> None:
    """`flags`: the first word of remedies that must be offered. `evidence`: words of a line that must be
    shown."""
    text = log if isinstance(log, str) else log.text()
    SCENARIOS[name] = (
        text,
        {
            "cause": cause,
            "component": component,
            "confidence": confidence if cause else None,
            "missing_gib": missing_gib,
            "figures": figures or {},
            "flags": flags or [],
            "observation": observation,
            "evidence": evidence,
            "origin": origin,
        },
    )


def refusals() -> None:
    scenario(
        "free_below_other_process",
        Log()
        .begin(LLAMA, gpu_memory_utilization=0.92)
        .fails(free_refusal(37.12, 79.19, 0.92), "init_device", "request_memory"),
        "free_below_requested",
        missing_gib=35.73,
        figures={"free_gib": 37.12, "requested_gib": 72.85},
        flags=["--gpu-memory-utilization"],
        observation="shared GPU",
        evidence="Free memory on device cuda:0",
    )
    scenario(
        "free_below_by_a_hair",
        Log("0.11.0", worker="(EngineCore_DP0 pid=88) ", core="(EngineCore_DP0 pid=88) ")
        .begin("Qwen/Qwen2.5-7B-Instruct")
        .fails(free_refusal(19.77, 22.05, 0.9, 19.84).replace("device cuda:0 ", "device "), "init_device"),
        "free_below_requested",
        missing_gib=0.07,
        figures={"gpu_memory_utilization": 0.9},
        flags=["--gpu-memory-utilization"],
        origin="figures of https://github.com/pytorch/pytorch/issues/175666",
    )
    scenario(
        "free_below_unified_memory",
        Log("0.29.0")
        .begin("some/unknown-model", gpu_memory_utilization=0.87)
        .fails(free_refusal(102.0, 121.69, 0.87), "init_device"),
        "free_below_requested",
        missing_gib=3.87,
        flags=["--gpu-memory-utilization"],
        origin="figures of a public report about GB10 (0.87 = 105.87 GiB, about 102 free)",
    )
    scenario(
        "no_kv_gpt_oss_120b_one_gpu",
        Log("0.10.2")
        .begin("openai/gpt-oss-120b", gpu_memory_utilization=0.9)
        .loaded(65.97)
        .profiled(65.97, 7.38, 0.06)
        .available(-2.14)
        .fails(NO_BLOCKS, *START, "get_kv_cache_configs", "check_enough_kv_cache_memory"),
        "no_kv_memory",
        component="weights",
        missing_gib=2.14,
        figures={"available_kv_gib": -2.14, "activation_peak_gib": 7.38},
        evidence="Available KV cache memory: -2.14",
        origin=ISSUE + "23278",
    )
    scenario(
        "no_kv_utilization_lowered",
        Log(worker="(Worker_TP0 pid=77) ")
        .begin(QWEN, tensor_parallel_size=2, gpu_memory_utilization=0.1)
        .loaded(28.48)
        .profiled(28.48, 0.94, 2.05, 0.58)
        .say("Free memory after profiling: 44.3 GiB (total), 0.0 GiB (within requested)", level="DEBUG")
        .say("Initial free memory: 77.18 GiB; Requested memory: 0.100000 (util), 7.92 GiB", level="DEBUG")
        .available(-24.13)
        .fails(NO_BLOCKS, *START, "check_enough_kv_cache_memory"),
        "no_kv_memory",
        component="weights",
        missing_gib=24.13,
        figures={"requested_gib": 7.92},
        flags=["--gpu-memory-utilization"],
        evidence="weights memory: 28.48",
    )
    scenario(
        "no_kv_graph_estimate_tips_it",
        Log("0.22.0")
        .begin("Qwen/Qwen2.5-32B-Instruct-AWQ", gpu_memory_utilization=0.9, max_model_len=4096)
        .loaded(18.14)
        .profiled(18.14, 1.6, 0.05, 1.59)
        .say("Initial free memory: 23.1 GiB; Requested memory: 0.900000 (util), 21.18 GiB", level="DEBUG")
        .available(-0.2)
        .fails(NO_BLOCKS, *START, "check_enough_kv_cache_memory"),
        "no_kv_memory",
        component="weights",
        missing_gib=0.2,
        figures={"graph_estimate_gib": 1.59},
        flags=["--gpu-memory-utilization"],
    )
    scenario(
        "no_kv_multimodal_decoding",
        Log()
        .begin("Qwen/Qwen2.5-VL-7B-Instruct")
        .loaded(15.63)
        .fails(
            "ValueError: frontend multimodal GPU decoding reserves 4.5 GiB (4.0 GiB raw-frame budget, 0.5 "
            "GiB decoder cache budget), but only "
            "2.31 GiB is available for the KV cache. Reduce mm_ipc_gpu_memory_gb, use a different video "
            "backend, or increase "
            "gpu_memory_utilization.",
            *PROFILE,
            "_reserve_mm_ipc_gpu_memory",
        ),
        "no_kv_memory",
        component="encoder",
        figures={"mm_reserved_gib": 4.5},
    )
    scenario(
        "one_request_model_default_length",
        Log("0.10.2", worker="(EngineCore_3 pid=41) ", core="(EngineCore_3 pid=41) ")
        .begin("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", data_parallel_size=8, enable_expert_parallel=True)
        .available(48.66)
        .fails(request_refusal(262144, 62.0, 48.66, 205728), *START, "check_enough_kv_cache_memory"),
        "one_request_does_not_fit",
        component="kv_cache",
        missing_gib=13.34,
        figures={"request_gib": 62.0, "estimated_max_model_len": 205728, "max_model_len": 262144},
        flags=["--max-model-len"],
        evidence="max seq len (262144)",
        origin="https://github.com/vllm-project/recipes/pull/12",
    )
    scenario(
        "one_request_llama_131072",
        Log()
        .begin(LLAMA, gpu_memory_utilization=0.35)
        .loaded(14.99)
        .say("Initial free memory: 78.68 GiB; Requested memory: 0.350000 (util), 27.72 GiB", level="DEBUG")
        .profiled(14.99, 1.27, 0.25)
        .available(11.21)
        .fails(request_refusal(131072, 16.0, 11.21, 91824), *START, "check_enough_kv_cache_memory"),
        "one_request_does_not_fit",
        component="kv_cache",
        missing_gib=4.79,
        flags=["--gpu-memory-utilization", "--max-model-len", "--kv-cache-dtype"],
    )
    scenario(
        "one_request_short_by_the_graph_estimate",
        Log("0.29.0", worker="(Worker_TP1 pid=9) ")
        .begin("MiniMaxAI/MiniMax-M2.7-AWQ", tensor_parallel_size=2, gpu_memory_utilization=0.8)
        .say(
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
            "--gpu-memory-utilization=0.8000 is equivalent to "
            "--gpu-memory-utilization=0.7583 without CUDA graph memory profiling. To maintain the same "
            "effective KV cache size as before, "
            "increase --gpu-memory-utilization to 0.8417. To disable, set "
            "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0."
        )
        .available(22.5)
        .fails(request_refusal(196608, 23.25, 22.5, 190272), *START),
        "one_request_does_not_fit",
        component="kv_cache",
        missing_gib=0.75,
        flags=["--max-model-len"],
        figures={"estimated_max_model_len": 190272},
        origin="https://github.com/eugr/spark-vllm-docker/issues/396",
    )
    scenario(
        "one_request_laptop",
        Log("0.11.0")
        .begin("Qwen/Qwen2.5-1.5B-Instruct", gpu_memory_utilization=0.8, max_model_len=4096)
        .loaded(2.8871)
        .say("Initial free memory: 3.3 GiB; Requested memory: 0.80 (util), 3.12 GiB", level="DEBUG")
        .available(0.07)
        .fails(request_refusal(4096, 0.11, 0.07, 2624), *START),
        "one_request_does_not_fit",
        component="kv_cache",
        missing_gib=0.04,
        flags=["--max-model-len"],
    )
    scenario(
        "one_request_mostly_fixed_need",
        Log("0.26.0")
        .begin("deepseek-ai/DeepSeek-V4-Flash", tensor_parallel_size=2, max_model_len=131072)
        .available(3.12)
        .fails(request_refusal(131072, 3.79, 3.12, 7740), *START),
        "one_request_does_not_fit",
        component="kv_cache",
        missing_gib=0.67,
        flags=["--max-model-len"],
        origin="figures of a public recipe for two GB10",
    )
    scenario(
        "one_request_hybrid_manager_off",
        Log("0.22.0")
        .begin(
            "deepseek-ai/DeepSeek-V4-Flash",
            tensor_parallel_size=2,
            max_model_len=30000,
            kv_transfer_config="KVTransferConfig(kv_connector='MooncakeStoreConnector')",
        )
        .say(
            "Turning off hybrid kv cache manager because `--kv-transfer-config` is set. This will reduce "
            "the performance of vLLM on LLMs "
            "with sliding window attention or Mamba attention.",
            "vllm.py:1011",
            level="WARNING",
        )
        .available(5.44)
        .fails(request_refusal(30000, 6.66, 5.44, 13528), *START),
        "one_request_does_not_fit",
        component="kv_cache",
        missing_gib=1.22,
        observation="hybrid KV cache manager off",
        origin=ISSUE + "44376",
    )
    scenario(
        "one_request_cpu_offload",
        Log("0.10.2")
        .begin("Qwen/Qwen3-4B", cpu_offload_gb=4, max_model_len=32768)
        .loaded(3.7682)
        .available(3.58)
        .fails(request_refusal(32768, 4.5, 3.58, 26032), *START),
        "one_request_does_not_fit",
        component="kv_cache",
        missing_gib=0.92,
        observation="CPU offload",
        flags=["--max-model-len"],
    )
    scenario(
        "auto_fit_not_one_token",
        Log("0.24.0")
        .begin(LLAMA, max_model_len=-1)
        .available(0.0)
        .fails(
            "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a "
            "single token. Try increasing "
            "`gpu_memory_utilization`.",
            *START,
            "_auto_fit_max_model_len",
        ),
        "one_request_does_not_fit",
        component="kv_cache",
    )
    scenario(
        "mamba_blocks_below_sequences",
        Log("0.31.0")
        .begin("Qwen/Qwen3-Next-80B-A3B-Instruct", tensor_parallel_size=2)
        .loaded(74.28)
        .say(
            "Setting attention block size to 544 tokens to ensure that attention page size is >= mamba page "
            "size.",
            "interface.py:905",
        )
        .available(20.1)
        .fails(
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (939). Each decode "
            "sequence requires one Mamba cache block, "
            "so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 939 or increase "
            "gpu_memory_utilization.",
            *WARM,
            "adjust_cudagraph_sizes_for_mamba_cache",
        ),
        "mamba_blocks_below_max_num_seqs",
        component="kv_cache",
        figures={"mamba_blocks": 939, "max_num_seqs": 1024},
        flags=["--max-num-seqs"],
        origin="https://github.com/vllm-project/recipes/pull/831 (939 blocks)",
    )
    scenario(
        "layout_heads_do_not_divide",
        Log()
        .begin("Qwen/Qwen3-14B", tensor_parallel_size=5)
        .fails(
            "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (6).",
            "create_engine_config",
        ),
        "invalid_layout",
    )
    scenario(
        "architecture_unknown",
        Log("0.20.0")
        .begin("some/new-model")
        .fails(
            "ValueError: Model architectures ['BrandNewForCausalLM'] are not supported for now. Supported "
            "architectures: dict_keys([])",
            "create_model_config",
        ),
        "unsupported_by_release",
    )

    scenario(
        "layout_vocabulary_does_not_divide",
        Log("0.19.0", worker="(Worker_TP4 pid=446) ")
        .begin("Qwen/Qwen3-14B", tensor_parallel_size=5)
        .fails("AssertionError: 151936 is not divisible by 5", "load_model", "divide", "ensure_divisibility"),
        "invalid_layout",
        origin="the line of a public sweep (llm-d-planner, vLLM 0.19.0, tp 5)",
    )
    scenario(
        "engine_stopped_from_outside",
        Log("0.19.0")
        .begin("some/unknown-model", tensor_parallel_size=4)
        .fails(
            "Exception: WorkerProc initialization failed due to an exception in a background process. See "
            "stack trace for root cause.",
            "wait_for_ready",
        ),
        "engine_failed",
        confidence="low",
    )


def out_of_memory() -> None:
    sampler = (
        Log("0.19.0")
        .begin(
            OSS,
            gpu_memory_utilization=0.95,
            max_model_len=8192,
            max_num_batched_tokens=8192,
            max_num_seqs=1024,
        )
        .loaded(13.64)
        .profiled(13.64, 2.87, 0.25)
        .available(58.47)
        .cache(1277184, 8192, 155.75)
        .captured(1.84, 1.3)
        .summary(
            78.68,
            79.19,
            0.95,
            "13.64 GiB for weight, 2.87 GiB for peak activation, 0.25 GiB for "
            "non-torch memory, and 1.84 GiB for "
            "CUDAGraph memory",
            58.47,
        )
    )
    scenario(
        "sampler_warmup",
        sampler.fails(
            oom("786.00 MiB", "552.50 MiB", 79.19, 78.64, 74.91, "626.00 MiB"),
            *WARM,
            "_dummy_sampler_run",
            "forward",
        ),
        "sampler_warmup",
        component="activation",
        missing_gib=0.228,
        figures={"tried_bytes": 786 * 2**20},
        flags=["--max-num-seqs", "--gpu-memory-utilization"],
        evidence="Tried to allocate 786.00 MiB",
        origin="figures of a public sweep (llm-d-planner, vLLM 0.19.0): 1,024 x 201,088 x 4 bytes = 786 MiB",
    )
    scenario(
        "sampler_warmup_by_message",
        Log("0.27.0")
        .begin(LLAMA)
        .loaded(14.99)
        .available(57.1)
        .cache(467968, 131072, 3.57)
        .captured(0.5)
        .fails(
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. "
            "Please try lowering `max_num_seqs` "
            "or `gpu_memory_utilization` when initializing the engine.",
            *WARM,
        ),
        "sampler_warmup",
        component="activation",
        figures={"dummy_requests": 1024},
    )
    scenario(
        "kernel_warmup",
        Log("0.24.0", worker="(Worker_TP2 pid=61) ")
        .begin("Qwen/Qwen3-30B-A3B", tensor_parallel_size=4)
        .loaded(7.39)
        .available(63.25)
        .cache(2763152, 40960, 67.46)
        .fails(
            oom("1.94 GiB", "1.51 GiB", 79.11, 77.6, 74.7, gpu=2),
            *WARM,
            "kernel_warmup",
            "flashinfer_autotune",
        ),
        "sampler_warmup",
        component="workspace",
        missing_gib=0.43,
        flags=["--gpu-memory-utilization"],
        origin="figures near those of https://github.com/vllm-project/vllm/pull/48601",
    )
    bars = "".join(
        f"\rCapturing CUDA graphs (FULL): {100 * n // 35:3d}%|{'#' * (n // 4):<9}| {n}/35 "
        f"[00:0{n % 10}<00:05]"
        for n in range(0, 21)
    )
    shared = Log("0.27.1").begin("some/unknown-model", gpu_memory_utilization=0.75).loaded(9.9).available(5.2)
    shared.say("Free memory on device (17.06/22.04 GiB)")
    shared.lines.append(bars)
    scenario(
        "graph_capture_shared_gpu",
        shared.fails(
            "RuntimeError: memory allocation failed with OOM on device 0 while trying to allocate 2097152 "
            "bytes (free: 2031616, "
            "total: 23661248512)"
        ),
        "graph_capture",
        component="cuda_graphs",
        confidence="medium",
        missing_gib=0.0,
        flags=["--enforce-eager"],
        observation="shared GPU",
        origin="figures of a public report about two servers on one 22 GiB GPU",
    )
    scenario(
        "graph_capture_traceback",
        Log("0.26.0")
        .begin(LLAMA, gpu_memory_utilization=0.98)
        .loaded(14.99)
        .available(61.0)
        .cache(499712, 131072, 3.81)
        .fails(
            oom("128.00 MiB", "91.50 MiB", 79.19, 79.1, 77.2, "210.00 MiB"),
            *WARM,
            "capture_model",
            "_capture_cudagraphs",
            "_dummy_run",
        ),
        "graph_capture",
        component="cuda_graphs",
        missing_gib=0.0356,
        flags=["--gpu-memory-utilization", "--enforce-eager"],
    )
    scenario(
        "minimal_kv_profiling",
        Log("0.27.1")
        .begin("Qwen/Qwen3.6-27B", max_model_len=65536, gpu_memory_utilization=0.93)
        .loaded(26.37)
        .say(
            "Setting attention block size to 1568 tokens to ensure that attention page size is >= mamba "
            "page size.",
            "interface.py:905",
        )
        .fails(
            oom("784.00 MiB", "195.69 MiB", 31.36, 31.1, 29.9),
            *PROFILE,
            "profile_cudagraph_memory",
            "_init_minimal_kv_cache_for_profiling",
            "initialize_kv_cache",
            "_allocate_kv_cache_tensors",
        ),
        "minimal_kv_profiling",
        component="kv_cache",
        missing_gib=0.5745,
        flags=["--enforce-eager"],
        origin="figures of a public report about an RTX 5090",
    )
    scenario(
        "graph_estimate_out_of_memory",
        Log("0.23.0")
        .begin("some/unknown-model")
        .loaded(29.1)
        .fails(
            oom("256.00 MiB", "47.06 MiB", 31.36, 31.2, 30.4),
            *PROFILE,
            "profile_cudagraph_memory",
            "_warmup_and_capture",
        ),
        "minimal_kv_profiling",
        component="cuda_graphs",
        missing_gib=0.204,
        flags=["--enforce-eager"],
    )
    scenario(
        "load_weights_do_not_fit",
        Log("0.33.0")
        .begin("meta-llama/Llama-3.3-70B-Instruct")
        .fails(
            oom("448.00 MiB", "211.25 MiB", 79.19, 78.9, 78.3),
            "init_device",
            "load_model",
            "initialize_model",
            "create_weights",
        ),
        "load_peak",
        component="weights",
        missing_gib=0.231,
        flags=["--tensor-parallel-size"],
    )
    scenario(
        "repack_peak",
        Log("0.26.0")
        .begin("some/unknown-model", quantization="fp8")
        .fails(
            oom("1.75 GiB", "1.02 GiB", 23.53, 22.4, 21.9),
            "load_model",
            "process_weights_after_loading",
            "prepare_fp8_layer_for_marlin",
        ),
        "load_peak",
        component="weights",
        missing_gib=0.73,
    )
    scenario(
        "profile_run_multimodal",
        Log("0.11.0")
        .begin("Qwen/Qwen2.5-VL-7B-Instruct")
        .loaded(15.63)
        .say(
            "Encoder cache will be initialized with a budget of 98304 tokens, and profiled with 1 video "
            "items of the maximum feature size.",
            "gpu_model_runner.py:2900",
        )
        .fails(
            oom("9.00 GiB", "4.51 GiB", 23.53, 18.9, 18.2),
            *PROFILE,
            "profile_run",
            "get_multimodal_embeddings",
        ),
        "no_kv_memory",
        component="activation",
        missing_gib=4.49,
        observation="multimodal profiling",
    )
    scenario(
        "kv_allocation",
        Log("0.26.0")
        .begin(LLAMA, kv_cache_memory_bytes=68719476736)
        .loaded(14.99)
        .say(
            "Initial free memory 78.68 GiB, reserved 64.0 GiB memory for KV Cache as specified by "
            "kv_cache_memory_bytes config and skipped "
            "memory profiling. This does not respect the gpu_memory_utilization config."
        )
        .fails(
            oom("2.00 GiB", "1.12 GiB", 79.19, 78.0, 77.3),
            *START,
            "initialize_from_config",
            "initialize_kv_cache",
            "_allocate_kv_cache_tensors",
        ),
        "no_kv_memory",
        component="kv_cache",
        missing_gib=0.88,
        flags=["--kv-cache-memory-bytes"],
    )
    scenario(
        "nccl_out_of_memory",
        Log("0.26.0", worker="(Worker_TP1 pid=14) ")
        .begin("meta-llama/Llama-3.3-70B-Instruct", tensor_parallel_size=4, gpu_memory_utilization=0.97)
        .fails(
            "torch.distributed.DistBackendError: NCCL error: unhandled cuda error. Last error: Cuda failure "
            "2 'out of memory'",
            "init_device",
        ),
        "nccl_out_of_memory",
        component="nccl",
    )


def while_serving() -> None:
    def served(version: str = "0.26.0", **flags: Any) -> Log:
        return (
            Log(version)
            .begin(LLAMA, **flags)
            .loaded(14.99)
            .available(56.2)
            .cache(460400, 131072, 3.51)
            .captured(0.6)
            .summary(
                78.68,
                79.19,
                0.92,
                "14.99 GiB for weight, 1.44 GiB for peak activation, 0.22 GiB for non-torch memory, and 0.6 "
                "GiB for CUDAGraph memory",
                56.2,
            )
            .up()
        )

    scenario(
        "request_prompt_logprobs",
        served(max_num_batched_tokens=8192)
        .running((3, 0, 2.0, 0))
        .fails(
            oom("303.00 MiB", "218.81 MiB", 79.19, 78.9, 77.0),
            "run_busy_loop",
            "step",
            "execute_model",
            "_get_prompt_logprobs_dict",
            "compute_logprobs",
        ),
        "request_out_of_memory",
        component="activation",
        missing_gib=0.0822,
        flags=["--gpu-memory-utilization"],
        evidence="Tried to allocate 303.00 MiB",
        origin="figures of a public report (vLLM #257 of a fork: 1,024 x 154,880 x 2 bytes)",
    )
    scenario(
        "request_first",
        served().fails(oom("2.14 GiB", "1.20 GiB", 79.19, 77.9, 76.1), "step", "execute_model", "forward"),
        "request_out_of_memory",
        component="activation",
        missing_gib=0.94,
        flags=["--gpu-memory-utilization"],
    )
    scenario(
        "request_after_many",
        served()
        .running(*[(40, 0, 30.0 + n, 0) for n in range(8)])
        .fails(
            oom("512.00 MiB", "300.00 MiB", 79.19, 70.4, 69.0).replace(
                "Including", "Process 4711 has 8.20 GiB memory in use. Including"
            ),
            "step",
            "execute_model",
            "forward",
        ),
        "request_out_of_memory",
        component="activation",
        missing_gib=0.207,
        figures={"other_processes_bytes": round(8.2 * 2**30)},
    )
    scenario(
        "request_fragmentation",
        served()
        .running((4, 0, 10.0, 0))
        .fails(
            oom("1.50 GiB", "700.00 MiB", 79.19, 78.5, 74.0, rest="3.21 GiB"),
            "step",
            "execute_model",
            "forward",
        ),
        "request_out_of_memory",
        component="activation",
        missing_gib=0.816,
        figures={"reserved_unallocated_bytes": round(3.21 * 2**30)},
    )
    scenario(
        "request_lora",
        served(enable_lora=True, max_loras=8, max_lora_rank=64)
        .running((12, 0, 20.0, 0))
        .fails(
            oom("640.00 MiB", "512.00 MiB", 79.19, 78.6, 77.4), "step", "execute_model", "add_lora_linear"
        ),
        "request_out_of_memory",
        component="lora",
        missing_gib=0.125,
    )
    scenario(
        "request_image",
        Log()
        .begin("Qwen/Qwen2.5-VL-7B-Instruct")
        .loaded(15.63)
        .available(50.0)
        .cache(936000, 128000, 7.31)
        .up()
        .fails(
            oom("4.00 GiB", "3.10 GiB", 79.19, 76.0, 75.0),
            "step",
            "execute_model",
            "_execute_mm_encoder",
            "embed_multimodal",
        ),
        "request_out_of_memory",
        component="encoder",
        missing_gib=0.9,
    )
    scenario(
        "workspace_locked",
        served("0.30.0", max_num_batched_tokens=8192)
        .running((9, 0, 12.0, 0))
        .fails(
            "AssertionError: Workspace is locked but allocation from "
            "'flashinfer_mla_sparse.py:412:forward_mqa' requires 1536.00 MB, current "
            "size is 1024.00 MB. Workspace growth is not allowed after locking.",
            "step",
            "execute_model",
            "forward",
        ),
        "workspace_locked",
        component="workspace",
        missing_gib=0.5,
        figures={"workspace_required_mib": 1536.0},
        flags=["--max-num-batched-tokens"],
    )
    scenario(
        "cache_full_preemptions",
        served(max_num_seqs=256).running(
            (120, 0, 71.0, 0), (180, 4, 99.6, 3), (178, 22, 99.9, 11), (175, 30, 99.8, 9)
        ),
        "kv_cache_full",
        component="kv_cache",
        figures={"preempted": 23, "waiting_max": 30, "kv_usage_max_percent": 99.9},
        flags=["--kv-cache-dtype"],
        evidence="Preemptions: 9",
    )
    scenario(
        "host_memory_offload",
        Log("0.24.0")
        .begin("meta-llama/Llama-3.3-70B-Instruct", cpu_offload_gb=80)
        .say(
            "Engine core proc EngineCore died with exit code -9",
            "launcher.py:101",
            "(APIServer pid=1) ",
            "ERROR",
        ),
        "host_memory",
        component="offload",
    )
    scenario(
        "shared_memory_small",
        Log("0.33.0")
        .begin("meta-llama/Llama-3.3-70B-Instruct", tensor_parallel_size=4)
        .fails(
            "RuntimeError: Insufficient space in /dev/shm for the message queue: 160 MiB required, 63 MiB "
            "free. Increase /dev/shm (e.g. "
            "--shm-size or --ipc=host).",
            "init_device",
            "check_shm_free_space",
        ),
        "shared_memory",
        missing_gib=0.0947,
        flags=["--shm-size"],
    )
    scenario(
        "memory_changed_while_profiling",
        Log()
        .begin(LLAMA)
        .loaded(14.99)
        .fails(
            "AssertionError: Error in memory profiling. Initial free memory 52.1 GiB, current free memory "
            "61.4 GiB. This happens when other "
            "processes sharing the same container release GPU memory while vLLM is profiling during "
            "initialization.",
            *PROFILE,
        ),
        "memory_changed",
        figures={"free_gib": 52.1, "free_now_gib": 61.4},
    )


def healthy() -> None:
    scenario(
        "healthy_llama",
        Log("0.33.0")
        .begin(LLAMA)
        .loaded(15.0)
        .available(56.21)
        .cache(460496, 131072, 3.51)
        .captured(0.23)
        .summary(
            78.84,
            79.25,
            0.92,
            "15.26 GiB for consumed memory (weights + non-torch), 1.44 GiB for peak activation, and 0.23 "
            "GiB for CUDAGraph "
            "memory",
            56.21,
        )
        .up()
        .running((2, 0, 1.0, 0)),
        None,
        origin="figures of a public log (Llama-3.1-8B on H100, model runner V2)",
    )
    scenario(
        "healthy_tokens_disagree",
        Log("0.19.0")
        .begin("google/gemma-3-27b-it", max_model_len=8192)
        .loaded(51.4)
        .available(16.6)
        .cache(36560, 8192, 8.08)
        .captured(1.1)
        .up(),
        None,
        observation="tokens and concurrency disagree",
    )
    scenario(
        "healthy_graph_estimate_too_high",
        Log("0.22.0", worker="(Worker_TP0 pid=3) ")
        .begin("some/unknown-model", tensor_parallel_size=4, gpu_memory_utilization=0.9)
        .loaded(55.67)
        .say("Estimated CUDA graph memory: 4.77 GiB total", "gpu_model_runner.py:6737")
        .say(
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
            "--gpu-memory-utilization=0.9000 is equivalent to "
            "--gpu-memory-utilization=0.8498 without CUDA graph memory profiling. To maintain the same "
            "effective KV cache size as before, "
            "increase --gpu-memory-utilization to 0.9502."
        )
        .available(19.55)
        .cache(341504, 202752, 1.68)
        .captured(1.22, 4.77)
        .up(),
        None,
        observation="graph estimate",
        origin="figures of a public log (GLM-5.1-NVFP4, 1.22 GiB actual, 4.77 estimated)",
    )
    scenario(
        "healthy_latent_cache",
        Log("0.26.0", worker="(Worker_TP0 pid=3) ")
        .begin("deepseek-ai/DeepSeek-V2-Lite", tensor_parallel_size=2, max_model_len=32768)
        .say("Initial free memory: 77.18 GiB; Requested memory: 0.920000 (util), 72.85 GiB", level="DEBUG")
        .loaded(14.9)
        .available(53.1)
        .say("Free memory on device (77.18/79.19 GiB)")
        .cache(1832960, 32768, 55.94)
        .captured(1.0)
        .up(),
        None,
        observation="latent KV cache",
    )
    scenario(
        "healthy_auto_fit",
        Log("0.28.0")
        .begin(LLAMA, max_model_len=-1, gpu_memory_utilization=0.3)
        .loaded(14.99)
        .say(
            "Auto-fit max_model_len: reduced from 131072 to 59392 to fit in available GPU memory (7.25 GiB "
            "available for KV cache)",
            "kv_cache_utils.py:1977",
        )
        .available(7.25)
        .cache(59392, 59392, 1.0)
        .up(),
        None,
    )
    scenario(
        "healthy_loader_leftovers",
        Log("0.31.0")
        .begin("some/unknown-model")
        .loaded(61.74)
        .available(17.79)
        .cache(2143243, 1048576, 2.04)
        .captured(0.25)
        .summary(
            91.64,
            94.97,
            0.91,
            "64.44 GiB for consumed memory (weights + non-torch), 4.19 GiB for peak activation, and 0.25 "
            "GiB for CUDAGraph "
            "memory",
            17.79,
        )
        .up(),
        None,
        observation="loader leftovers",
        origin="figures of a public log (GLM-5.3-Flash)",
    )
    old = Log("0.19.0").begin(LLAMA).loaded(14.99).available(58.1).cache(475952, 131072, 3.63).up()
    new = Log("0.26.0").begin(LLAMA).loaded(14.99).available(56.2).cache(460400, 131072, 3.51).up()
    scenario("healthy_after_upgrade", old.text() + new.text(), None, observation="another release")
    crash = [
        Log()
        .begin(LLAMA, gpu_memory_utilization=0.92)
        .fails(free_refusal(60.0 + n, 79.19, 0.92), "init_device")
        .text()
        for n in range(3)
    ]
    scenario(
        "crash_loop",
        "".join(crash),
        "free_below_requested",
        missing_gib=10.85,
        figures={"free_gib": 62.0},
    )


def carried() -> None:
    """The same log as other carriers deliver it."""
    plain = SCENARIOS["sampler_warmup"]
    lines = plain[0].splitlines()
    kubectl = "".join(
        f"[pod/vllm-7d9f/server] 2026-04-22T10:00:0{n % 10}.123456789Z {line}\n"
        for n, line in enumerate(lines)
    )
    docker = "".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-04-22T10:00:00Z"}) + "\n"
        for line in lines
    )
    compose = "".join(
        f"vllm-1  | \x1b[1;36m(EngineCore pid=312)\x1b[0;0m {line.replace('(EngineCore pid=312) ', '')}\n"
        for line in lines
    )
    for name, text in (("kubectl", kubectl), ("docker_json", docker), ("compose_colours", compose)):
        SCENARIOS[f"carrier_{name}"] = (text, {**plain[1], "flags": ["--max-num-seqs"]})
    ranks: list[str] = []
    for line in lines:
        ranks += (
            [line.replace("(EngineCore pid=312)", f"(Worker_TP{rank} pid={90 + rank})") for rank in range(2)]
            if "Worker" in line or "EngineCore pid=312" in line
            else [line]
        )
    SCENARIOS["carrier_interleaved_ranks"] = (
        "\n".join(ranks) + "\n",
        {**plain[1], "flags": ["--max-num-seqs"]},
    )


def main() -> None:
    for part in (refusals, out_of_memory, while_serving, healthy, carried):
        part()
    HERE.mkdir(exist_ok=True)
    for name, (text, _) in SCENARIOS.items():
        (HERE / f"{name}.log").write_bytes(text.encode())
    packed = SCENARIOS["one_request_llama_131072"]
    (HERE / "carrier_gzip.log.gz").write_bytes(gzip.compress(packed[0].encode(), mtime=0))
    expected = {f"{name}.log": facts for name, (_, facts) in SCENARIOS.items()} | {
        "carrier_gzip.log.gz": packed[1]
    }
    (HERE / "expected.json").write_text(
        json.dumps(expected, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"{len(expected)} scenarios")


if __name__ == "__main__":
    main()
