"""A GPU as vLLM sees it."""

from __future__ import annotations

from vllm_capacity.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. Bytes are integers.

    `cuda_total_bytes` is what cudaMemGetInfo reports and vLLM budgets; `nvml_total_bytes` is what nvidia-smi reports and
    vLLM's default tiers (70 and 160 GiB) look at. `nvlink` says whether all GPUs of a node are fully connected by it.
    """

    name: str
    cuda_total_bytes: int
    nvml_total_bytes: int
    compute_capability: tuple[int, int]
    num_sms: int
    bandwidth_bytes_per_second: int | None = None
    nvlink: bool = False
    integrated: bool = False
    vendor: str = "nvidia"
    aliases: tuple[str, ...] = ()
    source: str = ""
    cuda_total_low_bytes: int | None = None
    cuda_total_high_bytes: int | None = None
    derived: bool = False
    """True if one of the two totals was derived from the other and not measured."""
    power_watts: int | None = None

    @property
    def sm(self) -> int:
        """Compute capability as one number: 90 for Hopper."""
        return self.compute_capability[0] * 10 + self.compute_capability[1]
