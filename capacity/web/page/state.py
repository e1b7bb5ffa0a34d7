"""What the page holds: the text of every field as typed, and which tab is open. Nothing is parsed here.

Text, because the address must reproduce also what cannot be planned yet: half a number, a flag with a typing error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any


class Tab(StrEnum):
    """The three questions the page answers."""

    PLAN = "plan"
    LAYOUTS = "layouts"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """One question. An empty text means "not given": vLLM's default."""

    model: str = "meta-llama/Llama-3.1-8B-Instruct"
    config: str = ""
    """A pasted config.json; it wins over `model`, which then only names it."""
    gpu: str = "H100-80GB"
    tp: str = "1"
    pp: str = "1"
    dp: str = "1"
    context: str = ""
    concurrency: str = ""
    kv_dtype: str = "auto"
    utilisation: str = ""
    release: str = ""
    flags: str = ""
    """vLLM's other flags, as they stand after `vllm serve MODEL`."""
    every_gpu: str = ""
    """"yes": the tab of layouts compares the whole catalogue of GPUs, not only layouts on `gpu`."""
    tab: Tab = Tab.PLAN


FIELDS: tuple[str, ...] = tuple(field.name for field in fields(PageState))
TEXTS: tuple[str, ...] = tuple(name for name in FIELDS if name != "tab")
DEFAULT = PageState()


def with_texts(state: PageState, texts: Mapping[str, str]) -> PageState:
    """The state with other texts in some fields."""
    changed: dict[str, Any] = dict(texts)
    return replace(state, **changed)


def to_plain(state: PageState) -> dict[str, str]:
    """As JSON takes it."""
    return {name: str(getattr(state, name)) for name in FIELDS}


def from_plain(plain: Mapping[str, str]) -> PageState:
    """What `to_plain` made."""
    texts = {name: text for name, text in plain.items() if name != "tab"}
    return with_texts(PageState(tab=Tab(plain["tab"])), texts)
