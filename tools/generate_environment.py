"""Write capacity/inputs/environment/generated.json: the variables in envs.py of every release, read off the
wheels.

python tools/generate_environment.py WHEELS...          write the table
python tools/generate_environment.py --check WHEELS...  only say if the table is the wheels'
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path
from typing import Any

from wheel_source import WheelSource, children, find_wheels, text_of

TABLE = Path(__file__).parent.parent / "capacity" / "inputs" / "environment" / "generated.json"


def variables_of(wheel: WheelSource) -> dict[str, str]:
    """Name -> default as envs.py writes it for type checkers ('' where it gives none)."""
    table = wheel.find("envs.py", "environment_variables")
    module = wheel.find("envs.py")
    assert table is not None, f"{wheel.version}: no environment_variables in envs.py"
    assert module is not None
    declared = {
        name: text_of(node.value)
        for name, node in children(module)
        if isinstance(node, ast.AnnAssign) and node.value is not None
    }
    return {name: declared.get(name, "") for name, _ in children(table)}


def rows_of(wheels: list[WheelSource]) -> dict[str, list[list[Any]]]:
    """Name -> runs [first release, last release, default]."""
    rows: dict[str, list[list[Any]]] = {}
    for index, wheel in enumerate(wheels):
        for name, default in variables_of(wheel).items():
            runs = rows.setdefault(name, [])
            if runs and runs[-1][1] == wheels[index - 1].version and runs[-1][2] == default:
                runs[-1][1] = wheel.version
            else:
                runs.append([wheel.version, wheel.version, default])
    return dict(sorted(rows.items()))


def unclassified(rows: dict[str, list[list[Any]]]) -> list[str]:
    from vllm_capacity.inputs.environment.effects import EFFECTS

    return [f"unclassified: {name}" for name in rows if name not in EFFECTS] + [
        f"classified, but read by no release: {name}"
        for name in EFFECTS
        if name.startswith("VLLM_") and name not in rows
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    wheels = find_wheels(options.wheels)
    rows = rows_of(wheels)
    releases = [wheel.version for wheel in wheels]
    problems = unclassified(rows)
    if options.check:
        if json.loads(TABLE.read_text()) != {"releases": releases, "variables": rows}:
            problems.append(f"{TABLE.name} is not what the wheels say; run {Path(__file__).name}")
    else:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(runs)}" for name, runs in rows.items())
        TABLE.write_text(f'{{"releases": {json.dumps(releases)},\n"variables": {{\n{lines}\n}}}}\n')
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(rows)} variables of {len(wheels)} releases")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
