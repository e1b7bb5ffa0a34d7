"""Constants that only a GPU can tell, each with the recorded runs behind it, and how far a plan lies from
what was measured.

`calibration.yaml` ships with the package. A user's own file
(`$XDG_CONFIG_HOME/vllm-capacity/calibration.yaml`, written by `vllm-capacity validate`) has the same form;
its entries are asked first. A measurement is looked up by cause: device, compute capability, PyTorch version,
tensor parallel size.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from vllm_capacity.context import RankContext, once
from vllm_capacity.device import Device
from vllm_capacity.engine import EngineConfig
from vllm_capacity.errors import InputError
from vllm_capacity.frozen import dataclass
from vllm_capacity.inputs.text_files import read_text

_ENTRY = re.compile(r"^  ([^\s#:][^\s:]*):$", re.MULTILINE)
_FIELD = re.compile(r"^    ([a-z_]+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """One measured constant in bytes, its spread and where it comes from; equal only to itself."""

    name: str
    component: str
    n_bytes: int
    low: int
    high: int
    origin: str
    runs: tuple[str, ...]
    when: Mapping[str, Any]
    source: str
    """'built-in' or the path of a user's file."""

    @property
    def measured(self) -> bool:
        """False where no recorded run stands behind it."""
        return bool(self.runs)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """All measurements, the user's before the built-in ones."""

    measurements: tuple[Measurement, ...]
    source: str

    def find(self, component: str, **facts: Any) -> Measurement | None:
        """The first measurement of this component whose conditions all hold."""
        return _find(self, component, tuple(facts.items()))

    def get(self, component: str, **facts: Any) -> Measurement:
        """As `find`; the file has a fallback for every component."""
        found = self.find(component, **facts)
        if found is None:
            raise InputError(f"calibration has no entry for {component}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How well measured the accounting behind this plan is."""

    source: str
    """'built-in', or the user's calibration file."""
    recorded_runs: int
    """Recorded runs of this release's accounting."""
    outside_measured: tuple[str, ...]
    """What of this plan lies outside of them."""


@lru_cache(maxsize=512)
def _find(known: Calibration, component: str, facts: tuple[tuple[str, Any], ...]) -> Measurement | None:
    at = dict(facts)
    return next((m for m in known.measurements if m.component == component and _holds(m.when, at)), None)


def _holds(when: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    """`device`: part of the device's name; `torch`: a version prefix; other keys: a list that holds the
    value.
    """
    for key, wanted in when.items():
        value = facts.get(key)
        if value is None:
            return False
        if key == "device":
            if not re.search(rf"(?<![A-Za-z0-9]){re.escape(str(wanted))}(?![0-9])", str(value)):
                return False
        elif key == "torch":
            if not f"{value}.".startswith(f"{wanted}."):
                return False
        elif value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def user_file() -> Path:
    """Where a user's calibration lives."""
    return Path(_user_path())


def _user_path() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "vllm-capacity", "calibration.yaml")


def load_calibration(path: str | Path | None = None) -> Calibration:
    """The built-in measurements, with those of `path` (default: the user's file, if it exists) before them.

    'none' leaves the user's file out.
    """
    if path == "none":
        return _shipped()
    extra = _user_path() if path is None else str(path)
    try:
        stat = os.stat(extra)
    except OSError:
        if path is None:
            return _shipped()
        return _extended(extra, 0, 0)
    return _extended(extra, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _extended(path: str, changed_ns: int, size: int) -> Calibration:
    """Time of change and size are there so that a plan after a new measurement sees it."""
    return Calibration((*_read(Path(path), path), *_built_in()), path)


_active: ContextVar[Calibration | None] = ContextVar("calibration", default=None)


def calibration() -> Calibration:
    """What terms look constants up in: the one of `use_calibration`, else the built-in measurements."""
    return _active.get() or _shipped()


@contextmanager
def use_calibration(chosen: Calibration | None) -> Iterator[None]:
    """Plan with these measurements; None keeps what is in use."""
    if chosen is None:
        yield
        return
    token = _active.set(chosen)
    try:
        yield
    finally:
        _active.reset(token)


@lru_cache(maxsize=1)
def _shipped() -> Calibration:
    return Calibration(_built_in(), "built-in")


@lru_cache(maxsize=1)
def _built_in() -> tuple[Measurement, ...]:
    return _read(Path(__file__).with_name("calibration.yaml"), "built-in")


def _read(path: Path, source: str) -> tuple[Measurement, ...]:
    """Entries of a file: two spaces before a name, four before a field, a JSON value per field."""
    text = read_text(path, f"calibration file {path}")
    heads = list(_ENTRY.finditer(text))
    if not heads:
        if text.split() in ([], ["measurements:"]):
            return ()
        raise InputError(
            f"calibration file {path} holds no measurement: not one that `validate` or `refine` wrote; "
            "--calibration none plans without it"
        )
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return tuple(
        _measurement(head[1], text[head.end() : end], path, source)
        for head, end in zip(heads, ends, strict=True)
    )


def _measurement(name: str, text: str, path: Path, source: str) -> Measurement:
    try:
        fields = {key: json.loads(value) for key, value in _FIELD.findall(text)}
        n_bytes, low, high = (fields[key] for key in ("bytes", "low", "high"))
        if not all(type(n) is int and n >= 0 for n in (n_bytes, low, high)) or not low <= n_bytes <= high:
            raise ValueError("bytes, low and high must be integers with low <= bytes <= high")
        when, runs = fields.get("when", {}), fields.get("runs", [])
        if not isinstance(when, dict) or not isinstance(runs, list):
            raise ValueError("`when` must be an object and `runs` a list")
        return Measurement(
            name,
            str(fields["component"]),
            n_bytes,
            low,
            high,
            str(fields.get("origin", "")),
            tuple(str(run) for run in runs),
            when,
            source,
        )
    except KeyError as error:
        raise InputError(f"calibration file {path}, entry {name!r:.80}: {error} is missing") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"calibration file {path}, entry {name!r:.80}: {error}") from None


class Constants:
    """The measurements that hold in one set of circumstances."""

    def __init__(self, known: Calibration, facts: Mapping[str, Any]) -> None:
        self._known, self._facts = known, facts
        self._found: dict[str, Measurement | None] = {}

    def find(self, component: str) -> Measurement | None:
        """As `Calibration.find`."""
        if component not in self._found:
            self._found[component] = self._known.find(component, **self._facts)
        return self._found[component]

    def get(self, component: str) -> Measurement:
        """As `Calibration.get`."""
        return self.find(component) or self._known.get(component, **self._facts)


@once
def constants(ctx: RankContext) -> Constants:
    """The measurements for this rank's device, release and layout."""
    device, engine = ctx.device, ctx.engine
    return _constants(
        calibration(), device.name, device.sm, engine.parallel.tp, engine.parallel.world_size * engine.parallel.dp,
        ctx.release.torch, engine.model_runner, engine.environment.get("NCCL_NVLS_ENABLE", "1") != "0",
        _fuses_all_reduce(device, engine),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _constants(
    known: Calibration, device: str, sm: int, tp: int, world: int, torch: str | None, runner: str, nvls: bool,
    fused_all_reduce: bool,
) -> Constants:  # fmt: skip
    return Constants(known, {
        "device": device, "sm": sm, "tp": tp, "world": world, "torch": torch, "model_runner": runner, "nvls": nvls,
        "fused_all_reduce": fused_all_reduce,
    })  # fmt: skip


def _fuses_all_reduce(device: Device, engine: EngineConfig) -> bool:
    """Whether the all-reduce is fused with the norm after it, which brings FlashInfer's workspace.

    Source: config/vllm.py: enable_allreduce_rms_fusion (0.26.0).
    """
    passes = engine.args.compilation_config.get("pass_config")
    given = passes.get("fuse_allreduce_rms") if isinstance(passes, Mapping) else None
    able = engine.compiled and engine.parallel.tp > 1 and (device.sm == 90 or 100 <= device.sm < 110)
    return able if given is None else bool(given)


def l2_cache(device: Device) -> Measurement:
    """Bytes of the device's L2 cache."""
    return calibration().get("l2_cache", device=device.name, sm=device.sm)


RECORDED_RUNS = {"0.19.0": 37, "0.22.0": 1, "0.26.0": 51, "0.29.0": 2, "0.33.0": 21}
"""Recorded start-ups whose KV cache is known, by release: docs/accuracy.md lists them, and a test counts them there (the records
themselves are not part of the package).
"""


def coverage(ctx: RankContext) -> Coverage:
    """How well measured the accounting behind a plan is, and what of it lies outside of the recorded runs."""
    runs = _runs_of(ctx.release.has("consumed_accounting"))
    return Coverage(source=calibration().source, recorded_runs=runs, outside_measured=outside_measured(ctx))


@cache
def _runs_of(consumed_accounting: bool) -> int:
    """Recorded runs of the releases with that accounting."""
    from vllm_capacity.releases import get_release

    return sum(
        n
        for version, n in RECORDED_RUNS.items()
        if get_release(version).has("consumed_accounting") == consumed_accounting
    )


def outside_measured(ctx: RankContext) -> tuple[str, ...]:
    """What of this plan no recorded run stands behind, in words; empty when all of it was measured."""
    device, parallel, release, known = ctx.device, ctx.engine.parallel, ctx.release, constants(ctx)
    wanted = {
        "cuda_context": f"the CUDA context on {device.name}",
        "kernel_modules": f"kernel modules on {device.name}",
    }
    if parallel.tp > 1:
        wanted["collectives"] = f"communication buffers of tp={parallel.tp} on {device.name}"
    if parallel.world_size * parallel.dp > 1:
        wanted["nccl_world"] = f"NCCL communicators on {device.name}"
    if ctx.engine.cudagraph_mode != "NONE":
        wanted["graph_nodes"] = f"CUDA graphs on {device.name}"
    missing = [words for component, words in wanted.items() if not known.get(component).measured]
    if release.version not in RECORDED_RUNS:
        missing.append(f"vLLM {release.version} itself: derived from its source, no run of it is recorded")
    return tuple(missing)


def recorded_runs(measurements: Iterable[Measurement]) -> int:
    """Distinct recorded runs named by these measurements."""
    return len({run for m in measurements for run in m.runs})


def render(measurements: Iterable[Measurement]) -> str:
    """The text of a calibration file with these measurements; `load_calibration` reads it back."""
    lines = ["measurements:"]
    for m in measurements:
        lines.append(f"  {m.name}:")
        fields = {
            "component": m.component,
            "when": dict(m.when),
            "bytes": m.n_bytes,
            "low": m.low,
            "high": m.high,
            "runs": list(m.runs),
            "origin": m.origin,
        }
        lines += [f"    {key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"
