"""Small robust linear least squares in pure Python: a handful of unknowns, a few hundred equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Equation:
    """sum(coefficients[name] * unknown[name]) = value, observed in `run` of `model`."""

    coefficients: Mapping[str, float]
    value: float
    run: str
    model: str

    def residual(self, solution: Mapping[str, float]) -> float:
        """value - what the solution gives."""
        return self.value - sum(c * solution[name] for name, c in self.coefficients.items())


RIDGE = 1e-4
"""Pull towards the prior, relative to one equation: decides only what the equations leave open."""
HUBER = 1.5
"""Residuals beyond this many spreads count linearly."""
GRANULARITY = float(2 << 20)
"""Bytes: the driver hands out memory in pages of 2 MiB, so no residual below that says anything."""


def solve(equations: Sequence[Equation], prior: Mapping[str, float], rounds: int = 20) -> dict[str, float]:
    """The unknowns of `prior` by iteratively reweighted least squares with Huber's weights, none below 0.

    What the equations do not determine stays as near to the prior as they allow.
    """
    names = list(prior)
    weights = [1.0] * len(equations)
    solution = dict(prior)
    for _ in range(rounds):
        solution = _weighted(equations, weights, names, prior)
        residuals = [abs(e.residual(solution)) for e in equations]
        spread = max(1.4826 * median(residuals), GRANULARITY) if residuals else GRANULARITY
        new = [1.0 if r <= HUBER * spread or r == 0 else HUBER * spread / r for r in residuals]
        new = [max(w, 1e-6) for w in new]
        if all(abs(a - b) < 1e-9 for a, b in zip(new, weights, strict=True)):
            break
        weights = new
    return {name: max(value, 0.0) for name, value in solution.items()}


def _weighted(
    equations: Sequence[Equation], weights: Sequence[float], names: Sequence[str], prior: Mapping[str, float]
) -> dict[str, float]:
    size = len(names)
    place = {name: i for i, name in enumerate(names)}
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for i, name in enumerate(names):
        matrix[i][i] += RIDGE
        right[i] += RIDGE * prior[name]
    for equation, weight in zip(equations, weights, strict=True):
        for a, ca in equation.coefficients.items():
            right[place[a]] += weight * ca * equation.value
            for b, cb in equation.coefficients.items():
                matrix[place[a]][place[b]] += weight * ca * cb
    return dict(zip(names, _gauss(matrix, right), strict=True))


def _gauss(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a symmetric positive definite system (the ridge makes it so)."""
    size = len(right)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        right[column], right[pivot] = right[pivot], right[column]
        for row in range(column + 1, size):
            factor = matrix[row][column] / matrix[column][column]
            for k in range(column, size):
                matrix[row][k] -= factor * matrix[column][k]
            right[row] -= factor * right[column]
    solution = [0.0] * size
    for row in reversed(range(size)):
        rest = sum(matrix[row][k] * solution[k] for k in range(row + 1, size))
        solution[row] = (right[row] - rest) / matrix[row][row]
    return solution
