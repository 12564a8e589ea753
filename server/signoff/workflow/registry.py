"""Definitions by name. Two definitions under one name are refused, naming both places (D4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from signoff.workflow.errors import NotFound, RegistrationError
from signoff.workflow.places import Place

if TYPE_CHECKING:
    from signoff.workflow.definitions import Ask, Event, StepFunction, Workflow


class Registry:
    """Workflows, functions, events and asks, each by name. Not for several threads to fill at once."""

    def __init__(self, workflows: Iterable[Workflow[Any, Any]] = ()) -> None:
        self._workflows: dict[str, dict[int, Workflow[Any, Any]]] = {}
        self._functions: dict[str, StepFunction[Any, Any]] = {}
        self._messages: dict[str, Event[Any] | Ask[Any]] = {}
        for workflow in workflows:
            self.add_workflow(workflow)

    def add_workflow(self, workflow: Workflow[Any, Any]) -> None:
        versions = self._workflows.setdefault(workflow.name, {})
        former = versions.get(workflow.version)
        if former is not None:
            _refuse_second(f"workflow {workflow.name!r} version {workflow.version}", former.place, workflow.place)
        versions[workflow.version] = workflow

    def add_function(self, function: StepFunction[Any, Any]) -> None:
        former = self._functions.get(function.name)
        if former is not None:
            _refuse_second(f"function {function.name!r}", former.place, function.place)
        self._functions[function.name] = function

    def add_message(self, message: Event[Any] | Ask[Any]) -> None:
        # Events and asks share one name space: a wait and a question of one name would be told apart by nothing.
        former = self._messages.get(message.name)
        if former is not None:
            _refuse_second(f"{message.word} {message.name!r}", former.place, message.place)
        self._messages[message.name] = message

    def find_workflow(self, name: str, version: int | None = None) -> Workflow[Any, Any] | None:
        """The workflow, or None; without a version the highest one."""
        versions = self._workflows.get(name)
        if not versions:
            return None
        return versions.get(max(versions) if version is None else version)

    def get_workflow(self, name: str, version: int | None = None) -> Workflow[Any, Any]:
        found = self.find_workflow(name, version)
        if found is None:
            which = name if version is None else f"{name} version {version}"
            known = ", ".join(sorted(self._workflows)) or "none"
            raise NotFound(f"unknown workflow {which}; registered here: {known}", workflow=name, version=version)
        return found

    def find_function(self, name: str) -> StepFunction[Any, Any] | None:
        return self._functions.get(name)

    def find_event(self, name: str) -> Event[Any] | None:
        found = self._messages.get(name)
        return found if found is not None and found.word == "event" else None  # type: ignore[return-value]  # by its word

    def find_ask(self, name: str) -> Ask[Any] | None:
        found = self._messages.get(name)
        return found if found is not None and found.word == "ask" else None  # type: ignore[return-value]  # by its word

    def workflows(self) -> list[Workflow[Any, Any]]:
        """All versions of all workflows, by name and version."""
        return sorted(
            (item for versions in self._workflows.values() for item in versions.values()),
            key=lambda item: (item.name, item.version),
        )

    def functions(self) -> list[StepFunction[Any, Any]]:
        return list(self._functions.values())

    def messages(self) -> Iterator[Event[Any] | Ask[Any]]:
        return iter(self._messages.values())

    def with_workflows(self, workflows: Iterable[Workflow[Any, Any]]) -> Registry:
        """These workflows only, with this registry's functions, events and asks (`Engine(workflows=[...])`)."""
        other = Registry(workflows)
        other._functions = self._functions
        other._messages = self._messages
        return other


def _refuse_second(what: str, former: Place, place: Place) -> None:
    if not place.replaces(former):
        raise RegistrationError(f"{what} is defined twice: at {former} and at {place}")


default_registry = Registry()
