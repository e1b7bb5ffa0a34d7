"""The GPUs of this machine through nvidia-smi: memory in use before and after a run. Nothing here makes a
CUDA context.
"""

from __future__ import annotations

import os
import subprocess
import time

from vllm_capacity.units import MIB
from vllm_capacity.validate.record import GpuState

QUERY = "index,name,memory.total,memory.used,driver_version"
RETURN_TOLERANCE = 256 * MIB
"""nvidia-smi's figure moves a little while the driver tidies up."""


def query_gpus(command: str = "nvidia-smi") -> list[GpuState]:
    """All GPUs of the machine, or an empty list where nvidia-smi does not answer."""
    try:
        done = subprocess.run(
            [command, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_query(done.stdout)


def parse_query(text: str) -> list[GpuState]:
    """nvidia-smi's CSV (MiB without units) as states; lines of another form are left out."""
    states = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5 and parts[0].isdigit() and parts[2].isdigit() and parts[3].isdigit():
            states.append(
                GpuState(
                    index=int(parts[0]),
                    name=parts[1],
                    nvml_total_bytes=int(parts[2]) * MIB,
                    used_before_bytes=int(parts[3]) * MIB,
                    driver=parts[4],
                )
            )
    return states


def visible_indices(states: list[GpuState], environment: dict[str, str] | None = None) -> list[int]:
    """The indices that CUDA_VISIBLE_DEVICES leaves; all where it is not set or names GPUs in another way."""
    value = (environment or dict(os.environ)).get("CUDA_VISIBLE_DEVICES")
    known = [state.index for state in states]
    if value is None:
        return known
    parts = [part.strip() for part in value.split(",") if part.strip()]
    return [int(p) for p in parts if int(p) in known] if all(p.isdigit() for p in parts) else known


def wait_for_return(before: list[GpuState], timeout_s: float, command: str = "nvidia-smi") -> bool | None:
    """Wait until the GPUs' memory in use is back to what it was; fills `used_after_bytes`. None where not
    measurable.
    """
    if not before:
        return None
    deadline = time.monotonic() + timeout_s
    while True:
        now = {state.index: state.used_before_bytes for state in query_gpus(command)}
        for state in before:
            state.used_after_bytes = now.get(state.index)
        if not now:
            return None
        if all((s.used_after_bytes or 0) <= s.used_before_bytes + RETURN_TOLERANCE for s in before):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.5)
