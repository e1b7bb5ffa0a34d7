"""The whole configuration against vLLM's own: exact cases, recorded starts, and the rules one by one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm_capacity.architecture.registry import build_architecture
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs, EngineConfig
from vllm_capacity.engine_defaults import resolve_engine
from vllm_capacity.errors import InputError, Reason, RefusedError
from vllm_capacity.inputs.engine_args import parse_engine_args
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.inputs.models import load_model
from vllm_capacity.releases import get_release

DATA = Path(__file__).parents[1] / "data" / "engine"
EXACT = json.loads((DATA / "exact_engines.json").read_text())["rows"]
RUNS = json.loads((DATA / "h200_engines.json").read_text())["runs"]

GIB = 1 << 30
H200 = Device(name="NVIDIA H200", cuda_total_bytes=150109880320, nvml_total_bytes=150754820096,
              compute_capability=(9, 0), num_sms=132)  # fmt: skip
B200 = replace(H200, name="NVIDIA B200", nvml_total_bytes=183 * GIB, compute_capability=(10, 0))
L4 = replace(H200, name="NVIDIA L4", nvml_total_bytes=23 * GIB, compute_capability=(8, 9))
T4 = replace(H200, name="Tesla T4", nvml_total_bytes=16 * GIB, compute_capability=(7, 5))

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def resolve(
    model: str | ModelConfig = LLAMA, *, device: Device = H200, vllm: str = "0.26.0", **flags: Any
) -> EngineConfig:
    release = get_release(vllm)
    config = model if isinstance(model, ModelConfig) else load_model(model, offline=True)
    args = flags.pop("args", None) or parse_engine_args({"allow_unmodelled": True, **flags}, release=release)
    return resolve_engine(args, config, build_architecture(config, release), device, release)


def changed(model: str, **text: Any) -> ModelConfig:
    """A catalogue model with some text keys changed."""
    config = load_model(model, offline=True)
    return replace(config, text={**config.text, **text})


@pytest.mark.parametrize(
    "row", EXACT, ids=lambda r: f"{r[0].split('/')[-1]}-tp{r[1]}pp{r[2]}{'ep' if r[3] else ''}{r[4]}"
)
def test_engine_equals_vllm_0_26_0(row: list[Any]) -> None:
    model, tp, pp, ep, kv_cache_dtype, length, tokens, seqs, runner, backends = row
    engine = resolve(
        model,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        enable_expert_parallel=ep,
        max_model_len=length,
        kv_cache_dtype=kv_cache_dtype,
    )
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == (tokens, seqs)
    assert engine.model_runner == runner
    assert sorted(engine.attention_backends) == sorted(backends)
    assert engine.max_model_len == length


@pytest.mark.parametrize("run", RUNS, ids=lambda r: r["name"])
def test_engine_equals_the_worker_of_recorded_starts(run: dict[str, Any]) -> None:
    engine, held = resolve(run["model"], usage="offline", **run["args"]), run["cfg"]
    assert engine.max_num_batched_tokens == held["max_num_batched_tokens"]
    assert engine.max_num_seqs == held["max_num_seqs"]
    assert engine.max_model_len == held["max_model_len"]
    assert list(engine.cudagraph_capture_sizes) == held["capture_sizes"]
    assert engine.cudagraph_mode == held["cudagraph_mode"]
    assert engine.kv_cache_dtype == held["cache_dtype"]
    assert engine.gpu_memory_utilization == held["gpu_util"]
    assert f"torch.{engine.dtype}" == held["dtype"]
    assert engine.model_runner == run["runner"]


def test_graph_sizes_of_a_public_start_with_speculation() -> None:
    """vllm-project/vllm#46462: PIECEWISE=38 (largest=336), FULL=22 (largest=168): 24 sequences of 1 + 6
    tokens on V1.
    """
    engine = resolve(
        "Qwen/Qwen3-30B-A3B", vllm="0.20.2", max_num_seqs=24,
        speculative_config={"method": "dflash", "model": "draft", "num_speculative_tokens": 6},
    )  # fmt: skip
    sizes = engine.cudagraph_capture_sizes
    assert (len(sizes), sizes[-1]) == (38, 336)
    full = [size for size in sizes if 7 <= size <= 7 * 24]
    assert (len(full), full[-1]) == (22, 168)


@pytest.mark.parametrize(
    ("seqs", "count", "largest"), [(1024, 51, 512), (256, 51, 512), (128, 35, 256), (64, 19, 128), (1, 2, 2)]
)
def test_number_of_graph_sizes(seqs: int, count: int, largest: int) -> None:
    """_set_cudagraph_sizes of 0.26.0, evaluated for these limits with 8,192 tokens a batch."""
    sizes = resolve(max_num_seqs=seqs).cudagraph_capture_sizes
    assert (len(sizes), sizes[-1]) == (count, largest)


def test_gpt_oss_captures_up_to_1024_tokens() -> None:
    """GptOssForCausalLMConfig (models/config.py): 1, 2, 4, then by 8 to 248, then by 16 to 1,024."""
    sizes = resolve("openai/gpt-oss-20b").cudagraph_capture_sizes
    assert (len(sizes), sizes[-1]) == (3 + 31 + 49, 1024)
    assert resolve("openai/gpt-oss-20b", max_cudagraph_capture_size=64).cudagraph_capture_sizes[-1] == 64


# -- dtype ---------------------------------------------------------------------------------------------------


def test_bfloat16_checkpoint_runs_in_float16_before_ampere() -> None:
    assert resolve(device=T4, max_model_len=2048).dtype == "float16"
    with pytest.raises(RefusedError, match=r"GPUs with compute capability of at least 8\.0"):
        resolve(device=T4, dtype="bfloat16")


def test_float32_checkpoint_runs_in_the_preferred_dtype() -> None:
    config = load_model(LLAMA, offline=True)
    config = replace(config, root={**config.root, "torch_dtype": "float32", "dtype": "float32"})
    assert resolve(config).dtype == "bfloat16"
    assert resolve(config, runner="pooling").dtype == "float16"


def test_gemma_refuses_float16() -> None:
    with pytest.raises(RefusedError, match="The model type 'gemma2' does not support float16"):
        resolve("google/gemma-2-9b-it", dtype="half")


# -- KV cache dtype ------------------------------------------------------------------------------------------


def with_quantisation(block: dict[str, Any]) -> ModelConfig:
    return replace(load_model(LLAMA, offline=True), quantization=block)


def test_modelopt_checkpoints_bring_their_cache_dtype() -> None:
    fp8 = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    engine = resolve(with_quantisation(fp8))
    assert (engine.kv_cache_dtype, engine.kv_dtype) == ("fp8_e4m3", "uint8")
    static = {
        "quant_method": "modelopt",
        "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    }
    assert resolve(with_quantisation(static)).kv_cache_dtype == "fp8_e4m3"
    assert resolve(with_quantisation(fp8), kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"


def test_compressed_tensors_scheme_makes_the_cache_fp8() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    assert resolve(with_quantisation(scheme)).kv_cache_dtype == "fp8"
    assert resolve(with_quantisation(scheme), kv_cache_dtype="bfloat16").kv_cache_dtype == "bfloat16"
    assert (
        resolve(with_quantisation(scheme), vllm="0.20.0", kv_cache_dtype="bfloat16").kv_cache_dtype == "fp8"
    )


def test_cache_dtype_of_another_release_is_refused() -> None:
    with pytest.raises(RefusedError, match="invalid choice: 'int4_per_token_head'"):
        resolve(args=EngineArgs(kv_cache_dtype="int4_per_token_head"), vllm="0.20.0")
    with pytest.raises(InputError, match="--kv-cache-dtype must be one of auto"):
        resolve(args=EngineArgs(kv_cache_dtype="fp9"))


def test_mismatched_cache_dtype_is_refused_since_0_33() -> None:
    with pytest.raises(RefusedError, match='kv_cache_dtype="float16" is incompatible with dtype="bfloat16"'):
        resolve(vllm="0.33.0", kv_cache_dtype="float16")


# -- lengths -------------------------------------------------------------------------------------------------


def test_length_comes_from_the_config() -> None:
    assert resolve().max_model_len == 131072
    assert resolve("deepseek-ai/DeepSeek-V3", tensor_parallel_size=8).max_model_len == 163840
    auto = resolve(max_model_len="auto")
    assert (auto.max_model_len, auto.max_model_len_auto) == (131072, True)


def test_too_long_is_refused_unless_allowed() -> None:
    with pytest.raises(
        RefusedError, match=r"User-specified max_model_len \(200000\) is greater than the derived"
    ):
        resolve(max_model_len=200000)
    allowed = resolve(max_model_len=200000, environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert allowed.max_model_len == 200000


# -- batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "usage", "vllm", "expected"),
    [
        (H200, "server", "0.26.0", (8192, 1024)), (H200, "offline", "0.26.0", (16384, 1024)),
        (L4, "server", "0.26.0", (2048, 256)), (L4, "offline", "0.26.0", (8192, 256)),
        (B200, "server", "0.26.0", (8192, 1024)), (B200, "server", "0.28.0", (16384, 1024)),
    ],
)  # fmt: skip
def test_batch_defaults(device: Device, usage: str, vllm: str, expected: tuple[int, int]) -> None:
    """EngineArgs.get_batch_defaults, engine/arg_utils.py."""
    engine = resolve(device=device, usage=usage, vllm=vllm, max_model_len=8192)
    assert (engine.max_num_batched_tokens, engine.max_num_seqs) == expected


def test_deepep_low_latency_takes_256_tokens() -> None:
    flags = {"all2all_backend": "deepep_low_latency", "enable_expert_parallel": True, "data_parallel_size": 4}
    assert resolve("Qwen/Qwen3-30B-A3B", **flags).max_num_batched_tokens == 256
    assert resolve("Qwen/Qwen3-30B-A3B", vllm="0.19.0", **flags).max_num_batched_tokens == 8192


def test_batch_below_sequences_is_refused() -> None:
    with pytest.raises(
        RefusedError,
        match=r"max_num_batched_tokens \(16\) must be greater than or equal to max_num_seqs \(32\)",
    ):
        resolve(max_num_batched_tokens=16, max_num_seqs=32)
    with pytest.raises(RefusedError, match="is smaller than max_model_len"):
        resolve(max_num_batched_tokens=2048, enable_chunked_prefill=False)
    assert resolve(enable_chunked_prefill=False).max_num_batched_tokens == 131072


# -- scheduling ----------------------------------------------------------------------------------------------


def test_prefix_caching_of_hybrid_models_by_release() -> None:
    """is_prefix_caching_supported said no until 0.25.1, the default in arg_utils.py until 0.27.1."""
    hybrid = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    for vllm, on, mode in [("0.19.0", False, "none"), ("0.27.1", False, "none"), ("0.28.0", True, "align")]:
        engine = resolve(hybrid, vllm=vllm, tensor_parallel_size=2)
        assert (engine.enable_prefix_caching, engine.mamba_cache_mode) == (on, mode)
    assert resolve(hybrid, tensor_parallel_size=2, enable_prefix_caching=True).mamba_cache_mode == "align"
    assert resolve().enable_prefix_caching


def test_mamba_mode_all_is_refused_where_it_is_gone() -> None:
    with pytest.raises(RefusedError, match="invalid choice: 'all'"):
        resolve("Qwen/Qwen3-Next-80B-A3B-Instruct", vllm="0.33.0", tensor_parallel_size=2,
                args=EngineArgs(tensor_parallel_size=2, others={"mamba_cache_mode": "all"}))  # fmt: skip


def test_tokens_in_flight() -> None:
    """max_concurrent_batches x max_num_batched_tokens, config/vllm.py:512-534 (0.26.0)."""
    assert resolve().max_in_flight_tokens == 2 * 8192
    assert resolve(async_scheduling=False).max_in_flight_tokens == 8192
    assert resolve(pipeline_parallel_size=2).max_in_flight_tokens == 3 * 8192
    moe = resolve("Qwen/Qwen3-30B-A3B", pipeline_parallel_size=2)
    assert (moe.model_runner, moe.max_in_flight_tokens) == ("V1", 2 * 8192)


def test_async_scheduling_with_speculation() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 4}
    assert not resolve(speculative_config=ngram).async_scheduling
    assert resolve(speculative_config=ngram, vllm="0.33.0").async_scheduling
    with pytest.raises(RefusedError, match="async scheduling is only supported with EAGLE/MTP"):
        resolve(speculative_config=ngram, async_scheduling=True)


def test_kv_connectors_and_the_hybrid_manager() -> None:
    lmcache = {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    assert resolve(kv_transfer_config=lmcache).hybrid_kv_cache_manager_disabled
    assert not resolve(kv_transfer_config=nixl).hybrid_kv_cache_manager_disabled
    assert resolve(kv_transfer_config=nixl, vllm="0.20.0").hybrid_kv_cache_manager_disabled
    assert not resolve().hybrid_kv_cache_manager_disabled


# -- runner, compilation -------------------------------------------------------------------------------------


def test_forced_runner() -> None:
    forced = {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "0"}}
    assert resolve(**forced).model_runner == "V1"
    assert resolve("Qwen/Qwen3-30B-A3B", environment={"VLLM_USE_V2_MODEL_RUNNER": "1"}).model_runner == "V2"
    with pytest.raises(RefusedError, match="Model Runner V2 does not yet support: dual batch overlap"):
        resolve(enable_dbo=True, environment={"VLLM_USE_V2_MODEL_RUNNER": "1"})
    with pytest.raises(InputError, match="VLLM_USE_V2_MODEL_RUNNER=maybe must be 0 or 1"):
        resolve(environment={"VLLM_USE_V2_MODEL_RUNNER": "maybe"})


def test_levels_and_eager() -> None:
    """optimisation levels, config/vllm.py:221-330; enforce_eager :1160-1168 (0.26.0)."""
    assert [resolve(optimization_level=n).cudagraph_mode for n in range(4)] == [
        "NONE", "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_AND_PIECEWISE"]  # fmt: skip
    eager = resolve(enforce_eager=True, cudagraph_capture_sizes=[1, 2])
    assert (eager.compiled, eager.cudagraph_mode, eager.cudagraph_capture_sizes) == (False, "NONE", ())
    assert any("no CUDA graphs" in note for note in eager.notes)


def test_piecewise_graphs_need_compilation() -> None:
    """_normalize_piecewise_cudagraph_mode (0.30.0): FULL_DECODE_ONLY; before, NONE."""
    assert resolve(compilation_config={"mode": 0}).cudagraph_mode == "NONE"
    assert resolve(compilation_config={"mode": "none"}, vllm="0.33.0").cudagraph_mode == "FULL_DECODE_ONLY"


def test_full_graphs_depend_on_the_backend() -> None:
    full = {"cudagraph_mode": "full"}
    assert resolve(compilation_config=full).cudagraph_mode == "FULL"
    assert (
        resolve(compilation_config=full, device=L4, max_model_len=4096).cudagraph_mode == "FULL_AND_PIECEWISE"
    )


def test_pooling_models_capture_piecewise_only() -> None:
    """PIECEWISE=51 (largest=512) in the start of a pooling model in vllm-project/vllm#48214."""
    engine = resolve(runner="pooling", device=L4, max_model_len=4096, vllm="0.24.0")
    assert (engine.cudagraph_mode, len(engine.cudagraph_capture_sizes)) == ("PIECEWISE", 51)
    assert not engine.async_scheduling


def test_sizes_given_twice_are_refused() -> None:
    with pytest.raises(RefusedError, match="mutually exclusive"):
        resolve(cudagraph_capture_sizes=[1], compilation_config={"cudagraph_capture_sizes": [1]})
    with pytest.raises(RefusedError, match=r"customized max_cudagraph_capture_size\(=8\)"):
        resolve(cudagraph_capture_sizes=[1, 4], max_cudagraph_capture_size=8)


# -- layouts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "vllm", "message"),
    [
        (
            {"tensor_parallel_size": 3},
            "0.26.0",
            "Total number of attention heads (32) must be divisible by tensor parallel size (3).",
        ),
        (
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 3},
            "0.26.0",
            "tp_size=4 must be divisible by dcp_size=3.",
        ),
        (
            {"tensor_parallel_size": 4, "decode_context_parallel_size": 3},
            "0.25.1",
            "tp_size=4 must be divisible bydcp_size=3.",
        ),
        (
            {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
            "0.26.0",
            "tensor parallel size 8 must be greater than total num kv heads 8 when enable decode context "
            "parallel for GQA/MQA",
        ),
        (
            {"tensor_parallel_size": 16, "decode_context_parallel_size": 4},
            "0.33.0",
            "`--decode-context-parallel-size` (4) exceeds the maximum supported value (2) for "
            "`--tensor-parallel-size` (16) and 8 "
            "model KV heads.",
        ),
        (
            {"prefill_context_parallel_size": 2, "data_parallel_size": 2},
            "0.26.0",
            "PCP does not support data parallelism yet.",
        ),
        (
            {"enable_expert_parallel": True},
            "0.26.0",
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
        ),
        ({"enable_eplb": True}, "0.26.0", "enable_expert_parallel must be True to use EPLB."),
    ],
)
def test_invalid_layouts_have_vllms_reason(flags: dict[str, Any], vllm: str, message: str) -> None:
    with pytest.raises(RefusedError) as error:
        resolve(vllm=vllm, **flags)
    assert str(error.value) == message
    assert error.value.reason is Reason.INVALID_LAYOUT


def test_layer_partition_is_read() -> None:
    engine = resolve(pipeline_parallel_size=2, environment={"VLLM_PP_LAYER_PARTITION": "20,12"})
    assert engine.parallel.layer_partition == (20, 12)
    with pytest.raises(InputError, match="Invalid partition string: a,b"):
        resolve(pipeline_parallel_size=2, environment={"VLLM_PP_LAYER_PARTITION": "a,b"})


def test_utilisation_default_and_range() -> None:
    assert resolve(vllm="0.19.1").gpu_memory_utilization == 0.9
    assert resolve(vllm="0.20.0").gpu_memory_utilization == 0.92
    with pytest.raises(InputError, match="--gpu-memory-utilization must be above 0 and at most 1"):
        resolve(args=EngineArgs(gpu_memory_utilization=1.5))


def test_gemma4_video_raises_the_batch_of_small_gpus() -> None:
    """32 frames x (70 + 2 + 6) tokens, gemma4_mm.py: get_mm_max_tokens_per_item (0.26.0)."""
    from vllm_capacity.engine_defaults.scheduling import resolve_batch_sizes

    config = changed(LLAMA, use_bidirectional_attention="vision")
    built = replace(build_architecture(config, get_release("0.26.0")), is_multimodal=True)
    for vllm, expected in [("0.21.0", 2048), ("0.26.0", 2496)]:
        tokens, _ = resolve_batch_sizes(
            EngineArgs(),
            config,
            built,
            L4,
            get_release(vllm),
            max_model_len=32768,
            chunked_prefill=True,
            batched_dp_moe=False,
        )
        assert tokens == expected
