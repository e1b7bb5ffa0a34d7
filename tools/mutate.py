"""Mutation testing of the code that decides bytes and tokens: `python tools/mutate.py --sample 400`.

Makes a copy of the tree, changes one operator, number, condition or loop of it at a time (cosmic-ray's operators), runs the
fast tests that cover the module until the first one fails, and writes docs/mutation.md: how many changes were noticed, and
each that was not with the reason of tools/mutants.yaml. The same seed takes the same sample of the same sources.

Left out before sampling: annotations (never evaluated), docstrings, decorators, texts of errors. Needs `pip install cosmic-ray`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import click  # noqa: F401 - loaded once, for all forks
import hypothesis  # noqa: F401
import pydantic  # noqa: F401
import pytest
import rich.console
import rich.table  # noqa: F401
import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mutation.md"
REASONS = ROOT / "tools" / "mutants.yaml"
SEED = 13
SINCE = "killed since"
"""Outcome of what no test noticed at first."""
GONE = "gone"
"""The code that it was about has changed."""
LIMIT_S = 120.0

TARGETS: dict[str, tuple[str, ...]] = {
    "capacity/kv_cache": ("tests/kv_cache", "tests/test_plan_against_vllm.py", "tests/test_plan_against_golden.py"),
    "capacity/budget.py": ("tests/test_budget.py", "tests/test_plan_against_vllm.py", "tests/test_plan_against_golden.py"),
    "capacity/weights/sharding.py": ("tests/weights/test_rank_weights.py", "tests/weights/test_layout.py",
                                     "tests/weights/test_roles.py", "tests/weights/test_sharding.py",
                                     "tests/architecture/test_built_by_vllm.py", "tests/architecture/test_parameter_totals.py"),
}  # fmt: skip
"""What is changed -> the fast tests that cover it."""
for _module in ("model", "layout", "rank", "groups"):
    TARGETS[f"capacity/weights/{_module}.py"] = TARGETS["capacity/weights/sharding.py"]

OPERATORS = (
    "Add_Sub", "Sub_Add", "Mul_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "FloorDiv_Div", "Mod_FloorDiv", "Mod_Add",
    "Pow_Mul", "LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr",
)  # fmt: skip
COMPARISONS = (
    "Eq_NotEq",
    "NotEq_Eq",
    "Lt_LtE",
    "LtE_Lt",
    "Gt_GtE",
    "GtE_Gt",
    "Lt_GtE",
    "Gt_LtE",
    "Is_IsNot",
    "IsNot_Is",
)
CHOSEN = (
    *(f"core/ReplaceBinaryOperator_{name}" for name in OPERATORS),
    *(f"core/ReplaceComparisonOperator_{name}" for name in COMPARISONS),
    "core/ReplaceUnaryOperator_USub_UAdd", "core/ReplaceUnaryOperator_Delete_Not", "core/AddNot", "core/ReplaceTrueWithFalse",
    "core/ReplaceFalseWithTrue", "core/ReplaceAndWithOr", "core/ReplaceOrWithAnd", "core/ReplaceBreakWithContinue",
    "core/ReplaceContinueWithBreak", "core/NumberReplacer", "core/ZeroIterationForLoop",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change. `key` names it by content, so that a line that moves keeps its reason."""

    module: str
    operator: str
    occurrence: int
    line: int
    before: str
    after: str
    outcome: str = ""

    @property
    def key(self) -> str:
        text = f"{self.module}\n{self.operator}\n{self.before}\n{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def modules() -> Iterator[tuple[str, tuple[str, ...]]]:
    for target, tests in TARGETS.items():
        path = ROOT / target
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.relative_to(ROOT).as_posix(), tests


def left_out(tree: ast.Module) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Spans of annotations, decorators and errors."""
    parts: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            parts += node.decorator_list
        if isinstance(node, ast.FunctionDef):
            parts += [a.annotation for a in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs)]
            parts.append(node.returns)
        elif isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.Raise) or _is_refusal(node) or _is_typing(node):
            parts.append(node)
    spans = []
    for part in parts:
        if isinstance(part, (ast.expr, ast.stmt)):
            spans.append(((part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)))
    return spans


def _is_refusal(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
        "Refusal",
        "refuse",
        "refused",
        "InputError",
    )


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def places(module: str) -> Iterator[tuple[str, str, int, int]]:
    """(module, operator, occurrence, line) of every change by the chosen operators."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator

    code = (ROOT / module).read_text()
    spans = left_out(ast.parse(code))
    nodes = list(ast_nodes(get_ast(code)))
    for name in CHOSEN:
        operator = get_operator(name)()
        found = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(found):
            if not any(first <= start and end <= last for first, last in spans):
                yield module, name.removeprefix("core/"), occurrence, start[0]


def mutant(module: str, operator: str, occurrence: int, line: int) -> Mutant:
    code = (ROOT / module).read_text()
    lines, new = code.split("\n"), changed(code, operator, occurrence).split("\n")
    at = next((i for i, (a, b) in enumerate(zip(lines, new, strict=False)) if a != b), line - 1)
    return Mutant(module, operator, occurrence, line, lines[at].strip(), new[at].strip())


def changed(code: str, operator: str, occurrence: int) -> str:
    """The text with that one change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    return str(mutate_code(code, get_operator(f"core/{operator}")(), occurrence))


class Copy:
    """A tree of its own in which the package is what its tests import."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                                capture_output=True, check=True).stdout  # fmt: skip
        for name in filter(None, listed.decode().split("\0")):
            if (ROOT / name).is_file():
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)
        package = folder / "import" / "vllm_capacity"
        shutil.copytree(folder / "capacity", package)
        shutil.copytree(folder / "validate", package / "validate")
        shutil.copy(folder / "models.yaml", package)
        self.package = package
        self._clock = 1_000_000_000

    def run(self, tests: tuple[str, ...]) -> str:
        """'survived' where all tests pass, 'killed' where one fails, 'timeout'.

        In a fork of this process, which has loaded the libraries but nothing of the package.
        """
        child = os.fork()
        if child == 0:
            self._run_in_child(tests)
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "timeout"

    def _run_in_child(self, tests: tuple[str, ...]) -> NoReturn:
        code = 99
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(null, stream)
            os.chdir(self.root)
            sys.path.insert(0, str(self.package.parent))
            sys.pycache_prefix = str(self.root / "bytecode")
            sys.dont_write_bytecode = False
            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]))
        finally:
            os._exit(code)

    def test(self, one: Mutant, tests: tuple[str, ...]) -> str:
        file = self.package / Path(one.module).relative_to("capacity")
        code = file.read_text()
        try:
            self._write(file, changed(code, one.operator, one.occurrence))
            return self.run(tests)
        finally:
            self._write(file, code)

    def _write(self, file: Path, text: str) -> None:
        """Each time with a time of its own: bytecode is told stale by size and whole seconds."""
        file.write_text(text)
        self._clock += 10
        os.utime(file, (self._clock, self._clock))


def run(sample: int, results: Path, minutes: float, only: str = "") -> None:
    """Tests a sample of all mutants; results are appended one by one, and what they hold is not tested again."""
    tests_of = dict(modules())
    everything = [place for module in tests_of for place in places(module)]
    wanted = [place for place in everything if place[0].startswith(only)]
    chosen = [mutant(*place) for place in random.Random(SEED).sample(wanted, min(sample, len(wanted)))]
    done = {(m.key, m.line) for m in read(results)}
    print(f"{len(everything)} mutants, {len(chosen)} in the sample, {len(done)} tested before", flush=True)
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, results.open("a") as out:
        copy = Copy(Path(folder))
        for tests in dict.fromkeys(tests_of.values()):
            if copy.run(tests) != "survived":
                raise SystemExit(f"the tests fail without any change: {' '.join(tests)}")
        out.write(
            json.dumps(
                {
                    "all": len(everything),
                    "sample": len(chosen),
                    "by_module": Counter(place[0] for place in everything),
                }
            )
        )
        out.write("\n")
        for number, one in enumerate(chosen):
            if (one.key, one.line) in done:
                continue
            if time.monotonic() > end:
                print(f"time is up after {number}", flush=True)
                break
            outcome = copy.test(one, tests_of[one.module])
            out.write(json.dumps({**asdict(one), "outcome": outcome}) + "\n")
            out.flush()
            if outcome == "survived":
                print(
                    f"{one.key} {one.module}:{one.line} {one.before}  ->  {one.after}",
                    flush=True,
                )


def again(results: Path) -> None:
    """Tests what was not noticed once more, against the tests of today."""
    tests_of = dict(modules())
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, results.open("a") as out:
        copy = Copy(Path(folder))
        for one in read(results):
            if one.outcome == "survived":
                if mutant(one.module, one.operator, one.occurrence, one.line).key != one.key:
                    outcome = GONE
                else:
                    outcome = copy.test(one, tests_of[one.module])
                out.write(
                    json.dumps({**asdict(one), "outcome": SINCE if outcome == "killed" else outcome}) + "\n"
                )
                out.flush()
                print(
                    f"{outcome} {one.key} {one.module}:{one.line} {one.before}  ->  {one.after}", flush=True
                )


def read(results: Path) -> list[Mutant]:
    """The mutants tested, each with its last outcome."""
    if not results.exists():
        return []
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    found = [Mutant(**row) for row in rows if "operator" in row]
    last = {(m.module, m.operator, m.occurrence): m for m in found}
    return [m for m in last.values() if m.outcome != GONE]


def write_page(results: Path) -> None:
    """docs/mutation.md from the results and the reasons."""
    found = read(results)
    reasons: dict[str, str] = yaml.safe_load(REASONS.read_text()) or {}
    totals = next(row for row in map(json.loads, results.read_text().splitlines()) if "all" in row)
    survived = [m for m in found if m.outcome == "survived"]
    later = [m for m in found if m.outcome == SINCE]
    unexplained = [m for m in survived if m.key not in reasons]
    lines = [
        "# Mutation testing", "",
        "Written by `python tools/mutate.py --page`. One operator, number, condition or loop at a time is changed in the code",
        "that decides bytes and tokens, and the fast tests of that code are run: a change that no test notices is a hole in the",
        "tests, or changes nothing. Annotations, decorators and texts of errors are left alone.", "",
        f"{totals['all']:,} changes are possible; {len(found):,} were tested, drawn with seed {SEED} (more of small parts):",
        "",
        "| part | possible | tested | noticed | not noticed |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for target in TARGETS:
        here = [m for m in found if m.module == target or m.module.startswith(target + "/")]
        possible = sum(
            n for name, n in totals["by_module"].items() if name == target or name.startswith(target + "/")
        )
        missed = sum(m in survived for m in here)
        lines.append(f"| `{target}` | {possible:,} | {len(here):,} | {len(here) - missed:,} | {missed:,} |")
    share = 100 * (len(found) - len(survived)) / max(len(found), 1)
    lines += [
        "",
        f"Noticed: {share:.1f} %. {len(later)} of them by tests that were written because of this list.",
        "",
    ]
    if later:
        lines += ["## Noticed since", "", *(f"- {_change(m)}" for m in later), ""]
    lines += ["## Not noticed", "", "| change | why that is right |", "|---|---|"]
    lines += [f"| {_change(m)} | {reasons.get(m.key, 'not looked at')} |" for m in survived]
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"{len(found)} tested, {len(survived)} not noticed, {len(unexplained)} of them without a reason")


def _change(mutant: Mutant) -> str:
    before, after = (text.replace("|", "\\|") for text in (mutant.before, mutant.after))
    return f"`{mutant.module.removeprefix('capacity/')}`: `{before}` becomes `{after}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=400, help="how many changes to test")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so long")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="of modules, for example capacity/budget.py"
    )
    parser.add_argument("--again", action="store_true", help="test once more what was not noticed")
    parser.add_argument("--page", action="store_true", help="only write docs/mutation.md from the results")
    options = parser.parse_args()
    options.results.parent.mkdir(exist_ok=True)
    if options.again:
        again(options.results)
    elif not options.page:
        run(options.sample, options.results, options.minutes, options.only)
    write_page(options.results)


if __name__ == "__main__":
    main()
