"""The stages of vLLM's Worker with numbers from the tape; dies where FAKE_ENGINE_DIE says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import torch

from vllm.distributed import parallel_state
from vllm.utils.mem_utils import DeviceMemoryProfiler, MemorySnapshot, memory_profiling
from vllm.v1.worker import workspace


def step(stage):
    """Come to a stage; die there if the test says so."""
    where, _, how = os.environ.get("FAKE_ENGINE_DIE", "").partition(":")
    if where != stage:
        return
    how, _, message = how.partition(":")
    if how == "raise":
        raise RuntimeError(message)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(7)
    if how in ("hang", "orphan"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    if how == "hang":
        time.sleep(300)


def init_worker_distributed_environment(worker):
    worker.at("baseline")


def kernel_warmup(worker):
    pass


class Runner:
    """The calls that the probe wraps."""

    def __init__(self, worker):
        self.worker, self.model_memory_usage = worker, worker.answers["model_memory_usage"]
        parameter = torch.Tensor(worker.answers["param_bytes"], 1)
        self.model = SimpleNamespace(
            named_parameters=lambda: iter([("model.layers.0.mlp.weight", parameter)]),
            named_buffers=lambda: iter([]), named_modules=lambda: iter([]),
        )  # fmt: skip

    def profile_run(self):
        step("profile_run")
        self.worker.at("profile_peak")

    def profile_cudagraph_memory(self):
        return self.worker.answers["cudagraph_estimate"]

    def capture_model(self):
        step("capture_model")
        self.worker.at("after_capture")
        return self.worker.answers.get("graph_actual", 0)


Runner.__module__ = "vllm.v1.worker.gpu.model_runner"


class Worker:
    def __init__(self, vllm_config, rank, answers):
        self.rank, self.answers, self.device = rank, answers, None
        names = ("model_config", "cache_config", "scheduler_config", "parallel_config", "compilation_config")
        parts = {name: SimpleNamespace(**vllm_config.flags) for name in names}
        parts["compilation_config"].static_forward_context = {}
        self.vllm_config = SimpleNamespace(use_v2_model_runner=True, **parts)
        parallel_state.RANK["rank"] = rank

    def at(self, stage):
        """The tape's figures of a stage become what the device reports."""
        torch.STATE["figures"] = self.answers["stages"][stage]

    def init_device(self):
        step("init_device")
        self.device = torch.device("cuda", self.rank)
        self.at("context")
        init_worker_distributed_environment(self)
        self.init_snapshot = MemorySnapshot(self.device)
        self.requested_memory = self.answers["requested"]
        step("request_memory")
        self.model_runner = Runner(self)
        self.at("runner_init")

    def get_model(self):
        return self.model_runner.model

    def load_model(self):
        with DeviceMemoryProfiler():
            step("load_model")
            self.at("load")

    def determine_available_memory(self):
        with memory_profiling(self.init_snapshot, self.model_runner.model_memory_usage) as result:
            self.model_runner.profile_run()
            peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
            estimate = self.model_runner.profile_cudagraph_memory()
            self.at("after_profile")
        result.torch_peak_increase = peak - result.before_profile.torch_peak
        result.non_kv_cache_memory = (
            result.non_torch_increase + result.torch_peak_increase + result.weights_memory
        )
        self.cudagraph_memory_estimate = estimate
        self.available_kv_cache_memory_bytes = self.requested_memory - result.non_kv_cache_memory - estimate
        step("after_profile")
        return self.available_kv_cache_memory_bytes

    def kv_cache_config(self):
        tensors = [SimpleNamespace(size=size) for size in self.answers["kv_tensors"]]
        spec = SimpleNamespace(block_size=16, page_size_bytes=self.answers["page_size_bytes"])
        group = SimpleNamespace(
            layer_names=[f"model.layers.{i}" for i in range(len(tensors))], kv_cache_spec=spec
        )
        return SimpleNamespace(
            num_blocks=self.answers["num_blocks"], kv_cache_groups=[group], kv_cache_tensors=tensors
        )

    def initialize_from_config(self, config):
        step("initialize_from_config")
        self.at("kv_allocated")

    def compile_or_warm_up_model(self):
        kernel_warmup(self)
        self.model_runner.capture_model()
        step("sampler_warmup")
        self.at("started")
        workspace._manager = SimpleNamespace(_current_workspaces=[None])
