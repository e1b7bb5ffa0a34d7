"""Refuses to answer where the machinery would not be known to be right."""

from __future__ import annotations

from pathlib import Path

from vllm_capacity.errors import InputError
from vllm_capacity.validate.dry_run.job import Job
from vllm_capacity.validate.dry_run.session import Session

SUPPORTED = ("0.20.2", "0.26.0", "0.33.0")
"""Releases that this machinery was run on and compared with figures known from elsewhere (docs/dry-run.md)."""
MODEL = Path(__file__).with_name("selftest_model")
"""Llama-3.1-8B's config.json (meta-llama/Llama-3.1-8B)."""
PARAMETERS = 8_030_261_248
"""The model card's figure."""
BYTES_OUTSIDE = 2 * PARAMETERS
FLAGS = ("--max-model-len", "8192", "--max-num-batched-tokens", "2048", "--max-num-seqs", "16")


def check_release(version: str) -> None:
    """Raises InputError for a release that nobody compared."""
    if version not in SUPPORTED:
        raise InputError(
            f"dry-run knows vLLM {', '.join(SUPPORTED)}; --python has {version}, whose internals were not checked"
        )


def self_test(session: Session) -> None:
    """Builds a model whose figures are known. Raises InputError where they come out differently."""
    check_release(session.vllm_version)
    job = Job(model=str(MODEL), flags=FLAGS, usage="server", environment={})
    found = session.rank(job.message(0, profile=False, force_eager=True, top=0))
    wrong = []
    if found["parameters"] != PARAMETERS:
        wrong.append(f"{found['parameters']:,} parameters instead of {PARAMETERS:,}")
    if found["parameter_bytes"] != BYTES_OUTSIDE:
        wrong.append(
            f"{found['parameter_bytes']:,} bytes of bfloat16 parameters instead of {BYTES_OUTSIDE:,}"
        )
    if sum(found["load_exactness"]["skipped_operators"].values()):
        wrong.append("operators were skipped while loading")
    if wrong:
        raise InputError(
            f"dry-run's self-test failed (Llama-3.1-8B): {'; '.join(wrong)}; its figures cannot be trusted here"
        )
