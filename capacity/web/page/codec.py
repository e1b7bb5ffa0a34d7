"""The page's state as the query of its address, and back: a link reproduces the page.

`model`, `gpu` and `vllm` are always written, so that a link still says the same once a default has changed; the other fields
only where they differ from the default. A pasted config travels compressed (zlib, base64url).
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlencode

from vllm_capacity.web.page.state import DEFAULT, FIELDS, PageState, Tab

MAX_QUERY = 16_000
"""Characters of a query: servers, proxies and chat programs cut or refuse much longer addresses."""
MAX_TEXT = 4_000
"""Characters of one field that is no config."""
MAX_CONFIG = 1 << 20
"""Characters of a pasted config once unpacked: a short link cannot unpack to more."""

NAMES = {
    "kv_dtype": "kv",
    "release": "vllm",
    "every_gpu": "all_gpus",
}
"""Parameters whose name differs from the field's."""
_PARAMETER = {field: NAMES.get(field, field) for field in FIELDS}
_FIELD = {parameter: field for field, parameter in _PARAMETER.items()}
_ALWAYS = ("model", "gpu", "release")


@dataclass(frozen=True, slots=True)
class Link:
    """`query` without the question mark; `too_long` says in words what it leaves out, or is empty."""

    query: str
    too_long: str = ""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The state that a query names; `problems` are one line for each part of it that could not be read."""

    state: PageState
    problems: tuple[str, ...] = ()


def to_link(state: PageState) -> Link:
    """The query that `from_query` reads back as `state`, but for what `too_long` names."""
    query = urlencode(_pairs(state), errors="replace")
    if len(query) <= MAX_QUERY:
        return Link(query)
    if state.config:
        rest = urlencode(_pairs(replace(state, config="")), errors="replace")
        if len(rest) <= MAX_QUERY:
            return Link(
                rest,
                f"The pasted config is too long for a link ({len(query):,} characters of at most {MAX_QUERY:,}): "
                "the link holds everything else.",
            )
    return Link("", f"This page is too long for a link ({len(query):,} characters of at most {MAX_QUERY:,}).")


def _pairs(state: PageState) -> list[tuple[str, str]]:
    pairs = []
    for field in FIELDS:
        text = str(getattr(state, field))
        if text == str(getattr(DEFAULT, field)) and field not in _ALWAYS:
            continue
        pairs.append((_PARAMETER[field], _packed(text) if field == "config" else text))
    return pairs


def from_query(query: str, defaults: PageState = DEFAULT) -> Decoded:
    """The state of a query; what is missing is `defaults`', what cannot be read is left out and named."""
    if len(query) > 4 * MAX_QUERY:
        return Decoded(defaults, ("The link is too long to be one of this page's.",))
    values: dict[str, str] = {}
    problems: list[str] = []
    for parameter, text in parse_qsl(query, keep_blank_values=True):
        field = _FIELD.get(parameter)
        if field is None:
            problems.append(f"The link names “{parameter[:40]}”, which this page does not know.")
        elif field == "config":
            unpacked = _unpacked(text)
            if unpacked is None:
                problems.append("The link's config is damaged: paste it again.")
            else:
                values[field] = unpacked
        elif len(text) > MAX_TEXT:
            problems.append(f"The link's “{parameter}” is longer than {MAX_TEXT:,} characters.")
        elif field == "tab" and text not in set(Tab):
            problems.append(f"The link names the tab “{text[:40]}”, which this page does not have.")
        else:
            values[field] = text
    tab = Tab(values.pop("tab", defaults.tab))
    return Decoded(replace(defaults, **values, tab=tab), tuple(problems))


def _packed(text: str) -> str:
    data = zlib.compress(text.encode("utf-8", "surrogatepass"), 9)
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _unpacked(text: str) -> str | None:
    """None where `text` is no packed config, or one that unpacks to more than MAX_CONFIG."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        stream = zlib.decompressobj()
        unpacked = stream.decompress(data, MAX_CONFIG)
        if not stream.eof:
            return None
        return unpacked.decode("utf-8", "surrogatepass")
    except (binascii.Error, zlib.error, ValueError):
        return None
