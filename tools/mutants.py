"""Which small changes of the code that decides bytes and tokens are possible (cosmic-ray's operators).

Left out, as they change no number: annotations, docstrings, decorators, texts of errors, keywords of classes (`total=` of a
TypedDict) and `strict=` of `zip`.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[1]

PLAN_TESTS = ("tests/test_plan_against_vllm.py", "tests/test_plan_against_golden.py")
CACHE_TESTS = ("tests/kv_cache", *PLAN_TESTS, "tests/test_flags_in_plans.py")
WEIGHT_TESTS = (
    "tests/weights",
    "tests/architecture/test_built_by_vllm.py",
    "tests/architecture/test_parameter_totals.py",
)
TARGETS: dict[str, tuple[str, ...]] = {
    "capacity/kv_cache": CACHE_TESTS,
    "capacity/budget.py": ("tests/test_budget.py", *PLAN_TESTS),
    **{f"capacity/weights/{name}.py": WEIGHT_TESTS for name in ("sharding", "model", "layout", "groups")},
}
"""What is changed -> the fast tests that cover it."""

BINARY = (
    "Add_Sub", "Sub_Add", "Mul_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "FloorDiv_Div", "Mod_FloorDiv", "Mod_Add",
    "Pow_Mul", "LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr",
)  # fmt: skip
COMPARISONS = (
    "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_GtE", "Gt_LtE", "Is_IsNot", "IsNot_Is",
)  # fmt: skip
OPERATORS = (
    *(f"ReplaceBinaryOperator_{name}" for name in BINARY),
    *(f"ReplaceComparisonOperator_{name}" for name in COMPARISONS),
    "ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_Not", "AddNot", "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop",
)  # fmt: skip

REFUSALS = ("Refusal", "refuse", "refused", "InputError")

Position = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change. `function` is the line at which the outermost function around it begins, 0 outside of functions.

    `key` names a change by its content, so that a line that moves keeps its reason; `nth` counts equal keys.
    """

    module: str
    operator: str
    occurrence: int
    line: int
    function: int
    before: str
    after: str
    nth: int = 0

    @property
    def key(self) -> str:
        text = f"{self.module}\n{self.operator}\n{self.before}\n{self.after}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def name(self) -> str:
        return f"{self.key}.{self.nth}"

    def code(self) -> str:
        """The module's text with the change."""
        return changed((ROOT / self.module).read_text(), self.operator, self.occurrence)


def changed(code: str, operator: str, occurrence: int) -> str:
    return str(mutate_code(code, get_operator(f"core/{operator}")(), occurrence))


def modules() -> Iterator[tuple[str, tuple[str, ...]]]:
    for target, tests in TARGETS.items():
        path = ROOT / target
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.relative_to(ROOT).as_posix(), tests


def mutants(module: str) -> Iterator[Mutant]:
    """Every change of a module, in a fixed order."""
    code = (ROOT / module).read_text()
    tree = ast.parse(code)
    lines, ignored, functions = code.split("\n"), list(left_out(tree)), list(bodies(tree))
    nodes = list(ast_nodes(get_ast(code)))
    seen: Counter[str] = Counter()
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        found = [position for node in nodes for position in operator.mutation_positions(node)]
        for occurrence, (start, end) in enumerate(found):
            if any(first <= start and end <= last for first, last in ignored):
                continue
            function = next((at for at, first, last in functions if first <= start and end <= last), 0)
            new = changed(code, name, occurrence).split("\n")
            at = next((i for i, (a, b) in enumerate(zip(lines, new, strict=False)) if a != b), start[0] - 1)
            one = Mutant(module, name, occurrence, start[0], function, lines[at].strip(), new[at].strip())
            yield Mutant(**{**vars(one), "nth": seen[one.key]})
            seen[one.key] += 1


def span(node: ast.expr | ast.stmt) -> tuple[Position, Position]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def bodies(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[int, Position, Position]]:
    """(first line as in the code object, span of the body) of each outermost function and method."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from bodies(node)
        elif isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield first, span(node.body[0])[0], span(node.body[-1])[1]


def left_out(tree: ast.Module) -> Iterator[tuple[Position, Position]]:
    """Spans in which nothing is changed."""
    for node in ast.walk(tree):
        parts: list[ast.expr | ast.stmt | None] = []
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            parts += node.decorator_list
        if isinstance(node, ast.ClassDef):
            parts += [keyword.value for keyword in node.keywords]
        if isinstance(node, ast.FunctionDef):
            parts += [a.annotation for a in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs)]
            parts.append(node.returns)
        elif isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.Raise) or (
            isinstance(node, ast.If) and _is_named(node.test, "TYPE_CHECKING")
        ):
            parts.append(node)
        elif isinstance(node, ast.Call):
            if _is_named(node.func, *REFUSALS):
                parts.append(node)
            elif _is_named(node.func, "zip"):
                parts += [keyword.value for keyword in node.keywords]
        yield from (span(part) for part in parts if part is not None)


def _is_named(node: ast.expr, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names
