"""The protocol: JSON lines on stdin, JSON lines on a descriptor of its own; vLLM's output goes where stdout goes.

Importing vLLM takes most of the time, so it happens once; every rank then runs in a fork that starts from that state and
takes all traces of the rank with it. KV specs stay here, in this process, as the objects that vLLM made, until the next
model's.

    {"op": "rank", "id": 1, ...job}                      -> {"id": 1, "ok": true, "result": {...}}
    {"op": "kv", "id": 2, "ranks": [0, 8], "available": [...]}  -> the plan over these ranks, run before
    anything that fails                                  -> {"id": ..., "ok": false, "error": {"type", "message", "where"}}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any

PROTOCOL = 1
WARM_MODULES = (
    "vllm.model_executor.models.llama", "vllm.model_executor.models.qwen3_moe", "vllm.model_executor.models.deepseek_v2",
    "vllm.v1.attention.backends.flash_attn", "vllm.v1.attention.backends.flashinfer",
    "vllm.v1.attention.backends.triton_attn", "vllm.v1.attention.backends.flex_attention",
    "vllm.v1.attention.backends.mamba2_attn", "vllm.v1.attention.backends.gdn_attn", "compressed_tensors",
)  # fmt: skip
"""Imported once, in the process that forks; a release that lacks one does without. The compressed_tensors library makes a
constant of 32 bytes on the device if a model happens to import it first: no model's, so not counted.
"""


def main() -> int:
    reply_fd = int(sys.argv[1])
    # a forked or started process of vLLM's must not keep the reply open
    os.set_inheritable(reply_fd, False)
    with os.fdopen(reply_fd, "w", buffering=1) as replies:

        def send(message: dict[str, Any]) -> None:
            replies.write(json.dumps(message, default=str) + "\n")
            replies.flush()

        hello = json.loads(sys.stdin.readline())
        try:
            ledger = _prepare(hello)
        except BaseException as error:
            send({"op": "hello", "ok": False, "error": _error(error)})
            return 1
        import torch
        import vllm

        send({"op": "hello", "ok": True, "protocol": PROTOCOL, "vllm": vllm.__version__, "torch": torch.__version__,
              "python": sys.version.split()[0], "unprepared": ledger.unprepared})  # fmt: skip
        states: dict[int, Any] = {}
        for line in sys.stdin:
            request = json.loads(line)
            send({"id": request["id"], **_answer(request, ledger, states)})
    return 0


def _prepare(hello: dict[str, Any]) -> Any:
    """The machine that is not there, then `import vllm`."""
    for name, value in {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING", "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(hello["devices"]))),
    }.items():  # fmt: skip
        os.environ[name] = value
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError("No module named 'vllm'")
    from . import custom_ops, fake_cuda, fake_nvml, fake_triton
    from .tensor_ledger import TensorLedger

    fake_cuda.load_stub(hello["stub"])
    ledger: Any = TensorLedger()
    custom_ops.remember_bodies()
    fake_cuda.install(hello["gpu"], hello["devices"], ledger)
    fake_triton.install(hello["gpu"])
    fake_nvml.install(hello["gpu"], hello["devices"])
    import vllm

    from . import fake_kernels, fake_parameters, fake_tensors, kv_cache, worker  # noqa: F401

    ledger.unprepared = fake_kernels.install(ledger)
    fake_parameters.install()
    import vllm.engine.arg_utils
    import vllm.v1.worker.gpu_worker  # noqa: F401

    for runner in ("vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu_model_runner"):
        try:
            __import__(runner)
        except ImportError as error:
            ledger.unprepared.append(f"{runner}: {error}"[:200])
    _warm_up(hello["warm_up"])
    return ledger


def _warm_up(model: str) -> None:
    """Make a configuration once, so that what it imports is there in every fork."""
    import vllm.model_executor.models.registry as registry

    from . import engine

    registry._run_in_subprocess = lambda function: function()
    job = {"model": model, "flags": [], "usage": "server", "rank": 0}
    engine.vllm_config(job, force_eager=False)
    for module in WARM_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    # what exists by now outlives every fork: collections there need not look at it
    gc.collect()
    gc.freeze()


def _answer(request: dict[str, Any], ledger: Any, states: dict[int, Any]) -> dict[str, Any]:
    if request["op"] == "rank":
        answer = _in_fork(lambda: _rank(request, ledger))
        if answer["ok"]:
            states[request["rank"]] = answer.pop("state")
        return answer
    if request["op"] == "kv":
        wanted = [states[rank] for rank in request["ranks"]]
        return _in_fork(lambda: _plan_kv(wanted, request["available"]))
    return {
        "ok": False,
        "error": {"type": "ProtocolError", "message": f"unknown op {request['op']!r}", "where": []},
    }


def _rank(job: dict[str, Any], ledger: Any) -> dict[str, Any]:
    from . import worker

    os.environ.update(job["environment"])
    result, specs, config = worker.run(job, ledger)
    import resource

    result["max_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"ok": True, "result": result, "state": (specs, config)}


def _plan_kv(states: list[Any], available: list[int]) -> dict[str, Any]:
    from . import kv_cache

    config = states[0][1]
    return {"ok": True, "result": kv_cache.plan(config, [specs for specs, _config in states], available)}


def _in_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run in a fork; what it gives comes back over a pipe between the two (pickled: vLLM's specs are objects)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        status = 1
        try:
            try:
                made = work()
            except BaseException as error:
                made = {"ok": False, "error": _error(error)}
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(made))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _pid, status = os.waitpid(pid, 0)
    if not data:
        how = (
            f"signal {os.WTERMSIG(status)}"
            if os.WIFSIGNALED(status)
            else f"exit code {os.WEXITSTATUS(status)}"
        )
        return {
            "ok": False,
            "error": {"type": "ChildDied", "message": f"the rank's process ended with {how}", "where": []},
        }
    answer: dict[str, Any] = pickle.loads(data)
    return answer


def _error(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{f.filename.split('/site-packages/')[-1]}:{f.lineno} {f.name}" for f in frames]
    return {"type": type(error).__name__, "message": str(error)[:4000], "where": where[-12:]}


if __name__ == "__main__":
    sys.exit(main())
