"""Our quick `dataclass` is the standard one in all that callers see."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from typing import Any

import pytest
from vllm_capacity import frozen

Decorator = Callable[..., Callable[[type], type]]


def classes(dataclass: Decorator) -> tuple[type[Any], type[Any], type[Any]]:
    @dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2
        tags: dict[str, int] = field(default_factory=dict, compare=False)
        secret: str = field(default="s", repr=False)
        kept: list[int] = field(default_factory=list, init=False, repr=False, compare=False)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named(Point):
        name: str
        size: int = 0

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("size")

    @dataclass(frozen=True, slots=True, eq=False)
    class Identity:
        value: list[int]

    return Point, Named, Identity


OURS = classes(frozen.dataclass)
STANDARD = classes(dataclasses.dataclass)


@frozen.dataclass(frozen=True, slots=True)
class Kept:
    """At module level, where pickle looks it up."""

    x: int
    tags: dict[str, int] = field(default_factory=dict)


CALLS: dict[str, Callable[[type[Any], type[Any], type[Any]], object]] = {
    "positional arguments and defaults": lambda point, named, by_id: repr(point(1)),
    "keyword-only after inherited": lambda point, named, by_id: repr(named(1, 5, name="n", size=3)),
    "a missing argument": lambda point, named, by_id: named(1),
    "an unknown argument": lambda point, named, by_id: point(1, z=3),
    "too many positional arguments": lambda point, named, by_id: named(1, 2, {}, "s", "n"),
    "__post_init__": lambda point, named, by_id: named(1, name="n", size=-1),
    "no argument for init=False": lambda point, named, by_id: point(1, kept=[2]),
    "a default with init=False": lambda point, named, by_id: (point(1).kept, point(1).kept is point(1).kept),
    "replace makes it anew": lambda point, named, by_id: replace(named(1, name="n"), size=4).kept,
    "each instance makes its own default": lambda point, named, by_id: point(1).tags is point(1).tags,
    "equality leaves out compare=False": lambda point, named, by_id: point(1, tags={"a": 1}) == point(1),
    "unequal values": lambda point, named, by_id: point(1) == point(2),
    "another class is never equal": lambda point, named, by_id: named(1, name="n") == point(1),
    "not equal to something else": lambda point, named, by_id: point(1) != 3,
    "equal values hash alike": lambda point, named, by_id: hash(point(1)) == hash(point(1, tags={"a": 1})),
    "eq=False compares by identity": lambda point, named, by_id: by_id([1]) == by_id([1]),
    "eq=False hashes by identity": lambda point, named, by_id: len({by_id([1]), by_id([1])}),
    "an unhashable value": lambda point, named, by_id: hash(point([1])),
    "replace": lambda point, named, by_id: repr(replace(named(1, name="n"), size=4)),
    "replace checks again": lambda point, named, by_id: replace(named(1, name="n"), size=-4),
    "asdict": lambda point, named, by_id: asdict(named(1, name="n")),
    "fields": lambda point, named, by_id: [(f.name, f.kw_only, f.type) for f in fields(named)],
    "is a dataclass": lambda point, named, by_id: is_dataclass(by_id),
    "no dictionary": lambda point, named, by_id: hasattr(named(1, name="n"), "__dict__"),
    "a copy": lambda point, named, by_id: copy.copy(point(3)) == point(3),
    "a deep copy": lambda point, named, by_id: copy.deepcopy(point(3)) == point(3),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_behaves_as_the_standard_decorator(call: Callable[..., object]):
    assert outcome(call, OURS) == outcome(call, STANDARD)


def outcome(call: Callable[..., object], made: tuple[type[Any], type[Any], type[Any]]) -> object:
    try:
        return call(*made)
    except (TypeError, ValueError) as error:
        return type(error), str(error)


def test_values_cannot_change():
    point = OURS[0](1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    with pytest.raises(AttributeError):
        point.other = 2
    assert point.x == 1


def test_values_can_be_pickled():
    assert pickle.loads(pickle.dumps(Kept(7, tags={"a": 1}))) == Kept(7, tags={"a": 1})
