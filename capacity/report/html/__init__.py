"""Pages to hand on: one self-contained HTML file with everything that an answer rests on.

Pure functions from what the planner and `size` found to text; they compute nothing, so what a page needs beyond a plan (its
curve over context lengths) is given to it. Jinja2 is imported when a page is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm_capacity.answer import Plan, RefusedPlan

if TYPE_CHECKING:
    from vllm_capacity.context_curve import ContextPoint
    from vllm_capacity.sizing.ask import Report
    from vllm_capacity.sizing.context_curve import Curve


def plan_page(plan: Plan | RefusedPlan, command: str, *, curve: Sequence[ContextPoint] = ()) -> str:
    """The page of one plan. `command` is the line that makes it again, `curve` is `context_curve(plan)`."""
    return plans_page([plan], command, curves=[curve])


def plans_page(
    plans: Sequence[Plan | RefusedPlan], command: str, *, curves: Sequence[Sequence[ContextPoint]] = ()
) -> str:
    """Several layouts of one question on one page, one plan each; `curves` in the same order."""
    from vllm_capacity.report.html.plan_view import plan_view

    return _render("plan.html.j2", plan_view(plans, curves), command)


def size_page(report: Report, command: str, *, curves: Sequence[Curve] = (), top: int = 12) -> str:
    """The page of an answer of `size`, its first `top` rows; `curves` are `context_curves` of some of them."""
    from vllm_capacity.report.html.size_view import size_view

    return _render("size.html.j2", size_view(report, curves, top), command)


def _render(template: str, view: Any, command: str) -> str:
    from vllm_capacity.report.html.environment import environment

    return environment().get_template(template).render(view=view, command=command)
