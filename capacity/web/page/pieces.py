"""Elements that the panels are built from."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from nicegui import ui


def html(content: str, tag: str = "div") -> ui.html:
    """HTML of ours: everything from elsewhere in it is escaped where it is made."""
    return ui.html(content, sanitize=False, tag=tag)


def text(content: str, tag: str = "p") -> ui.html:
    """Plain text."""
    return html(escape(content), tag)


def button(words: str) -> ui.html:
    """A button with words."""
    return text(words, "button").classes("vc-button").props("type=button")


def card(title: str, lead: str = "") -> tuple[ui.element, ui.html]:
    """(the card, its body)."""
    with ui.element("section").classes("vc-card").props(f'aria-label="{title}"') as whole:
        text(title, "h2")
        if lead:
            text(lead).classes("vc-fine")
        body = html("")
    return whole, body


def on_data(element: ui.element, name: str, handler: Callable[[str], Any]) -> None:
    """Calls `handler` with the value of `data-NAME` of whatever in `element` was clicked."""
    element.on(
        "click",
        lambda event: handler(str(event.args)),
        js_handler=f"(event) => {{ const it = event.target.closest('[data-{name}]'); if (it) emit(it.dataset.{name}) }}",
    )


def copy_handler(what: str) -> str:
    """A click handler that copies the JavaScript expression `what` and emits whether that worked."""
    return (
        f"() => {{ const done = navigator.clipboard ? navigator.clipboard.writeText({what}) : Promise.reject(); "
        "done.then(() => emit(true), () => emit(false)) }"
    )
