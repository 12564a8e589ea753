"""Fragments are made once for all who have the same rights, and never for others."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from markupsafe import Markup

from signoff.people import tenants, users
from signoff.store.scope import Scope
from signoff.web import fragments as module
from signoff.web.fragments import Fragments, Rendering
from tests.web.world import _HASH, Site, eventually, paid_workflow

RUN = ("run", 1)


class Maker:
    """Makes fragments when it is let, and counts them."""

    def __init__(self, *, shared: bool = True) -> None:
        self.made = 0
        self.shared = shared
        self.gate = asyncio.Event()

    async def __call__(self) -> Rendering:
        self.made += 1
        content = Markup(self.made)
        await self.gate.wait()
        return Rendering(content, self.shared)


async def asked(fragments: Fragments, *gets: Any) -> list[asyncio.Task[Markup]]:
    """Requests that have begun to wait."""
    tasks = [asyncio.ensure_future(fragments.get(*get)) for get in gets]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_those_who_ask_at_once_wait_for_one_and_a_new_version_is_made_anew() -> None:
    fragments, maker = Fragments(), Maker()
    before = await asked(fragments, (RUN, "r", maker), (RUN, "r", maker), (("run", 2), "r", maker))
    assert maker.made == 2
    fragments.forget([1])  # while it is being made: it may have been read before the change
    after = await asked(fragments, (RUN, "r", maker), (RUN, "r", maker), (RUN, "other rights", maker))
    assert maker.made == 4
    maker.gate.set()
    assert await asyncio.gather(*before, *after) == ["1", "1", "2", "3", "3", "4"]
    assert await fragments.get(RUN, "r", maker) == "3"
    assert await fragments.get(("run", 2), "r", maker) == "2"
    fragments.forget([])
    assert await fragments.get(RUN, "r", maker) == "3"
    fragments.forget(None)
    assert await fragments.get(("run", 2), "r", maker) == "5"


async def test_a_list_has_another_version_with_each_of_its_runs() -> None:
    fragments, maker = Fragments(), Maker()
    maker.gate.set()
    assert await fragments.get(("runs", 1), "r", maker) == "1"
    fragments.forget([77])
    assert await fragments.get(("runs", 1), "r", maker) == "2"


async def test_what_is_for_one_person_is_given_to_nobody_else() -> None:
    fragments, maker = Fragments(), Maker(shared=False)
    first, second = await asked(fragments, (RUN, "r", maker), (RUN, "r", maker))
    maker.gate.set()
    assert [await first, await second] == ["1", "2"]
    assert await fragments.get(RUN, "r", maker) == "3"
    maker.gate.clear()
    waiting = await asked(fragments, (RUN, "r", maker), (RUN, "r", maker))
    assert maker.made == 5  # nobody waits for another's in vain
    maker.shared = True
    maker.gate.set()
    await asyncio.gather(*waiting)
    assert [await fragments.get(RUN, "r", maker) for _ in range(2)] == ["6", "6"]


async def test_what_failed_is_too_old_or_too_large_is_not_kept_and_one_who_leaves_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fragments, maker = Fragments(), Maker()

    async def fail() -> Rendering:
        raise LookupError

    with pytest.raises(LookupError):
        await fragments.get(RUN, "r", fail)
    leaving, staying = await asked(fragments, (RUN, "r", maker), (RUN, "r", maker))
    leaving.cancel()
    maker.gate.set()
    assert await staying == "1"
    monkeypatch.setattr(module, "LONGEST", -1.0)
    assert await fragments.get(RUN, "r", maker) == "2"
    monkeypatch.setattr(module, "LONGEST", 60.0)
    monkeypatch.setattr(module, "LARGEST", 0)
    assert [await fragments.get(RUN, "large", maker) for _ in range(2)] == ["3", "4"]
    monkeypatch.setattr(module, "LARGEST", 100)
    monkeypatch.setattr(module, "MOST", 1)
    assert [await fragments.get(RUN, variant, maker) for variant in ("a", "b", "b", "a")] == ["5", "6", "6", "7"]


@pytest.fixture
def made(site: Site, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For whom the parts of pages were read."""
    found: list[str] = []
    backend = site.app.state.backend
    for name in ("run_details", "runs"):
        real = getattr(backend, name)

        async def counted(scope: Scope, *args: Any, _real: Any = real, **options: Any) -> Any:
            found.append(scope.actor)
            return await _real(scope, *args, **options)

        monkeypatch.setattr(backend, name, counted)
    return found


async def test_equal_rights_share_a_rendering_and_others_get_their_own(site: Site, made: list[str]) -> None:
    run = await site.engine.start(paid_workflow)
    store = site.engine.store
    foreign = Scope(await store.write(tenants.ensure_tenant, "other"))
    await store.write(users.add_user, foreign, "other@example.org", role="approver", password_hash=_HASH)
    async with (
        site.signed_in("other@example.org") as other,
        site.signed_in("ana@example.org") as ana,
        site.signed_in("carl@example.org") as carl,
        site.signed_in("omar@example.org") as omar,
    ):
        await ana.get(f"/runs/{run.id}")
        for path in (f"/runs/{run.id}/live", "/runs/rows"):

            async def shared(path: str = path) -> bool:  # not while the run is still on its way to its first wait
                before = len(made)
                first, second = await asyncio.gather(ana.get(path), carl.get(path))
                assert len(first.content) > 200
                return len(made) - before < 2 and first.content == second.content

            await eventually(shared)
            tag = (await ana.get(path)).headers["etag"]
            assert (await carl.get(path, headers={"if-none-match": tag})).status_code == 304
            before = len(made)
            await omar.get(path)
            assert made[before:] == ["omar@example.org"]
        page = f"/runs/{run.id}/live"
        assert (await other.get(page)).status_code == 404
        assert run.id not in (await other.get("/runs/rows")).text
        assert run.id in (await ana.get("/runs/rows")).text
        assert "Cancel the run" in (await omar.get(page)).text
        assert "Cancel the run" not in (await ana.get(page)).text
        await run.pause()

        async def paused() -> bool:
            return all(["Paused" in (await client.get(page)).text for client in (ana, carl, omar)])

        await eventually(paused)


async def test_a_question_that_a_run_waits_for_is_offered_to_those_who_may_answer_only(site: Site) -> None:
    run, question = await site.order("o-1")
    async with site.signed_in("ana@example.org") as ana, site.signed_in("carl@example.org") as carl:
        answers: list[httpx.Response] = []
        await ana.get(f"/runs/{run.id}")
        for _ in range(3):
            answers += await asyncio.gather(*(client.get(f"/runs/{run.id}/live") for client in (ana, carl)))
        assert [f'href="/approvals/{question}"' in answer.text for answer in answers] == [True, False] * 3
