"""What a restart retires, on random programs: the handler goes on from the cut, in a journal that fits it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signoff.engine.rounds import Cut, cut
from signoff.workflow.kinds import OutcomeKind, StepKind
from tests.replay.journal import Journal
from tests.replay.programs import Node, nodes, program_of
from tests.replay.test_random import run_to_end

budget = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def restart(journal: Journal, first: set[int]) -> Cut:
    live = [row for row in journal.rows.values() if row.retired_in is None]
    plan = cut(live, first, journal.driven_no, ended=journal.finish is not None)
    journal.generation += 1
    for no in plan.retired:
        journal.rows[no] = replace(journal.rows[no], retired_in=journal.generation)
    journal.driven_no = plan.driven_no
    journal.live.close()
    journal.finish = None
    journal.live = journal.replays(check=True)
    journal.commit(journal.live.catch_up())
    return plan


@given(root=nodes, data=st.data())
@budget
def test_a_run_goes_on_from_any_step(root: Node, data: st.DataObject) -> None:
    with Journal(program_of(root), check=True) as journal:
        for _ in range(data.draw(st.integers(1, 3), label="rounds")):
            run_to_end(journal, data.draw, data.draw(st.integers(0, 15), label="outcomes"))
            live = [no for no, row in journal.rows.items() if row.retired_in is None and row.kind != StepKind.CANCEL]
            if not live:
                break
            start = data.draw(st.sampled_from(live), label="from")
            cancels = {no for no, row in journal.rows.items() if row.kind == StepKind.CANCEL and row.retired_in is None}
            before = dict(journal.rows)
            plan = restart(journal, {no for no in live if no >= start} | cancels)
            assert plan.retired >= {no for no in live if no >= start} | cancels
            for no, row in before.items():  # nothing that stays is changed, and none of it runs again
                if journal.rows[no].retired_in is None:
                    assert journal.rows[no] == row
                    assert row.outcome_no is not None or row.kind == StepKind.MARKER
        run_to_end(journal, data.draw)


@given(root=nodes, data=st.data())
@budget
def test_a_run_that_ended_can_be_ended_again(root: Node, data: st.DataObject) -> None:
    with Journal(program_of(root), check=True) as journal:
        for _ in range(3):
            run_to_end(journal, data.draw, 15)
            live = {no: row for no, row in journal.rows.items() if row.retired_in is None}
            plan = restart(journal, {no for no, row in live.items() if row.kind == StepKind.CANCEL})
            for no, row in live.items():
                if row.outcome_kind == OutcomeKind.CANCELED and not row.by_handler:
                    assert no in plan.retired
        run_to_end(journal, data.draw)


@given(root=nodes, data=st.data())
@budget
def test_without_a_reason_nothing_with_an_outcome_is_retired(root: Node, data: st.DataObject) -> None:
    with Journal(program_of(root), check=True) as journal:
        run_to_end(journal, data.draw, data.draw(st.integers(0, 15), label="outcomes"))
        if any(row.kind == StepKind.CANCEL for row in journal.rows.values()):
            return
        ended = journal.finish is not None
        done = {no for no, row in journal.rows.items() if row.outcome_kind not in (None, OutcomeKind.CANCELED)}
        plan = restart(journal, set())
        assert not plan.retired & done
        assert journal.finish is None or ended
        assert journal.finish is not None or plan.retired or not ended
