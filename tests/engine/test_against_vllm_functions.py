"""Defaults equal to vLLM's own functions, cut out of every wheel and run alone (tools/engine_vectors.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from vllm_capacity.architecture.modules import (
    Architecture,
    Attention,
    DenseMLP,
    LayerGroup,
    Mixer,
    MixtureOfExperts,
    MultiHeadLatentAttention,
    StateSpace,
    StateSpaceKind,
)
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineArgs
from vllm_capacity.engine_defaults.graphs import Compilation, resolve_capture_sizes
from vllm_capacity.engine_defaults.lengths import resolve_max_model_len
from vllm_capacity.engine_defaults.runner import resolve_runner
from vllm_capacity.engine_defaults.scheduling import resolve_batch_sizes
from vllm_capacity.engine_defaults.speculation import Speculation
from vllm_capacity.errors import InputError, RefusedError
from vllm_capacity.inputs.model_config import ModelConfig
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.releases.release import Release, version_key

GIB = 1 << 30
VECTORS = Path(__file__).parents[1] / "data" / "engine" / "vectors.json"


def device(name: str, gib: int, capability: tuple[int, int]) -> Device:
    return Device(
        name=name,
        cuda_total_bytes=gib * GIB,
        nvml_total_bytes=gib * GIB,
        compute_capability=capability,
        num_sms=100,
    )


DEVICES = {
    "B200": device("NVIDIA B200", 180, (10, 0)), "H200": device("NVIDIA H200", 140, (9, 0)),
    "A100": device("NVIDIA A100-SXM4-80GB", 80, (8, 0)), "L4": device("NVIDIA L4", 23, (8, 9)),
    "GB10": device("NVIDIA GB10", 120, (12, 1)),
}  # fmt: skip

ATTENTION = Attention(num_heads=8, num_kv_heads=2, head_size=64, head_size_v=64)
MLA = MultiHeadLatentAttention(
    num_heads=8, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
)
STATE = StateSpace(kind=StateSpaceKind.MAMBA2)


def architecture(*mixers: Mixer, experts: int = 0, **facts: Any) -> Architecture:
    forward = (
        MixtureOfExperts(num_experts=experts, top_k=1, hidden_size=64, intermediate_size=64)
        if experts
        else DenseMLP(intermediate_size=64)
    )
    groups = tuple(
        LayerGroup(indices=(i,), modules=(), mixers=(mixer,), feed_forward=forward)
        for i, mixer in enumerate(mixers or (ATTENTION,))
    )
    return Architecture(
        name="Test",
        family="test",
        hidden_size=64,
        vocab_size=128,
        num_hidden_layers=len(groups),
        layers=groups,
        outside=(),
        dtype="bfloat16",
        **facts,
    )


def config(text: dict[str, Any] | None = None, arch: str = "LlamaForCausalLM", **facts: Any) -> ModelConfig:
    text = {"model_type": "llama", **(text or {})}
    return ModelConfig(
        name="test", root=text, text=text, architectures=(arch,), model_type=text["model_type"],
        text_model_type=text["model_type"], **facts,
    )  # fmt: skip


@cache
def vectors(kind: str) -> dict[str, tuple[tuple[Any, Any], ...]]:
    """(inputs, what vLLM returns) by release; the file holds each answer at the release where it changes."""
    data = json.loads(VECTORS.read_text())[kind]
    inputs, changes = data["inputs"], data["changes"]
    answers: dict[int, Any] = {}
    result = {}
    for version in supported_releases():
        for index, answer in changes.get(version, {}).items():
            answers[int(index)] = answer
        if answers:
            result[version] = tuple((row, answers[i]) for i, row in enumerate(inputs))
    return result


def cases(kind: str) -> list[Any]:
    return [pytest.param(get_release(v), rows, id=v) for v, rows in vectors(kind).items()]


def test_vectors_cover_every_release() -> None:
    assert (
        set(vectors("batch")) == set(vectors("sizes")) == set(vectors("length")) == set(supported_releases())
    )
    assert min(vectors("runner"), key=version_key) == "0.22.0"


@pytest.mark.parametrize(("release", "rows"), cases("batch"))
def test_batch_sizes(release: Release, rows: tuple[tuple[Any, Any], ...]) -> None:
    for (name, usage, mode, length, chunked, batched, tokens, seqs), expected in rows:
        args = EngineArgs(
            usage=usage, performance_mode=mode, max_num_batched_tokens=tokens, max_num_seqs=seqs
        )
        got = resolve_batch_sizes(
            args,
            config(),
            architecture(),
            DEVICES[name],
            release,
            max_model_len=length,
            chunked_prefill=chunked,
            batched_dp_moe=batched and release.has("batched_dp_tokens_256"),
        )
        assert list(got) == expected, (name, usage, mode, length, chunked, batched, tokens, seqs)


@pytest.mark.parametrize(("release", "rows"), cases("sizes"))
def test_capture_sizes(release: Release, rows: tuple[tuple[Any, Any], ...]) -> None:
    for (name, seqs, tokens, spec, mode, largest, sizes), expected in rows:
        compilation = Compilation(
            mode="VLLM_COMPILE", graphs="FULL_AND_PIECEWISE", breakable=False,
            sizes=tuple(sizes) if sizes else None, max_size=largest,
        )  # fmt: skip
        speculation = Speculation(method="eagle", num_tokens=spec) if spec else Speculation()
        got = resolve_capture_sizes(
            EngineArgs(performance_mode=mode), compilation, DEVICES[name], release, tokens=tokens, seqs=seqs,
            speculation=speculation,
        )  # fmt: skip
        assert list(got) == expected, (name, seqs, tokens, spec, mode, largest, sizes)


@pytest.mark.parametrize(("release", "rows"), cases("length"))
def test_max_model_len(release: Release, rows: tuple[tuple[Any, Any], ...]) -> None:
    for (text, asked, disable, window, allow), expected in rows:
        given = {**text, **({"sliding_window": window} if window else {})}
        args = EngineArgs(
            max_model_len=asked, others={"disable_sliding_window": True} if disable else {},
            environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"} if allow else {},
        )  # fmt: skip
        if expected == -1:  # vLLM's own slip: it would go on with a length of -1
            with pytest.raises(InputError, match="names no length"):
                resolve_max_model_len(args, config(given), release, pooling=False)
            continue
        try:
            got: Any = resolve_max_model_len(args, config(given), release, pooling=False)
        except RefusedError as error:
            got = str(error)
        assert got == expected, (text, asked, disable, window, allow)


@pytest.mark.parametrize(("release", "rows"), cases("runner"))
def test_model_runner(release: Release, rows: tuple[tuple[Any, Any], ...]) -> None:
    for (model, feature), expected in rows:
        mixers: tuple[Mixer, ...] = (MLA,) if model.get("mla") else (ATTENTION,)
        if model.get("hybrid"):
            mixers = (STATE, ATTENTION)
        elif model.get("free"):
            mixers = (STATE,)
        built = architecture(
            *mixers, experts=4 if model.get("moe") else 0, is_multimodal=bool(model.get("mm"))
        )
        quantised = MappingProxyType({"quant_method": "fp8"}) if model.get("quantised") else None
        others = {
            "enable_dbo": feature.get("dbo"),
            "enable_elastic_ep": feature.get("elastic"),
            "enable_return_routed_experts": feature.get("routed"),
            "enable_prompt_embeds": feature.get("embeds"),
            "kv_sharing_fast_prefill": feature.get("fast"),
            "ec_transfer_config": feature.get("ec"),
            "logprobs_mode": feature.get("logprobs"),
            "logits_processors": feature.get("processors"),
            "distributed_executor_backend": "external_launcher" if feature.get("external") else None,
        }
        args = EngineArgs(
            pipeline_parallel_size=feature.get("pp", 1),
            prefill_context_parallel_size=feature.get("pcp", 1),
            others=others,
        )
        method = feature.get("method")
        speculation = Speculation(
            method=method,
            num_tokens=1 if method else 0,
            values={"parallel_drafting": feature.get("parallel_drafting")},
        )
        try:
            got = resolve_runner(
                args,
                config(arch=model["arch"], quantization=quantised),
                built,
                DEVICES["H200"],
                release,
                pooling=bool(model.get("pooling")),
                speculation=speculation,
                mamba_cache_mode=feature.get("mamba", "none"),
                compilation_mode="STOCK_TORCH_COMPILE" if feature.get("stock") else None,
                graphs=None,
            )
        except RefusedError as error:
            got = "V2" if "V2" in str(error).partition("does not")[0] else "V1"
        assert (got == "V2") is expected, (model, feature)
