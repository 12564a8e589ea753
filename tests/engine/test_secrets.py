"""What is sensitive, or has a secret in its type, is shown to its handler and to nobody else (F11)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from signoff import Compensation, Registry, RunFailed, Step, action, ask, event, workflow
from signoff.engine.starting import StartSpec, start
from signoff.testing import TestEngine

WAIT = 8


async def test_secrets_are_shown_to_the_handler_and_to_nobody_else(t: TestEngine, registry: Registry) -> None:
    class Login(BaseModel):
        user: str
        password: SecretStr

    secret = "hunter2-very-secret"

    @action(name="by-option", sensitive=True, registry=registry)
    async def by_option(text: str) -> str:
        return text * 2

    @action(name="by-type", registry=registry)
    async def by_type(login: Login) -> SecretStr:
        return SecretStr(login.password.get_secret_value() + "!")

    told = event("told", str, sensitive=True, registry=registry)
    word = ask("word", str, sensitive=True, registry=registry)

    @workflow("child", sensitive=True, registry=registry)
    async def child(step: Step, text: str) -> str:
        return text

    @workflow("w", sensitive=True, registry=registry)
    async def w(step: Step, text: str) -> bool:
        doubled = await step.run_action(by_option, text)
        typed = await step.run_action(by_type, Login(user="u", password=SecretStr(text)))
        sent = await step.await_event(told)
        answered = await step.ask(word, title="The word?")
        from_child = await step.run_workflow(child, text)
        return [doubled, typed.get_secret_value(), sent, answered, from_child] == [text * 2, text + "!", *[text] * 3]

    await t.open()
    await t.add_person("ana@example.org")
    run = await t.start(w, secret)
    changes: list[Any] = []

    async def watch() -> None:
        changes.extend([change async for change in run.subscribe()])

    watching = asyncio.create_task(watch())
    await t.settle()
    await run.send(told, secret)
    await t.approve(run, secret, as_user="ana@example.org")
    assert await t.result(run) is True
    await asyncio.wait_for(watching, WAIT)
    children = await t.runs(workflow="child")
    shown = [changes, await run.status(), await run.steps(), await run.events(), await run.logs(), children.items,
             await run.approvals(), await t.run(children.items[0].id).status()]  # fmt: skip
    assert len(changes) > 3
    assert [part for part in shown if secret in repr(part)] == []
    assert "[redacted]" in repr(await run.steps())
    assert "[redacted]" in repr(await run.events())
    assert (await run.status()).args == json.dumps("[redacted]")


async def test_what_has_a_secret_in_its_type_hides_the_values_of_its_runs(t: TestEngine, registry: Registry) -> None:
    """Without `sensitive=True`: of a child, of a run whose result alone has one, of one that is started by its name
    where its code is not, and of an enqueued function."""

    class Login(BaseModel):
        user: str
        password: SecretStr

    secret = "hunter2-very-secret"

    @action(name="by-type", registry=registry)
    async def by_type(login: Login) -> Login:
        return login

    @action(name="undo", registry=registry)
    async def undo(what: Compensation) -> None:
        undone.append(what.args)

    @action(name="by-option", sensitive=True, compensate=undo, registry=registry)
    async def by_option(text: str) -> str:
        return text

    @workflow("child", registry=registry)
    async def child(step: Step, login: Login) -> str:
        return login.user

    @workflow("undone", registry=registry)
    async def failing(step: Step) -> None:
        await step.run_action(by_option, secret)
        await step.run_action(by_option, secret)
        raise ValueError("to be undone")

    undone: list[Any] = []

    @workflow("result-alone", registry=registry)
    async def result_alone(step: Step) -> Login:
        login = await step.run_action(by_type, Login(user="u", password=SecretStr(secret)))
        await step.run_workflow(child, login)
        return login

    await t.open()
    result = await t.result(parent := await t.start(result_alone))
    assert result.password.get_secret_value() == secret
    by_name = StartSpec(workflow="child", args='{"login": {"user": "u", "password": "' + secret + '"}}')
    foreign = await t.store.write(start, t.scope(), by_name)
    runs = [parent, t.run(foreign.public_id), *[t.run(one.id) for one in (await t.runs(workflow="child")).items]]
    login = Login(user="u", password=SecretStr(secret))
    runs += [await t.enqueue(by_type, login), await t.enqueue(by_option, secret)]
    for run in runs:
        await t.result(run)
        assert secret not in repr([await run.status(), await run.steps()]), (await run.status()).workflow
    run = await t.start(failing)
    with pytest.raises(RunFailed):
        await t.result(run)
    assert undone == [{"text": secret}] * 2
    assert secret not in repr(await run.steps())
