"""The page of a run that has much: it shows what is newest, and costs no more for it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from signoff.engine.views.history import LOG, E
from signoff.people.users import find_person
from signoff.store.scope import Scope
from signoff.store.tx import Tx
from signoff.web import backend
from tests.engine_usecases.support import statements_of
from tests.web import desk
from tests.web.world import Site, eventually


async def test_of_many_log_lines_the_page_and_the_panel_of_a_step_show_the_newest(site: Site) -> None:
    run, _ = await site.order("o-1")

    def write(tx: Tx) -> None:
        view = backend._details(tx, site.engine.scope(), run.id, False)
        lines = [{"run_id": view.key, "step_no": no % 2, "at": tx.now, "level": "info", "message": f"line {no:04}"}
                 for no in range(1_100)]  # fmt: skip
        tx.conn.execute(sa.insert(LOG), lines)

    await site.engine.store.write(write)
    async with site.signed_in("omar@example.org") as omar:
        page = (await omar.get(f"/runs/{run.id}")).text
        assert ["line 1099" in page, "line 0900" in page, "line 0899" in page] == [True, True, False]
        assert page.index("line 0900") < page.index("line 1099")
        panel = (await omar.get(f"/runs/{run.id}/steps/0", headers={"hx-request": "true"})).text
        assert ["line 1098" in panel, "line 0700" in panel, "line 1099" in panel] == [True, True, False]


async def test_of_many_messages_the_page_shows_the_newest(site: Site) -> None:
    run, _ = await site.order("o-1")

    def write(tx: Tx) -> None:
        view = backend._details(tx, site.engine.scope(), run.id, False)
        rows = [{"tenant_id": site.engine.scope().tenant_id, "public_id": f"ev_{no}", "run_id": view.key,
                 "name": f"paid {no:04}", "by_id": False, "state": "set_aside", "created_at": tx.now}
                for no in range(300)]  # fmt: skip
        tx.conn.execute(sa.insert(E), rows)

    await site.engine.store.write(write)
    async with site.signed_in("omar@example.org") as omar:
        page = (await omar.get(f"/runs/{run.id}")).text
    assert ["paid 0299" in page, "paid 0100" in page, "paid 0099" in page] == [True, True, False]


async def test_a_run_with_many_open_questions_is_read_in_as_many_queries_as_one_with_one(both_sites: Site) -> None:
    async def queries(questions: int) -> tuple[int, backend.RunDetails]:
        run = await both_sites.engine.start(desk.many, questions)

        async def asked() -> bool:
            return len((await run.status()).awaiting) == questions

        await eventually(asked)

        def read(tx: Tx) -> Any:
            scope = Scope(both_sites.engine.scope().tenant_id, find_person(tx, 1, email="ana@example.org"))
            return statements_of(tx, backend._details, scope, run.id, False)

        statements, details = await both_sites.engine.store.read(read)
        return len(statements), details

    (few, _), (many, details) = await queries(1), await queries(12)
    assert many == few
    assert len(details.questions) == 12
    assert all(one.mine for one in details.questions.values())
