"""Draws models, layouts and flags at random and says where the plan and vLLM's own start-up differ.

usage: python tools/hunt.py PYTHON OUTPUT.jsonl [--seed N] [--count N] [--gpu NAME] [--model ID ...] [--again FILE.jsonl]

PYTHON has a vLLM that `dry-run` knows. Every case is built by vLLM's own classes on tensors without storage and planned;
one JSON line a case says what came of it (`outcome`) and which figures differ. `--again` takes the cases of such a file.
The same seed draws the same cases.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.budget import Account
from vllm_capacity.errors import InputError, Reason
from vllm_capacity.inputs.catalogue import CatalogueEntry, entries
from vllm_capacity.inputs.engine_args import merge_engine_args
from vllm_capacity.inputs.flags import flags_for
from vllm_capacity.inputs.gpus import find_device
from vllm_capacity.inputs.models import load_model, with_draft
from vllm_capacity.planner import make_plan
from vllm_capacity.releases import get_release
from vllm_capacity.releases.release import Release
from vllm_capacity.units import GIB
from vllm_capacity.validate.dry_run.command import installed_release
from vllm_capacity.validate.dry_run.golden import SIZES, parallel_of
from vllm_capacity.validate.dry_run.job import describe_gpu, make_job, with_draft_folder, write_model
from vllm_capacity.validate.dry_run.ranks import choose_ranks
from vllm_capacity.validate.dry_run.selftest import MODEL, self_test
from vllm_capacity.validate.dry_run.session import EngineSideError, RankFailedError, Session
from vllm_capacity.validate.dry_run.stub import build_stub
from vllm_capacity.validate.dry_run.terms import beyond_tensors

KV_BYTES = 20 * GIB
UNKNOWN_HERE = (
    "Transformers does not recognize this architecture", "object has no attribute", "trust_remote_code",
    "Can't load image processor", "No module named", "cannot open shared object file", "requires the",
    "can't allocate memory", "DynamicOutputShapeException", "DataDependentOutputException", "already associated",
    "cuInit failed",
)  # fmt: skip
"""Parts of errors of a checkpoint that brings its own code or files, of an environment that lacks a package or has another
Transformers, and of tensors without storage.
"""
CONNECTORS = ("NixlConnector", "LMCacheConnectorV1")
DRAFTS = ("LlamaForCausalLMEagle3", "DFlashDraftModel")
NEXT_TOKEN = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict")
LAYOUTS = (
    "tp1", "tp1", "tp1", "tp2", "tp2", "tp4", "tp8", "tp16", "tp3", "tp6", "pp2", "tp2 pp2", "tp4 pp3", "tp2 dp2", "tp8 ep",
    "tp4 ep", "tp2 dp4 ep", "dp8 ep", "tp8 dcp2", "tp8 dcp8", "tp16 dcp4", "tp32",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """`flags` are vLLM's by their long names; `layout` as in the golden lists ('tp2 pp2', 'tp4 ep')."""

    model: str
    gpu: str
    layout: str
    flags: dict[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        sizes: dict[str, Any] = {}
        for word in self.layout.split():
            if word == "ep":
                sizes["enable_expert_parallel"] = True
            else:
                name = word.rstrip("0123456789")
                sizes[SIZES[name]] = int(word[len(name) :])
        return sizes | self.flags


# -- drawing -------------------------------------------------------------------------------------------------


def pick(*values: Any) -> Callable[[random.Random, CatalogueEntry], Any]:
    return lambda dice, _entry: dice.choice(values)


def _speculation(dice: random.Random, entry: CatalogueEntry) -> Any:
    text = entry.config.get("text_config") or entry.config
    if any(text.get(key) for key in NEXT_TOKEN) and dice.random() < 0.8:
        return {"method": "mtp", "num_speculative_tokens": dice.choice((1, 2, 3))}
    return {"method": "ngram", "num_speculative_tokens": dice.choice((2, 5)), "prompt_lookup_max": 4}


def _layout(dice: random.Random, entry: CatalogueEntry) -> str:
    """Any layout now and then; else one whose sizes divide the heads, with experts only where there are some."""
    text = entry.config.get("text_config") or entry.config
    heads = text.get("num_attention_heads") or 16
    experts = any(("num_" in key and "experts" in key) or key == "n_routed_experts" for key in text)
    if dice.random() < 0.15:
        return dice.choice(LAYOUTS)
    fitting = [
        layout
        for layout in LAYOUTS
        if all(heads % int(word[2:]) == 0 for word in layout.split() if word.startswith("tp"))
        and (experts or "ep" not in layout.split())
    ]
    return dice.choice(fitting)


def _modalities(dice: random.Random, _entry: CatalogueEntry) -> Any:
    return dice.choice(
        ({"image": 0}, {"image": 1}, {"image": 0, "video": 0}, {"image": 2, "video": 1}, {"audio": 0})
    )


FLAGS: dict[str, tuple[int, Callable[[random.Random, CatalogueEntry], Any]]] = {
    "kv_cache_dtype": (8, pick("fp8", "fp8_e4m3", "fp8_e5m2", "auto", "bfloat16")),
    "block_size": (6, pick(16, 32, 64, 128, 256, 48)),
    "max_model_len": (10, pick(2048, 4096, 10000, 16384, 32768, 131072, -1)),
    "max_num_batched_tokens": (8, pick(512, 2048, 4096, 8192, 16384, 40000)),
    "max_num_seqs": (8, pick(1, 16, 64, 200, 256, 512, 1024, 2048)),
    "enforce_eager": (6, pick(True)),
    "enable_prefix_caching": (6, pick(True, False)),
    "enable_chunked_prefill": (4, pick(False, True)),
    "async_scheduling": (4, pick(True, False)),
    "enable_lora": (4, pick(True)),
    "speculative_config": (8, _speculation),
    "limit_mm_per_prompt": (4, _modalities),
    "language_model_only": (3, pick(True)),
    "mm_encoder_tp_mode": (3, pick("data", "weights")),
    "quantization": (4, pick("fp8", "fp8", "mxfp8", "experts_int8", "bitsandbytes", "fp8_per_block")),
    "dtype": (5, pick("float16", "bfloat16", "float32", "half")),
    "hf_overrides": (2, pick({"num_hidden_layers": 4}, {"max_position_embeddings": 65536}, {"sliding_window": 512})),
    "calculate_kv_scales": (1, pick(True)),
    "kv_transfer_config": (2, pick(*({"kv_connector": name, "kv_role": "kv_both"} for name in CONNECTORS))),
    "kv_offloading_size": (1, pick(8.0)),
    "attention_backend": (
        5, pick("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "FLASHMLA", "CUTLASS_MLA", "TRITON_MLA"),
    ),
    "mamba_cache_dtype": (2, pick("float32", "float16")),
    "mamba_ssm_cache_dtype": (3, pick("float32", "auto", "float16")),
    "mamba_cache_mode": (3, pick("align", "all", "none")),
    "mamba_block_size": (2, pick(256, 512, 1024)),
    "kv_sharing_fast_prefill": (1, pick(True)),
    "disable_hybrid_kv_cache_manager": (4, pick(True)),
    "disable_sliding_window": (2, pick(True)),
    "num_gpu_blocks_override": (2, pick(64, 2000, 100000)),
    "kv_cache_memory_bytes": (2, pick(4 << 30, 100 << 20)),
    "runner": (2, pick("pooling")),
    "convert": (1, pick("embed", "classify")),
    "optimization_level": (2, pick(0, 1, 3)),
    "compilation_config": (
        3, pick({"mode": 0}, *({"cudagraph_mode": mode} for mode in ("PIECEWISE", "FULL_DECODE_ONLY", "FULL"))),
    ),
    "performance_mode": (2, pick("throughput", "interactivity")),
    "max_cudagraph_capture_size": (1, pick(64, 512)),
    "moe_backend": (2, pick("triton", "flashinfer_cutlass", "marlin", "deep_gemm")),
    "enable_dbo": (1, pick(True)),
    "enable_eplb": (1, pick(True)),
    "long_prefill_token_threshold": (1, pick(1024)),
    "mm_processor_kwargs": (1, pick({"max_pixels": 1003520})),
    "skip_mm_profiling": (1, pick(True)),
    "logprobs_mode": (1, pick("processed_logits")),
}  # fmt: skip
"""Flag -> (how often, what is drawn)."""
ONLY_MULTIMODAL = {
    "limit_mm_per_prompt",
    "language_model_only",
    "mm_encoder_tp_mode",
    "mm_processor_kwargs",
    "skip_mm_profiling",
}


def draw(
    seed: int, count: int, gpus: tuple[str, ...], models: tuple[str, ...], release: Release
) -> list[Case]:
    """Architectures evenly, then one of their models, a layout and none to four flags."""
    dice = random.Random(seed)
    known = flags_for(release)
    names = [name for name in FLAGS if name in known]
    kinds: dict[str, list[CatalogueEntry]] = {}
    for entry in entries():
        kind = (entry.config.get("architectures") or ["?"])[0]
        if kind not in DRAFTS and (not models or entry.model_id in models):
            kinds.setdefault(kind, []).append(entry)
    order: list[str] = []
    cases = []
    for _ in range(count):
        if not order:
            order = dice.sample(sorted(kinds), len(kinds))
        entry = dice.choice(kinds[order.pop()])
        usable = [
            n
            for n in names
            if n not in ONLY_MULTIMODAL or "vision_config" in entry.config or "audio_config" in entry.config
        ]
        flags: dict[str, Any] = {}
        for name in dice.choices(usable, [FLAGS[n][0] for n in usable], k=dice.choice((0, 1, 1, 2, 2, 3, 4))):
            flags[name] = FLAGS[name][1](dice, entry)
        if "enable_lora" in flags:
            flags |= {"max_lora_rank": dice.choice((8, 16, 64)), "max_loras": dice.choice((1, 4))}
        if "enable_lora" in flags and dice.random() < 0.3:
            flags["fully_sharded_loras"] = True
        cases.append(Case(entry.model_id, dice.choice(gpus), _layout(dice, entry), flags))
    return cases


# -- both answers --------------------------------------------------------------------------------------------


def planned(case: Case, release: Release, *, allow_unmodelled: bool = False) -> Plan | RefusedPlan | str:
    """The plan, or the error that says why there is none."""
    try:
        args = merge_engine_args(
            None,
            {
                "kv_cache_memory_bytes": KV_BYTES,
                "load_format": "dummy",
                **case.values,
                "allow_unmodelled": allow_unmodelled,
            },
            release=release,
        )
        config = with_draft(load_model(case.model, hf_overrides=args.hf_overrides), args)
        return make_plan(config, args, find_device(case.gpu), release, suggestions=False)
    except InputError as error:
        return str(error)


def plan_figures(plan: Plan, ranks: tuple[int, ...]) -> dict[str, Any]:
    engine, kv, parallel = plan.engine, plan.kv_cache, plan.engine.parallel
    figures: dict[str, Any] = {
        "runner": engine.model_runner,
        "dtype": engine.dtype,
        "max_model_len": engine.max_model_len,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "kv_cache_dtype": engine.kv_cache_dtype,
        "enforce_eager": engine.enforce_eager,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "async_scheduling": engine.async_scheduling,
        "backends": sorted(engine.attention_backends),
        **({"block_size": kv.block_size} if plan.architecture.has_attention else {}),
        "num_blocks": kv.num_blocks,
        "tokens": kv.size_tokens,
        "max_concurrency": kv.max_concurrency,
        "groups": sorted([len(g.layers), g.spec.block_size] for g in kv.stages[0].groups)
        if kv.stages
        else [],
    }
    per_stage = parallel.tp * parallel.pcp
    for rank in ranks:
        place = (rank % per_stage, rank // per_stage % parallel.pp, rank // parallel.world_size)
        kind = next(kind for kind in plan.ranks if place in kind.ranks)
        rounding = sum(beyond_tensors(t) for t in kind.terms)
        figures[f"weights {rank}"] = kind.budget.totals[Account.WEIGHTS] - rounding
    return figures


def run_vllm(session: Session, case: Case, release: Release) -> dict[str, Any]:
    """vLLM's figures in the same form. Raises RankFailedError where vLLM raises."""
    args = merge_engine_args(None, {**case.values, "allow_unmodelled": True}, release=release)
    ranks = choose_ranks("ends", parallel_of(args))
    with tempfile.TemporaryDirectory(prefix="vllm-capacity-model-") as folder:
        args = with_draft_folder(args, Path(folder))
        job = make_job(write_model(case.model, Path(folder) / "model"), args, release)
        built = [session.rank(job.message(rank, profile=False, force_eager=False, top=0)) for rank in ranks]
        free = args.kv_cache_memory_bytes or KV_BYTES
        try:
            kv = session.plan_kv(ranks, [free] * len(ranks))
        except RankFailedError as error:
            kv = {"refusal": str(error)}
    resolved = {
        name: value
        for name, value in built[0]["resolved"].items()
        if name not in ("compilation_mode", "gpu_memory_utilization")
    }
    figures = {
        **resolved,
        "backends": built[0]["backends"],
        "ranks": ranks,
        "kv_refusal": kv.get("refusal", ""),
    }
    if "refusal" not in kv:
        figures |= {key: kv[key] for key in ("num_blocks", "tokens", "max_concurrency", "max_model_len")}
        figures["groups"] = sorted([g["layers"], g["block_size"]] for g in kv["groups"])
    figures |= {f"weights {rank}": one["weights_exact_bytes"] for rank, one in zip(ranks, built, strict=True)}
    figures["skipped"] = sorted(
        {name for one in built for name in one["load_exactness"]["skipped_operators"]}
    )
    figures["groups_of_weights"] = {str(rank): one["groups"] for rank, one in zip(ranks, built, strict=True)}
    figures["kv_layers"] = built[0]["kv_layers"]
    return figures


def compare(session: Session, case: Case, release: Release) -> dict[str, Any]:
    """One row: what both said, and `outcome`."""
    row: dict[str, Any] = {"case": asdict(case), "release": release.version}
    ours = planned(case, release)
    error = ""
    if isinstance(ours, str):
        error = row["our_error"] = ours
        ours = planned(case, release, allow_unmodelled=True)
    if isinstance(ours, RefusedPlan):
        error = row["our_refusal"] = ours.verdict.message
    try:
        theirs = run_vllm(session, case, release)
    except RankFailedError as failed:
        row["vllm_error"], row["vllm_where"] = str(failed)[:1500], list(failed.where)
        if any(text in str(failed) for text in UNKNOWN_HERE):
            row["outcome"] = "no_answer"
        elif isinstance(ours, Plan) and not error:
            row["outcome"] = "vllm_refuses_we_plan"
        else:
            row["outcome"] = "both_refuse"
        return row
    except EngineSideError:
        raise
    except InputError as unknown:
        row["vllm_error"], row["outcome"] = str(unknown), "no_such_flag"
        return row
    if not isinstance(ours, Plan):
        row["outcome"] = "we_refuse" if isinstance(ours, RefusedPlan) else "we_raise"
        row["their_figures"] = {
            k: v for k, v in theirs.items() if k not in ("groups_of_weights", "kv_layers")
        }
        return row
    figures = plan_figures(ours, theirs["ranks"])
    if not theirs.get("groups"):
        figures.pop("num_blocks")  # one block that nobody uses, which the dry-run leaves out
    if theirs["kv_refusal"]:
        for name in ("num_blocks", "tokens", "max_concurrency", "groups", "max_model_len", "block_size"):
            figures.pop(name, None)
    differs = {
        name: [value, theirs.get(name)] for name, value in figures.items() if value != theirs.get(name)
    }
    refused = ours.kv_cache.refusal
    # said by the runner when it makes its graphs, which a dry-run does not
    late = refused is not None and refused.reason is Reason.MAMBA_BLOCKS_BELOW_MAX_NUM_SEQS
    refusal = refused.message if refused and not late else ""
    if bool(refusal) != bool(theirs["kv_refusal"]):
        differs["kv_refusal"] = [refusal, theirs["kv_refusal"]]
    row["differs"] = differs
    if differs:
        row["kv_layers"] = theirs["kv_layers"]
        row["skipped"] = theirs["skipped"]
    if any(name.startswith("weights") for name in differs):
        row["groups_of_weights"] = theirs["groups_of_weights"]
    row["outcome"] = ("unmodelled_" if error else "") + ("differs" if differs else "equal")
    return row


def run_all(python: str, cases: list[Case], version: str) -> Iterator[dict[str, Any]]:
    release = get_release(version)
    for gpu in dict.fromkeys(case.gpu for case in cases):
        here = [case for case in cases if case.gpu == gpu]
        while here:
            try:
                with Session(
                    python,
                    describe_gpu(find_device(gpu)),
                    stub=build_stub(),
                    warm_up=MODEL,
                    devices=64,
                    rank_limit_s=240,
                ) as session:
                    self_test(session)
                    while here:
                        case = here.pop(0)
                        yield compare(session, case, release)
            except EngineSideError as error:
                yield {
                    "case": asdict(case),
                    "release": version,
                    "outcome": "no_answer",
                    "vllm_error": str(error),
                }


def cases_of(path: Path, outcomes: tuple[str, ...]) -> list[Case]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Case(**row["case"]) for row in rows if not outcomes or row["outcome"] in outcomes]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("python")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--gpu", action="append")
    parser.add_argument("--model", action="append")
    parser.add_argument("--again", type=Path)
    parser.add_argument("--outcome", action="append")
    given = parser.parse_args(words)
    version = installed_release(given.python)
    gpus = tuple(given.gpu or ("H200", "H200", "H200", "A100-80GB", "L40S", "B200"))
    cases = (
        cases_of(given.again, tuple(given.outcome or ()))
        if given.again
        else draw(given.seed, given.count, gpus, tuple(given.model or ()), get_release(version))
    )
    counts: dict[str, int] = {}
    with given.output.open("a", encoding="utf-8") as file:
        for row in run_all(given.python, cases, version):
            file.write(json.dumps(row) + "\n")
            file.flush()
            counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1
            print(line_of(row), flush=True)
    print(counts)
    return 0


def line_of(row: Mapping[str, Any]) -> str:
    case = row["case"]
    what = row.get("differs")
    said = row.get("our_error") or row.get("our_refusal") or ""
    theirs = row.get("vllm_error", "")
    return (
        f"{row['outcome']:22} {case['model']} {case['layout']} {case['gpu']} {json.dumps(case['flags'])}"
        + (f"\n    differs {json.dumps(what)[:700]}" if what else "")
        + (f"\n    ours: {said[:300]}" if said else "")
        + (f"\n    vLLM: {theirs[:400]}" if theirs else "")
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
