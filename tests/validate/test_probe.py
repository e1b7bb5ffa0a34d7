from __future__ import annotations

from vllm_capacity.validate.engine_side.vllm_capacity_probe.snapshots import alive_at_peak
from vllm_capacity.validate.engine_side.vllm_capacity_probe.worker import finishing_dummy_load, wrapped


def entry(action: str, address: int, size: int, line: int = 0) -> dict[str, object]:
    frames = [{"filename": "/x/vllm/model_executor/layers/linear.py", "line": line, "name": "apply"}]
    return {"action": action, "addr": address, "size": size, "frames": frames}


def test_the_peak_of_a_trace_and_what_was_alive_there() -> None:
    trace = [
        entry("alloc", 1, 1000, 10),
        entry("alloc", 2, 4096, 20),
        entry("free_requested", 1, 1000),
        entry("free_completed", 1, 1000),
        entry("alloc", 3, 100, 30),
        entry("alloc", 1, 512, 40),
        entry("free_requested", 2, 4096),
    ]
    found = alive_at_peak(trace)
    assert found["peak_bytes"] == 1024 + 4096
    assert found["count"] == 2
    assert found["groups"][0] == {
        "bytes": 4096,
        "count": 1,
        "origin": ["model_executor/layers/linear.py:20:apply"],
    }


def test_memory_freed_that_was_never_seen_allocated_does_not_count() -> None:
    assert alive_at_peak([entry("free_requested", 9, 4096), entry("alloc", 1, 512)])["peak_bytes"] == 512
    assert alive_at_peak([]) == {"peak_bytes": 0, "count": 0, "groups": []}


def test_wrapping_leaves_no_trace() -> None:
    class Owner:
        def call(self) -> int:
            return 1

    owner = Owner()
    with wrapped(owner, "call", lambda original: lambda: original() + 1):
        assert owner.call() == 2
    assert owner.call() == 1
    assert "call" not in vars(owner)
    with wrapped(owner, "absent", lambda original: original):
        assert not hasattr(owner, "absent")


def test_dummy_weights_get_what_a_model_derives_from_real_ones() -> None:
    """vLLM 0.26.0, models/deepseek_v4/nvidia/model.py: the first layer of DeepSeek-V4 asserts it."""
    seen: list[str] = []

    class Mixing:
        def finalize_mhc_broadcast_weights(self) -> None:
            seen.append("derived")

    class Model:
        def modules(self) -> list[object]:
            return [object(), Mixing()]

    class Loader:
        def load_weights(self, model: Model, model_config: str) -> str:
            seen.append(f"values for {model_config}")
            return "done"

    with wrapped(Loader, "load_weights", finishing_dummy_load):
        assert Loader().load_weights(Model(), "config") == "done"
    assert seen == ["values for config", "derived"]
    Loader().load_weights(Model(), "again")
    assert seen[2:] == ["values for again"]
