"""Errors that a person can act on: one line that says what is wrong and what to do."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why vLLM does not start: one enum for `plan`, `size`, `explain` and `validate`."""

    FREE_BELOW_REQUESTED = "free_below_requested"
    LOAD_PEAK = "load_peak"
    NO_KV_MEMORY = "no_kv_memory"
    ONE_REQUEST_DOES_NOT_FIT = "one_request_does_not_fit"
    MINIMAL_KV_PROFILING = "minimal_kv_profiling"
    GRAPH_CAPTURE = "graph_capture"
    SAMPLER_WARMUP = "sampler_warmup"
    MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS = "mamba_blocks_below_max_num_seqs"
    INVALID_LAYOUT = "invalid_layout"
    UNSUPPORTED_BY_RELEASE = "unsupported_by_release"


class CapacityError(Exception):
    """Base of all errors raised on purpose; `str()` is one line fit for stderr."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class InputError(CapacityError):
    """The input cannot be planned (exit code 2): malformed, unknown or not modelled."""


class RefusedError(CapacityError):
    """vLLM itself would refuse this at start-up; becomes a `does_not_start` verdict with vLLM's reason."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
