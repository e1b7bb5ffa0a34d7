"""Pictures of plans (extra `plots`: matplotlib). Okabe and Ito's colours, told apart with any colour vision; hatches too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_capacity.answer import Plan, RankPlan, RefusedPlan
from vllm_capacity.errors import InputError
from vllm_capacity.ledger import Allocator, Component, Lifetime
from vllm_capacity.units import GIB

if TYPE_CHECKING:
    from vllm_capacity.sizing.context_curve import Curve

SUFFIXES = (".svg", ".png", ".pdf")

_STYLE: dict[Component, tuple[str, str]] = {
    Component.WEIGHTS: ("#0072B2", ""),
    Component.KV_CACHE: ("#009E73", ""),
    Component.ACTIVATION: ("#E69F00", ""),
    Component.CUDA_GRAPHS: ("#CC79A7", ""),
    Component.NCCL: ("#56B4E9", "//"),
    Component.CUSTOM_ALL_REDUCE: ("#56B4E9", ".."),
    Component.RUNNER_BUFFERS: ("#F0E442", "\\\\"),
    Component.WORKSPACE: ("#F0E442", "xx"),
    Component.FLASHINFER: ("#F0E442", "++"),
    Component.CUDA_CONTEXT: ("#D55E00", ""),
    Component.LORA: ("#999999", "//"),
    Component.ENCODER: ("#999999", "\\\\"),
    Component.SPECULATIVE: ("#999999", "xx"),
    Component.OFFLOAD: ("#999999", ".."),
    Component.UNEXPLAINED: ("#000000", ""),
}
_ORDER = tuple(_STYLE)
_LINES = ("-", "--", "-.", ":")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
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
        for component, n_bytes in _heights(rank):
            colour, hatch = _STYLE[component]
            height = n_bytes / GIB
            axes.bar(x, height, 0.6, bottom=bottom, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5,
                     label=None if component in seen else component.value.replace("_", " "))  # fmt: skip
            if height > 0.045 * rank.budget.requested_bytes / GIB:
                axes.text(x, bottom + height / 2, f"{height:.1f}", ha="center", va="center", fontsize=9,
                          color="white" if component is Component.WEIGHTS else "black")  # fmt: skip
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
    stack = [component.value.replace("_", " ") for component in _ORDER]
    order = sorted(range(len(labels)), key=lambda i: stack.index(labels[i]) if labels[i] in stack else -1)
    handles, labels = [handles[i] for i in order], [labels[i] for i in order]
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=9)
    _save(figure, path)


def _heights(rank: RankPlan) -> list[tuple[Component, int]]:
    """Device bytes by component, the runtime needs of single requests left out, in the order of the legend."""
    sums: dict[Component, int] = {}
    for t in rank.terms:
        if t.allocator is not Allocator.HOST and t.lifetime is not Lifetime.RUNTIME and t.n_bytes > 0:
            sums[t.component] = sums.get(t.component, 0) + t.n_bytes
    return [(component, sums[component]) for component in _ORDER if component in sums]


def _bar_name(plan: Plan, rank: RankPlan, several: bool) -> str:
    lines = [f"{len(rank.ranks)} x {plan.device.name}"]
    if plan.engine.parallel.pp > 1:
        lines.append(f"stage {', '.join(str(stage) for stage in sorted({pp for _, pp, _ in rank.ranks}))}")
    if several:
        status = plan.verdict.status.value.replace("_", " ")
        lines = [f"tp {plan.engine.parallel.tp}: {status}", *lines, f"{plan.kv_cache.tokens:,} tokens"]
    return "\n".join(lines)


def _plan_title(plans: Sequence[Plan]) -> str:
    plan = plans[0]
    name = f"{plan.config.name}, vLLM {plan.release.version}"
    if len(plans) > 1:
        return name
    return (
        f"{name}\n{plan.verdict.status.value.replace('_', ' ')}, {plan.kv_cache.tokens:,} tokens of KV cache"
    )


def plot_curves(curves: Sequence[Curve], path: Path, *, title: str, demanded: int, longest: int) -> None:
    """KV cache tokens and requests at once against context length, one line per purchase. Raises InputError."""
    figure_class = _figure(path)
    if not curves:
        raise InputError("--plot: there is no row to draw")
    figure = figure_class(figsize=(9.6, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, curve in enumerate(curves):
        style: dict[str, Any] = {
            "color": _COLOURS[i % len(_COLOURS)], "linestyle": _LINES[i // len(_COLOURS) % len(_LINES)],
            "marker": _MARKERS[i % len(_MARKERS)], "markersize": 4, "linewidth": 1.6,
        }  # fmt: skip
        left.plot(curve.lengths, [tokens / 1e6 for tokens in curve.tokens], label=curve.name, **style)
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
        (left, "million tokens in the KV cache"),
        (right, "requests at once (margin left out)"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("tokens per request")
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
