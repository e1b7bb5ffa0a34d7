"""Write docs/releases.md from the tables in capacity/releases. A test holds the page equal to them.

python tools/write_release_docs.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vllm_capacity.releases.features import FEATURES
from vllm_capacity.releases.release import Feature
from vllm_capacity.releases.wheels import WHEELS

PAGE = Path(__file__).parent.parent / "docs" / "releases.md"

INTRODUCTION = """\
# What each vLLM release does differently

vLLM's memory rules change between releases, also between patch releases. This tool plans exactly the
releases in the table below, whose wheels were read; any other, also a release candidate or a nightly
build, is refused by name and never mapped to a neighbour.

Each difference is one row of the feature table (`capacity/releases`) with the first and the last release
that has it. The code asks `release.has("name")` and tests a version number nowhere else.
`tools/verify_releases.py` finds every row's marker in every wheel by AST and compares the hash of each vLLM
function whose formula is cited; it is run on all wheels when a table changes.

Whether a newer vLLM needs anything is one command: `python tools/newest_release.py` fetches the newest wheel from
the package index and lists every cited function that changed or is gone, with the modules of ours that cite it, and every
pin and feature that differs. The citations come from the sources themselves; `tools/cited.json` holds the hashes as read.

To add a release: run that command and read what it lists; add the release's row to `capacity/releases/wheels.py`, run
`tools/verify_releases.py` on its wheel, adjust the rows, record the functions with `--update` (both scripts), and run
`tools/generate_flags.py` and `tools/generate_environment.py` on all wheels and `tools/write_release_docs.py`.

This page is written by `tools/write_release_docs.py`.
"""


def pins() -> Iterator[str]:
    yield "## Releases read"
    yield ""
    yield "CUDA and NCCL are those of the torch wheel that vLLM pins."
    yield ""
    yield "| vLLM | torch | CUDA | NCCL | FlashInfer | transformers | differences that start |"
    yield "|---|---|---|---|---|---|---|"
    for wheel in WHEELS:
        torch = wheel.torch
        started = len(_started(wheel.version)) + len(_ended_before(wheel.version))
        count = str(started) if wheel is not WHEELS[0] else ""
        requirement = wheel.transformers.replace("*", "\\*")
        yield (
            f"| {wheel.version} | {torch.version} | {torch.cuda} | {torch.nccl} | {wheel.flashinfer} "
            f"| {requirement} | {count} |"
        )


def _started(version: str) -> list[Feature]:
    return [feature for feature in FEATURES if feature.since == version]


def _ended_before(version: str) -> list[Feature]:
    """Features whose last release is the one before `version`."""
    versions = [wheel.version for wheel in WHEELS]
    index = versions.index(version)
    return [feature for feature in FEATURES if index and feature.until == versions[index - 1]]


def _row(feature: Feature, starts: bool) -> str:
    what = feature.meaning if starts else f"no longer: {feature.meaning}"
    last = feature.until if starts and feature.until else ""
    cells = [what, last, f"`{feature.name}`", feature.source]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def changes() -> Iterator[str]:
    yield "## Differences, release by release"
    for wheel in WHEELS:
        rows = [_row(feature, starts=True) for feature in _started(wheel.version)]
        rows += [_row(feature, starts=False) for feature in _ended_before(wheel.version)]
        if wheel is WHEELS[0]:
            rows = [_row(feature, starts=True) for feature in FEATURES if feature.since is None]
        yield ""
        yield f"### {wheel.version}"
        yield ""
        if wheel is WHEELS[0]:
            yield "The oldest release read. What it has and a later one has not:"
            yield ""
        if rows:
            yield "| difference | until | row | where in vLLM |"
            yield "|---|---|---|---|"
            yield from rows
        else:
            yield "No row starts or ends here."


def page() -> str:
    return INTRODUCTION + "\n" + "\n".join([*pins(), "", *changes()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
