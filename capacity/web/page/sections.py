"""The answer as pieces of HTML: the views of the report (`report/html`), arranged for a page that one works with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from vllm_capacity.answer import Plan, RefusedPlan, Status
from vllm_capacity.report.html import environment as shared
from vllm_capacity.report.html import lines
from vllm_capacity.report.html.bars import OTHERS
from vllm_capacity.report.html.plan_view import plan_view
from vllm_capacity.report.palette import LOOKS, name_of
from vllm_capacity.vocabulary import QUANTITIES
from vllm_capacity.web.page.answers import Answer

PLAN_SECTIONS = ("verdict", "figures", "bars", "advice", "curve", "ledger", "basis")
NAMES = {
    "kv cache": "KV cache",
    "cuda graphs": "CUDA graphs",
    "cuda context": "CUDA context",
    "nccl": "NCCL",
    "flashinfer": "FlashInfer",
    "lora": "LoRA",
}
"""Names of components that are proper ones."""
STATUS_WORDS = {
    Status.STARTS: "starts",
    Status.DOES_NOT_START: "does not start",
    Status.TOO_CLOSE: "too close to call",
}


def plan_sections(answer: Answer, opened: Collection[str] = ()) -> dict[str, str]:
    """HTML by section; "" where a refused layout has nothing to show. `opened`: terms of the ledger that are shown open."""
    plan = answer.plan
    view = plan_view([plan], [answer.curve])
    values = {
        "view": view,
        "part": view.first,
        "plan": plan,
        "curve": [point for point in answer.curve if point.max_concurrency > 0],
        "points": answer.curve,
        "opened": frozenset(opened),
    }
    sections = dict.fromkeys(PLAN_SECTIONS, "")
    sections.update((name, render(name, **values)) for name in _shown(plan))
    return sections


def _shown(plan: Plan | RefusedPlan) -> tuple[str, ...]:
    """Sections that have something to show."""
    if isinstance(plan, RefusedPlan):
        return ("verdict",)
    return PLAN_SECTIONS if plan.kv_cache.stages else tuple(n for n in PLAN_SECTIONS if n != "curve")


def spoken(answer: Answer) -> str:
    """The verdict for screen readers, read out when it changes."""
    part = plan_view([answer.plan], []).first
    return " ".join(filter(None, (f"{part.headline}.", part.sentence, getattr(part, "asked", ""))))


def short(answer: Answer) -> str:
    """The figure that matters most, for a narrow page."""
    if isinstance(answer.plan, RefusedPlan) or not answer.plan.kv_cache.size_tokens:
        return ""
    return f"{answer.plan.kv_cache.size_tokens:,} tokens, {answer.plan.kv_cache.max_concurrency:,.2f} at once"


def log_headline(document: Mapping[str, Any]) -> str:
    """The finding of an `explain --json` document, in one sentence."""
    if document["finding"]:
        return f"{document['finding']['headline']}."
    return (
        "Nothing is wrong in this log."
        if document["came_up"]
        else "No error in this log, but the start does not end in it."
    )


def render(name: str, **values: Any) -> str:
    """One of `templates/`."""
    return _environment().get_template(f"{name}.html.j2").render(**values).strip()


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    report = shared.environment()
    made.filters |= {name: report.filters[name] for name in ("gib", "delta", "count", "exact", "value")}
    made.filters |= {"name": component, "cssclass": css_class}
    made.globals |= {"STATUS": STATUS_WORDS, "lines": lines, "log_headline": log_headline, "word": word}
    return made


def word(key: str) -> str:
    """What people call a figure of the JSON."""
    return QUANTITIES[key].word


def component(name: str) -> str:
    """A component's name for people."""
    return NAMES.get(name, name)


def css_class(name: str) -> str:
    """The class that gives a component its colour and hatch."""
    return f"vc-c-{name.replace(' ', '-')}"


_HATCHES = {
    "//": "repeating-linear-gradient(135deg,#0007 0 1.5px,#0000 1.5px 6px)",
    "\\\\": "repeating-linear-gradient(45deg,#0007 0 1.5px,#0000 1.5px 6px)",
    "..": "radial-gradient(#0009 1px,#0000 1.4px) 0 0/5px 5px",
    "xx": "repeating-linear-gradient(45deg,#0006 0 1px,#0000 1px 5px),"
          "repeating-linear-gradient(135deg,#0006 0 1px,#0000 1px 5px)",
    "++": "repeating-linear-gradient(0deg,#0006 0 1px,#0000 1px 5px),"
          "repeating-linear-gradient(90deg,#0006 0 1px,#0000 1px 5px)",
}  # fmt: skip


def palette_css() -> str:
    """The components' looks as rules."""
    looks = {**{name_of(component): look for component, look in LOOKS.items()}, "other processes": OTHERS}
    return "\n".join(
        f".{css_class(name)}{{background:{_HATCHES[look.hatch] + ',' if look.hatch else ''}{look.colour};color:{look.text}}}"
        for name, look in looks.items()
    )
