"""Mutation testing of the code that decides bytes and tokens: `python tools/mutate.py`.

Makes a copy of the tree, changes one operator, number, condition or loop of it at a time (`mutants.py`), runs the fast tests
that cover the module until the first one fails, and writes docs/mutation.md: how many changes were noticed, and each that was
not with the reason of tools/mutants.yaml. What build/mutants.jsonl holds is not tested again, until its line changes.

One change costs a fork: a server has imported and collected everything, a child of it puts the changed code into the
functions that have it and runs the tests that call them, first those that noticed changes of the same function before. Changes
outside of functions are tested from a new import, and so is what no test noticed in a function that importing or collecting
calls. Needs `pip install cosmic-ray`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import _lru_cache_wrapper
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NoReturn

import click  # noqa: F401 - loaded once, for all forks
import hypothesis
import pydantic  # noqa: F401
import pytest
import rich.console
import rich.table  # noqa: F401
import yaml
from mutants import ROOT, TARGETS, Mutant, modules, mutants

PAGE = ROOT / "docs" / "mutation.md"
REASONS = ROOT / "tools" / "mutants.yaml"
SEED = 13
LIMIT_S = 30
FORK_LIMIT_S = 8
"""Processor time after which a change counts as noticed: it made a loop endless."""
LIST_LIMIT_S = 200

NOTICED, MISSED, OPEN = "noticed", "not noticed", "open"


class Results:
    """What was found out so far: one line per test of a change, the last one counts."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.outcomes: dict[str, str] = {}
        self.missed_once: set[str] = set()
        self.killers: dict[tuple[str, int], list[str]] = defaultdict(list)
        for line in file.read_text().splitlines() if file.exists() else ():
            self._take(**json.loads(line))

    def _take(self, name: str, outcome: str, test: str, module: str, function: int) -> None:
        self.outcomes[name] = outcome
        if outcome == MISSED:
            self.missed_once.add(name)
        if test:
            for place in ((module, function), (module, -1)):
                known = self.killers[place]
                self.killers[place] = [test, *(t for t in known if t != test)][:20]

    def add(self, one: Mutant, outcome: str, test: str) -> None:
        row: dict[str, Any] = {
            "name": one.name,
            "outcome": outcome,
            "test": test,
            "module": one.module,
            "function": one.function,
        }
        with self.file.open("a") as out:
            out.write(json.dumps(row) + "\n")
        self._take(**row)

    def first(self, one: Mutant) -> list[str]:
        """Tests that noticed changes of the same function, then of the same module."""
        return list(dict.fromkeys([*self.killers[one.module, one.function], *self.killers[one.module, -1]]))


class Told:
    """A pytest plugin of a child: says which test failed first, and ends there."""

    def __init__(self, out: int, first: Sequence[str] = ()) -> None:
        self.out = out
        self.rank = {test: number for number, test in enumerate(first)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.rank.get(item.nodeid, len(self.rank)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.end(report.nodeid)

    def end(self, test: str) -> NoReturn:
        os.write(self.out, test.encode())
        os._exit(1)


def forked(limit_s: int, work: object, *arguments: object) -> tuple[str, str]:
    """Outcome of `work(out, *arguments)` in a child, which ends with 0 where nothing failed, and the test that did."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
            assert callable(work)
            os._exit(work(writing, *arguments))
        finally:
            os._exit(99)
    os.close(writing)
    with os.fdopen(reading) as said:
        test = said.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {0: MISSED, 99: OPEN}.get(code, NOTICED), test


Place = tuple[str, int]
"""File and first line of a function."""


class Server:
    """A pytest plugin: runs what was collected once for every change, each time in a fork.

    `called` are the functions that importing and collecting called, `callers` the tests that call a function.
    """

    def __init__(self, package: Path, chosen: Iterable[Mutant], results: Results) -> None:
        self.package, self.chosen, self.results = package, chosen, results
        self.called: set[Place] = set()
        self.callers: dict[Place, set[str]] = defaultdict(set)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.setprofile(None)
        if session.testsfailed:
            Path("failed").write_text("tests cannot be collected")
            os._exit(3)
        functions: dict[Place, list[FunctionType]] = defaultdict(list)
        caches: list[_lru_cache_wrapper[object]] = []
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                functions[thing.__code__.co_filename, thing.__code__.co_firstlineno].append(thing)
            elif isinstance(thing, _lru_cache_wrapper) and _code(thing).is_relative_to(
                self.package.parents[1]
            ):
                thing.cache_clear()
                caches.append(thing)
        gc.collect()
        gc.freeze()
        outcome, calls = forked(LIST_LIMIT_S, self._list_calls, session, caches)
        if outcome != MISSED:
            Path("failed").write_text(calls or "out of time")
            os._exit(3)
        for test, places in json.loads(calls):
            for file, line in places:
                self.callers[file, line].add(test)
        for one in self.chosen:
            place = (str(self.package / Path(one.module).relative_to("capacity")), one.function)
            here = functions[place]
            outcome, test = (
                forked(FORK_LIMIT_S, self._child, session, here, one, place) if here else (OPEN, "")
            )
            self.results.add(one, OPEN if outcome == MISSED and place in self.called else outcome, test)
        return True

    def _list_calls(self, out: int, session: pytest.Session, caches: list[_lru_cache_wrapper[object]]) -> int:
        """Nothing changed: the functions of the package that each test calls, none spared by what another left in a cache."""
        session.config.pluginmanager.register(Told(out))
        calls = []
        for item in session.items:
            for cache in caches:
                cache.cache_clear()
            self.called = set()
            sys.setprofile(self._note)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            sys.setprofile(None)
            calls.append((item.nodeid, [p for p in self.called if p[0].startswith(str(self.package))]))
        with os.fdopen(out, "w") as told:
            json.dump(calls, told)
        return 0

    def _child(
        self, out: int, session: pytest.Session, functions: list[FunctionType], one: Mutant, place: Place
    ) -> int:
        file, line = place
        code = next(c for c in outermost(compile(one.code(), file, "exec")) if c.co_firstlineno == line)
        for function in functions:
            function.__code__ = code
        told = Told(out, self.results.first(one))
        session.config.pluginmanager.register(told)
        everything = place in self.called
        items = [item for item in session.items if everything or item.nodeid in self.callers[place]]
        told.pytest_collection_modifyitems(items)
        for item, following in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return 0


def _code(cache: _lru_cache_wrapper[object]) -> Path:
    return Path(getattr(getattr(cache.__wrapped__, "__code__", None), "co_filename", "."))


def outermost(code: CodeType) -> Iterator[CodeType]:
    """Code of the functions and methods of a module, not of functions inside of them."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & 2:  # CO_NEWLOCALS: a function, not a class
                yield inner
            else:
                yield from outermost(inner)


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
        self.package = folder / "import" / "vllm_capacity"
        shutil.copytree(folder / "capacity", self.package)
        shutil.copytree(folder / "validate", self.package / "validate")
        shutil.copy(folder / "models.yaml", self.package)
        self._clock = 1_000_000_000

    def tests(self, _: int, tests: tuple[str, ...], plugin: object) -> int:
        """In a child, which has loaded the libraries but nothing of the package."""
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.chdir(self.root)
        sys.path.insert(0, str(self.package.parent))
        sys.pycache_prefix = str(self.root / "bytecode")
        sys.dont_write_bytecode = False
        hypothesis.settings.register_profile(
            "mutants", deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        hypothesis.settings.load_profile("mutants")
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            f"--basetemp={self.root / 'scratch'}",
        ]
        options += ["-k", "not millisecond"]  # speed is not what a change is asked for
        return int(pytest.main([*options, *tests], plugins=[plugin]))

    def serve(self, chosen: Iterable[Mutant], tests: tuple[str, ...], results: Results) -> None:
        child = os.fork()
        if child == 0:
            try:
                os._exit(self.tests(0, tests, Server(self.package, chosen, results)))
            finally:
                os._exit(99)
        _, status = os.waitpid(child, 0)
        if status:
            failed = self.root / "failed"
            raise SystemExit(f"without any change: {failed.read_text() if failed.exists() else status}")

    def test(self, one: Mutant, tests: tuple[str, ...], results: Results) -> None:
        """From a new import of the changed file; first the files of tests that noticed changes of the same module."""
        file = self.package / Path(one.module).relative_to("capacity")
        code = file.read_text()
        first = results.first(one)
        likely = tuple(dict.fromkeys(test.split("::")[0] for test in first[:5]))
        try:
            self._write(file, one.code())
            outcome, test = forked(LIMIT_S, self._fresh, likely, first) if likely else (MISSED, "")
            if outcome != NOTICED:
                outcome, test = forked(LIMIT_S, self._fresh, tests, first)
            results.add(one, outcome, test)
        finally:
            self._write(file, code)

    def _fresh(self, out: int, tests: tuple[str, ...], first: list[str]) -> int:
        return self.tests(out, tests, Told(out, first))

    def _write(self, file: Path, text: str) -> None:
        """Each time with a time of its own: bytecode is told stale by size and whole seconds."""
        file.write_text(text)
        self._clock += 10
        os.utime(file, (self._clock, self._clock))


def until(end: float, ones: Iterable[Mutant]) -> Iterator[Mutant]:
    for one in ones:
        if time.monotonic() > end:
            print("time is up", flush=True)
            return
        yield one


def run(everything: Sequence[Mutant], options: argparse.Namespace) -> None:
    """Tests what the results do not know yet (with --again: what was not noticed), in a drawn order."""
    tests_of = dict(modules())
    results = Results(options.results)
    wanted = (MISSED, OPEN) if options.again else (OPEN,)
    chosen = [one for one in everything if one.module.startswith(options.only)]
    chosen = random.Random(SEED).sample(chosen, min(options.sample, len(chosen)))
    chosen = [one for one in chosen if results.outcomes.get(one.name, OPEN) in wanted]
    print(f"{len(everything)} changes, {len(chosen)} to be tested", flush=True)
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder))
        for tests in dict.fromkeys(tests_of[one.module] for one in chosen):
            here = [one for one in chosen if tests_of[one.module] == tests]
            copy.serve(until(end, here), tests, results)
        results = Results(options.results)  # as the servers wrote them
        undecided = [one for one in chosen if results.outcomes.get(one.name) == OPEN]
        for one in until(end, undecided):
            copy.test(one, tests_of[one.module], results)
    results = Results(options.results)
    for one in chosen:
        if results.outcomes.get(one.name) == MISSED:
            print(f"{one.key} {one.module}:{one.line} {one.before}  ->  {one.after}")
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(u.ru_utime + u.ru_stime for u in spent)
    print(f"{seconds:.0f} s of processor time, {seconds / max(len(chosen), 1):.2f} s for each change")


def write_page(everything: Sequence[Mutant], results: Results) -> None:
    """docs/mutation.md from the results and the reasons."""
    reasons: dict[str, str] = yaml.safe_load(REASONS.read_text()) or {}
    found = [one for one in everything if results.outcomes.get(one.name, OPEN) != OPEN]
    missed = [one for one in found if results.outcomes[one.name] == MISSED]
    unexplained = [one for one in missed if one.key not in reasons]
    drawn = "all of them were tested"
    if len(found) < len(everything):
        drawn = f"{len(found):,} were tested, in an order drawn with seed {SEED}, changes outside of functions last"
    lines = [
        "# Mutation testing", "",
        "Written by `python tools/mutate.py --page`. One operator, number, condition or loop at a time is changed in the code",
        "that decides bytes and tokens, and the fast tests that call it are run: a change that no test notices is a hole in the",
        "tests, or changes nothing. Annotations, decorators, texts of errors and `strict=` of `zip` are left alone.", "",
        f"{len(everything):,} changes are possible; {drawn}:",
        "",
        "| part | possible | tested | noticed | not noticed |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for target in TARGETS:
        possible, tested, not_noticed = (
            sum(one.module == target or one.module.startswith(target + "/") for one in some)
            for some in (everything, found, missed)
        )
        lines.append(
            f"| `{target}` | {possible:,} | {tested:,} | {tested - not_noticed:,} | {not_noticed:,} |"
        )
    share = 100 * (len(found) - len(missed)) / max(len(found), 1)
    later = sum(one.name in results.missed_once for one in found) - len(missed)
    lines += [
        "", f"Noticed: {share:.1f} %; {later:,} of them only by tests that were written because of this list: six modules of",
        "`tests/kv_cache` (`test_seldom_formats.py`, `test_spec_rules.py`, `test_layer_specs.py`, `test_state_shapes.py`,",
        "`test_cache_dtypes.py`, `test_compressed_latent.py`), tests of `tests/weights`, and cases of vLLM's own planner that",
        "were drawn until they noticed what no other did. Results are kept by the text of the changed line, so they may come",
        "from several states of the code; what was noticed once is not run again.", "", "## Not noticed", "",
        "A reason holds for the change of its row; changes of one line stand together.", "",
        "| change | why that is right |", "|---|---|",
    ]  # fmt: skip
    missed.sort(key=lambda one: (one.module, one.line))
    lines += [f"| {_change(one)} | {reasons.get(one.key, 'not looked at')} |" for one in missed]
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"{len(found)} tested, {len(missed)} not noticed, {len(unexplained)} of them without a reason")
    unused = sorted(reasons.keys() - {one.key for one in missed})
    if unused and len(found) == len(everything):
        print(f"reasons that nothing needs: {', '.join(unused)}")


def _change(one: Mutant) -> str:
    before, after = (text.replace("|", "\\|") for text in (one.before, one.after))
    return f"`{one.module.removeprefix('capacity/')}`: `{before}` becomes `{after}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=1_000_000, help="how many changes to test, of all")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so long")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="of modules, for example capacity/budget.py"
    )
    parser.add_argument("--again", action="store_true", help="test what was not noticed once more")
    parser.add_argument("--page", action="store_true", help="only write docs/mutation.md from the results")
    options = parser.parse_args()
    options.results.parent.mkdir(exist_ok=True)
    everything = [one for module in dict(modules()) for one in mutants(module)]
    if not options.page:
        run(everything, options)
    write_page(everything, Results(options.results))


if __name__ == "__main__":
    main()
