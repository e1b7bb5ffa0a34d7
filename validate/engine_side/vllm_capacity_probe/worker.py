"""The worker that vLLM instantiates on every rank: vLLM's own, measured at each stage of its start-up.

Give `vllm_capacity_probe.worker.MeasuredWorker` as `worker_cls`. Every measurement is guarded: if one fails,
the journal says so and the engine goes on. What vLLM itself raises is written down and raised again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from . import describe, snapshots
from .journal import Journal, open_journal

PEAK_TENSORS = "VLLM_CAPACITY_PROBE_PEAK_TENSORS"
"""Environment variable: "1" records which tensors were alive at the profiling peak."""
MEMORY_HISTORY = "VLLM_CAPACITY_PROBE_HISTORY"
"""Environment variable: "1" keeps PyTorch's memory history from the start and reports it when an allocation
fails.
"""


@contextmanager
def wrapped(
    owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace the callable `owner.name` by `wrapper(original)` while the block runs; nothing if there is no
    such name.
    """
    original = getattr(owner, name, None)
    if original is None:
        yield
        return
    own = name in vars(owner)
    setattr(owner, name, wrapper(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def finishing_dummy_load(original: Callable[..., Any]) -> Callable[..., Any]:
    """Dummy weights bypass the model's `load_weights`, and with it what that derives from them: without DeepSeek-V4's
    first mixing matrix (models/deepseek_v4/nvidia/model.py: DeepseekV4ForCausalLM.load_weights, 0.26.0) no forward
    pass runs.
    """

    def call(loader: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(loader, model, *args, **kwargs)
        for part in model.modules():
            derive = getattr(part, "finalize_mhc_broadcast_weights", None)
            if derive is not None:
                derive()
        return result

    return call


class Measuring:
    """Mixin over vLLM's GPU `Worker` (v1/worker/gpu_worker.py, 0.20 to 0.33): same calls, same order, with
    snapshots.
    """

    # what vLLM's Worker has
    rank: int
    device: Any
    vllm_config: Any
    model_runner: Any
    _journal: Journal | None = None

    # -- writing
    # ---------------------------------------------------------------------------------------------------
    @property
    def journal(self) -> Journal:
        if self._journal is None:
            self._journal = open_journal(f"rank{self.rank}")
        return self._journal

    def _guard(self, what: str, measure: Callable[[], Any]) -> Any:
        try:
            return measure()
        except Exception as error:  # a measurement must never stop the engine
            self.journal.write("probe_error", what=what, message=f"{type(error).__name__}: {error}"[:400])
            return None

    def _stage(self, stage: str) -> None:
        device = getattr(self, "device", None)
        taken = self._guard(stage, lambda: snapshots.take(device))
        if taken is not None:
            self.journal.write("stage", stage=stage, snapshot=taken)

    def _fact(self, name: str, measure: Callable[[], Any]) -> None:
        value = self._guard(name, measure)
        if value is not None:
            self.journal.write("fact", name=name, value=value)

    @contextmanager
    def _phase(self, phase: str) -> Iterator[None]:
        self.journal.write("phase", phase=phase)
        try:
            yield
        except BaseException as error:
            self.journal.write("error", phase=phase, type=type(error).__name__, message=str(error)[:2000])
            self._stage(f"failed_in_{phase}")
            self._fact("workspaces_at_failure", describe.workspaces)
            if os.environ.get(MEMORY_HISTORY) == "1":
                self._fact("peak_tensors_at_failure", self._trace_peak)
            raise

    # -- vLLM's stages
    # ---------------------------------------------------------------------------------------------
    def init_device(self) -> None:
        from vllm.v1.worker import gpu_worker

        def before_distributed(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self._guard("device", self._set_current_device)
                self._stage("context")
                return original(*args, **kwargs)

            return call

        with self._phase("init_device"):
            try:
                with wrapped(gpu_worker, "init_worker_distributed_environment", before_distributed):
                    super().init_device()  # type: ignore[misc]
            finally:
                baseline = getattr(self, "init_snapshot", None)
                if baseline is not None:
                    self.journal.write("stage", stage="baseline", snapshot=snapshots.raw(baseline))
        self._fact("requested_memory", lambda: int(self.requested_memory))  # type: ignore[attr-defined]
        self._stage("runner_init")
        self._fact("position", self._position)
        self._fact("versions", describe.versions)
        self._fact("device", lambda: describe.device(self.device))
        self._fact("settings", lambda: describe.settings(self.vllm_config))
        self._fact("runner", lambda: type(self.model_runner).__module__)
        self._fact(
            "runner_init_buffers", lambda: describe.held_tensors(self.model_runner, describe.RUNNER_SKIP)
        )
        if os.environ.get(MEMORY_HISTORY) == "1":
            self._guard("memory_history", self._record_history)

    def load_model(self, *args: Any, **kwargs: Any) -> Any:
        from vllm.model_executor.model_loader import dummy_loader
        from vllm.utils import mem_utils

        def with_peak(original: Callable[..., Any]) -> Callable[..., Any]:
            # vLLM resets the peak at the end of its own profiler: read it just before.
            def leave(profiler: Any, *exc: Any) -> Any:
                self._stage("load_peak")
                return original(profiler, *exc)

            return leave

        with (
            self._phase("load_model"),
            wrapped(mem_utils.DeviceMemoryProfiler, "__exit__", with_peak),
            wrapped(dummy_loader.DummyModelLoader, "load_weights", finishing_dummy_load),
        ):
            result = super().load_model(*args, **kwargs)  # type: ignore[misc]
        self._stage("load")
        self._fact("model_memory_usage", lambda: int(self.model_runner.model_memory_usage))
        self._fact("model", lambda: describe.model(self.get_model()))  # type: ignore[attr-defined]
        self._fact("loaded_buffers", lambda: describe.held_tensors(self.model_runner, describe.RUNNER_SKIP))
        self._fact("attention_backends", lambda: describe.attention_backends(self.vllm_config))
        return result

    def determine_available_memory(self) -> int:
        from vllm.v1.worker import gpu_worker

        results: list[Any] = []

        def keep_result(original: Callable[..., Any]) -> Callable[..., Any]:
            @contextmanager
            def profiling(*args: Any, **kwargs: Any) -> Iterator[Any]:
                with original(*args, **kwargs) as result:
                    results.append(result)
                    yield result

            return profiling

        with (
            self._phase("determine_available_memory"),
            wrapped(gpu_worker, "memory_profiling", keep_result),
            wrapped(self.model_runner, "profile_run", self._around_profile_run),
            wrapped(self.model_runner, "profile_cudagraph_memory", self._around_graph_probe),
        ):
            available = super().determine_available_memory()  # type: ignore[misc]
        self._fact("profiling", lambda: self._accounting(results[-1] if results else None, available))
        self._fact("workspaces_after_profile", describe.workspaces)
        self._stage("profiled")
        return int(available)

    def initialize_from_config(self, kv_cache_config: Any) -> Any:
        with self._phase("initialize_from_config"):
            result = super().initialize_from_config(kv_cache_config)  # type: ignore[misc]
        self._stage("kv_allocated")
        self._fact("kv_cache", lambda: describe.kv_cache(kv_cache_config))
        return result

    def compile_or_warm_up_model(self) -> Any:
        from vllm.v1.worker import gpu_worker

        def around(stage: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
            def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    self._stage(f"before_{stage}")
                    result = original(*args, **kwargs)
                    self._stage(f"after_{stage}")
                    if isinstance(result, int):
                        self.journal.write("fact", name=f"{stage}_bytes", value=result)
                    return result

                return call

            return wrapper

        with (
            self._phase("compile_or_warm_up_model"),
            wrapped(self.model_runner, "capture_model", around("capture")),
            wrapped(gpu_worker, "kernel_warmup", around("kernel_warmup")),
        ):
            result = super().compile_or_warm_up_model()  # type: ignore[misc]
        self._stage("started")
        self._fact("workspaces", describe.workspaces)
        self._fact("runner_buffers", lambda: describe.held_tensors(self.model_runner, describe.RUNNER_SKIP))
        self._fact("settings", lambda: describe.settings(self.vllm_config))
        return result

    def capacity_probe(self, stage: str, reset_peak: bool = False) -> dict[str, Any]:
        """For `collective_rpc`: a snapshot of this rank now. `reset_peak` starts a new peak afterwards."""
        import torch

        self._stage(stage)
        self._fact(f"workspaces_{stage}", describe.workspaces)
        if reset_peak:
            self._guard("reset_peak", lambda: torch.cuda.reset_peak_memory_stats(self.device))
        return {"rank": self.rank, "stage": stage}

    # -- pieces
    # ----------------------------------------------------------------------------------------------------
    def _set_current_device(self) -> None:
        if getattr(self, "device", None) is None:
            import torch

            self.device = torch.device("cuda", torch.cuda.current_device())

    def _position(self) -> dict[str, int]:
        from vllm.distributed import parallel_state

        parallel = self.vllm_config.parallel_config
        return {
            "rank": self.rank,
            "tp_rank": parallel_state.get_tp_group().rank_in_group,
            "pp_rank": parallel_state.get_pp_group().rank_in_group,
            "dp_rank": int(getattr(parallel, "data_parallel_rank", 0) or 0),
        }

    def _around_profile_run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._stage("before_profile_run")
            trace = os.environ.get(PEAK_TENSORS) == "1"
            if trace:
                self._guard("memory_history", self._record_history)
            try:
                result = original(*args, **kwargs)
            finally:
                self._stage("profile_peak")
                if trace:
                    self._fact("peak_tensors", self._trace_peak)
                    self._guard("memory_history", self._stop_history)
            return result

        return call

    def _around_graph_probe(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._stage("before_graph_probe")
            estimate = original(*args, **kwargs)
            self._stage("after_graph_probe")
            self.journal.write("fact", name="graph_estimate", value=int(estimate))
            return estimate

        return call

    def _accounting(self, result: Any, returned: int) -> dict[str, Any]:
        """Everything that `determine_available_memory` added up; `result` is None when kv_cache_memory_bytes
        skipped it.
        """
        import vllm.envs as envs

        estimate = int(getattr(self, "cudagraph_memory_estimate", 0) or 0)
        applied = estimate if getattr(envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False) else 0
        return {
            "requested_memory": int(self.requested_memory),  # type: ignore[attr-defined]
            "graph_estimate": estimate,
            "graph_applied": applied,
            "available_kv_cache_memory_bytes": getattr(self, "available_kv_cache_memory_bytes", None),
            "returned": int(returned),
            "result": None if result is None else snapshots.raw_result(result),
        }

    def _record_history(self) -> None:
        import torch

        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=400_000)

    def _stop_history(self) -> None:
        import torch

        torch.cuda.memory._record_memory_history(None)

    def _trace_peak(self) -> dict[str, Any]:
        import torch

        traces = torch.cuda.memory._snapshot()["device_traces"]
        index = torch.device(self.device).index or 0
        return snapshots.alive_at_peak(traces[index])


def __getattr__(name: str) -> Any:
    """`MeasuredWorker`, built on first use: importing this module needs no vLLM."""
    if name != "MeasuredWorker":
        raise AttributeError(name)
    from vllm.v1.worker.gpu_worker import Worker

    worker = type("MeasuredWorker", (Measuring, Worker), {"__module__": __name__})
    globals()[name] = worker
    return worker
