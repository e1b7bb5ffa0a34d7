"""The fields of the page. Each holds text; what is wrong with it stands under it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nicegui import ui
from vllm_capacity.web.page import choices
from vllm_capacity.web.page.pieces import text
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
    _Text("context", "max_model_len, tokens", "the model's own", "32k, 32K or auto"),
    _Text("concurrency", "Requests at once", "not asked"),
)

MOST_TYPED = 900_000
"""Characters of a box: a message of a browser to NiceGUI has at most a million."""
_PLAIN_LIST = (
    "() => setTimeout(() => document.querySelectorAll('.q-menu [class^=q-virtual-scroll]')"
    ".forEach((space) => space.removeAttribute('tabindex')), 50)"
)
"""Quasar lets the space around a list's options be focused, which is no option for a screen reader."""
_FORM = 'aria-label="What to plan" autocomplete=off onsubmit="return false"'


class Form:
    """Builds the fields from a state; calls `changed` with the new state whenever one of them changes."""

    def __init__(
        self, state: PageState, changed: Changed, settled: Callable[[], None], allow_hub: bool
    ) -> None:
        self.state = state
        self._changed = changed
        self._fields: dict[str, Any] = {}
        with ui.element("form").classes("vc-form").props(_FORM) as self.root:
            self._group("Model")
            with ui.element("div").classes("vc-segments"):
                self._by_name = self._segment("By name", pasted=False)
                self._by_config = self._segment("Paste config.json", pasted=True)
            self._select("model", "Model", choices.models(), search=True, free=True,
                         hint="Part of a name, or any Hugging Face id" if allow_hub else "")  # fmt: skip
            self._area("config", "config.json", "Paste the contents of config.json", rows=7)
            self._group("GPUs, and how the model is split")
            self._select("gpu", "GPU", choices.gpus(), search=True)
            with ui.element("div").classes("vc-row"):
                for typed in _LAYOUT:
                    self._text(typed, "inputmode=numeric")
            self._group("Load")
            with ui.element("div").classes("vc-row"):
                for typed in _LOAD:
                    self._text(typed)
            self._group("Memory and release")
            with ui.element("div").classes("vc-row"):
                self._select("kv_dtype", "KV cache dtype", choices.kv_dtypes(state.release))
                self._text(_Text("utilisation", "Utilisation", "vLLM's default"), "inputmode=decimal")
            self._select("release", "vLLM release", choices.releases())
            self._area("flags", "Engine flags", "--max-num-seqs 256 --enforce-eager", rows=2,
                       hint="As after vllm serve MODEL, or a whole command")  # fmt: skip
            self._fields["flags"].on("blur", settled)
        self._show_source(bool(state.config))

    def show(self, state: PageState) -> None:
        """Puts another state into the fields, without calling `changed`."""
        self.state = state
        self._offer_dtypes()
        for name, field in self._fields.items():
            text = getattr(state, name)
            if name == "config" and not text:
                continue  # kept for who comes back to it
            self._offer(name, text)
            if (field.value or "") != text:
                field.value = text
        self._show_source(bool(state.config))

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
            text(title, "span")

    def _text(self, typed: _Text, props: str = "") -> None:
        field = ui.input(
            typed.label, placeholder=typed.placeholder, value=getattr(self.state, typed.name),
            on_change=lambda event: self._set(typed.name, event.value),
        )  # fmt: skip
        self._dress(typed.name, field, typed.hint, props)

    def _area(self, name: str, label: str, placeholder: str, *, rows: int, hint: str = "") -> None:
        field = ui.textarea(
            label, placeholder=placeholder, value=getattr(self.state, name),
            on_change=lambda event: self._set(name, event.value),
        ).props(f"rows={rows} spellcheck=false maxlength={MOST_TYPED}").classes("vc-mono")  # fmt: skip
        self._dress(name, field, hint)

    def _select(
        self,
        name: str,
        label: str,
        options: list[str] | dict[str, str],
        *,
        search: bool = False,
        free: bool = False,
        hint: str = "",
    ) -> None:
        value = getattr(self.state, name)
        field = ui.select(
            self._offered(options, value), label=label, value=value or None, with_input=search,
            new_value_mode="add-unique" if free else None,
            on_change=lambda event: self._set(name, event.value),
        ).props("options-dense input-debounce=0")  # fmt: skip
        field.on("popup-show", js_handler=_PLAIN_LIST)
        self._dress(name, field, hint)

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

    def _offer_dtypes(self) -> None:
        """Those of the release."""
        offered = self._offered(choices.kv_dtypes(self.state.release), self.state.kv_dtype)
        self._fields["kv_dtype"].set_options(offered)

    # -- changes ------------------------------------------------------------------------------------------------

    def _set(self, name: str, value: Any) -> None:
        text = "" if value is None else str(value)
        if name == "config" and not self._pasting:
            return
        if text != getattr(self.state, name):
            self.state = with_texts(self.state, {name: text})
            if name == "release":
                self._offer_dtypes()
            self._changed(self.state)

    def _segment(self, words: str, *, pasted: bool) -> ui.element:
        return text(words, "button").props("type=button").on("click", lambda: self._choose_source(pasted))

    def _choose_source(self, pasted: bool) -> None:
        self._show_source(pasted)
        config = str(self._fields["config"].value or "") if pasted else ""
        if config != self.state.config:
            self.state = with_texts(self.state, {"config": config})
            self._changed(self.state)

    def _show_source(self, pasted: bool) -> None:
        self._pasting = pasted
        self._by_name.props(f"aria-pressed={'false' if pasted else 'true'}")
        self._by_config.props(f"aria-pressed={'true' if pasted else 'false'}")
        self._fields["config"].set_visibility(pasted)
        self._fields["model"].set_visibility(not pasted)
