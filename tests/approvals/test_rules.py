"""The evaluation of rules against what it promises, for rules and deciders that hypothesis makes up."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from signoff.approvals.rules import Progress, Vote, progress
from signoff.workflow.rules import AllOf, AnyOf, NOf, Rule, all_of, any_of, leaves, n_of, places, rule_from_json
from signoff.workflow.selectors import group, user

unhurried = settings(deadline=None)  # a loaded machine breaks no promise of these
FINANCE, SECURITY, LEGAL = group("finance"), group("security"), group("legal")


def rules(*, staged: bool) -> st.SearchStrategy[Rule]:
    leaf = st.one_of(
        st.builds(AnyOf, veto=st.booleans()),
        st.builds(NOf, n=st.integers(1, 3), veto=st.booleans()),
    )
    flag = st.booleans() if staged else st.just(False)
    return st.recursive(
        leaf,
        lambda parts: st.builds(
            AllOf, parts=st.lists(parts, min_size=1, max_size=3).map(tuple), staged=flag, veto=st.booleans()
        ),
        max_leaves=5,
    )


def people_for(rule: Rule) -> st.SearchStrategy[list[frozenset[int]]]:
    """What each of some people could decide for."""
    parts = st.integers(0, len(list(leaves(rule))) - 1)
    return st.lists(st.frozensets(parts, min_size=1), max_size=10)


with_people = st.shared(rules(staged=False)).flatmap(lambda rule: st.tuples(st.just(rule), people_for(rule)))
staged_with_people = rules(staged=True).flatmap(lambda rule: st.tuples(st.just(rule), people_for(rule)))


def sizes(rule: Rule) -> list[int]:
    return [leaf.n if isinstance(leaf, NOf) else 1 for leaf in leaves(rule)]


def most_places(rule: Rule, votes: list[frozenset[int]]) -> int:
    """The largest number of places that different people can fill, by trying (Hall's theorem over sets of leaves)."""
    room = sizes(rule)
    least_left = 0  # places that must stay empty
    for some in itertools.chain.from_iterable(
        itertools.combinations(range(len(room)), n) for n in range(len(room) + 1)
    ):
        able = sum(1 for vote in votes if vote & set(some))
        least_left = max(least_left, sum(room[part] for part in some) - able)
    return sum(room) - least_left


def decide_in_turn(rule: Rule, people: list[frozenset[int]]) -> list[tuple[frozenset[int], Progress, Progress]]:
    """Everybody tries once, in this order, as the gate lets them: what they counted for, before and after."""
    votes: list[Vote] = []
    taken = []
    for able in people:
        before = progress(rule, votes)
        parts = able & before.open_parts
        if not before.done and parts:
            votes.append(Vote(parts))
            taken.append((parts, before, progress(rule, votes)))
    return taken


@unhurried
@given(with_people)
def test_the_most_places_are_filled_whatever_the_order(given: tuple[Rule, list[frozenset[int]]]) -> None:
    rule, people = given
    found = progress(rule, [Vote(parts) for parts in people])
    assert found.have == most_places(rule, people)
    assert found.need == places(rule)
    assert found.done == (found.have == found.need)
    shuffled = list(people)
    random.Random(len(people)).shuffle(shuffled)
    other = progress(rule, [Vote(parts) for parts in shuffled])
    assert (other.have, other.done, other.open_parts) == (found.have, found.done, found.open_parts)


@unhurried
@given(with_people)
def test_open_places_are_exactly_those_that_a_further_person_could_fill(
    given: tuple[Rule, list[frozenset[int]]],
) -> None:
    rule, people = given
    found = progress(rule, [Vote(parts) for parts in people])
    could = {
        part
        for part in range(len(sizes(rule)))
        if most_places(rule, [*people, frozenset([part])]) > most_places(rule, people)
    }
    assert found.open_parts == could


@unhurried
@given(staged_with_people)
def test_a_person_fills_one_place_of_those_they_may_and_no_part_has_too_many(
    given: tuple[Rule, list[frozenset[int]]],
) -> None:
    rule, people = given
    taken = decide_in_turn(rule, people)
    for number, (_, _, after) in enumerate(taken, 1):
        assert all(filled in parts for filled, (parts, *_) in zip(after.counts_for, taken[:number], strict=True))
        for part, size in enumerate(sizes(rule)):
            assert after.counts_for.count(part) <= size


@unhurried
@given(staged_with_people)
def test_every_decision_counts_and_there_are_never_more_than_needed(given: tuple[Rule, list[frozenset[int]]]) -> None:
    rule, people = given
    taken = decide_in_turn(rule, people)
    assert len(taken) <= places(rule)
    for number, (_, before, after) in enumerate(taken, 1):
        assert (before.have, after.have) == (number - 1, number)
        assert after.done == (number == places(rule))
        assert after.text == f"{number} of {places(rule)}"


@unhurried
@given(staged_with_people)
def test_what_is_not_done_waits_for_somebody_and_what_is_done_for_nobody(
    given: tuple[Rule, list[frozenset[int]]],
) -> None:
    rule, people = given
    for _, _, after in decide_in_turn(rule, people):
        assert bool(after.open_places) != after.done


@unhurried
@given(staged_with_people)
def test_a_later_stage_opens_when_the_one_before_is_complete_and_stays_open(
    given: tuple[Rule, list[frozenset[int]]],
) -> None:
    rule, people = given
    room = sizes(rule)
    for _, before, after in decide_in_turn(rule, people):
        for stages in stages_of(rule):
            for found in (before, after):
                complete = [all(found.counts_for.count(part) == room[part] for part in stage) for stage in stages]
                # Nothing comes after the last one: who completed it may still move to a part beside it.
                current = complete.index(False) if False in complete else len(stages) - 1
                for number, stage in enumerate(stages):
                    if number != current:
                        assert not found.open_parts & stage
            assert all(
                after.counts_for.count(part) >= before.counts_for.count(part) for stage in stages for part in stage
            )


@unhurried
@given(staged_with_people)
def test_of_the_stages_that_are_reached_open_places_are_those_that_a_further_person_could_fill(
    given: tuple[Rule, list[frozenset[int]]],
) -> None:
    rule, people = given
    room = sizes(rule)
    votes: list[Vote] = []
    for parts, _, after in decide_in_turn(rule, people):
        votes.append(Vote(parts))
        reached = set(range(len(room)))
        for stages in stages_of(rule):
            complete = [all(after.counts_for.count(part) == room[part] for part in stage) for stage in stages]
            current = complete.index(False) if False in complete else len(stages) - 1
            reached -= set().union(*stages) - stages[current]
        more = {part for part in reached if progress(rule, [*votes, Vote(frozenset([part]))]).have > after.have}
        assert after.open_parts == more


def stages_of(rule: Rule, first: int = 0) -> list[list[set[int]]]:
    """Of each staged rule the leaves of its parts."""
    found: list[list[set[int]]] = []
    if isinstance(rule, AllOf):
        stages = []
        for part in rule.parts:
            size = len(list(leaves(part)))
            stages.append(set(range(first, first + size)))
            found += stages_of(part, first)
            first += size
        if rule.staged:
            found.append(stages)
    return found


@unhurried
@given(with_people, st.data())
def test_one_veto_ends_it_where_the_rule_has_it(given: tuple[Rule, list[frozenset[int]]], data: st.DataObject) -> None:
    rule, people = given
    votes = [Vote(parts, data.draw(st.booleans())) for parts in people]
    found = progress(rule, votes)
    with_veto = {part for part, has in enumerate(vetoes(rule)) if has}
    assert found.vetoed == any(vote.rejects and vote.parts & with_veto for vote in votes)
    plain = progress(rule, [Vote(vote.parts) for vote in votes])
    assert found.done == (found.vetoed or plain.done)
    assert found.have == plain.have


def vetoes(rule: Rule, outer: bool = True) -> list[bool]:
    here = outer and rule.veto
    return [has for part in rule.parts for has in vetoes(part, here)] if isinstance(rule, AllOf) else [here]


@unhurried
@given(rules(staged=True))
def test_a_rule_comes_back_from_json_as_it_was(rule: Rule) -> None:
    # What was made of a number of one is a list of decisions all the same.
    assert rule_from_json(rule.to_json()) == rule


def test_somebody_of_two_groups_makes_way_for_whoever_is_of_one() -> None:
    rule = all_of(any_of(FINANCE), any_of(SECURITY))
    both = Vote(frozenset([0, 1]))
    found = progress(rule, [both])
    assert [(place.part, place.words) for place in found.open_places] == [
        (0, "anyone in finance"),
        (1, "anyone in security"),
    ]
    assert progress(rule, [both, Vote(frozenset([0]))]).done
    assert progress(rule, [both, Vote(frozenset([1]))]).done


def test_a_stage_that_is_complete_is_settled() -> None:
    rule = all_of(any_of(FINANCE), any_of(SECURITY), staged=True)
    assert progress(rule, []).open_parts == {0}
    # Of both groups, but it was finance's turn.
    assert progress(rule, [Vote(frozenset([0]))]).open_parts == {1}


def test_a_parallel_part_does_not_take_back_who_completed_a_stage() -> None:
    rule = all_of(all_of(any_of(FINANCE), any_of(SECURITY), staged=True), any_of(LEGAL))
    found = progress(rule, [Vote(frozenset([0, 2]))])
    assert found.counts_for == (0,)
    assert found.open_parts == {1, 2}


def test_places_say_whom_they_wait_for() -> None:
    found = progress(n_of(2), [Vote(frozenset([0]))], [[FINANCE, user("ana@example.org")]])
    (place,) = found.open_places
    assert (place.words, place.missing, found.text) == ("anyone in finance or ana@example.org", 1, "1 of 2")
    assert progress(None, []).open_places[0].words == "any approver"
    assert progress(None, [Vote(frozenset([0]))]).done


def test_without_veto_a_rejection_counts_like_any_other() -> None:
    no = Vote(frozenset([0]), rejects=True)
    assert progress(n_of(2, FINANCE), [no]).vetoed
    open_still = progress(n_of(2, FINANCE, veto=False), [no])
    assert (open_still.done, open_still.vetoed, open_still.have) == (False, False, 1)
    mixed = all_of(n_of(2, FINANCE, veto=False), any_of(SECURITY))
    assert not progress(mixed, [no]).done
    assert progress(mixed, [no, Vote(frozenset([1]), rejects=True)]).vetoed
    assert not progress(all_of(n_of(2, FINANCE), any_of(SECURITY), veto=False), [no]).done


def test_of_several_places_each_says_how_many_there_are_of_whom() -> None:
    rule = all_of(n_of(2, FINANCE), any_of(SECURITY), staged=True)
    now = progress(rule, [Vote(frozenset([0]))])
    assert [(part.words, part.have, part.need, part.takes) for part in now.parts] == [
        ("anyone in finance", 1, 2, True), ("anyone in security", 0, 1, False),
    ]  # fmt: skip
    now = progress(rule, [Vote(frozenset([0])), Vote(frozenset([0]))])
    assert [(part.have, part.takes) for part in now.parts] == [(2, False), (0, True)]
