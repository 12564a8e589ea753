"""A handler edited while a run of it is under way: whatever changes the recorded past is named, and fails no run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signoff.replay.messages import Drive
from signoff.workflow.errors import Mismatch
from signoff.workflow.kinds import StepKind
from tests.replay.journal import Journal
from tests.replay.programs import Node, program_of

budget = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

leaf = st.builds(Node, st.sampled_from(("step", "sleep")), name=st.just("s"), args=st.integers(0, 3))
trees = st.recursive(
    leaf,
    lambda inner: st.builds(
        Node, st.sampled_from(("seq", "gather", "group")), st.lists(inner, min_size=1, max_size=4).map(tuple)
    ),
    max_leaves=12,
)


def numbered(root: Node) -> Node:
    """Each step gets a name of its own, so that there is one right answer to which one changed."""
    count = 0

    def number(node: Node) -> Node:
        nonlocal count
        if node.parts:
            return node
        count += 1
        return replace(node, kind="step", name=f"step {count}", args=0, number=count)

    return root.change(number)


def recorded(root: Node, data: st.DataObject) -> Journal:
    journal = Journal(program_of(root), check=False)
    for _ in range(data.draw(st.integers(0, 8), label="outcomes")):
        if journal.finish is None:
            journal.settle(data.draw(st.sampled_from(journal.open), label="step"), 1)
    return journal


def replay_edited(journal: Journal, root: Node) -> Drive:
    edited = journal.replays(make=program_of(root))
    try:
        return edited.catch_up()
    finally:
        edited.close()


def at(number: int, root: Node, change: Any) -> Node:
    return root.change(lambda node: change(node) if node.number == number else node)


def no_of(journal: Journal, number: int) -> int | None:
    return next((no for no, row in journal.rows.items() if row.name == f"step {number}"), None)


extra = Node("step", name="inserted", number=-1)
EDITS = {
    "rename": lambda node: replace(node, name="renamed"),
    "kind": lambda node: replace(node, kind="sleep"),
    "args": lambda node: replace(node, args=17),
    "insert": lambda node: Node("seq", (extra, node)),
    "remove": lambda node: Node("seq"),
}


@pytest.mark.parametrize("edit", EDITS)
@given(root=trees, data=st.data())
@budget
def test_an_edit_of_the_recorded_past_is_a_mismatch_at_its_step(edit: str, root: Node, data: st.DataObject) -> None:
    root = numbered(root)
    journal = recorded(root, data)
    if journal.finish is not None:
        return
    number = data.draw(st.sampled_from([node.number for node in root.walk() if not node.parts]), label="edited")
    edited = at(number, root, EDITS[edit])
    no = no_of(journal, number)
    if no is None:  # not reached yet: no business of the journal's
        drive = replay_edited(journal, edited)
        assert drive.asks == []
        assert drive.finish is None
        return
    with pytest.raises(Mismatch) as caught:
        replay_edited(journal, edited)
    if edit == "kind":  # a sleep has another name, too
        assert caught.value.expected["kind"] == StepKind.SLEEP
    if edit in ("rename", "insert"):
        assert caught.value.expected["name"] == ("renamed" if edit == "rename" else "inserted")
    assert caught.value.step_no == no
    assert caught.value.recorded["name"] == f"step {number}"


@given(root=trees, data=st.data())
@budget
def test_steps_swapped_across_an_outcome_are_a_mismatch(root: Node, data: st.DataObject) -> None:
    root = numbered(Node("seq", (root, Node("step"), Node("step"))))
    journal = recorded(root, data)
    first, second = root.parts[1:]
    drive = None
    if journal.finish is None:
        swapped = replace(root, parts=(root.parts[0], second, first))
        no = no_of(journal, first.number)
        if no is None:
            drive = replay_edited(journal, swapped)
            assert drive.asks == []
        else:
            with pytest.raises(Mismatch) as caught:
                replay_edited(journal, swapped)
            assert caught.value.step_no == no
            assert caught.value.recorded["name"] == first.name
            assert caught.value.expected["name"] == second.name


@given(count=st.integers(2, 5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_equal_names_are_told_apart_by_order_and_args(count: int, data: st.DataObject) -> None:
    parts = tuple(Node("step", name="same", args=number, number=number) for number in range(1, count + 1))
    journal = Journal(program_of(Node("seq", parts)), check=False)
    for _ in range(data.draw(st.integers(1, count - 1), label="outcomes")):
        journal.settle(journal.open[0], 1)
    removed = data.draw(st.integers(0, len(journal.rows) - 1), label="removed")
    fewer = Node("seq", parts[:removed] + parts[removed + 1 :])
    with pytest.raises(Mismatch) as caught:
        replay_edited(journal, fewer)
    assert caught.value.step_no == removed
    journal.live.close()
