"""Hold the release tables equal to vLLM's wheels.

    python tools/verify_releases.py WHEELS...        folders of .whl files, .whl files or unpacked wheels
    python tools/verify_releases.py --download DIR   fetch the wheels of every release in the table into DIR
    first python tools/verify_releases.py --update WHEELS  record the functions of new wheels as reviewed

For every wheel: what METADATA pins; for every row of the feature table, its marker (tools/markers.yaml); and
the hash of every function whose formula we cite (tools/reviewed.yaml). Wheels are parsed, never imported.
Exits 1 if anything differs and says which feature, wheel or function it is.

To add a release: add its row to capacity/releases/wheels.py, run this on its wheel, read each function that
it lists, adjust the rows of the tables, then run it once more with --update.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from vllm_capacity.releases import get_release, supported_releases
from vllm_capacity.releases.features import FEATURES
from vllm_capacity.releases.release import version_key
from vllm_capacity.releases.wheels import WHEELS, Wheel
from wheel_source import WheelSource, digest, find_wheels, text_of

HERE = Path(__file__).parent
MARKERS = HERE / "markers.yaml"
REVIEWED = HERE / "reviewed.yaml"


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def matches(wheel: WheelSource, marker: Mapping[str, Any]) -> bool:
    """True if the wheel shows the marker: the place exists, has every text of `has` and none of `lacks`."""
    places = (
        (file, name) for file in as_list(marker["file"]) for name in as_list(marker.get("at")) or [None]
    )
    node = next(
        (found for file, name in places if (found := wheel.find(file, name or None)) is not None), None
    )
    if node is None:
        return False
    text = text_of(node)
    has, lacks = as_list(marker.get("has")), as_list(marker.get("lacks"))
    return all(part in text for part in has) and not any(part in text for part in lacks)


def shows(wheel: WheelSource, marker: Any) -> bool:
    """A marker is one mapping; a list of them, of which all must match; or {any: [...]} / {no: marker} / {asks: package}."""
    if isinstance(marker, list):
        return all(shows(wheel, part) for part in marker)
    if "asks" in marker:
        return wheel.requirement(marker["asks"]) in as_list(marker["for"])
    if "any" in marker:
        return any(shows(wheel, part) for part in marker["any"])
    negated = marker.get("no", marker.get(False))  # YAML 1.1 reads a bare `no` as false
    if negated is not None:
        return not shows(wheel, negated)
    return matches(wheel, marker)


def check_features(wheel: WheelSource, markers: Mapping[str, Any]) -> Iterator[str]:
    release = get_release(wheel.version)
    for feature in FEATURES:
        if feature.name not in markers:
            continue
        found, expected = shows(wheel, markers[feature.name]), release.has(feature.name)
        if found != expected:
            says, shown = ("has", "does not show it") if expected else ("lacks", "shows it")
            yield f"{wheel.version}: the table {says} {feature.name}, the wheel {shown} ({feature.source})"


def check_markers(markers: Mapping[str, Any]) -> Iterator[str]:
    """The part that needs no wheel: markers and features name each other."""
    names = [feature.name for feature in FEATURES]
    yield from (f"feature {name} has no marker in {MARKERS.name}" for name in names if name not in markers)
    yield from (f"marker {name} is of no feature" for name in markers if name not in names)
    yield from (f"feature {name} has two rows" for name in sorted({n for n in names if names.count(n) > 1}))


def check_pins(wheel: WheelSource) -> Iterator[str]:
    row: Wheel = next(row for row in WHEELS if row.version == wheel.version)
    for package, expected in (
        ("torch", f"=={row.torch.version}"),
        ("flashinfer-python", f"=={row.flashinfer}"),
        ("transformers", row.transformers),
    ):
        if (found := wheel.requirement(package)) != expected:
            yield f"{wheel.version}: METADATA asks for {package}{found}, the table says {expected}"


def reviewed_digest(history: Mapping[str, str], version: str) -> str:
    """The hash that was recorded for the newest release up to `version`."""
    older = [since for since in history if version_key(since) <= version_key(version)]
    return history[max(older, key=version_key)] if older else "absent"


def check_functions(wheel: WheelSource, reviewed: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for place, history in reviewed.items():
        file, _, name = place.partition(": ")
        if digest(wheel.find(file, name or None)) != reviewed_digest(history, wheel.version):
            yield f"{wheel.version}: review {place}"


def update(wheels: Iterable[WheelSource], reviewed: dict[str, dict[str, str]]) -> None:
    """Record each function's hash of each wheel where it differs from the release before."""
    for place, history in reviewed.items():
        file, _, name = place.partition(": ")
        hashes = dict(history)
        known = [w.version for w in wheels]
        for version in [v for v in hashes if v in known]:
            del hashes[version]
        for wheel in wheels:
            if (found := digest(wheel.find(file, name or None))) != reviewed_digest(hashes, wheel.version):
                hashes[wheel.version] = found
        history.clear()
        history.update(sorted(hashes.items(), key=lambda item: version_key(item[0])))
    header = "".join(line + "\n" for line in REVIEWED.read_text().splitlines() if line.startswith("#"))
    body = yaml.safe_dump(reviewed, sort_keys=False, width=1000)
    REVIEWED.write_text(header + body)


def download(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for version in supported_releases():
        if any(folder.glob(f"vllm-{version}-*.whl")):
            continue
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(folder), f"vllm=={version}"], check=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--download", type=Path, metavar="DIR")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args(arguments)
    paths = list(options.wheels)
    if options.download:
        download(options.download)
        paths.append(options.download)
    if not paths:
        parser.error("name folders with wheels, or --download DIR")
    markers = yaml.safe_load(MARKERS.read_text())
    reviewed = yaml.safe_load(REVIEWED.read_text())
    wheels = find_wheels(paths)
    unknown = [wheel.version for wheel in wheels if wheel.version not in supported_releases()]
    if unknown:
        print(
            f"not in capacity/releases/wheels.py: {', '.join(unknown)}; add a row for each", file=sys.stderr
        )
        return 1
    if options.update:
        update(wheels, reviewed)
    differences = [
        line
        for wheel in wheels
        for line in (*check_pins(wheel), *check_features(wheel, markers), *check_functions(wheel, reviewed))
    ]
    differences += check_markers(markers)
    print(*differences, sep="\n", end="\n" if differences else "")
    names = ", ".join(wheel.version for wheel in wheels)
    print(f"{len(FEATURES)} features and {len(reviewed)} functions, {len(wheels)} wheels ({names})")
    print(f"{len(differences)} differences" if differences else "all equal")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
