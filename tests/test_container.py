"""The image definition: what it copies exists, what it installs is pinned, and it does not run as root.

No engine builds it here; docs/install.md says how it was built and tried.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, str]]:
    """(instruction, rest) of each line, continued lines joined."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [
        (name, " ".join(rest.split())) for name, _, rest in (line.strip().partition(" ") for line in joined)
    ]


@pytest.fixture(scope="module")
def pinned() -> dict[str, str]:
    lines = (ROOT / "container" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def test_what_is_copied_exists_and_reaches_the_build(steps):
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [
        shlex.split(rest)[:-1] for name, rest in steps if name == "COPY" and not rest.startswith("--from")
    ]
    for source in (word for words in copied for word in words):
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source


def test_both_stages_start_from_the_same_named_base(steps):
    assert [rest for name, rest in steps if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    (base,) = (rest for name, rest in steps if name == "ARG" and rest.startswith("BASE="))
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.1[1-4]-slim-\w+", base)


def test_it_runs_as_a_numbered_user_that_is_not_root(steps):
    after_last_from = steps[max(i for i, (name, _) in enumerate(steps) if name == "FROM") :]
    (user,) = (rest for name, rest in after_last_from if name == "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)


def test_every_package_is_pinned_within_our_ranges(pinned):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for text in (*project["dependencies"], *extras["web"], *extras["plots"]):
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), text


def test_its_command_and_health_check_are_of_the_server_as_it_is(steps):
    from vllm_capacity.cli.web import command

    known = {name for parameter in command.params for name in parameter.opts}
    words = {name: rest for name, rest in steps if name in ("ENTRYPOINT", "CMD", "HEALTHCHECK", "EXPOSE")}
    assert words["ENTRYPOINT"] == '["vllm-capacity"]'
    arguments = re.findall(r'"([^"]*)"', words["CMD"])
    assert arguments[0] == "web"
    assert {word for word in arguments if word.startswith("--")} <= known
    port = arguments[arguments.index("--port") + 1]
    assert words["EXPOSE"] == port
    assert f"http://127.0.0.1:{port}/healthz" in words["HEALTHCHECK"]
    assert '"/healthz"' in "".join(path.read_text() for path in (ROOT / "capacity" / "web").glob("*.py"))
