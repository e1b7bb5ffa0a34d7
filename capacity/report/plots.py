"""Pictures of plans (extra `plots`: matplotlib). Okabe and Ito's colours, told apart with any colour vision; hatches too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_capacity.answer import Plan, RankPlan, RefusedPlan
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import Component
from vllm_capacity.report.palette import LINE_COLOURS, LOOKS, heights, name_of
from vllm_capacity.units import GIB

if TYPE_CHECKING:
    from vllm_capacity.sizing.context_curve import Curve

SUFFIXES = (".svg", ".png", ".pdf")

_LINES = ("-", "--", "-.", ":")
_MARKERS = "osD^vP"


def plot_plans(plans: Sequence[Plan | RefusedPlan], path: Path) -> None:
    """A stacked bar per GPU (equal GPUs share one) with the line of the requested share. Raises InputError."""
    figure_class = _figure(path)
    bars = [(plan, rank) for plan in plans if isinstance(plan, Plan) for rank in plan.ranks]
    if not bars:
        raise InputError("--plot: there is nothing to draw, vLLM refuses this layout")
    several = len([plan for plan in plans if isinstance(plan, Plan)]) > 1
    figure = figure_class(figsize=(max(6.4, 2.4 + 1.7 * len(bars)), 5.2), layout="constrained")
    axes = figure.add_subplot()
    seen: set[Component] = set()
    for x, (_, rank) in enumerate(bars):
        bottom = 0.0
        for component, n_bytes in heights(rank):
            look = LOOKS[component]
            height = n_bytes / GIB
            axes.bar(x, height, 0.6, bottom=bottom, color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.5,
                     label=None if component in seen else name_of(component))  # fmt: skip
            if height > 0.045 * rank.budget.requested_bytes / GIB:
                axes.text(x, bottom + height / 2, f"{height:.1f}", ha="center", va="center", fontsize=9,
                          color=look.text)  # fmt: skip
            seen.add(component)
            bottom += height
    for x, (plan, rank) in enumerate(bars):
        ends = (x - 0.42, x + 0.42)
        total, requested = plan.device.cuda_total_bytes / GIB, rank.budget.requested_bytes / GIB
        axes.plot(ends, (total, total), color="black", linewidth=2, label="total memory" if x == 0 else None)
        axes.plot(ends, (requested, requested), color="black", linewidth=1.5, linestyle=(0, (4, 2)),
                  label=f"requested share ({plan.engine.gpu_memory_utilization:g})" if x == 0 else None)  # fmt: skip
    axes.set_xticks(range(len(bars)), [_bar_name(plan, rank, several) for plan, rank in bars])
    axes.set_ylabel("GiB per GPU")
    axes.set_xlim(-0.6, len(bars) - 0.25)
    figure.suptitle(
        _plan_title([plan for plan in plans if isinstance(plan, Plan)]), fontsize=10, x=0.01, ha="left"
    )
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    stack = [name_of(component) for component in LOOKS]
    order = sorted(range(len(labels)), key=lambda i: stack.index(labels[i]) if labels[i] in stack else -1)
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=9)
    _save(figure, path)


def _bar_name(plan: Plan, rank: RankPlan, several: bool) -> str:
    lines = [f"{len(rank.ranks)} x {plan.device.name}"]
    if plan.engine.parallel.pp > 1:
        lines.append(f"stage {', '.join(str(stage) for stage in sorted({pp for _, pp, _ in rank.ranks}))}")
    if several:
        status = plan.verdict.status.value.replace("_", " ")
        lines = [f"tp {plan.engine.parallel.tp}: {status}", *lines, f"{plan.kv_cache.size_tokens:,} tokens"]
    return "\n".join(lines)


def _plan_title(plans: Sequence[Plan]) -> str:
    plan = plans[0]
    name = f"{plan.config.name}, vLLM {plan.release.version}"
    if len(plans) > 1:
        return name
    return f"{name}\n{plan.verdict.status.value.replace('_', ' ')}, {plan.kv_cache.size_tokens:,} tokens of KV cache"


def plot_curves(curves: Sequence[Curve], path: Path, *, title: str, demanded: int, longest: int) -> None:
    """KV cache tokens and requests at once against max_model_len, one line per purchase. Raises InputError."""
    figure_class = _figure(path)
    if not curves:
        raise InputError("--plot: there is no row to draw")
    figure = figure_class(figsize=(9.6, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, curve in enumerate(curves):
        style: dict[str, Any] = {
            "color": LINE_COLOURS[i % len(LINE_COLOURS)], "linestyle": _LINES[i // len(LINE_COLOURS) % len(_LINES)],
            "marker": _MARKERS[i % len(_MARKERS)], "markersize": 4, "linewidth": 1.6,
        }  # fmt: skip
        left.plot(
            curve.lengths,
            [tokens / 1e6 for tokens in curve.total_kv_cache_size_tokens],
            label=curve.name,
            **style,
        )
        right.plot(curve.lengths, curve.sequences, **style)
    right.axhline(demanded, color="black", linewidth=1, linestyle=(0, (4, 2)))
    right.annotate(
        f"{demanded} asked",
        (0.01, demanded),
        xycoords=("axes fraction", "data"),
        ha="left",
        va="bottom",
        fontsize=8,
    )
    right.set_yscale("log")
    right.yaxis.set_major_formatter(_plain)
    right.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")
    right.tick_params(axis="y", which="minor", labelsize=8)
    left.set_ylim(bottom=0)
    for axes, name in (
        (left, "KV cache tokens, millions"),
        (right, "requests at once (margin left out)"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("max_model_len, tokens")
        axes.set_ylabel(name)
        axes.axvline(longest, color="grey", linewidth=1, linestyle=":")
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8)
    _save(figure, path)


def _plain(value: float, _: int) -> str:
    return f"{value:,g}"


def _figure(path: Path) -> Any:
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--plot {path}: the name must end in {', '.join(SUFFIXES)}")
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot needs matplotlib: pip install 'vllm-capacity[plots]'") from None
    rcParams["svg.hashsalt"] = "vllm-capacity"  # equal input, equal file
    return Figure


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise InputError(f"--plot {path}: {error.strerror or error}") from None
