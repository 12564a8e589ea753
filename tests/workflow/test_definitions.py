"""D1, D4, D6: definitions and their names."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from signoff.workflow.codehash import code_hash
from signoff.workflow.definitions import (
    Action,
    Ask,
    Event,
    Mutation,
    Query,
    Workflow,
    action,
    ask,
    closure_action,
    event,
    mutation,
    query,
    workflow,
)
from signoff.workflow.errors import InvalidInput, NotFound, RegistrationError
from signoff.workflow.kinds import StepKind
from signoff.workflow.names import check_name
from signoff.workflow.options import Retention
from signoff.workflow.registry import Registry, default_registry
from signoff.workflow.retry import Retry
from signoff.workflow.selectors import group, role, selector_from_json, selectors_to_json, user


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_each_kind_is_registered_under_its_name(registry: Registry) -> None:
    @query(registry=registry)
    async def read(session: Any, key: str) -> str:
        return key

    @mutation("write", registry=registry)
    async def any_name(session: Any) -> None: ...

    @action(name="send", registry=registry)
    def send(to: str) -> int:
        return 1

    @workflow("flow", registry=registry)
    async def flow(step: Any, order: str) -> int:
        return 1

    made_event = event("paid", int, registry=registry)
    made_ask = ask("ship", bool, registry=registry)
    assert isinstance(read, Query)
    assert isinstance(any_name, Mutation)
    assert isinstance(send, Action)
    assert isinstance(flow, Workflow)
    assert (read.name, any_name.name, send.name) == ("read", "write", "send")
    assert (read.kind, any_name.kind, send.kind) == (StepKind.QUERY, StepKind.MUTATION, StepKind.ACTION)
    assert (read.is_async, send.is_async) == (True, False)
    assert registry.find_function("write") is any_name
    assert registry.find_workflow("flow") is flow
    assert registry.find_event("paid") is made_event
    assert registry.find_ask("ship") is made_ask
    assert (registry.find_event("ship"), registry.find_ask("paid")) == (None, None)
    assert list(flow.codec.parameters) == ["order"]
    assert list(read.codec.parameters) == ["key"]
    assert isinstance(made_event, Event)
    assert isinstance(made_ask, Ask)


def test_versions_live_side_by_side(registry: Registry) -> None:
    def define(version: int) -> Workflow[[], None]:
        @workflow("flow", version, registry=registry)
        async def flow(step: Any) -> None: ...

        return flow

    second, first = define(2), define(1)
    assert registry.find_workflow("flow") is second
    assert registry.find_workflow("flow", 1) is first
    assert registry.find_workflow("flow", 3) is None
    assert registry.workflows() == [first, second]
    with pytest.raises(NotFound, match=r"unknown workflow flow version 3; registered here: flow"):
        registry.get_workflow("flow", 3)


def test_one_name_twice_names_both_places(registry: Registry) -> None:
    @action("same", registry=registry)
    async def first() -> None: ...

    with pytest.raises(RegistrationError) as caught:

        @action("same", registry=registry)
        async def second() -> None: ...

    assert str(first.place) in str(caught.value)
    assert str(caught.value).count(__file__) == 2
    assert registry.find_function("same") is first

    @workflow("same", registry=registry)
    async def one(step: Any) -> None: ...

    with pytest.raises(RegistrationError, match="workflow 'same' version 1 is defined twice"):

        @workflow("same", registry=registry)
        async def two(step: Any) -> None: ...

    event("word", int, registry=registry)
    with pytest.raises(RegistrationError, match="defined twice") as caught:
        ask("word", bool, registry=registry)
    assert str(caught.value).count(__file__) == 2


SOURCE = """
from signoff.workflow.definitions import action, event, workflow

@action("reloaded/send")
async def send() -> None: ...

paid = event("reloaded/paid", {type})

@workflow("reloaded/flow")
async def flow(step) -> int:
    return {value}
"""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reloaded_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reloaded_module"] = module
    spec.loader.exec_module(module)
    return module


def test_the_same_place_again_replaces_the_former(tmp_path: Path) -> None:
    path = tmp_path / "reloaded_module.py"
    path.write_text(SOURCE.format(type="int", value=1))
    first = load(path)
    path.write_text("# moved\n" + SOURCE.format(type="str", value=22))
    second = load(path)
    assert default_registry.find_workflow("reloaded/flow") is second.flow
    assert default_registry.find_function("reloaded/send") is second.send
    assert default_registry.find_event("reloaded/paid") is second.paid
    assert first.flow.code_hash != second.flow.code_hash


def test_the_code_hash_follows_the_code_and_not_its_place(tmp_path: Path) -> None:
    source = "async def handler(step):\n    return {value}\n"
    hashes = []
    for no, text in enumerate([source.format(value=1), "\n\n" + source.format(value=1), source.format(value=2)]):
        path = tmp_path / f"hashed{no}.py"
        path.write_text(text)
        scope: dict[str, Any] = {}
        exec(compile(text, str(path), "exec"), scope)
        hashes.append(code_hash(scope["handler"]))
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]
    typed_in = []
    for value in (1, 1, 2):
        scope = {}
        exec(f"def handler(step):\n    def inner(): return {value}\n    return inner", scope)
        typed_in.append(code_hash(scope["handler"]))
    assert typed_in[0] == typed_in[1]
    assert typed_in[0] != typed_in[2]


HELPED = """
from signoff.workflow.definitions import action, workflow
import {helpers}
from {helpers} import Item

@workflow("helped/flow")
async def flow(step, item: Item) -> int:
    return {helpers}.compute(item)
"""


def test_the_code_hash_follows_the_modules_that_the_handler_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blocked run is tried again by code with another hash, so a fixed helper or model must change it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    helpers = tmp_path / "helpers_of_flow.py"
    flow = tmp_path / "reloaded_module.py"
    flow.write_text(HELPED.format(helpers="helpers_of_flow"))
    hashes = []
    for value in (1, 22, 22):
        helpers.write_text(
            f"from pydantic import BaseModel\nclass Item(BaseModel):\n    x: int\ndef compute(item): return {value}\n"
        )
        sys.modules.pop("helpers_of_flow", None)
        hashes.append(load(flow).flow.code_hash)
    assert hashes[0] != hashes[1] == hashes[2]


def test_decorated_closures_keep_their_own_types() -> None:
    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def inner() -> Any:
            return fn()

        return inner

    @logged
    def number() -> int:
        return 1

    @logged
    def text() -> str:
        return "a"

    assert closure_action("number", number).codec.encode_result(1) == "1"
    assert closure_action("text", text).codec.encode_result("a") == '"a"'


def test_what_is_no_coroutine_function_is_refused(registry: Registry) -> None:
    def sync(step: Any) -> None: ...
    async def no_args() -> None: ...
    async def stream(step: Any) -> Any:
        yield 1

    for wrong in (sync, no_args, stream):
        for decorate in (
            workflow("flow", registry=registry),
            query("q", registry=registry),
            mutation("m", registry=registry),
        ):
            with pytest.raises(RegistrationError, match=wrong.__name__):
                decorate(wrong)  # type: ignore[arg-type]  # wrong on purpose
    assert registry.workflows() == []
    assert registry.functions() == []


def test_a_decorator_without_parentheses_says_so() -> None:
    for decorator in (query, mutation, action):
        with pytest.raises(RegistrationError, match="parentheses"):
            decorator(lambda: 1)(lambda: 2)  # type: ignore[arg-type, call-overload]  # wrong on purpose


class Plain:
    pass


def test_annotations_that_cannot_be_stored_are_refused_at_import(registry: Registry) -> None:
    with pytest.raises(RegistrationError, match=r"action 'bad' at .*test_definitions.py:\d+.*parameter 'thing'"):

        @action("bad", registry=registry)
        async def bad(thing: Plain) -> None: ...

    with pytest.raises(RegistrationError, match=r"workflow 'bad' .*the result of"):

        @workflow("bad", registry=registry)
        async def flow(step: Any) -> list[Plain]:
            return []

    with pytest.raises(RegistrationError, match=r"event 'bad' at .*test_definitions.py:\d+"):
        event("bad", Plain, registry=registry)
    assert registry.workflows() == []


def test_local_classes_may_annotate(registry: Registry) -> None:
    class Local(BaseModel):
        x: int

    @action("local", registry=registry)
    async def local(item: Local) -> list[Local]:
        return [item]

    text = local.codec.encode_call((Local(x=1),))
    assert local.codec.decode_call(text) == ((), {"item": Local(x=1)})


@pytest.mark.parametrize("name", ["", "a" * 257, "a\nb", "a\x00", "\x7f", "\ud800", 5, None])
def test_bad_names_are_refused_where_they_are_given(name: Any, registry: Registry) -> None:
    makers = [lambda: workflow(name, registry=registry), lambda: event(name, int, registry=registry)]
    makers += [lambda: ask(name, int, registry=registry), lambda: group(name), lambda: closure_action(name, lambda: 1)]
    for make in makers:
        with pytest.raises(InvalidInput):
            make()


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=256))
def test_all_other_names_are_taken(name: str) -> None:
    assert check_name(name, "step") == name


@pytest.mark.parametrize(
    "bad",
    [
        {"version": 0},
        {"version": "1"},
        {"version": True},
        {"rate": 5},
        {"rate": (0, 60)},
        {"rate": (5, 0)},
        {"max_concurrent": 0},
        {"max_queued": -1},
        {"max_steps": 0},
        {"timeout": -1},
        {"retry": 3},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, Any], registry: Registry) -> None:
    with pytest.raises(InvalidInput):
        workflow("flow", **bad, registry=registry)


def test_settings_are_told_to_other_processes(registry: Registry) -> None:
    paid = event("paid", int, registry=registry)

    @mutation("done", registry=registry)
    async def done(session: Any, run: str) -> None: ...

    @workflow(
        "flow", retry=Retry(max_attempts=2), pool="p", max_concurrent=3, rate=(5, 60), max_queued=0, events=[paid],
        retention=Retention(completed=60), on_complete=done, max_steps=10, registry=registry,
    )  # fmt: skip
    async def flow(step: Any, password: SecretStr) -> None: ...

    assert flow.settings.to_json() == {
        "max_concurrent": 3, "rate": [5, 60.0], "max_queued": 0, "events": ["paid"], "retention": {"completed": 60.0},
        "on_complete": "done", "max_steps": 10,
    }  # fmt: skip
    assert (flow.settings.defaults.retry, flow.settings.defaults.pool) == (Retry(max_attempts=2), "p")
    assert flow.settings.declares("paid")
    assert not flow.settings.declares("other")
    assert flow.sensitive


def test_a_closure_is_an_action_that_no_registry_knows(registry: Registry) -> None:
    value = [1]

    def count() -> int:
        return len(value)

    made = closure_action("count", count)
    assert (made.name, made.kind, made.is_async, made.fn()) == ("count", StepKind.ACTION, False, 1)
    assert made.codec.decode_result(made.codec.encode_result(3)) == 3
    with pytest.raises(InvalidInput):
        made.codec.encode_result("x")
    assert closure_action("again", count).codec is made.codec

    def bound(value: Plain = Plain()) -> int:  # noqa: B008  # what a closure captures by default is never stored
        return 1

    def needs(value: int) -> int:
        return value

    assert closure_action("bound", bound).codec.encode_call() is None
    with pytest.raises(InvalidInput, match="needs value"):
        closure_action("needs", needs)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidInput, match="takes a function"):
        closure_action("value", 5)  # type: ignore[arg-type]  # wrong on purpose
    untyped = closure_action("untyped", lambda: value)
    assert untyped.codec.encode_result([1]) == "[1]"
    assert default_registry.find_function("count") is None


def test_a_function_is_no_plain_function(registry: Registry) -> None:
    @action("send", registry=registry)
    async def send() -> None: ...

    with pytest.raises(TypeError):
        send()  # type: ignore[operator]  # wrong on purpose


def test_engine_workflows_override_the_registry(registry: Registry) -> None:
    @action("send", registry=registry)
    async def send() -> None: ...

    @workflow("a", registry=registry)
    async def first(step: Any) -> None: ...

    @workflow("b", registry=registry)
    async def second(step: Any) -> None: ...

    other = registry.with_workflows([second])
    assert other.workflows() == [second]
    assert other.find_function("send") is send


def test_selectors_survive_as_json() -> None:
    for selector in (group("finance"), role("operator"), user("Ana@Example.org")):
        assert selector_from_json(selector.to_json()) == selector
    assert user("Ana@Example.org") == user("ana@example.org")
    assert selectors_to_json(None) == []
    assert selectors_to_json(group("a")) == [{"group": "a"}]
    assert selectors_to_json([group("a"), user("b@example.org")]) == [{"group": "a"}, {"user": "b@example.org"}]
    for bad in ({}, {"group": 5}, {"role": "boss"}, {"user": "nobody"}, {"group": "a", "more": 1}):
        with pytest.raises(InvalidInput):
            selector_from_json(bad)
    with pytest.raises(InvalidInput):
        selectors_to_json(["finance"])  # type: ignore[list-item]  # wrong on purpose
