from __future__ import annotations

import itertools

import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from signoff.engine.outcomes import R
from signoff.engine.status import FINAL_STATUSES, Status, shown_status, status_clause
from tests.engine_usecases.support import Database

ENDINGS = [None, '{"phase": "children", "from_no": 1}', '{"phase": "compensate", "from_no": 1}']

values = st.fixed_dictionaries(
    {
        "state": st.sampled_from(["queued", "active", "final"]),
        "result_kind": st.sampled_from(["completed", "failed", "canceled"]),
        "requested": st.sampled_from(["none", "pause", "cancel"]),
        "activity": st.sampled_from([None, "running", "waiting", "sleeping"]),
        "blocked": st.booleans(),
        "ending": st.sampled_from(ENDINGS),
    }
)


@given(values)
def test_the_first_that_applies_is_shown(plain: dict[str, object]) -> None:
    status = shown_status(**plain)  # type: ignore[arg-type]  # plain values of the right kinds
    ending = str(plain["ending"])
    if plain["state"] == "final":
        assert status == plain["result_kind"]
    elif plain["ending"] is not None:
        assert status == ("canceling" if "children" in ending else "compensating")
    elif plain["requested"] == "cancel":
        assert status == "canceling"
    elif plain["blocked"]:
        assert status == "blocked"
    elif plain["requested"] == "pause":
        runs = plain["state"] == "active" and plain["activity"] == "running"
        assert status == ("pausing" if runs else "paused")
    elif plain["state"] == "queued":
        assert status == "queued"
    else:
        assert status == (plain["activity"] or "running")


@given(values)
def test_only_final_runs_show_a_result(plain: dict[str, object]) -> None:
    status = shown_status(**plain)  # type: ignore[arg-type]  # plain values of the right kinds
    assert (status in FINAL_STATUSES) == (plain["state"] == "final")


def _rows() -> list[dict[str, object]]:
    names = ("state", "result_kind", "requested", "activity", "blocked_reason", "ending")
    final = itertools.product(["final"], ["completed", "failed", "canceled"])
    state = [*final, ("queued", None), ("active", None)]
    rest = itertools.product(
        ["none", "pause", "cancel"], [None, "running", "waiting", "sleeping"], [None, '{"code": "mismatch"}'], ENDINGS
    )
    return [dict(zip(names, (*one, *two), strict=True)) for one, two in itertools.product(state, list(rest))]


async def test_sql_finds_exactly_the_runs_that_show_a_status(db: Database) -> None:
    rows = _rows()
    await db.store.write(
        lambda tx: tx.conn.execute(
            sa.insert(R),
            [
                {"tenant_id": 1, "public_id": f"r{i}", "definition_id": 1, "created_at": tx.now, **row}
                for i, row in enumerate(rows)
            ],
        )
    )
    expected: dict[Status, set[str]] = {status: set() for status in Status}
    for i, row in enumerate(rows):
        plain = {key: value for key, value in row.items() if key != "blocked_reason"}
        shown = shown_status(**plain, blocked=row["blocked_reason"] is not None)  # type: ignore[arg-type]
        expected[shown].add(f"r{i}")
    assert all(expected.values())
    for status in Status:
        select = sa.select(R.c.public_id).where(status_clause(status))
        found = await db.store.read(lambda tx, select=select: set(tx.conn.execute(select).scalars()))
        assert found == expected[status], status
