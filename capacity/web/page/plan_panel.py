"""The answer to "does it start, and what fits?"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from nicegui import ui
from vllm_capacity.web.page.pieces import button, card, copy_handler, html, on_data

CARDS = {
    "bars": ("Memory of each GPU", ""),
    "advice": ("What a single change does", ""),
    "curve": ("Concurrency against max_model_len", ""),
    "ledger": ("Ledger", "Every byte of it. Open a term for its formula, its numbers and its source."),
    "basis": ("What this rests on", ""),
}

_SERVE = "document.querySelector('.vc-serve').innerText"


class PlanPanel:
    """Shows what `jobs.plan` answers. `apply` gets the flags of the suggestion that was chosen."""

    def __init__(self, apply: Callable[[Sequence[str]], None]) -> None:
        self._apply = apply
        self.opened: set[str] = set()
        self._suggestions: list[list[str]] = []
        self._cards: dict[str, ui.element] = {}
        self._bodies: dict[str, ui.html] = {}
        with ui.element("div").classes("vc-panel") as self.root:
            self._spoken = html("").classes("vc-hidden").props("role=status aria-live=polite")
            self._bodies["verdict"] = html("").props("id=verdict tabindex=-1")
            self._jump = html("", "a").classes("vc-jump").props('href="#answer"')
            with ui.element("div").classes("vc-sections") as self._sections:
                self._bodies["figures"] = html("")
                self._card("bars")
                self._card("advice")
                self._card("curve")
                self._command()
                self._card("ledger")
                self._card("basis")
        on_data(self._bodies["advice"], "apply", lambda index: self._apply(self._suggestions[int(index)]))
        on_data(self._bodies["ledger"], "term", self._toggle)

    def show(self, answer: Mapping[str, Any]) -> None:
        """An answer without problems."""
        for name, text in answer["sections"].items():
            self._bodies[name].set_content(text)
            if name in self._cards:
                self._cards[name].set_visibility(bool(text))
        self._suggestions = answer["suggestions"]
        self._serve.set_content(escape(answer["serve"]))
        self._sections.set_visibility(bool(answer["sections"]["figures"]))
        self._jump.set_content(
            f'<b class="vc-{answer["status"]}">{escape(answer["headline"])}</b> {escape(answer["short"])}'
        )
        self._say(answer["spoken"])

    def show_problem(self, messages: Sequence[str]) -> None:
        """Why there is no answer now."""
        lines = "".join(f"<p class=vc-about>{escape(message)}</p>" for message in messages)
        self._bodies["verdict"].set_content(
            f'<div class="vc-verdict vc-waiting"><div><p class="vc-word">No answer yet</p>{lines}</div></div>'
        )
        self._sections.set_visibility(False)
        self._jump.set_content("<b>No answer yet</b>")
        self._say("No answer yet.")

    def focus(self) -> None:
        """Puts the focus on the verdict: what was focused is gone."""
        ui.run_javascript("document.getElementById('verdict')?.focus({preventScroll: false})")

    def _say(self, text: str) -> None:
        if self._spoken.content != escape(text):
            self._spoken.set_content(escape(text))

    def _card(self, name: str) -> None:
        self._cards[name], self._bodies[name] = card(*CARDS[name])

    def _command(self) -> None:
        with ui.element("section").classes("vc-card vc-command").props('aria-label="Command"'):
            with ui.element("div").classes("vc-cardhead"):
                html("Command", "h2")
                button("Copy command").on("click", _copied, js_handler=copy_handler(_SERVE))
            self._serve = html("", "code").classes("vc-serve").props("tabindex=0")

    def _toggle(self, term: str) -> None:
        self.opened ^= {term}


def _copied(event: Any) -> None:
    ui.notify("Copied" if event.args else "This browser does not let the page copy: select the text instead")
