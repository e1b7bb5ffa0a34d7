"""The answer to "which GPUs, how many, how split?"."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape

from nicegui import ui
from vllm_capacity.web.page.pieces import button, card, on_data, text
from vllm_capacity.web.page.resolve import Problem
from vllm_capacity.web.page.state import PageState, to_plain
from vllm_capacity.web.page.work import Work, WorkError

EXAMPLE = {"concurrency": "16", "context": "8K"}


class LayoutsPanel:
    """`change` gets fields of the state by name, `use` the GPU and the command of the row that was chosen."""

    def __init__(
        self, state: PageState, change: Callable[..., None], use: Callable[[str, str], None]
    ) -> None:
        self._use = use
        self._rows: list[tuple[str, str]] = []
        with ui.element("div").classes("vc-panel") as self.root:
            self._card, self._body = card(
                "Layouts that hold it",
                "Model, load and flags are the form's; how the GPUs are split is open here.",
            )
            with self._card:
                self._every = ui.checkbox(
                    "The best of every GPU in the catalogue (takes some seconds)", value=bool(state.every_gpu),
                    on_change=lambda event: change(every_gpu="yes" if event.value else ""),
                ).classes("vc-check")  # fmt: skip
                self._status = text("").classes("vc-about").props("role=status aria-live=polite")
                self._try = button("Try 16 requests of 8K tokens").on("click", lambda: change(**EXAMPLE))
                self._body.move(self._card)
        on_data(self._body, "use", lambda index: self._use(*self._rows[int(index)]))

    async def answer(self, state: PageState, work: Work) -> Sequence[Problem]:
        """Shows the comparison; what is wrong with the fields is returned."""
        self._every.value = bool(state.every_gpu)
        self._say("Searching…")
        self._try.set_visibility(False)
        self._card.classes(add="vc-busy")
        try:
            found = json.loads(await work("page_layouts", {}, json.dumps(to_plain(state)).encode()))
        except WorkError as error:
            self._body.set_content("")
            self._say(str(error))
            return ()
        finally:
            self._card.classes(remove="vc-busy")
        problems = [Problem(field, message) for field, message in found["problems"]]
        if problems:
            self._body.set_content("")
            self._say("No answer yet: " + " ".join(problem.message for problem in problems))
            self._try.set_visibility({problem.field for problem in problems} <= set(EXAMPLE))
        else:
            self._rows = [(gpu, command) for gpu, command in found["rows"]]
            self._body.set_content(found["html"])
            self._say(found["spoken"])
        return problems

    def _say(self, words: str) -> None:
        self._status.set_content(escape(words))
