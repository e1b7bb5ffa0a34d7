"""The page's work in a worker process: a state in, pieces of HTML out. No NiceGUI here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm_capacity.errors import InputError
from vllm_capacity.report.html import plan_page
from vllm_capacity.report.html.words import HEADLINES
from vllm_capacity.web.page.answers import Answer, plan_answer
from vllm_capacity.web.page.layouts import MOST_GPUS, Layouts, layouts_answer
from vllm_capacity.web.page.sections import log_headline, plan_sections, render, short, spoken
from vllm_capacity.web.page.state import PageState, from_plain
from vllm_capacity.web.requests import ExplainRequest, explain_document
from vllm_capacity.web.settings import WebSettings

ROWS_SHOWN = 40


def plan(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The body is a state; {"problems": [[field, message], ...]}, or the sections of the answer.

    `head["opened"]` names the ledger's terms that are shown open.
    """
    answer = plan_answer(_state(body), settings)
    if not isinstance(answer, Answer):
        return _json({"problems": [[problem.field, problem.message] for problem in answer]})
    verdict = answer.plan.verdict
    return _json(
        {
            "problems": [],
            "status": verdict.status.value,
            "headline": HEADLINES[verdict.status],
            "short": short(answer),
            "spoken": spoken(answer),
            "sections": plan_sections(answer, head.get("opened", ())),
            "suggestions": [list(suggestion.flags) for suggestion in verdict.suggestions],
            "serve": answer.serve,
        }
    )


def layouts(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The body is a state; {"problems": [...]}, or the comparison and what its rows stand for: [gpu, command]."""
    answer = layouts_answer(_state(body), settings)
    if not isinstance(answer, Layouts):
        return _json({"problems": [[problem.field, problem.message] for problem in answer]})
    document = answer.document
    rows = document["rows"]
    return _json(
        {
            "problems": [],
            "html": render("layouts", doc=document, shown=ROWS_SHOWN, most=MOST_GPUS),
            "rows": [[row["gpu"], row["command"]] for row in rows[:ROWS_SHOWN]],
            "spoken": f"{len(rows):,} layout{'' if len(rows) == 1 else 's'} hold it."
            if rows
            else "Nothing holds it.",
        }
    )


def log(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The body is a log; {"html": what it says}."""
    document = explain_document(body, ExplainRequest.model_validate(dict(head)), settings)
    return _json({"html": render("log", doc=document), "spoken": log_headline(document)})


def report(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The page to hand on for a state, as HTML. Raises InputError where the state cannot be planned."""
    state = _state(body)
    answer = plan_answer(state, settings)
    if not isinstance(answer, Answer):
        raise InputError(answer[0].message)
    return plan_page(answer.plan, answer.command, curve=answer.curve).encode()


def layouts_report(head: Mapping[str, Any], body: bytes, settings: WebSettings) -> bytes:
    """The same for a comparison of layouts."""
    answer = layouts_answer(_state(body), settings)
    if not isinstance(answer, Layouts):
        raise InputError(answer[0].message)
    return answer.page().encode()


def _state(body: bytes) -> PageState:
    return from_plain(json.loads(body))


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()
