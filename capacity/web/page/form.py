"""The fields of the page. Each holds text; what is wrong with it stands under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from nicegui import ui
from vllm_capacity.web.page import choices
from vllm_capacity.web.page.resolve import Problem
from vllm_capacity.web.page.state import PageState, with_texts

Changed = Callable[[PageState], None]


@dataclass(frozen=True, slots=True)
class _Text:
    """A field that is typed into."""

    name: str
    label: str
    placeholder: str
    hint: str = ""


_LAYOUT = (
    _Text("tp", "Tensor (tp)", "1"),
    _Text("pp", "Pipeline (pp)", "1"),
    _Text("dp", "Data (dp)", "1"),
)
_LOAD = (
    _Text("context", "Context, tokens", "the model's own", "32k, 32K or auto"),
    _Text("concurrency", "Requests at once", "not asked"),
)

_FORM = 'aria-label="What to plan" autocomplete=off onsubmit="return false"'


class Form:
    """Builds the fields from a state; calls `changed` with the new state whenever one of them changes."""

    def __init__(self, state: PageState, changed: Changed, settled: Callable[[], None]) -> None:
        self.state = state
        self._changed = changed
        self._fields: dict[str, Any] = {}
        with ui.element("form").classes("vc-form").props(_FORM) as self.root:
            self._group("Model")
            self._source = ui.toggle(
                {"catalogue": "By name", "config": "Paste config.json"},
                value="config" if state.config else "catalogue",
                on_change=lambda event: self._choose_source(event.value),
            ).props("no-caps unelevated spread dense toggle-color=primary").classes("vc-toggle")  # fmt: skip
            self._select("model", "Model", choices.models(), free=True)
            self._area("config", "config.json", "Paste the contents of config.json", rows=7)
            self._group("GPUs, and how the model is split")
            self._select("gpu", "GPU", choices.gpus(), free=True)
            with ui.element("div").classes("vc-row"):
                for text in _LAYOUT:
                    self._text(text, "inputmode=numeric")
            self._group("Load")
            with ui.element("div").classes("vc-row"):
                for text in _LOAD:
                    self._text(text)
            self._group("Memory and release")
            with ui.element("div").classes("vc-row"):
                self._select("kv_dtype", "KV cache dtype", choices.kv_dtypes(state.release))
                self._text(_Text("utilisation", "Memory utilisation", "vLLM's default"), "inputmode=decimal")
            self._select("release", "vLLM release", choices.releases())
            self._area("flags", "Engine flags", "--max-num-seqs 256 --enforce-eager", rows=2,
                       hint="As after vllm serve MODEL, or a whole command")  # fmt: skip
            self._fields["flags"].on("blur", settled)
        self._show_source()

    def show(self, state: PageState) -> None:
        """Puts another state into the fields, without calling `changed`."""
        self.state = state
        self._fields["kv_dtype"].set_options(self._offered(choices.kv_dtypes(state.release), state.kv_dtype))
        for name, field in self._fields.items():
            text = getattr(state, name)
            if name == "config" and not text:
                continue  # kept for who comes back to it
            self._offer(name, text)
            if (field.value or "") != text:
                field.value = text
        self._source.value = "config" if state.config else "catalogue"
        self._show_source()

    def show_problems(self, problems: Iterable[Problem]) -> None:
        """One line under each field that is wrong; the others have none."""
        messages: dict[str, str] = {}
        for problem in problems:
            messages.setdefault(problem.field, problem.message)
        for name, field in self._fields.items():
            field.error = messages.get(name)
            field.props["aria-invalid"] = "true" if name in messages else "false"

    # -- fields -------------------------------------------------------------------------------------------------

    def _group(self, title: str) -> None:
        with ui.element("h2").classes("vc-group"):
            ui.html(title, sanitize=False, tag="span")

    def _text(self, text: _Text, props: str = "") -> None:
        field = ui.input(
            text.label, placeholder=text.placeholder, value=getattr(self.state, text.name),
            on_change=lambda event: self._set(text.name, event.value),
        )  # fmt: skip
        self._dress(text.name, field, text.hint, props)

    def _area(self, name: str, label: str, placeholder: str, *, rows: int, hint: str = "") -> None:
        field = ui.textarea(
            label, placeholder=placeholder, value=getattr(self.state, name),
            on_change=lambda event: self._set(name, event.value),
        ).props(f"rows={rows} spellcheck=false").classes("vc-mono")  # fmt: skip
        self._dress(name, field, hint)

    def _select(
        self, name: str, label: str, options: list[str] | dict[str, str], *, free: bool = False
    ) -> None:
        value = getattr(self.state, name)
        field = ui.select(
            self._offered(options, value), label=label, value=value or None, with_input=free,
            new_value_mode="add-unique" if free else None,
            on_change=lambda event: self._set(name, event.value),
        ).props("options-dense")  # fmt: skip
        self._dress(name, field)

    def _dress(self, name: str, field: Any, hint: str = "", props: str = "") -> None:
        field.props(f"outlined dense stack-label hide-bottom-space {props}").classes("vc-field")
        field.props["name"] = name
        field.props["data-field"] = name
        if hint:
            field.props["hint"] = hint
        self._fields[name] = field

    @staticmethod
    def _offered(options: list[str] | dict[str, str], value: str) -> list[str] | dict[str, str]:
        """The options, and a value that is none of them: the page says what is wrong with it."""
        if not value or value in options:
            return options
        return {value: value, **options} if isinstance(options, dict) else [value, *options]

    def _offer(self, name: str, value: str) -> None:
        field = self._fields[name]
        if isinstance(field, ui.select):
            offered = self._offered(field.options, value)
            if offered is not field.options:
                field.set_options(offered)

    # -- changes ------------------------------------------------------------------------------------------------

    def _set(self, name: str, value: Any) -> None:
        text = "" if value is None else str(value)
        if name == "config" and self._source.value != "config":
            return
        if text != getattr(self.state, name):
            self.state = with_texts(self.state, {name: text})
            self._changed(self.state)

    def _choose_source(self, source: str) -> None:
        self._show_source()
        self._set_config(str(self._fields["config"].value or "") if source == "config" else "")

    def _set_config(self, text: str) -> None:
        if text != self.state.config:
            self.state = replace(self.state, config=text)
            self._changed(self.state)

    def _show_source(self) -> None:
        pasted = self._source.value == "config"
        self._fields["config"].set_visibility(pasted)
        self._fields["model"].set_visibility(not pasted)
