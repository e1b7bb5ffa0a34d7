"""What eager runs hold at their peak beyond the layers' own tensors. The bytes are those of recorded runs on an H200
(tests/data/records: eager-qwen2.5-7b-kv-fp8-u0.5, eager-gpt-oss-20b, eager-gemma-3-27b-text-u0.95,
eager-deepseek-v2-lite-t2048-s256); tests/validate/test_recorded_session.py holds the peaks to them.
"""

from __future__ import annotations

from typing import Any

import pytest
from vllm_capacity import plan
from vllm_capacity.answer import Plan
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import MemoryTerm
from vllm_capacity.units import MIB


def planned(model: str, **flags: Any) -> Plan:
    given = {"vllm_version": "0.26.0", "max_num_batched_tokens": 8192, "max_num_seqs": 1024, **flags}
    found = plan(model, gpu="H200", suggestions=False, **given)
    assert isinstance(found, Plan), found.verdict.message
    return found


def term(found: Plan, name: str) -> MemoryTerm | None:
    return next((t for t in found.ranks[0].terms if t.name == name), None)


@pytest.mark.parametrize(
    ("model", "flags", "n_bytes"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", {}, MIB),  # q, k and v have a bias
        ("meta-llama/Llama-3.1-8B", {}, 0),
        ("ibm-granite/granite-4.0-h-tiny", {}, 0),  # only conv1d has one, whose kernel multiplies no matrix
        ("Qwen/Qwen2.5-7B-Instruct", {"quantization": "fp8"}, 0),  # scaled products add it themselves
        ("Qwen/Qwen2.5-7B-Instruct", {"environment": {"CUBLASLT_WORKSPACE_SIZE": "2048"}}, 2 * MIB),
    ],
)
def test_a_plain_product_with_a_bias_brings_cublaslts_workspace(
    model: str, flags: dict[str, Any], n_bytes: int
) -> None:
    found = term(planned(model, **flags), "cublaslt_workspace")
    assert (found.n_bytes if found else 0) == n_bytes


def test_the_size_of_that_workspace_is_a_number_of_kib() -> None:
    with pytest.raises(InputError, match="CUBLASLT_WORKSPACE_SIZE"):
        planned("Qwen/Qwen2.5-7B-Instruct", environment={"CUBLASLT_WORKSPACE_SIZE": "2M"})


def test_gpt_oss_gives_half_of_its_fp32_rope_cache_back_where_nothing_is_compiled() -> None:
    eager, compiled = (planned("openai/gpt-oss-20b", enforce_eager=e) for e in (True, False))
    assert (compiled.ranks[0].activation.n_bytes, eager.ranks[0].activation.n_bytes) == (
        3_085_230_080,
        3_068_452_864,
    )
    assert compiled.ranks[0].activation.n_bytes - eager.ranks[0].activation.n_bytes == 131072 * 64 * (4 - 2)


def test_gemmas_norm_keeps_the_callers_residual_beside_the_layers() -> None:
    phases = planned("google/gemma-3-27b-it", enforce_eager=True).ranks[0].activation.phases
    mlp = next(p for p in phases if p.name == "MLP")
    tokens, hidden, wide, width, el = 8192, 5376, 2 * 21504, 21504, 2
    lasting = sum(t.n_bytes for t in mlp.terms if t.name not in ("mlp_eager",))
    assert mlp.n_bytes - lasting == tokens * (5 * hidden + wide + width) * el


def test_mla_keeps_the_latent_beside_its_normed_copy() -> None:
    flags = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "max_model_len": 32768}
    found = planned("deepseek-ai/DeepSeek-V2-Lite", enforce_eager=True, **flags)
    assert found.ranks[0].activation.n_bytes == 732_172_800
