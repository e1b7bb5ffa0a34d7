"""One visitor's page: the form on one side, the answer on the other, kept in step with the address."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from nicegui import background_tasks, ui
from vllm_capacity.errors import CapacityError
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.releases.release import Release
from vllm_capacity.web.page import choices
from vllm_capacity.web.page.apply import absorb, apply_flags, use_layout
from vllm_capacity.web.page.codec import Decoded, to_link
from vllm_capacity.web.page.form import Form
from vllm_capacity.web.page.layouts_panel import LayoutsPanel
from vllm_capacity.web.page.log_panel import LogPanel
from vllm_capacity.web.page.pieces import button, copy_handler, html, text
from vllm_capacity.web.page.plan_panel import PlanPanel
from vllm_capacity.web.page.resolve import Problem
from vllm_capacity.web.page.state import PageState, Tab, to_plain, with_texts
from vllm_capacity.web.page.work import Work, WorkError
from vllm_capacity.web.settings import WebSettings

TYPING_SECONDS = {Tab.PLAN: 0.03, Tab.LAYOUTS: 0.4, Tab.LOG: 0.05}
"""An answer starts when no key was pressed for so long."""
FIRST_SECONDS = 1.5
"""A page is sent without its answer after this."""
TABS = {Tab.PLAN: "Plan", Tab.LAYOUTS: "Compare layouts", Tab.LOG: "Read a log"}
_OFFLINE = "Computed by the vllm-capacity library on this server; nothing is sent anywhere else."
_HUB = (
    "Computed by the vllm-capacity library on this server, which asks the Hugging Face Hub for configs that are not in its "
    "catalogue; nothing else is sent anywhere."
)
THEMES: dict[bool | None, tuple[str, bool | None]] = {
    None: ("Theme: system", True),
    True: ("Theme: dark", False),
    False: ("Theme: light", None),
}
"""(what the button says, what it changes to)."""


class View:
    """Builds the page for a decoded address."""

    def __init__(self, decoded: Decoded, work: Work, settings: WebSettings) -> None:
        self.state = decoded.state
        self._work = work
        self._client = ui.context.client
        self._task: asyncio.Task[None] | None = None
        self._flight: asyncio.Task[bytes] | None = None
        html('<a class="vc-skip" href="#answer">Skip to the answer</a>')
        self._header()
        with ui.element("main").classes("vc-main"):
            for note in decoded.problems:
                text(note).classes("vc-notice").props("role=alert")
            self._too_long = text("").classes("vc-notice")
            self._too_long.set_visibility(False)
            with ui.element("div").classes("vc-columns"):
                self._form = Form(self.state, self._changed, self._settled, settings.allow_hub)
                with (
                    ui.element("section")
                    .classes("vc-answer")
                    .props('id=answer tabindex=-1 aria-label="Answer"')
                ):
                    self._plan = PlanPanel(self._apply)
                    self._layouts = LayoutsPanel(self.state, self._changed_by_panel, self._use_layout)
                    self._log = LogPanel(work, settings.log_body_bytes)
        with ui.element("footer").classes("vc-footer"):
            text(_HUB if settings.allow_hub else _OFFLINE)
        self._show_tab()

    # -- what is around the answer ----------------------------------------------------------------------------------

    def _header(self) -> None:
        with ui.element("header").classes("vc-header"):
            html("vLLM <span>capacity</span>", "h1")
            with ui.element("nav").classes("vc-tabs").props('aria-label="Questions"'):
                self._tabs = {tab: self._tab(tab, name) for tab, name in TABS.items()}
            with ui.element("div").classes("vc-tools"):
                button("Copy link").on("click", self._link_copied, js_handler=copy_handler("location.href"))
                self._save = button("Save as page").on("click", self._save_page)
                self._dark = ui.dark_mode(None)
                self._theme = button(THEMES[None][0]).on("click", self._next_theme)

    def _tab(self, tab: Tab, name: str) -> ui.element:
        return text(name, "button").classes("vc-tab").props(f"type=button data-tab={tab}").on(
            "click", lambda: self._choose_tab(tab)
        )  # fmt: skip

    def _choose_tab(self, tab: Tab) -> None:
        self.state = self._form.state = replace(self.state, tab=tab)
        self._show_tab()
        self._start(0)

    def _show_tab(self) -> None:
        for tab, element in self._tabs.items():
            element.props(f"aria-current={'page' if tab is self.state.tab else 'false'}")
        self._form.root.set_visibility(self.state.tab is not Tab.LOG)
        self._save.set_visibility(self.state.tab is not Tab.LOG)
        for tab, panel in ((Tab.PLAN, self._plan), (Tab.LAYOUTS, self._layouts), (Tab.LOG, self._log)):
            panel.root.set_visibility(tab is self.state.tab)

    def _next_theme(self) -> None:
        self._dark.value = THEMES[self._dark.value][1]
        self._theme.set_content(THEMES[self._dark.value][0])

    def _link_copied(self, event: Any) -> None:
        self._notify("The link is copied" if event.args else "Copy the link from the browser's address bar")

    def _notify(self, words: str) -> None:
        ui.notify(words, position="bottom")

    # -- changes ------------------------------------------------------------------------------------------------------

    def _changed(self, state: PageState) -> None:
        """A field was changed."""
        whole = absorb(state, self._release(), only_commands=True)
        if whole != state:
            self._form.show(whole)
        self.state = whole
        self._start(TYPING_SECONDS[whole.tab])

    def _settled(self) -> None:
        """The box of flags was left: flags that have a field of their own move there."""
        self._replace(absorb(self.state, self._release()))

    def _apply(self, flags: Sequence[str]) -> None:
        with suppress(CapacityError):
            self._replace(apply_flags(self.state, flags, self._release()))
            self._plan.focus()

    def _changed_by_panel(self, **fields: str) -> None:
        self._replace(with_texts(self.state, fields))

    def _use_layout(self, gpu: str, command: str) -> None:
        """A row of the comparison becomes the plan."""
        taken = use_layout(self.state, gpu, command, self._release())
        self._replace(replace(taken, tab=Tab.PLAN))
        self._plan.focus()

    def _replace(self, state: PageState) -> None:
        if state == self.state:
            return
        self.state = state
        self._form.show(state)
        self._show_tab()
        self._start(0)

    def _release(self) -> Release:
        known = self.state.release in supported_releases()
        return get_release(self.state.release if known else choices.default_release())

    # -- answers ------------------------------------------------------------------------------------------------------

    def _start(self, delay: float) -> None:
        """Answers the state soon; an answer that is still under way is for a state that is gone."""
        if self._task is not None:
            self._task.cancel()
        self._task = background_tasks.create(self._later(delay), name="answer")

    async def _later(self, delay: float) -> None:
        await asyncio.sleep(delay)
        if self._client.is_deleted:
            return
        with self._client:
            self._show_link()
            await self.answer()

    async def first_answer(self) -> None:
        """With the page itself where it is there at once; what takes longer follows."""
        if self.state.tab is Tab.PLAN:
            self._task = asyncio.ensure_future(self._later(0))
            await asyncio.wait([self._task], timeout=FIRST_SECONDS)
        else:
            self._start(0)

    async def answer(self) -> None:
        """Shows what the library says to the state."""
        state = self.state
        if state.tab is Tab.PLAN:
            await self._answer_plan(state)
        elif state.tab is Tab.LAYOUTS:
            self._form.show_problems(await self._layouts.answer(state, self._work))

    async def _answer_plan(self, state: PageState) -> None:
        try:
            found = json.loads(await self._one_at_a_time(state))
        except WorkError as error:
            self._plan.show_problem([str(error)])
            return
        problems = [Problem(field, message) for field, message in found["problems"]]
        self._form.show_problems(problems)
        if problems:
            self._plan.show_problem([problem.message for problem in problems])
        else:
            self._plan.show(found)

    async def _one_at_a_time(self, state: PageState) -> bytes:
        """Stopping a job ends its worker, so one that is under way is left to end when the next key is pressed."""
        if self._flight is not None and not self._flight.done():
            await asyncio.wait([self._flight])
        asked = self._work("page_plan", {"opened": sorted(self._plan.opened)}, _body(state))
        self._flight = asyncio.ensure_future(asked)
        self._flight.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # nobody may wait for it any more
        return await asyncio.shield(self._flight)

    def _show_link(self) -> None:
        link = to_link(self.state)
        ui.navigate.history.replace(f"?{link.query}")
        self._too_long.set_content(link.too_long)
        self._too_long.set_visibility(bool(link.too_long))

    async def _save_page(self) -> None:
        try:
            job = "page_layouts_report" if self.state.tab is Tab.LAYOUTS else "page_report"
            page = await self._work(job, {}, _body(self.state))
        except WorkError as error:
            self._notify(str(error))
            return
        name = (
            "".join(c if c.isalnum() or c in "-._" else "-" for c in self.state.model.rpartition("/")[2])[:60]
            or "model"
        )
        ui.download.content(page, f"vllm-capacity-{name}.html", "text/html")


def _body(state: PageState) -> bytes:
    return json.dumps(to_plain(state)).encode()
