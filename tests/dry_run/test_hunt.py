"""tools/hunt.py: the same seed draws the same cases, and every case of many has a plan or a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from vllm_capacity.answer import Plan, RefusedPlan
from vllm_capacity.releases import get_release

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import hunt

GPUS = ("H200", "B200")


@pytest.mark.parametrize("version", ["0.26.0", "0.33.0"])
def test_every_case_drawn_is_planned_or_says_why_not(version: str):
    release = get_release(version)
    cases = hunt.draw(7, 40, GPUS, (), release)
    assert cases == hunt.draw(7, 40, GPUS, (), release)
    assert cases != hunt.draw(8, 40, GPUS, (), release)
    answers = [hunt.planned(case, release, allow_unmodelled=True) for case in cases]
    assert all(isinstance(answer, Plan | RefusedPlan) or len(answer) > 20 for answer in answers)
    assert sum(isinstance(answer, Plan) for answer in answers) > 10


def test_figures_of_a_plan_are_those_that_a_dry_run_has():
    case = hunt.Case("Qwen/Qwen3-8B", "H200", "tp2 pp2", {"max_model_len": 8192})
    plan = hunt.planned(case, get_release("0.33.0"))
    assert isinstance(plan, Plan)
    figures = hunt.plan_figures(plan, (0, 2))
    assert {"weights 0", "weights 2", "num_blocks", "groups", "backends"} <= set(figures)
    assert figures["groups"] == [[18, 16]]
