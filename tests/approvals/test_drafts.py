"""What is typed and not sent yet: kept per person, within measure, until it is sent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from signoff.approvals import decide as gate
from signoff.approvals import drafts
from signoff.store.scope import Scope
from signoff.workflow.errors import InvalidInput, LimitExceeded
from tests.people.world import World

TYPED = {"f.note": ["what I typed \x00 \ud800"], "f.tags#": ["0", "1"]}


async def test_a_draft_is_kept_replaced_and_dropped(here: World) -> None:
    ana, store = await here.add("ana@example.org"), here.store
    await store.write(drafts.save_draft, ana, "start:a/b", {"f": ["1"]})
    await store.write(drafts.save_draft, ana, "start:a/b", TYPED, 3)
    found = await store.read(drafts.get_draft, ana, "start:a/b")
    assert found is not None
    assert (found.data, found.revision, found.saved_at) == (TYPED, 3, here.clock.now())
    await store.write(drafts.drop_draft, ana, "start:a/b")
    assert await store.read(drafts.get_draft, ana, "start:a/b") is None


async def test_drafts_belong_to_one_person_in_one_tenant(here: World) -> None:
    ana, omar, store = await here.add("ana@example.org"), await here.add("omar@example.org"), here.store
    await store.write(drafts.save_draft, ana, "start:a", TYPED)
    elsewhere = Scope(ana.tenant_id + 1, ana.person)
    for other in (omar, elsewhere):
        assert await store.read(drafts.get_draft, other, "start:a") is None
        await store.write(drafts.drop_draft, other, "start:a")
    assert await store.read(drafts.get_draft, ana, "start:a") is not None
    await store.write(drafts.save_draft, here.embedded, "start:a", TYPED)
    assert await store.read(drafts.get_draft, here.embedded, "start:a") is None


async def test_drafts_are_kept_within_measure(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ana, store = await here.add("ana@example.org"), here.store
    with pytest.raises(LimitExceeded, match="262144"):
        await store.write(drafts.save_draft, ana, "start:a", {"f": ["x" * drafts.MAX_DRAFT]})
    with pytest.raises(InvalidInput):
        await store.write(drafts.save_draft, ana, "start:\x00", TYPED)
    assert await store.read(drafts.get_draft, ana, "start:\x00") is None
    monkeypatch.setattr(drafts, "MAX_DRAFTS", 3)
    for no in range(4):
        await store.write(drafts.save_draft, ana, f"start:{no}", TYPED)
        here.clock.advance(timedelta(seconds=1))
    kept = [no for no in range(4) if await store.read(drafts.get_draft, ana, f"start:{no}") is not None]
    assert kept == [1, 2, 3]
    here.clock.advance(drafts.KEPT_FOR + timedelta(days=1))
    await store.write(drafts.save_draft, ana, "start:4", TYPED)
    assert await store.read(drafts.get_draft, ana, "start:3") is None


async def test_a_decision_drops_the_draft_whatever_the_door(here: World) -> None:
    ana, ada, store = await here.add("ana@example.org"), await here.add("ada@example.org"), here.store
    asked = await here.ask()
    key = drafts.approval_key(asked.approval)
    for scope in (ana, ada):
        await store.write(drafts.save_draft, scope, key, TYPED, 1)
    await store.write(gate.decide, ana, asked.approval, {"approved": True}, revision=1, via="api")
    assert await store.read(drafts.get_draft, ana, key) is None
    assert await store.read(drafts.get_draft, ada, key) is not None, "hers was not sent"
