"""From the options of `size` to a question, and from its rows to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_capacity.calibration import load_calibration
from vllm_capacity.engine import EngineArgs
from vllm_capacity.errors import InputError
from vllm_capacity.inputs.models import load_model
from vllm_capacity.request import Load, add_draft, degrees_of, engine_args_of
from vllm_capacity.sizing.demand import LENGTH_STEP, Demand, from_concurrency, from_workload
from vllm_capacity.sizing.layouts import Fixed
from vllm_capacity.sizing.nodes import choose_nodes
from vllm_capacity.sizing.rank import Sort, ranked, without_needless_loss
from vllm_capacity.sizing.row import Row
from vllm_capacity.sizing.search import Answer, Progress, Question, search
from vllm_capacity.sizing.sensitivity import Sensitivity, sensitivities
from vllm_capacity.sizing.variants import variants


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that `size` prints. `rows` are in order; `sensitivities` are those of the first row."""

    question: Question
    rows: tuple[Row, ...]
    left_out: tuple[tuple[str, str], ...]
    sensitivities: tuple[Sensitivity, ...]
    plans_made: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question and what of the answer is wanted."""

    question: Question
    show_all: bool
    with_sensitivity: bool
    warnings: tuple[str, ...] = ()

    def answer(self, progress: Progress | None = None) -> Report:
        found: Answer = search(self.question, progress)
        rows = ranked(found.rows, self.question.sort)
        if not self.show_all and not self.question.every_layout:
            rows = without_needless_loss(rows)
        first = rows[0] if rows and self.with_sensitivity else None
        return Report(
            question=self.question,
            rows=tuple(rows),
            left_out=found.left_out,
            sensitivities=sensitivities(self.question, first) if first else (),
            plans_made=found.plans_made,
            warnings=self.warnings,
        )


def ask(
    command_line: Sequence[str],
    flags: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    load: Load | None = None,
) -> Asked:
    """Options of the command, as text where they are vLLM's. `load` reads the model in place of `--model`'s rules.

    Raises InputError.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    fixed, cache_dtypes = _fixed(given)
    if given.get("max_model_len") == "auto":
        raise InputError("--max-model-len auto has no meaning for size: say how long the requests are")
    line = engine_args_of(command_line, given, options)
    if not line.model:
        raise InputError(
            "--model is missing: give a folder, a config.json, a catalogue id or a Hugging Face id"
        )
    if load is not None:
        config, _ = load(line.model, line.args)
    else:
        config = load_model(
            line.model,
            revision=options.get("revision"),
            hf_overrides=line.args.hf_overrides,
            offline=bool(options.get("offline")),
        )
    config = add_draft(config, line.args, options, bundled_only=load is not None)
    demand = _demand(options, line.args)
    args = replace(line.args, max_model_len=line.args.max_model_len or demand.longest_tokens)
    if line.args.max_model_len is not None and line.args.max_model_len <= demand.longest_tokens - LENGTH_STEP:
        raise InputError(
            f"--max-model-len {line.args.max_model_len} is below the longest request (up to {demand.longest_tokens} tokens); "
            "leave it out"
        )
    prices = None
    if options.get("prices"):
        from vllm_capacity.sizing.price_file import read_prices

        prices = read_prices(options["prices"])
    sort = Sort(options.get("sort") or ("cost" if prices else "gpus"))
    if sort is Sort.COST and prices is None:
        raise InputError("--sort cost needs --prices FILE (docs/sizing.md shows one); no price is built in")
    others = () if options.get("no_variants") or args.hf_overrides or args.quantization else variants(config)
    question = Question(
        models=(config, *others),
        args=args,
        release=line.release,
        release_source=line.release_source,
        demand=demand,
        nodes=choose_nodes(
            _list(options.get("gpus")),
            options.get("vendor"),
            _list(options.get("boxes")),
            options.get("gpus_per_node"),
        ),
        fixed=fixed,
        cache_dtypes=cache_dtypes,
        most_gpus=int(options.get("max_gpus") or 16),
        sort=sort,
        prices=prices,
        calibration=load_calibration(options.get("calibration")),
        every_layout=bool(options.get("every_layout")),
        share_work=bool(options.get("share_work", True)),
    )
    return Asked(
        question=question, show_all=bool(options.get("show_all")),
        with_sensitivity=not options.get("no_sensitivity"), warnings=line.notes,
    )  # fmt: skip


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _fixed(given: dict[str, Any]) -> tuple[Fixed, tuple[str, ...]]:
    """Sizes that the user named are taken out of `given` and kept fixed; the rest is free."""
    tp = degrees_of(given)
    sizes: dict[str, int | None] = {}
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        text = given.pop(name, None)
        try:
            sizes[name] = None if text is None else int(text)
        except ValueError:
            raise InputError(f"--{name.replace('_', '-')} {text}: must be an integer") from None
        if sizes[name] is not None and not 1 <= (sizes[name] or 0) <= 1024:
            raise InputError(f"--{name.replace('_', '-')} {text}: must lie between 1 and 1024")
    cache_dtype = given.pop("kv_cache_dtype", None)
    return (
        Fixed(
            tp=tp or None, pp=sizes["pipeline_parallel_size"], dp=sizes["data_parallel_size"],
            expert_parallel=given.pop("enable_expert_parallel", None),
        ),
        (cache_dtype,) if cache_dtype else ("auto", "fp8"),
    )  # fmt: skip


def _demand(options: Mapping[str, Any], args: EngineArgs) -> Demand:
    """Exactly one of --concurrency, a workload and --trace. Raises InputError."""
    share = float(options.get("prefix_share") or 0.0)
    users = options.get("concurrent_users")
    workload = options.get("prompt_tokens") is not None or options.get("output_tokens") is not None
    kinds = [options.get("concurrency") is not None, workload, options.get("trace") is not None]
    if sum(kinds) != 1:
        raise InputError(
            "say what is to be served: --concurrency N with --max-model-len L, or --prompt-tokens, --output-tokens and "
            "--concurrent-users, or --trace FILE; one of them"
        )
    if options.get("trace") is not None:
        from vllm_capacity.sizing.trace import demand_of_trace

        return demand_of_trace(
            options["trace"], concurrent=users, output_speed=options.get("output_speed"),
            time_unit=options.get("time_unit") or "s", prefix_share=share,
        )  # fmt: skip
    if workload:
        prompt, output = options.get("prompt_tokens"), options.get("output_tokens")
        if prompt is None or output is None or users is None:
            raise InputError("a workload needs --prompt-tokens, --output-tokens and --concurrent-users")
        return from_workload(
            users, prompt, output, prompt_p95=options.get("prompt_p95"), output_p95=options.get("output_p95"),
            prefix_share=share,
        )  # fmt: skip
    if args.max_model_len is None:
        raise InputError("--concurrency needs --max-model-len: how long is a request?")
    if users is not None:
        raise InputError(
            "--concurrent-users belongs to a workload or a trace; --concurrency already says how many"
        )
    return from_concurrency(options["concurrency"], args.max_model_len, share)
