"""One vLLM release's behaviour, read off one table of features with first and last release."""

from __future__ import annotations

from dataclasses import field

from vllm_capacity.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Feature:
    """A behaviour of the releases from `since` to `until`, the first and the last that have it (None: open).

    `source` names the file and the function of vLLM where it shows.
    """

    name: str
    since: str | None
    until: str | None
    source: str
    meaning: str


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """A release whose wheel was read, one object for each. Ask `release.has("feature name")`; unknown names raise
    KeyError.
    """

    version: str
    features: frozenset[str] = field(repr=False)
    known: frozenset[str] = field(repr=False)
    pins: tuple[tuple[str, str], ...] = ()
    """What the wheel pins: (("torch", "2.11.0"), ...)."""

    def has(self, feature: str) -> bool:
        if feature in self.features:
            return True
        if feature not in self.known:
            raise KeyError(feature)
        return False

    @property
    def torch(self) -> str | None:
        """The PyTorch version that the wheel pins."""
        return next((version for name, version in self.pins if name == "torch"), None)

    @property
    def key(self) -> tuple[int, ...]:
        return version_key(self.version)


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of 'X.Y.Z'."""
    return tuple(int(part) for part in version.split("."))
