"""What stands around a question, in the words of its page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from signoff.web import wording

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)
LATER = NOW + timedelta(hours=3)


def step(kind: str, state: str = "open", due: datetime | None = None, **more: Any) -> Any:
    return SimpleNamespace(no=2, kind=kind, name="shop/send-label", state=state, due_at=due, asked_at=NOW,
                           child_run="r/1", by_handler=False, **more)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "title"),
    [("payments/reserve", "Payments: reserve"), ("a/shop/send-label", "Shop: send label"), ("load_order", "Load order"),
     ("shop/VAT-id", "Shop: VAT id")],
)  # fmt: skip
def test_a_step_has_a_title_that_people_read(name: str, title: str) -> None:
    assert wording.step_title(SimpleNamespace(name=name)) == title


@pytest.mark.parametrize(
    ("one", "text", "at", "href"),
    [
        (step("action", "running"), "Shop: send label runs", NOW, ""),
        (step("action", "backoff", LATER), "Shop: send label failed and is tried again", LATER, ""),
        (step("sleep", due=LATER), "A timer ends", LATER, ""),
        (step("event", due=LATER), "Shop: send label is waited for, and given up", LATER, ""),
        (step("child"), "Shop: send label, a run of its own, is under way", NOW, "/runs/r%2F1"),
        (step("ask"), "“Counted?” waits for anyone in finance", NOW, "/approvals/ap_1"),
    ],
)
def test_what_a_run_has_open_is_said_with_its_moment(one: Any, text: str, at: datetime, href: str) -> None:
    other = SimpleNamespace(id="ap_1", title="Counted?", who="anyone in finance")
    (line,) = wording.under_way(SimpleNamespace(besides=[one], others={2: other}))
    assert (line.text, line.at, line.href) == (text, at, href)


@pytest.mark.parametrize(
    ("after", "run", "said"),
    [
        ([step("action", "success")], "completed", "The run went on with “Shop: send label”."),
        ([], "completed", "The run completed."),
        ([], "paused", "The run is paused and takes the answer when it is resumed."),
        ([], "", "The run goes on."),
    ],
)
def test_a_receipt_says_what_the_answer_did(after: list[Any], run: str, said: str) -> None:
    assert wording.effect(SimpleNamespace(after=after, run=run)) == said


def test_what_followed_the_last_time_ends_with_how_that_run_ended() -> None:
    last = SimpleNamespace(steps=[step("action", "success"), step("ask", "timeout")], more=True, ended="failed")
    assert [line.text for line in wording.followed(last)] == [
        "Shop: send label", "Shop: send label, nobody answered in time", "More steps", "The run failed",
    ]  # fmt: skip
