"""Random programs, random orders of outcomes: every replay gives the same."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signoff.workflow.kinds import ErrorInfo, OutcomeKind, StepKind
from tests.replay.journal import Journal
from tests.replay.programs import Node, nodes, program_of

budget = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def outcome_of(journal: Journal, no: int, draw: Any) -> None:
    """Settle one open step at random, as its kind can end."""
    kind = journal.rows[no].kind
    luck = draw(st.integers(0, 5), label="luck")
    if kind is StepKind.SLEEP:
        journal.settle(no)
    elif kind is StepKind.EVENT and luck > 3:
        journal.settle(no, kind=OutcomeKind.TIMEOUT)
    elif kind is StepKind.EVENT:
        journal.event(no, "signal", no)
    elif luck == 5 and kind is StepKind.CHILD:
        journal.settle(no, kind=OutcomeKind.CANCELED, error=ErrorInfo("RunCanceled", "", {"run": "c"}))
    elif luck > 3:
        journal.fail(no, f"step {no}")
    else:
        journal.settle(no, [no, luck])


def run_to_end(journal: Journal, draw: Any, steps: int = 40) -> None:
    for _ in range(steps):
        if journal.finish is not None:
            error = journal.finish.error
            assert error is None or error.type == "CancelledError", error
            return
        if draw(st.integers(0, 19), label="cancel") == 0:
            journal.cancel()
        else:
            outcome_of(journal, draw(st.sampled_from(journal.open), label="step"), draw)
        if journal.finish is None and draw(st.booleans(), label="evict"):
            journal.evict()


@given(root=nodes, data=st.data())
@budget
def test_every_replay_gives_the_same_commands_and_result(root: Node, data: st.DataObject) -> None:
    with Journal(program_of(root), check=True) as journal:  # a second replay after each outcome
        run_to_end(journal, data.draw)


@given(root=nodes, data=st.data())
@budget
def test_replay_after_rounds_that_retired_parts_of_the_journal(root: Node, data: st.DataObject) -> None:
    with Journal(program_of(root), check=True) as journal:
        for _ in range(data.draw(st.integers(1, 3), label="rounds")):
            run_to_end(journal, data.draw, data.draw(st.integers(0, 12), label="outcomes"))
            live = [no for no, row in journal.rows.items() if row.retired_in is None]
            if not live:
                break
            kept = {no: row for no, row in journal.rows.items() if row.retired_in is None}
            journal.restart(data.draw(st.sampled_from(live), label="from"))
            for no, row in kept.items():
                if journal.rows[no].retired_in is None:
                    assert journal.rows[no] == row
                    assert no not in journal.open or row.outcome_no is None
        run_to_end(journal, data.draw)


@given(root=nodes, data=st.data())
@budget
def test_an_outcome_recorded_behind_the_back_of_a_live_program_is_replayed_in_order(
    root: Node, data: st.DataObject
) -> None:
    """The live program is discarded, as its advance would be; what it had asked is asked again by its successor."""
    with Journal(program_of(root), check=True) as journal:
        for _ in range(15):
            if journal.finish is not None:
                break
            for no in data.draw(
                st.lists(st.sampled_from(journal.open), min_size=1, max_size=3, unique=True), label="settled"
            ):
                if journal.rows[no].kind is StepKind.EVENT:
                    journal.record(no, OutcomeKind.TIMEOUT)
                else:
                    journal.record(no, OutcomeKind.SUCCESS, no)
            journal.live.close()
            journal.live = journal.replays(check=True)
            journal.commit(journal.live.catch_up())
