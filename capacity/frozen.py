"""`dataclass(frozen=True, slots=True)` that is quick to define: the standard one, its methods not compiled.

The standard decorator compiles six methods for every class, half a millisecond a class, and this program has
more than a hundred. Here equality, hash, repr and immutability are shared functions, and `__init__` is compiled
when the first instance is made. `dataclasses.fields`, `replace` and `asdict` work as ever, and type checkers see
the standard decorator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, frozen: Literal[True], slots: Literal[True], kw_only: bool = False, eq: bool = True
    ) -> Callable[[type], type]:
        """The standard decorator's arguments and meaning; always frozen, always slotted."""

        def decorate(cls: type) -> type:
            made = dataclasses.dataclass(slots=True, kw_only=kw_only, init=False, repr=False, eq=False)(cls)
            _add_methods(made, eq)
            return made

        return decorate


def _add_methods(cls: type[Any], eq: bool) -> None:
    def first_init(self: Any, /, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _compile_init(cls)
        cls.__init__(self, *args, **kwargs)

    methods: dict[str, Callable[..., Any]] = {"__init__": first_init, **_SHARED}
    if eq:
        compared = [f.name for f in fields(cls) if f.compare]
        key: Callable[[Any], Any] = attrgetter(*compared) if compared else lambda self: ()

        def equal(self: Any, other: Any) -> bool:
            return bool(key(self) == key(other)) if other.__class__ is self.__class__ else NotImplemented

        methods |= {"__eq__": equal, "__hash__": lambda self: hash(key(self))}
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)


def _refuse_assignment(self: Any, name: str, value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _show(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)


_SHARED: dict[str, Callable[..., Any]] = {
    "__setattr__": _refuse_assignment,
    "__delattr__": _refuse_deletion,
    "__repr__": _show,
    "__getstate__": _state,
    "__setstate__": _restore,
}


def _compile_init(cls: type[Any]) -> Callable[..., None]:
    """`__init__` as the standard decorator writes it: positional fields, keyword-only ones, `__post_init__`."""
    scope: dict[str, Any] = {"_missing": MISSING}
    positional: list[str] = []
    keyword_only: list[str] = []
    body: list[str] = []
    for f in fields(cls):
        name, value, parameter = f.name, f.name, f.name
        if f.default is not MISSING:
            scope[f"_default_{name}"] = f.default
            parameter = f"{name}=_default_{name}"
        elif f.default_factory is not MISSING:
            scope[f"_make_{name}"] = f.default_factory
            parameter = f"{name}=_missing"
            value = f"_make_{name}() if {name} is _missing else {name}" if f.init else f"_make_{name}()"
        if f.init:
            (keyword_only if f.kw_only else positional).append(parameter)
        scope[f"_set_{name}"] = getattr(cls, name).__set__  # the slot itself: object.__setattr__ is slower
        body.append(f" _set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *keyword_only] if keyword_only else [])])
    exec("\n".join([f"def __init__({parameters}):", *body, " return None"]), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made
