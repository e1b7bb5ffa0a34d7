"""What dry-runs of vLLM 0.26.0 and 0.33.0 refused, started or chose where the plan once said otherwise (tools/hunt.py)."""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan, RefusedPlan

MTP = {"method": "mtp", "num_speculative_tokens": 1}


def made(model: str, **flags: Any) -> Plan | RefusedPlan:
    return plan(model, **{"gpu": "H200", "suggestions": False, **flags})


@pytest.mark.parametrize(
    ("model", "version", "flags", "sentence"),
    [
        ("moonshotai/Kimi-K2.5", "0.33.0", {"tensor_parallel_size": 8, "enable_lora": True},
         "LoRA is not supported for KimiK25ForConditionalGeneration"),
        ("mistralai/Mamba-Codestral-7B-v0.1", "0.26.0", {"enable_lora": True}, "does not support LoRA yet"),
        ("BAAI/bge-m3", "0.26.0", {"enable_lora": True}, "does not support LoRA yet"),
        ("mistralai/Mamba-Codestral-7B-v0.1", "0.26.0", {"pipeline_parallel_size": 2}, "Pipeline parallelism is not"),
        ("MiniMaxAI/MiniMax-M2", "0.26.0", {"tensor_parallel_size": 4, "speculative_config": MTP},
         "Unsupported speculative method: 'mtp'"),
        ("deepseek-ai/DeepSeek-R1", "0.26.0",
         {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "speculative_config": MTP},
         "Pipeline parallelism is not"),
        ("tiiuae/Falcon3-Mamba-7B-Base", "0.26.0", {"tensor_parallel_size": 8, "decode_context_parallel_size": 8},
         "integer division or modulo by zero"),
        ("databricks/dbrx-instruct", "0.26.0", {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
         "tensor parallel size 8 must be greater than total num kv heads 8"),
        ("zai-org/GLM-5.3-FP8", "0.33.0", {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
         "DCP for FlashMLA sparse requires an fp8_ds_mla kv-cache"),
        ("nvidia/Kimi-K2.5-NVFP4", "0.26.0", {"gpu": "A100-80GB", "tensor_parallel_size": 8},
         "FP8 KV cache is not supported by the Triton MLA backend"),
        ("openai/gpt-oss-20b", "0.26.0", {"gpu": "A100-80GB", "kv_cache_dtype": "fp8"},
         "FP8 KV cache is not supported by the Triton attention backend"),
        ("Qwen/Qwen3-0.6B", "0.26.0", {"gpu": "T4", "kv_cache_dtype": "fp8"}, "Re-run with --kv-cache-dtype float16."),
        ("ai21labs/Jamba-v0.1", "0.26.0", {"tensor_parallel_size": 4, "mamba_block_size": 1024},
         "--mamba-block-size can only be set with --enable-prefix-caching"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "0.26.0", {"quantization": "fp8"}, "model config (awq) does not match"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "0.33.0", {"quantization": "gptq"}, "argument (gptq)"),
        ("openai/gpt-oss-20b", "0.33.0", {"quantization": "fp8"}, "model config (mxfp4) does not match"),
    ],
)  # fmt: skip
def test_refused_with_vllms_sentence(model: str, version: str, flags: dict[str, Any], sentence: str) -> None:
    found = made(model, vllm_version=version, **flags)
    assert isinstance(found, RefusedPlan)
    assert sentence in found.verdict.message


@pytest.mark.parametrize(
    ("model", "version", "flags"),
    [
        ("BAAI/bge-m3", "0.33.0", {"enable_lora": True}),
        ("deepseek-ai/DeepSeek-R1", "0.33.0",
         {"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "speculative_config": MTP}),
        ("zai-org/GLM-4.6", "0.26.0", {"tensor_parallel_size": 8, "speculative_config": MTP}),
        ("openai/gpt-oss-20b", "0.26.0", {"gpu": "L40S", "kv_cache_dtype": "fp8"}),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.26.0", {"gpu": "A100-80GB", "kv_cache_dtype": "fp8"}),
        ("deepseek-ai/DeepSeek-V2-Lite", "0.25.0", {"gpu": "A100-80GB", "kv_cache_dtype": "fp8"}),
    ],
)  # fmt: skip
def test_not_refused(model: str, version: str, flags: dict[str, Any]) -> None:
    assert isinstance(made(model, vllm_version=version, **flags), Plan)


@pytest.mark.parametrize("asked", ["fp8", "awq", "mxfp8"])
def test_modelopt_checkpoints_keep_their_method_whatever_is_asked_for(asked: str) -> None:
    model, flags = (
        "nvidia/Kimi-K2.5-NVFP4",
        {"gpu": "B200", "vllm_version": "0.26.0", "tensor_parallel_size": 8},
    )
    found, own = made(model, quantization=asked, **flags), made(model, **flags)
    assert isinstance(found, Plan)
    assert isinstance(own, Plan)
    assert found.engine.quantization == own.engine.quantization
    assert found.parameters == own.parameters


def backends(model: str, **flags: Any) -> set[str]:
    found = made(model, **flags)
    assert isinstance(found, Plan), found.verdict.message
    return set(found.engine.attention_backends)


def test_layers_that_share_another_layers_indices_are_sparse_too() -> None:
    assert backends("zai-org/GLM-5.2", gpu="B200", vllm_version="0.33.0", tensor_parallel_size=8) == {
        "DEEPSEEK_V32_INDEXER",
        "FLASHINFER_MLA_SPARSE",
    }


def test_gemma_4_needs_images_to_see_each_other_unless_none_can_come() -> None:
    model, flags = "nvidia/Gemma-4-31B-IT-NVFP4", {"gpu": "B200", "vllm_version": "0.33.0"}
    assert backends(model, tensor_parallel_size=2, **flags) == {"TRITON_FLASHINFER"}
    assert "TRITON_FLASHINFER" not in backends(model, language_model_only=True, **flags)
    assert "TRITON_FLASHINFER" not in backends(model, limit_mm_per_prompt={"image": 0, "video": 0}, **flags)


def test_sparse_flashmla_reserves_its_prefill_in_the_workspace() -> None:
    """12 layers of GLM-5.2 with tp 8 and 65,536 tokens: weights grew by 1,660,944,384 bytes (0.33.0)."""
    found = made(
        "zai-org/GLM-5.2", vllm_version="0.33.0", tensor_parallel_size=8, kv_cache_dtype="fp8",
        max_model_len=65536, hf_overrides={"num_hidden_layers": 12},
    )  # fmt: skip
    assert isinstance(found, Plan)
    assert [t.n_bytes for t in found.ranks[0].terms if t.name == "sparse_latents_workspace"] == [1660944384]
