"""What vLLM's own classes build, as test data: one JSON line per model and layout.

A list (YAML) names models and layouts; each is built on every stage's first rank, its KV cache planned by vLLM for the same
free bytes per rank. Nothing of the analytical model is in the figures.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.engine_args import merge_engine_args
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.text_files import read_yaml
from vllm_capacity.parallel import ParallelConfig
from vllm_capacity.releases import get_release
from vllm_capacity.units import GIB
from vllm_capacity.validate.dry_run.job import describe_gpu, make_job, with_draft_folder, write_model
from vllm_capacity.validate.dry_run.ranks import choose_ranks
from vllm_capacity.validate.dry_run.selftest import MODEL, self_test
from vllm_capacity.validate.dry_run.session import RankFailedError, Session
from vllm_capacity.validate.dry_run.stub import build_stub

AVAILABLE_KV_BYTES = 20 * GIB
SIZES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size",
         "dcp": "decode_context_parallel_size"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One model in one layout. `flags` are vLLM's, by their long names."""

    model: str
    gpu: str
    layout: str
    """For example 'tp2 pp2' or 'tp4 ep'."""
    flags: dict[str, Any]

    @property
    def name(self) -> str:
        parts = [self.model.replace("/", "--"), *self.layout.split()]
        parts += [
            f"{key}-{_short(value)}" for key, value in sorted(self.flags.items()) if key != "max_model_len"
        ]
        return "__".join([*parts, self.gpu])

    @property
    def values(self) -> dict[str, Any]:
        """Engine arguments of layout and flags. Raises InputError for a word that is no size."""
        values: dict[str, Any] = {}
        for word in self.layout.split():
            match = re.fullmatch(r"(tp|pp|dp|dcp)(\d+)", word)
            if word == "ep":
                values["enable_expert_parallel"] = True
            elif match:
                values[SIZES[match[1]]] = int(match[2])
            else:
                raise InputError(f"{self.model}: layout word {word!r}; write tpN, ppN, dpN, dcpN or ep")
        return values | self.flags


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "-".join(str(item).replace("/", "--") for item in value.values())
    return str(value)


def read_list(path: Path) -> tuple[GoldenCase, ...]:
    """The cases of a list file. Raises InputError."""
    try:
        content = read_yaml(path, str(path))
        rows = content["cases"]
        return tuple(
            GoldenCase(
                model=row["model"],
                gpu=row.get("gpu", "H200"),
                layout=layout,
                flags={"max_model_len": row.get("max_model_len", 32768), **row.get("flags", {})},
            )
            for row in rows
            for layout in row.get("layouts", ["tp1"])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a list of golden cases ({type(error).__name__}: {error})") from None


def update(
    list_path: Path, output: Path, python: str, *, tell: Callable[[str], None], fresh: bool = False
) -> int:
    """Add the list's cases to `output`; those that it holds are kept unless `fresh`. Returns how many failed."""
    cases = read_list(list_path)
    if fresh:
        output.unlink(missing_ok=True)
    done = (
        {json.loads(line)["name"] for line in output.read_text().splitlines()} if output.exists() else set()
    )
    left = [case for case in cases if case.name not in done]
    failed = 0
    for gpu in dict.fromkeys(case.gpu for case in left):
        here = [case for case in left if case.gpu == gpu]
        for case, row in _build(python, gpu, here):
            if isinstance(row, str):
                failed += 1
                tell(f"{case.name}: {row[:600]}")
                continue
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                file.flush()
                os.fsync(file.fileno())
            tell(f"{case.name}: {row['ranks'][0]['weights_bytes']} bytes, {row['num_blocks']} blocks")
    return failed


def _build(
    python: str, gpu: str, cases: list[GoldenCase]
) -> Iterator[tuple[GoldenCase, dict[str, Any] | str]]:
    device = find_device(gpu)
    with Session(python, describe_gpu(device), stub=build_stub(), warm_up=MODEL, devices=64) as session:
        self_test(session)
        for case in cases:
            try:
                yield case, build_case(session, case)
            except (RankFailedError, InputError) as error:
                yield case, str(error)


def build_case(session: Session, case: GoldenCase) -> dict[str, Any]:
    """One case on a running engine side. Raises InputError or RankFailedError."""
    release = get_release(session.vllm_version)
    args = merge_engine_args(None, case.values, release=release)
    ranks = choose_ranks("ends", parallel_of(args))
    with tempfile.TemporaryDirectory(prefix="vllm-capacity-model-") as folder:
        given = with_draft_folder(args, Path(folder))
        job = make_job(write_model(case.model, Path(folder) / "model"), given, release)
        built = [session.rank(job.message(rank, profile=False, force_eager=False, top=0)) for rank in ranks]
        kv = session.plan_kv(ranks, [AVAILABLE_KV_BYTES] * len(ranks))
    resolved = built[0]["resolved"]
    return {
        "name": case.name,
        "model": case.model,
        "vllm_version": session.vllm_version,
        "gpu": case.gpu,
        "tp": args.tensor_parallel_size,
        "pp": args.pipeline_parallel_size,
        "dp": args.data_parallel_size,
        "dcp": args.decode_context_parallel_size,
        "ep": args.enable_expert_parallel,
        "flags": case.flags,
        "kv_cache_dtype": args.kv_cache_dtype,
        "max_model_len": resolved["max_model_len"],
        "max_num_batched_tokens": resolved["max_num_batched_tokens"],
        "max_num_seqs": resolved["max_num_seqs"],
        "runner": resolved["runner"],
        "backends": built[0]["backends"],
        "block_size": resolved["block_size"],
        "available_kv_bytes": AVAILABLE_KV_BYTES,
        **{key: kv[key] for key in ("num_blocks", "tokens", "max_concurrency", "groups", "kv_tensors")},
        "skipped_operators": sorted(
            {name for one in built for name in one["load_exactness"]["skipped_operators"]}
        ),
        "ranks": [
            {
                "rank": one["rank"],
                "parameters_numel": one["parameters"],
                "post_param_bytes": one["parameter_bytes"],
                "buffer_bytes": one["buffer_bytes"],
                "weights_bytes": one["weights_bytes"],
                "weights_exact_bytes": one["weights_exact_bytes"],
                "load_peak_bytes": one["load_peak_bytes"],
                "runner_buffers_bytes": one["runner_buffers_bytes"],
                "kv_layers": one["kv_layers"],
            }
            for one in built
        ],
    }


def parallel_of(args: EngineArgs) -> ParallelConfig:
    return ParallelConfig(
        tp=args.tensor_parallel_size,
        pp=args.pipeline_parallel_size,
        dp=args.data_parallel_size,
        expert_parallel=args.enable_expert_parallel,
        dcp=args.decode_context_parallel_size,
        pcp=args.prefill_context_parallel_size,
    )
