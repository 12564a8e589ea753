"""Which journal rows may be asked for in which drain, in which order for each name."""

from __future__ import annotations

from collections.abc import Sequence

from signoff.replay.messages import JournalEntry
from signoff.workflow.kinds import StepKind

BOOKKEEPING = (StepKind.CANCEL, StepKind.MARKER)  # rows that are no step of the handler's
# The next to be asked for stands last.
Slots = dict[str, list[JournalEntry]]


def slots_by_drain(entries: Sequence[JournalEntry]) -> dict[int, Slots]:
    """By the outcome after which they were asked, then by name, in order of asking.

    What a later round asked again stands in the place of what was retired for it, although its number is higher. Places
    of retired rows that no later row took are kept: a round that has not come this far will ask for them again.
    """
    drains: dict[int, Slots] = {}
    rounds = False
    for entry in sorted(entries, key=_number):
        if entry.kind in BOOKKEEPING:
            continue
        if entry.retired_in is not None:
            rounds = True
        slots = drains.get(entry.asked_after)
        if slots is None:
            slots = drains[entry.asked_after] = {}
        place = slots.get(entry.name)
        if place is None:
            slots[entry.name] = [entry]
        else:
            place.append(entry)
    for slots in drains.values():
        for name, place in slots.items():
            if len(place) > 1:
                if rounds and any(entry.retired_in is not None for entry in place):
                    slots[name] = _arranged(place)
                slots[name].reverse()
    return drains


def _arranged(place: list[JournalEntry]) -> list[JournalEntry]:
    arranged: list[JournalEntry] = []
    for generation in sorted({entry.generation for entry in place}):
        asked = [entry for entry in place if entry.generation == generation]
        for position, former in enumerate(arranged):
            if asked and former.retired_in is not None and former.retired_in <= generation:
                arranged[position] = asked.pop(0)
        arranged += asked
    return arranged


def _number(entry: JournalEntry) -> int:
    return entry.no
