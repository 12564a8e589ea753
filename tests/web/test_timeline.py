"""The timeline's arithmetic: all lies between 0 and 100 percent, in the order of time, and people's waits show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from signoff.web.timeline import Axis, lay_out

START = datetime(2026, 1, 5, 9, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def step(no: int, kind: str, begin: float, end: float | None, state: str = "success", **more: Any) -> Any:
    given = {"no": no, "kind": kind, "name": kind, "generation": 1, "state": state, "asked_at": at(begin),
             "ended_at": None if end is None else at(end), "attempt_rows": ()}  # fmt: skip
    return SimpleNamespace(**{**given, **more})


def run(end: float | None) -> Any:
    return SimpleNamespace(ended_at=None if end is None else at(end))


def test_a_long_wait_is_folded_and_its_bar_still_spans_it() -> None:
    steps = [step(0, "action", 0, 2), step(1, "ask", 2, 86_400), step(2, "action", 86_400, 86_404)]
    timeline = lay_out(run(86_404), steps, [], at(90_000))
    (fold,) = timeline.folds
    assert fold.text == "23 h 59 min"
    first, human, last = (row.bars[0] for row in timeline.lanes[0].rows)
    assert (human.look, first.look, last.look) == ("human", "machine", "machine")
    assert human.x == fold.x
    assert human.width == fold.width
    assert first.width > 20
    assert last.width > first.width


def test_without_machine_time_nothing_is_folded() -> None:
    timeline = lay_out(run(None), [step(0, "ask", 0, None, "open")], [], at(5_000))
    assert timeline.folds == []
    assert (timeline.lanes[0].rows[0].bars[0].x, timeline.lanes[0].rows[0].bars[0].width) == (0, 100)


def test_failed_tries_and_their_pauses_are_parts_of_one_row() -> None:
    tries = (SimpleNamespace(started_at=at(0), ended_at=at(1), next_at=at(3)),)
    timeline = lay_out(run(6), [step(0, "action", 0, 6, attempt_rows=tries)], [], at(9))
    assert [bar.look for bar in timeline.lanes[0].rows[0].bars] == ["failed", "line", "machine"]


def test_rounds_are_lanes() -> None:
    again = SimpleNamespace(generation=2, started_at=at(9), actor="ana@example.org", reason="again")
    steps = [step(0, "action", 0, 1), step(1, "action", 9, 10, generation=2)]
    lanes = lay_out(run(10), steps, [again], at(10)).lanes
    assert [(lane.generation, lane.info) for lane in lanes] == [(1, None), (2, again)]


moments = st.floats(min_value=0, max_value=1e7, allow_nan=False)
spans = st.tuples(moments, moments).map(sorted)


@given(
    st.lists(st.tuples(spans, st.sampled_from(["action", "ask", "sleep", "event", "child"])), min_size=1, max_size=12)
)
def test_bars_stay_on_the_page_and_in_order(drawn: list[tuple[list[float], str]]) -> None:
    steps = [step(no, kind, begin, end) for no, ((begin, end), kind) in enumerate(drawn)]
    last = max(end for (_, end), _ in drawn)
    timeline = lay_out(run(last), steps, [], at(last))
    for row in timeline.lanes[0].rows:
        for bar in row.bars:
            assert bar.x >= 0
            assert bar.x + bar.width <= 100.02
            assert bar.width > 0
    for mark in timeline.marks:
        assert 0 <= mark.x <= 100


@given(st.lists(st.integers(0, 10**8), min_size=2, max_size=20, unique=True))
def test_the_axis_never_goes_back(seconds: list[int]) -> None:
    axis = Axis([at(second) for second in seconds], [])
    places = [axis.x(at(second)) for second in sorted(seconds)]
    assert places == sorted(places)
    assert (places[0], round(places[-1], 6)) == (0, 100)
