"""Events that programs send, and questions that people answer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar, overload

from signoff.workflow.errors import RegistrationError
from signoff.workflow.names import check_name
from signoff.workflow.places import Place, caller_place
from signoff.workflow.registry import Registry, default_registry
from signoff.workflow.values import ValueCodec, value_codec

T = TypeVar("T")


@dataclass(frozen=True)
class Event(Generic[T]):
    """A named, typed message that programs send."""

    name: str
    type: Any = Any
    sensitive: bool = False
    place: Place = field(default=Place("", 0, ""), compare=False, repr=False)
    word: ClassVar[Literal["event", "ask"]] = "event"

    @functools.cached_property
    def codec(self) -> ValueCodec:
        return value_codec(self.type)


@dataclass(frozen=True)
class Ask(Generic[T]):
    """A named, typed question that people answer."""

    name: str
    type: Any = Any
    sensitive: bool = False
    place: Place = field(default=Place("", 0, ""), compare=False, repr=False)
    word: ClassVar[Literal["event", "ask"]] = "ask"

    @functools.cached_property
    def codec(self) -> ValueCodec:
        return value_codec(self.type)


@overload
def event(name: str, *, sensitive: bool = False, registry: Registry | None = None) -> Event[Any]: ...
@overload
def event(name: str, type: type[T], *, sensitive: bool = False, registry: Registry | None = None) -> Event[T]: ...
@overload
def event(name: str, type: Any, *, sensitive: bool = False, registry: Registry | None = None) -> Event[Any]: ...
def event(name: str, type: Any = Any, *, sensitive: bool = False, registry: Registry | None = None) -> Event[Any]:
    """Declare an event. `type` is what its payload is validated against, `Any` plain JSON."""
    made: Event[Any] = Event(check_name(name, "event"), type, sensitive, caller_place())
    _register_message(made, registry)
    return made


@overload
def ask(name: str, type: type[T], *, sensitive: bool = False, registry: Registry | None = None) -> Ask[T]: ...
@overload
def ask(name: str, type: Any, *, sensitive: bool = False, registry: Registry | None = None) -> Ask[Any]: ...
def ask(name: str, type: Any, *, sensitive: bool = False, registry: Registry | None = None) -> Ask[Any]:
    """Declare a question. `type` is what an answer is validated against; the form is made from it."""
    made: Ask[Any] = Ask(check_name(name, "ask"), type, sensitive, caller_place())
    _register_message(made, registry)
    return made


def _register_message(made: Event[Any] | Ask[Any], registry: Registry | None) -> None:
    try:
        _ = made.codec
    except RegistrationError as error:
        raise RegistrationError(
            f"{made.word} {made.name!r} at {made.place}: its type cannot be serialised: {error}"
        ) from error
    (default_registry if registry is None else registry).add_message(made)
