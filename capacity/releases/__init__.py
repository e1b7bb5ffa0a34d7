"""vLLM releases: which ones were read, and what each does differently.

>>> get_release("0.26.0").has("in_flight_window_factor")
True
"""

from __future__ import annotations

import re
from functools import cache

from vllm_capacity.errors import InputError
from vllm_capacity.releases.features import FEATURES
from vllm_capacity.releases.release import Release, version_key
from vllm_capacity.releases.wheels import WHEELS, Wheel

__all__ = ["Release", "get_release", "newest_release", "supported_releases"]

_VERSION = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


@cache
def supported_releases() -> tuple[str, ...]:
    """Versions of the releases whose wheel was read, oldest first."""
    return tuple(wheel.version for wheel in WHEELS)


def newest_release() -> Release:
    """The newest release that was read."""
    return get_release(WHEELS[-1].version)


@cache
def get_release(version: str) -> Release:
    """The release of that exact version ('0.26.0'; a leading 'v' as in an image tag is dropped).

    Raises InputError for any other: a release that was not read is never mapped to a neighbour, because
    defaults and formulas change even between patch releases.
    """
    name = version.strip().removeprefix("v")
    for wheel in WHEELS:
        if wheel.version == name:
            return _build(wheel)
    raise InputError(_refusal(version.strip()))


@cache
def _build(wheel: Wheel) -> Release:
    key = version_key(wheel.version)
    return Release(
        version=wheel.version,
        features=frozenset(
            feature.name
            for feature in FEATURES
            if (feature.since is None or version_key(feature.since) <= key)
            and (feature.until is None or key <= version_key(feature.until))
        ),
        known=frozenset(feature.name for feature in FEATURES),
        pins=wheel.pins,
    )


def _refusal(version: str) -> str:
    versions = supported_releases()
    match = _VERSION.match(version)
    if match is None:
        return f"'{version}' is not a vLLM version; the releases read are {', '.join(versions)}"
    key = tuple(int(part or 0) for part in match.groups())
    older = [name for name in versions if version_key(name) <= key]
    newer = [name for name in versions if version_key(name) > key]
    nearest = " and ".join(([older[-1]] if older else []) + ([newer[0]] if newer else []))
    kind = "" if re.fullmatch(r"v?[\d.]+", version) else " (a build between releases)"
    return (
        f"vLLM {version}{kind} was not read, so its memory rules are not known and no other release's are "
        f"used instead; nearest read: {nearest} (choose one with --vllm-version)"
    )
