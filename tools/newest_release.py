"""What to review for the newest vLLM: the functions that our formulas cite and that changed since they were last read.

    python tools/newest_release.py             # fetch the newest wheel from the package index and compare
    python tools/newest_release.py WHEEL       # a wheel (.whl, or an unpacked folder) at hand
    python tools/newest_release.py WHEEL --update    # record its functions as read

The citations come from the sources themselves (tools/citations.py); tools/cited.json holds each function's hash in the
release that was read last. Besides, the wheel's pins are compared, and the marker of every difference between releases
(tools/markers.yaml). Wheels are parsed, never imported. Exits 1 where there is something to review.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import verify_releases
import yaml
from citations import citations
from vllm_capacity.releases import newest_release, supported_releases
from vllm_capacity.releases.features import FEATURES
from vllm_capacity.releases.wheels import WHEELS
from wheel_source import WheelSource, digest, find_wheels

RECORD = Path(__file__).parent / "cited.json"


@dataclass(frozen=True)
class Change:
    """One function that is not what it was, and the modules of ours to look at."""

    place: str
    what: str
    modules: tuple[str, ...]


def place_of(file: str, name: str) -> str:
    return f"{file}: {name}" if name else file


def hashes(wheel: WheelSource, cited: Mapping[tuple[str, str], set[str]]) -> dict[str, str]:
    found = {place_of(file, name): digest(wheel.find(file, name or None)) for file, name in cited}
    return dict(sorted(found.items()))


def changes(
    wheel: WheelSource, recorded: Mapping[str, str], cited: Mapping[str, set[str]]
) -> Iterator[Change]:
    """Recorded functions that hash otherwise in this wheel, or are gone from it."""
    for place, was in recorded.items():
        file, _, name = place.partition(": ")
        now = digest(wheel.find(file, name or None))
        if now != was:
            yield Change(place, "gone" if now == "absent" else "changed", tuple(sorted(cited.get(place, ()))))


def other_differences(wheel: WheelSource) -> Iterator[str]:
    """Pins and features that are not those of the release, or, of one not known yet, of the newest that is known."""
    markers = yaml.safe_load(verify_releases.MARKERS.read_text())
    if wheel.version in supported_releases():
        yield from verify_releases.check_pins(wheel)
        yield from verify_releases.check_features(wheel, markers)
        return
    row, release = WHEELS[-1], newest_release()
    for package, known in (
        ("torch", f"=={row.torch.version}"),
        ("flashinfer-python", f"=={row.flashinfer}"),
        ("transformers", row.transformers),
    ):
        if (found := wheel.requirement(package)) != known:
            yield f"pin: {package}{known} in {row.version}, now {package}{found}"
    for feature in FEATURES:
        if verify_releases.shows(wheel, markers[feature.name]) != release.has(feature.name):
            change = "ends" if release.has(feature.name) else "is back"
            yield f"feature {feature.name} {change} ({feature.source})"


def report(wheel: WheelSource, record: Mapping[str, object]) -> int:
    """Prints what to review, by file of vLLM; the number of things."""
    functions: dict[str, str] = record["functions"]  # type: ignore[assignment]
    cited = {place_of(*key): modules for key, modules in citations(wheel).items()}
    found, others = list(changes(wheel, functions, cited)), list(other_differences(wheel))
    print(f"vLLM {wheel.version} against {record['release']}: {len(functions)} functions are cited")
    by_file: dict[str, list[Change]] = defaultdict(list)
    for change in found:
        by_file[change.place.partition(": ")[0]].append(change)
    for file, changed in by_file.items():
        print(f"\nvllm/{file}")
        for change in changed:
            name = change.place.partition(": ")[2] or "(the file)"
            cited_by = ", ".join(change.modules) or "no module of this tree any more"
            print(f"  {change.what}: {name}   cited by {cited_by}")
    if others:
        print("\n" + "\n".join(others))
    if unknown := sorted(cited.keys() - functions.keys()):
        print(
            f"\ncited, but not recorded in {RECORD.name} (--update on {record['release']}'s wheel records them):"
        )
        print(*(f"  {place}" for place in unknown), sep="\n")
    total = len(found) + len(others)
    print(f"\n{total} to review" if total else "nothing to review")
    return total


def newest_wheel(folder: Path) -> WheelSource:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--dest", str(folder), "vllm"], check=True)
    return find_wheels([folder])[-1]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", nargs="?", type=Path)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheel = find_wheels([options.wheel])[-1] if options.wheel else newest_wheel(Path(folder))
        if options.update:
            record = {"release": wheel.version, "functions": hashes(wheel, citations(wheel))}
            RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            print(f"{RECORD.name}: {len(record['functions'])} functions of vLLM {wheel.version}")
            return 0
        return 1 if report(wheel, json.loads(RECORD.read_text(encoding="utf-8"))) else 0


if __name__ == "__main__":
    raise SystemExit(main())
