"""The answer to "why did a run fail?": a log is dropped, chosen or pasted."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from nicegui import events, ui
from vllm_capacity.web.page import choices
from vllm_capacity.web.page.pieces import button, card, html, text
from vllm_capacity.web.page.work import Work, WorkError


class LogPanel:
    """Shows what `jobs.log` answers. Logs stay on this server and are not in the link."""

    def __init__(self, work: Work, most_bytes: int) -> None:
        self._work = work
        self._log = b""
        with ui.element("div").classes("vc-panel vc-log") as self.root:
            whole, body = card("Read a log", "Output of vllm serve or of a script, as docker, kubectl or a terminal recorded it; "
                               "plain or .gz. It stays on this server and is not part of the link.")  # fmt: skip
            body.delete()
            with whole:
                self._upload = self._drop_zone(most_bytes)
                self._pasted = ui.textarea(
                    "Or paste it", placeholder="INFO 01-01 12:00:00 [gpu_worker.py:...] ...",
                    on_change=lambda event: self._paste(str(event.value or "")),
                ).props("outlined dense stack-label rows=4 spellcheck=false debounce=300 maxlength=900000")  # fmt: skip
                self._pasted.classes("vc-field vc-mono")
                with ui.element("details").classes("vc-more"):
                    text("Where the log does not say", "summary")
                    with ui.element("div").classes("vc-row"):
                        self._model = _choice("Model", choices.models())
                        self._gpu = _choice("GPU", choices.gpus())
                        self._release = _choice("vLLM release", choices.releases())
                    button("Read again").on("click", self._read)
                self._status = text("").classes("vc-about").props("role=status aria-live=polite")
            self._answer = html("").classes("vc-sections")

    def _drop_zone(self, most_bytes: int) -> ui.upload:
        """Quasar's uploader takes what is dropped; what is chosen goes to it from a native file input."""
        zone = ui.upload(
            auto_upload=True, max_file_size=most_bytes, max_files=1, on_upload=self._uploaded, on_rejected=self._rejected
        ).props("flat bordered").classes("vc-upload")  # fmt: skip
        with zone.add_slot("header"), ui.element("div").classes("vc-drop"):
            text("Drop a log here").classes("vc-word")
            text("or choose a file").classes("vc-fine")
            ui.element("input").props('type=file aria-label="Log file"').on(
                "change",
                js_handler=f"(event) => getElement({zone.id}).$refs.qRef.addFiles(event.target.files)",
            )
        with zone.add_slot("list"):
            text("").classes("vc-hidden")
        return zone

    async def _uploaded(self, event: events.UploadEventArguments) -> None:
        self._log = await event.file.read()
        self._upload.reset()
        await self._read()

    def _rejected(self, _event: Any) -> None:
        self._say("This file is larger than this server reads: cut the start of the run out of it.")

    async def _paste(self, words: str) -> None:
        if words.strip():
            self._log = words.encode()
            await self._read()

    async def _read(self) -> None:
        if not self._log:
            self._say("No log yet.")
            return
        self._say("Reading…")
        known = {"model": self._model.value, "gpu": self._gpu.value, "vllm_version": self._release.value}
        try:
            found = json.loads(await self._work("page_log", {k: v for k, v in known.items() if v}, self._log))
        except WorkError as error:
            self._answer.set_content("")
            self._say(str(error))
            return
        self._answer.set_content(found["html"])
        self._say(found["spoken"], seen=False)

    def _say(self, words: str, *, seen: bool = True) -> None:
        """For those who hear the page as well; not `seen` where the page shows the same in large."""
        self._status.set_content(escape(words))
        self._status.classes(remove="vc-hidden") if seen else self._status.classes(add="vc-hidden")


def _choice(label: str, options: Any) -> ui.select:
    return ui.select(options, label=label, with_input=True, clearable=True).props(
        "outlined dense stack-label options-dense hide-bottom-space"
    ).classes("vc-field")  # fmt: skip
