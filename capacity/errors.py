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


LONGEST = 8000
"""Characters of one message; the middle of a longer one is left out."""


class CapacityError(Exception):
    """Base of all errors raised on purpose; `str()` is one line fit for stderr.

    Messages quote files of strangers: what a terminal would obey (escape sequences, other control characters) or could
    not print (halves of surrogate pairs) becomes "?".
    """

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        if not line.isprintable():
            line = "".join(c if c.isprintable() else "?" for c in line)
        if len(line) > LONGEST:
            line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
        super().__init__(line)


class InputError(CapacityError):
    """The input cannot be planned (exit code 2): malformed, unknown or not modelled."""


class RefusedError(CapacityError):
    """vLLM itself would refuse this at start-up; becomes a `does_not_start` verdict with vLLM's reason."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
