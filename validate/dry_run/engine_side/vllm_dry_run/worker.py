"""One rank: vLLM's own worker from `init_device` to `determine_available_memory`."""

from __future__ import annotations

import gc
import re
import time
from collections import Counter
from typing import Any

from . import engine, fake_distributed, kv_cache
from .tensor_ledger import ROUNDING, TensorLedger

LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def run(job: dict[str, Any], ledger: TensorLedger) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """(figures as plain data, KV specs by layer, vLLM's config) of `job["rank"]`.

    `job["profile"]` False stops before the forward pass; `job["force_eager"]` turns torch.compile off.
    """
    import torch
    import vllm.model_executor.models.registry as registry

    from .fake_tensors import DeviceWithoutStorage

    begin = time.monotonic()
    registry._run_in_subprocess = lambda function: (
        function()
    )  # a process of its own would see the real machine
    config = engine.vllm_config(job, force_eager=job["force_eager"])
    parallel = config.parallel_config
    per_engine = parallel.world_size
    data_parallel_rank = job["rank"] // per_engine if parallel.data_parallel_size > 1 else 0
    local = job["rank"] % per_engine
    fake_distributed.install(
        per_engine * parallel.data_parallel_size,
        data_parallel_rank * per_engine + local,
        parallel.data_parallel_size,
        data_parallel_rank,
    )
    notes = _without_processor(config)
    from vllm.config import set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import Worker

    result: dict[str, Any] = {"rank": job["rank"], "notes": notes}
    seconds = result["seconds"] = {"config": time.monotonic() - begin}
    with torch.no_grad(), set_current_vllm_config(config), DeviceWithoutStorage(ledger):
        worker = Worker(
            config,
            local_rank=0,
            rank=local,
            distributed_init_method="tcp://127.0.0.1:1",
            is_driver_worker=local == 0,
        )
        worker.init_device()
        before_load = ledger.current
        ledger.reset_peak()
        seconds["init_device"] = time.monotonic() - begin
        exact_weights = _measure_exactly(ledger)
        worker.load_model()
        gc.collect()
        seconds["load_model"] = time.monotonic() - begin
        weights = int(worker.model_runner.model_memory_usage)
        result |= {
            "weights_bytes": weights,
            "weights_exact_bytes": exact_weights[0],
            "load_peak_bytes": ledger.peak - before_load,
            "runner_buffers_bytes": ledger.current - weights,
            **describe_model(worker.get_model(), weights),
        }
        update = getattr(current_platform, "update_block_size_for_backend", None)
        if update is not None:
            update(config)
        specs = worker.get_kv_cache_spec()
        kv_cache.resolve_layout(config, worker, specs)
        result["kv_layers"] = kv_cache.describe_layers(specs)
        result["backends"] = attention_backends(config)
        result["resolved"] = engine.resolved(config)
        result["load_exactness"] = exactness(ledger)
        if job["profile"]:
            _forget(ledger)
            result["profile"] = _profile(worker, ledger, job["top"])
            result["profile_exactness"] = exactness(ledger)
            seconds["profile"] = time.monotonic() - begin
    _detach(config)
    return result, specs, config


def _measure_exactly(ledger: TensorLedger) -> list[int]:
    """What `model_memory_usage` will be before rounding: the same profiler, read at the same moments. The last one
    entered counts (v1/worker/gpu/model_runner.py, v1/worker/gpu_model_runner.py: load_model).
    """
    from vllm.utils import mem_utils

    measured: list[int] = []
    profiler = mem_utils.DeviceMemoryProfiler
    enter, leave = profiler.__enter__, profiler.__exit__

    def entering(self: Any) -> Any:
        found = enter(self)
        self.exact_before = ledger.exact
        return found

    def leaving(self: Any, *exc: Any) -> Any:
        left = leave(self, *exc)  # which collects garbage: a draft's own embedding goes with a cycle
        measured.insert(0, ledger.exact - self.exact_before)
        return left

    profiler.__enter__, profiler.__exit__ = entering, leaving
    return measured


def _detach(config: Any) -> None:
    """The layers register themselves in the config; the planner needs it without them."""
    compilation = config.compilation_config
    for name in ("static_forward_context", "static_all_moe_layers"):
        value = getattr(compilation, name, None)
        if value is not None:
            value.clear()


UNSPLIT, UNSPLIT_MULTIPLE = 20 << 20, 2 << 20
"""With max_split_size_mb=20 a tensor of this size takes a whole segment, a multiple of 2 MiB."""


def _profile(worker: Any, ledger: TensorLedger, top: int) -> dict[str, Any]:
    start, first = ledger.current, ledger.serial
    ledger.keep_peak = True
    ledger.reset_peak()
    worker.determine_available_memory()
    made = sorted(
        (a for a in ledger.at_peak.values() if a.serial > first), key=lambda a: (-a.n_bytes, a.serial)
    )
    activation, kept = getattr(worker, "peak_activation_memory", None), ledger.current - start
    if activation is not None and hasattr(worker, "total_consumed"):
        activation += kept  # from 0.27.0 on vLLM's figure is what comes on top of what stays
    return {
        "peak_bytes": ledger.peak - start,
        "vllm_peak_bytes": int(activation) if activation is not None else None,
        "kept_bytes": kept,
        "unsplit_bytes": sum(-a.n_bytes % UNSPLIT_MULTIPLE for a in made if a.n_bytes >= UNSPLIT),
        "operations": ledger.operations,
        "alive_at_peak": len(made),
        "tensors": [
            {"bytes": a.n_bytes, "operator": a.operator, "lines": list(a.frames)} for a in made[:top]
        ],
    }


def _forget(ledger: TensorLedger) -> None:
    for counter in (ledger.skipped, ledger.imitated, ledger.reads, ledger.copies):
        counter.clear()


def exactness(ledger: TensorLedger) -> dict[str, dict[str, int]]:
    """What was not followed faithfully since the last phase."""
    return {
        "skipped_operators": dict(ledger.skipped),
        "imitated_operators": dict(ledger.imitated),
        "values_read": dict(ledger.reads),
        "copied_to_host": dict(ledger.copies),
    }


def describe_model(model: Any, weights: int) -> dict[str, Any]:
    """Parameters and buffers, shared storage once, layers of a kind together. `other_bytes`: tensors that loading left
    outside both (repacked weights held as attributes).
    """
    seen: dict[int, Any] = {}
    counts: Counter[tuple[str, str, tuple[int, ...], str, int]] = Counter()
    numel = rounded = 0
    totals = {"parameter": 0, "buffer": 0}
    for kind, tensors in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in tensors:
            storage = tensor.untyped_storage()
            if id(storage) in seen or tensor.device.type != "cuda":
                continue
            seen[id(storage)] = storage
            n_bytes = storage.nbytes()
            dtype = str(tensor.dtype).removeprefix("torch.")
            counts[(kind, LAYER_NUMBER.sub("*", name), tuple(tensor.shape), dtype, n_bytes)] += 1
            totals[kind] += n_bytes
            rounded += -(-n_bytes // ROUNDING) * ROUNDING
            numel += tensor.numel() if kind == "parameter" else 0
    return {
        "parameters": numel,
        "parameter_bytes": totals["parameter"],
        "buffer_bytes": totals["buffer"],
        "rounding_bytes": rounded - totals["parameter"] - totals["buffer"],
        "other_bytes": weights - rounded,
        "groups": [
            {
                "name": name,
                "kind": kind,
                "shape": list(shape),
                "dtype": dtype,
                "count": count,
                "bytes": n_bytes * count,
            }
            for (kind, name, shape, dtype, n_bytes), count in counts.items()
        ],
    }


def attention_backends(config: Any) -> list[str]:
    """Names of the backends that the layers chose."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers = get_layers_from_vllm_config(config, AttentionLayerBase).values()
    return sorted({layer.get_attn_backend().get_name() for layer in layers})


def _without_processor(config: Any) -> list[str]:
    """A multimodal model whose processor's files are not at hand: build it whole, leave its encoder's profiling out."""
    if not getattr(config.model_config, "is_multimodal_model", False):
        return []
    from vllm.multimodal import MULTIMODAL_REGISTRY

    try:
        # some classes look for their files only when they are first asked
        MULTIMODAL_REGISTRY.create_processor(config.model_config).info.get_hf_processor()
        return []
    except Exception as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0][:160]
    type(MULTIMODAL_REGISTRY).supports_multimodal_inputs = lambda self, *_args, **_kwargs: False
    return [f"no processor ({why}): the encoder's weights are counted, its profiling pass is left out"]
