"""Typed errors carry what they are about, and map to one problem document."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle

import pytest

from signoff.workflow import attempt, errors
from signoff.workflow.attempt import Attempt, NoAttempt, attempting
from signoff.workflow.errors import (
    EventTimeout,
    FieldError,
    InvalidInput,
    Mismatch,
    Refused,
    RunFailed,
    SignoffError,
    StepFailed,
    StepLost,
)
from signoff.workflow.kinds import ErrorInfo

INFO = ErrorInfo("ValueError", "no such order", {"order": "o-1"}, "Traceback ...")


def all_errors() -> list[type[SignoffError]]:
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, SignoffError)]
    assert len(found) > 15
    return found


def test_every_error_has_a_code_and_a_status_of_its_own_kind() -> None:
    codes = [cls.code for cls in all_errors()]
    assert len(set(codes)) == len(codes)
    assert all(400 <= cls.status < 600 for cls in all_errors())


def test_a_problem_names_what_it_is_about() -> None:
    error = InvalidInput("wrong args", [FieldError(("item", 0, "sku"), "too short", "x")], workflow="orders")
    assert error.to_problem() == {
        "type": "invalid_input",
        "title": "Invalid input",
        "status": 422,
        "detail": "wrong args: item.0.sku: too short",
        "workflow": "orders",
        "errors": [{"loc": ["item", 0, "sku"], "message": "too short", "input": "x"}],
    }
    assert (error.workflow, error.run) == ("orders", None)
    with pytest.raises(AttributeError):
        _ = error.nonsense


def test_refusals_tell_reason_and_status() -> None:
    assert Refused("not_eligible").to_problem()["status"] == 403
    assert Refused("already_decided").to_problem()["status"] == 409
    assert Refused("form", fields=[FieldError(("note",), "missing")]).to_problem()["errors"]
    assert Refused("deadline", approval="a-1").reason == "deadline"


def test_a_failed_step_shows_the_remote_exception() -> None:
    error = StepFailed(INFO, step="send", step_no=3, run="r-1")
    assert (error.type, error.message, error.data, error.traceback) == (
        "ValueError", "no such order", {"order": "o-1"}, "Traceback ...",
    )  # fmt: skip
    assert str(error) == "step 'send' failed: ValueError: no such order"
    assert (error.step, error.step_no, error.run) == ("send", 3, "r-1")
    assert isinstance(StepLost(INFO), StepFailed)
    assert RunFailed(INFO, run="r-2").error is INFO


def test_an_event_timeout_is_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        raise EventTimeout("no payment", event="paid")


def test_both_sides_of_a_mismatch_are_kept() -> None:
    reason = Mismatch("other step", recorded={"name": "a"}, expected={"name": "b"}, step_no=4).to_reason()
    assert reason == {
        "code": "mismatch", "message": "other step", "recorded": {"name": "a"}, "expected": {"name": "b"}, "step_no": 4,
    }  # fmt: skip


def test_errors_can_be_copied() -> None:
    error = copy.copy(InvalidInput("x", [FieldError(("a",), "b")], run="r"))
    assert (str(error), error.run) == ("x: a: b", "r")
    again = pickle.loads(pickle.dumps(InvalidInput("x", [FieldError(("a",), "b")], run="r")))
    assert (str(again), again.run) == ("x: a: b", "r")
    failed = pickle.loads(pickle.dumps(StepFailed(INFO, step="send")))
    assert (failed.error, failed.step) == (INFO, "send")


async def test_the_current_attempt_reaches_tasks_and_threads() -> None:
    logged: list[tuple[str, str, object]] = []
    moved: list[tuple[float, str]] = []
    made = Attempt(
        2, "r-1:3", "r-1", 3, on_log=lambda *line: logged.append(line), on_progress=lambda *step: moved.append(step)
    )
    with pytest.raises(NoAttempt):
        attempt.current()
    with attempting(made):
        attempt.current().log("sync", order="o-1")
        await asyncio.to_thread(lambda: attempt.current().log("thread", level="warning"))
        await asyncio.create_task(asyncio.to_thread(lambda: attempt.current().progress(0.5, "half")))
        assert attempt.current().number == 2
    assert attempt.find() is None
    assert logged == [("info", "sync", {"order": "o-1"}), ("warning", "thread", None)]
    assert moved == [(0.5, "half")]
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInput):
            made.progress(bad)
    with pytest.raises(InvalidInput):
        made.log("x", level="loud")  # type: ignore[arg-type]  # wrong on purpose
