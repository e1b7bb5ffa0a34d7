"""Writes docs/accuracy.md: every recorded run beside what this version plans for it, term by term; and
capacity/report/accuracy.json, the errors that a handed-on page quotes.

usage: python tools/write_accuracy.py [--accept]

`--accept` also writes tests/data/records/accuracy.json, the figures that tests hold later versions to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from statistics import mean, median

from accuracy import DATA, ROOT, TERMS, Case, Figure, cases, why
from vllm_capacity.inputs.gpus import find_device

PAGE = ROOT / "docs" / "accuracy.md"
ACCEPTED = DATA / "records" / "accuracy.json"
PACKAGED = ROOT / "capacity" / "report" / "accuracy.json"

BEYOND = {
    "available_kv": 0.03,
    "weights": 0.03,
    "activation_peak": 0.03,
    "non_torch": 0.03,
    "graph_estimate": 0.30,
}
"""Errors relative to the measured figure that need a name in tests/data/records/explained.yaml."""
NOTICEABLE = {
    "available_kv": 0.001,
    "weights": 0.0,
    "activation_peak": 0.0,
    "non_torch": 0.001,
    "graph_estimate": 0.0015,
}
"""And at least this part of the device: an error of a few MiB needs no name, whatever it is relative to."""

_HEADS = {
    "weights": "weights", "activation_peak": "activation", "non_torch": "non-torch", "graph_estimate": "graph estimate",
    "graph_actual": "graphs", "available_kv": "available KV", "baseline": "baseline", "device_used": "device in use",
}  # fmt: skip


def beyond(case: Case, figure: Figure) -> bool:
    """Whether this error must be explained by name."""
    relative, part = BEYOND.get(figure.term), NOTICEABLE.get(figure.term, 0.0)
    if relative is None or abs(figure.error) <= max(part * case.device_bytes, 16 << 20):
        return False
    return abs(figure.error) > relative * abs(figure.measured)


def page() -> str:
    """The whole page."""
    known = cases()
    own = [c for c in known if c.origin == "own"]
    planned = [c for c in known if c.figures]
    lines = [
        "# How far plans are from recorded runs",
        "",
        "Written by `python tools/write_accuracy.py` from every record in `tests/data/records` and every run in"
        " `tests/data/runs`, with the plan of this version and the constants that ship with it; a test fails when this page"
        " is not what the command writes, and when an error has grown. No run is left out.",
        "",
        f"{len(known)} runs: {len(own)} of our own on H200 (dummy weights, figures in bytes), {len(known) - len(own)}"
        " public ones (figures with two decimals of a GiB, so 5 MiB of every error may be rounding). Errors are predicted"
        " less measured. *Fit*: the model's runs may stand behind a measured constant; *unseen*: no constant was taken from"
        " any run of this model (`tests/data/records/split.yaml`; a test holds the shipped constants to it). With several"
        " ranks the one with the largest error counts.",
        "",
        "Each run is compared with a first start, whose compile cache is empty; `-cache-hit` runs, which found their compiled"
        " code, with what the plan says of a second start (Llama-3.1-8B: 921,696 tokens instead of 919,824;"
        " [validate](validate.md#what-the-recorded-runs-say)). The first session's `-warm` runs compiled again.",
        "",
        "## Summary",
        "",
        *_summary(planned),
        "",
        "## The KV cache, run by run",
        "",
        *_kv_table(known),
        "",
        "## Every term, run by run",
        "",
        "MiB, predicted less measured; 0 is equality to within 0.05 MiB, an empty field has no measured figure.",
        "",
        *_term_table(planned),
        "",
        "## By release and by family",
        "",
        *_groups(planned, "release", lambda c: c.release),
        "",
        *_groups(planned, "class", lambda c: c.family),
        "",
        "## Misses, by name",
        "",
        *_misses(known),
        "",
        "## Without a figure",
        "",
        *[f"- `{c.name}` ({c.model}): {c.problem}" for c in known if c.problem],
        "",
    ]
    return "\n".join(lines)


def _mib(n_bytes: float) -> str:
    shown = n_bytes / 2**20
    return "0" if abs(shown) < 0.05 else f"{shown:+,.1f}"


def _errors(found: Iterable[Case], term: str) -> list[tuple[Case, Figure]]:
    return [(c, f) for c in found if (f := c.figure(term)) is not None]


def _summary(found: Sequence[Case]) -> list[str]:
    lines = [
        "| term | runs | mean abs. error | median | worst | unseen: runs | mean abs. error | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for term in TERMS:
        both = _errors(found, term)
        unseen = [(c, f) for c, f in both if c.unseen]
        lines.append(
            f"| {_HEADS[term]} | {_stats(term, both)} | {_stats(term, unseen, middle=False) if unseen else '0 | | '} |"
        )
    plain = [
        abs(f.error) / c.device_bytes * 100
        for c, f in _errors(found, "available_kv")
        if not why(c, "available_kv")
    ]
    return [
        *lines,
        "",
        f"Available KV of the {len(plain)} runs without a miss of it that is named below: mean {mean(plain):.3f} % of the"
        f" device, worst {max(plain):.3f} %.",
        "",
        "Available KV in per cent of the device, all others in MiB. The graph estimate is compared where vLLM makes one."
        " *Baseline*: in use at vLLM's first snapshot; *device in use*: once the server is up, with what PyTorch keeps.",
    ]


def _compared(term: str, both: Sequence[tuple[Case, Figure]]) -> Sequence[tuple[Case, Figure]]:
    """Without the runs of releases that make no graph estimate: nothing is predicted there, nothing measured."""
    return [(c, f) for c, f in both if term != "graph_estimate" or f.measured or f.predicted]


def _stats(term: str, both: Sequence[tuple[Case, Figure]], *, middle: bool = True) -> str:
    both = _compared(term, both)
    if not both:
        return "0 | | " + ("| " if middle else "")
    if term == "available_kv":
        values = [abs(f.error) / c.device_bytes * 100 for c, f in both]
        shown = [f"{v:.3f} %" for v in (mean(values), median(values), max(values))]
    else:
        values = [abs(f.error) / 2**20 for _, f in both]
        shown = [f"{v:,.1f}" for v in (mean(values), median(values), max(values))]
    return " | ".join([str(len(values)), shown[0], *([shown[1]] if middle else []), shown[2]])


def _kv_table(known: Sequence[Case]) -> list[str]:
    lines = [
        "| run | model | release | GPU | layout | | predicted GiB | measured GiB | error MiB | of the cache | of the GPU |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for c in known:
        head = f"| `{_name(c)}` | {c.model} | {c.release} | {c.device} | {c.layout} | {'unseen' if c.unseen else 'fit'} |"
        f = c.figure("available_kv")
        if f is None:
            lines.append(f"{head} | | | | {c.status} |")
            continue
        lines.append(
            f"{head} {f.predicted / 2**30:.3f} | {f.measured / 2**30:.3f} | {_mib(f.error)} |"
            f" {f.error / abs(f.measured):+.2%} | {f.error / c.device_bytes:+.3%} |"
        )
    return lines


def _name(c: Case) -> str:
    return c.name.replace("--h100-80gb--", " ")


def _term_table(found: Sequence[Case]) -> list[str]:
    lines = ["| run | " + " | ".join(_HEADS[t] for t in TERMS) + " |", "|---" * (len(TERMS) + 1) + "|"]
    for c in found:
        cells = ["" if (f := c.figure(term)) is None else _mib(f.error) for term in TERMS]
        lines.append(f"| `{_name(c)}` | " + " | ".join(cells) + " |")
    return lines


def _groups(found: Sequence[Case], title: str, key) -> list[str]:  # type: ignore[no-untyped-def]
    lines = [
        f"| {title} | runs | available KV: mean abs. error, % of the device | worst | activation: mean abs. error |"
        " non-torch: mean abs. error, MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted({key(c) for c in found}):
        group = [c for c in found if key(c) == name]
        kv = [abs(f.error) / c.device_bytes * 100 for c, f in _errors(group, "available_kv")]
        activation = [
            abs(f.error) / f.measured * 100 for _, f in _errors(group, "activation_peak") if f.measured
        ]
        non_torch = [abs(f.error) / 2**20 for _, f in _errors(group, "non_torch")]
        lines.append(
            f"| {name} | {len(group)} | {f'{mean(kv):.3f} | {max(kv):.3f}' if kv else ' | '} |"
            f" {f'{mean(activation):.2f} %' if activation else ''} | {f'{mean(non_torch):.1f}' if non_torch else ''} |"
        )
    return lines


def _misses(known: Sequence[Case]) -> list[str]:
    lines = []
    for c in known:
        for term in TERMS:
            f = c.figure(term)
            reason = why(c, term)
            if f is not None and (beyond(c, f) or reason):
                lines.append(
                    f"- `{_name(c)}`, {_HEADS[term]} {_mib(f.error)} MiB"
                    f" ({f.error / abs(f.measured):+.1%}): {reason or '**not explained**'}"
                )
    return lines or ["None beyond the bounds."]


def accepted() -> dict[str, dict[str, int]]:
    """Absolute errors in bytes, by run and term, of the plan as it is now."""
    return {
        c.name: {term: abs(f.error) for term in TERMS if (f := c.figure(term)) is not None}
        for c in cases()
        if c.figures
    }


def packaged() -> str:
    """Errors by term, and of the available KV cache by class, release and GPU: bytes, and shares of the device."""
    known = [c for c in cases() if c.figures]

    def errors(term: str, found: Iterable[Case], *, named: bool = True) -> dict[str, int | float]:
        both = [(c, f) for c, f in _compared(term, _errors(found, term)) if named or not why(c, term)]
        n_bytes = [abs(f.error) for _, f in both]
        shares = [abs(f.error) / c.device_bytes for c, f in both]
        return {
            "runs": len(both),
            "mean_bytes": round(mean(n_bytes)) if both else 0,
            "median_bytes": round(median(n_bytes)) if both else 0,
            "worst_bytes": max(n_bytes, default=0),
            "mean_share": round(mean(shares), 7) if both else 0.0,
            "worst_share": round(max(shares, default=0.0), 7),
        }

    def by(key) -> dict[str, dict[str, int | float]]:  # type: ignore[no-untyped-def]
        return {
            name: errors("available_kv", [c for c in known if key(c) == name])
            for name in sorted({key(c) for c in known})
        }

    figures = {
        "runs": len(known),
        "own": len([c for c in known if c.origin == "own"]),
        "terms": {
            term: {"all": errors(term, known), "unseen": errors(term, [c for c in known if c.unseen])}
            for term in TERMS
        },
        "available_kv_without_named_misses": errors("available_kv", known, named=False),
        "classes": by(lambda c: c.family),
        "releases": by(lambda c: c.release),
        "gpus": by(lambda c: find_device(c.device).name),
    }
    return json.dumps(figures, indent=1) + "\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    PACKAGED.write_text(packaged(), encoding="utf-8")
    if "--accept" in sys.argv[1:]:
        rows = [f"  {json.dumps(name)}: {json.dumps(errors)}" for name, errors in accepted().items()]
        ACCEPTED.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)} and {PACKAGED.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
