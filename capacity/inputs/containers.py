"""`docker run ... vllm/vllm-openai:vX --model ...`: which part is the container's and which is vLLM's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass

ENGINES = ("docker", "podman", "nerdctl")

_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm-openai(?:-\w+)?(?::(?P<tag>[\w.-]+))?(?:@sha256:\w+)?$")
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+(?:\.?(?:rc|post|dev)\d+)?)(?:[-+].*)?$")

_NO_VALUE = frozenset(
    {
        "rm",
        "detach",
        "interactive",
        "tty",
        "privileged",
        "init",
        "read-only",
        "no-healthcheck",
        "oom-kill-disable",
        "publish-all",
        "quiet",
        "replace",
        "sig-proxy",
        "disable-content-trust",
        "help",
    }
)
"""Options of `docker run` without a value; all others take one
(docs.docker.com/reference/cli/docker/container/run).
"""

_SHORT_NO_VALUE = frozenset("ditPq")


@dataclass(frozen=True, slots=True)
class Container:
    """`words` are what the image's entry point gets; `version` is the release that its tag names."""

    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    version: str | None = None
    notes: tuple[str, ...] = ()


def read_run(words: Sequence[str]) -> Container:
    """Reads the words after `docker`. InputError if no image is named."""
    rest = list(words)
    while rest and rest[0] != "run":
        if not rest[0].startswith("-") and rest[0] not in ("container", "compose"):
            raise InputError(f"docker {rest[0]}: only `docker run` starts vLLM")
        rest.pop(0)
    if not rest:
        raise InputError("docker: no `run` in the pasted line")
    rest.pop(0)
    environment: dict[str, str] = {}
    notes: list[str] = []
    entrypoint: list[str] = []
    while rest and rest[0].startswith("-"):
        name, value = _option(rest)
        if name in ("e", "env") and value is not None:
            key, equals, text = value.partition("=")
            if equals:
                environment[key] = text
            else:
                notes.append(f"{key} is taken from the host's environment, which is not known here")
        elif name == "env-file":
            notes.append(f"--env-file {value} is not read: give its variables with --env")
        elif name == "entrypoint" and value:
            entrypoint = [value]
    if not rest:
        raise InputError("docker run: no image in the pasted line")
    image = rest.pop(0)
    match = _IMAGE.match(image)
    version = _VERSION.match(match["tag"] or "") if match else None
    if version is None:
        notes.append(f"the image {image} does not say which vLLM it holds")
    return Container(tuple(entrypoint + rest), environment, version[1] if version else None, tuple(notes))


def _option(rest: list[str]) -> tuple[str, str | None]:
    """Takes one option and its value off `rest`."""
    word = rest.pop(0)
    name, equals, value = word.partition("=")
    if word.startswith("--"):
        name = name[2:]
        if equals:
            return name, value
        return name, None if name in _NO_VALUE or not rest else rest.pop(0)
    letters = name[1:]
    if letters and set(letters) <= _SHORT_NO_VALUE:
        return letters, None
    short = letters[:1]
    if len(letters) > 1:
        return short, (letters[1:] + equals + value).removeprefix("=")
    if equals:
        return short, value
    return short, rest.pop(0) if rest else None
