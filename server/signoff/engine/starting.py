"""Starting runs: what is stored of a start, one at a time or many in one transaction."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

import sqlalchemy as sa

from signoff.engine import limits
from signoff.engine.definitions import D, KnownDefinition, resolve_definition
from signoff.engine.journal import newborn
from signoff.engine.lookup import insert_new
from signoff.engine.outcomes import R, Row
from signoff.replay.messages import ChildDetail
from signoff.store import payloads
from signoff.store.scope import Scope
from signoff.store.tables import Label, Payload, StartKey
from signoff.store.tx import Tx
from signoff.workflow.errors import Conflict, FieldError, InvalidInput, LimitExceeded, Refused, SignoffError
from signoff.workflow.names import check_name

KEY = StartKey.__table__
LABEL = Label.__table__
PAYLOAD = Payload.__table__

MAX_VALUE_BYTES = 16 * 1024 * 1024

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # without letters that look like digits


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpec:
    """A start as plain values. `args` is JSON text by parameter name, checked against the code by the caller.

    `run_after` is in seconds; past moments mean now. `options` goes into the run's options as it is.
    """

    workflow: str
    version: int | None = None
    args: str | None = None
    idempotency_key: str | None = None
    run_id: str | None = None
    run_at: datetime | None = None
    run_after: float | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    retention: Mapping[str, float] | None = None
    requester: str | None = None
    on_complete: Mapping[str, Any] | None = None  # {"name", "context"}
    options: Mapping[str, Any] = field(default_factory=dict)
    tenant_id: int | None = None  # None: the scope's
    parent_id: int | None = None
    parent_no: int | None = None
    max_value_bytes: int | None = None  # None: what the workflow's settings say, else 16 MiB

    @property
    def waits_for_nobody(self) -> bool:
        """Whether it only adds rows. A key or an id of its own may be in another transaction's hands."""
        return self.idempotency_key is None and self.run_id is None and self.parent_id is None


@dataclass(frozen=True, slots=True)
class Started:
    """`existing`: the run was there already, by its key or its own id."""

    run_id: int
    public_id: str
    existing: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """An item of `start_many` that was not started."""

    index: int
    code: str
    message: str
    fields: Sequence[FieldError]
    error: SignoffError

    @classmethod
    def of(cls, index: int, error: SignoffError) -> Refusal:
        return cls(index, error.code, str(error), getattr(error, "fields", ()) or (), error)


def new_public_id(now: datetime) -> str:
    """26 lower-case characters that sort by the millisecond in which they were made."""
    number = (int(now.timestamp() * 1000) << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def start(tx: Tx, scope: Scope, spec: StartSpec) -> Started:
    """Stores a run, or finds the one that this start made before.

    Raises NotFound (workflow), InvalidInput, Conflict (key or id used for something else), LimitExceeded (size, queue);
    nothing is stored then.
    """
    (result,) = _start_all(tx, [(scope, spec)])
    if isinstance(result, SignoffError):
        raise result
    return result


def start_many(tx: Tx, scope: Scope, specs: Sequence[StartSpec]) -> list[Started | Refusal]:
    """Starts all that can be; the others are refused one by one and leave nothing."""
    results = _start_all(tx, [(scope, spec) for spec in specs])
    return [Refusal.of(i, result) if isinstance(result, SignoffError) else result for i, result in enumerate(results)]


def start_together(tx: Tx, starts: Sequence[tuple[Scope, StartSpec]]) -> list[Started | SignoffError | None]:
    """Unrelated starts in one commit: what each made, or why it was refused.

    Only for a spec that `waits_for_nobody`; None for one that turns out to: its workflow's limits are a row that others
    may hold locked. `start` is for those.
    """
    alone = [_is_limited(tx, spec) for _, spec in starts]
    made = iter(_start_all(tx, [pair for pair, waits in zip(starts, alone, strict=True) if not waits]))
    return [None if waits else next(made) for waits in alone]


def _is_limited(tx: Tx, spec: StartSpec) -> bool:
    try:
        return resolve_definition(tx, spec.workflow, spec.version).limits is not None
    except SignoffError:  # the start itself says so
        return False


def start_child(tx: Tx, scope: Scope, parent: Row, step_no: int, args: str | None, child: ChildDetail) -> Started:
    """Starts the run of a child step. A detached one tells nobody of its end."""
    given = dict(child.start)
    run_at = given.get("run_at")
    spec = StartSpec(
        workflow=child.workflow,
        version=child.version,
        args=args,
        idempotency_key=given.get("idempotency_key"),
        run_id=given.get("run_id"),
        run_at=datetime.fromisoformat(run_at) if isinstance(run_at, str) else run_at,
        run_after=given.get("run_after"),
        priority=given.get("priority", parent.priority),
        labels=given.get("labels") or {},
        retention=given.get("retention"),
        requester=given.get("requester", parent.requester),
        tenant_id=parent.tenant_id,
        parent_id=parent.id,
        parent_no=None if child.detached else step_no,
    )
    started = start(tx, scope, spec)
    if started.existing and not child.detached:
        row = tx.conn.execute(sa.select(R.c.parent_id, R.c.parent_no).where(R.c.id == started.run_id)).one()
        if (row.parent_id, row.parent_no) != (parent.id, step_no):
            raise Conflict(
                f"run {started.public_id!r} was not started by this step, so it cannot be waited for as its child",
                run=started.public_id,
                workflow=child.workflow,
            )
    return started


@dataclass(slots=True)
class _Draft:
    """A start that is checked and not stored yet."""

    index: int
    spec: StartSpec
    tenant_id: int
    definition: KnownDefinition
    digest: str
    delay: datetime | None
    public_id: str
    requester: str | None
    stored_args: str | None = None
    repeats: list[int] = field(default_factory=list)  # later items of the batch that mean the same run


def _start_all(tx: Tx, starts: Sequence[tuple[Scope, StartSpec]]) -> list[Started | SignoffError]:
    results: dict[int, Started | SignoffError] = {}
    drafts: list[_Draft] = []
    for index, (scope, spec) in enumerate(starts):
        try:
            drafts.append(_draft(tx, scope, index, spec))
        except SignoffError as error:
            results[index] = error
    drafts = _without_existing(tx, drafts, results)
    drafts = _without_repeats(drafts, results)
    _insert(tx, _admit(tx, drafts, results), results)
    return [results[index] for index in range(len(starts))]


def _draft(tx: Tx, scope: Scope, index: int, spec: StartSpec) -> _Draft:
    tenant_id = scope.tenant_id if spec.tenant_id is None else spec.tenant_id
    if scope.tenant_id not in (0, tenant_id) or tenant_id == 0:
        raise Refused("wrong_tenant", "a run can be started in one's own tenant only", workflow=spec.workflow)
    definition = resolve_definition(tx, spec.workflow, spec.version)
    for what, value in (("idempotency key", spec.idempotency_key), ("run id", spec.run_id)):
        if value is not None:
            check_name(value, what)
    for key, value in spec.labels.items():
        check_name(key, "label")
        check_name(value, f"value of label {key!r}")
    most = spec.max_value_bytes or definition.settings.get("max_value_bytes") or MAX_VALUE_BYTES
    if spec.args is not None and len(spec.args) * 4 > most and (size := len(spec.args.encode())) > most:
        message = f"the args of workflow {spec.workflow!r} are {size} bytes, the limit is {most}"
        raise LimitExceeded(message, workflow=spec.workflow, limit=most)
    public_id = spec.run_id or new_public_id(tx.now)
    requester = spec.requester or (scope.person.actor if scope.person is not None else None)
    return _Draft(index, spec, tenant_id, definition, _digest(spec), _delay(tx, spec), public_id, requester)


def _digest(spec: StartSpec) -> str:
    if spec.idempotency_key is None:
        return ""
    return hashlib.sha256(f"{spec.workflow}\0{spec.args or ''}".encode()).hexdigest()


def _delay(tx: Tx, spec: StartSpec) -> datetime | None:
    if spec.run_after is None and spec.run_at is None:
        return None
    if spec.run_after is not None and spec.run_at is not None:
        raise InvalidInput("give run_at= or run_after=, not both", workflow=spec.workflow)
    if spec.run_at is not None:
        if spec.run_at.tzinfo is None:
            raise InvalidInput("run_at= takes a datetime with a time zone", workflow=spec.workflow)
        return spec.run_at
    seconds = spec.run_after or 0.0
    if seconds <= 0:
        return tx.now
    try:
        return tx.now + timedelta(seconds=seconds)
    except (OverflowError, ValueError):  # too far away; nan
        raise InvalidInput(f"run_after={spec.run_after!r} is no moment in time", workflow=spec.workflow) from None


def _without_existing(tx: Tx, drafts: list[_Draft], results: dict[int, Started | SignoffError]) -> list[_Draft]:
    """Takes out the starts that made a run before, by key or by own id."""
    keyed = [draft for draft in drafts if draft.spec.idempotency_key is not None]
    named = [draft for draft in drafts if draft.spec.run_id is not None]
    keys = _by_key(tx, keyed) if keyed else {}
    ids = _by_run_id(tx, named) if named else {}
    rest = []
    for draft in drafts:
        found = keys.get((draft.tenant_id, draft.spec.idempotency_key)) if keys else None
        same = ids.get((draft.tenant_id, draft.spec.run_id)) if ids else None
        if found is None and same is None:
            rest.append(draft)
        elif found is not None:
            wrong_id = draft.spec.run_id not in (None, found.public_id)
            ok = found.digest == draft.digest and not wrong_id
            again = Started(found.run_id, found.public_id, True)
            results[draft.index] = again if ok else _taken(draft, found.public_id)
        elif same is not None:
            equal = same.name == draft.spec.workflow and payloads_equal(tx, same.args, draft.spec.args)
            ok = equal and draft.spec.idempotency_key is None
            results[draft.index] = Started(same.id, same.public_id, True) if ok else _taken(draft, same.public_id)
    return rest


def _by_key(tx: Tx, drafts: Sequence[_Draft]) -> dict[tuple[int, str | None], Row]:
    rows = tx.conn.execute(
        sa.select(KEY.c.tenant_id, KEY.c.key, KEY.c.digest, KEY.c.run_id, R.c.public_id)
        .join(R, R.c.id == KEY.c.run_id)
        .where(
            KEY.c.tenant_id.in_({draft.tenant_id for draft in drafts}),
            KEY.c.key.in_([draft.spec.idempotency_key for draft in drafts]),
        )
    )
    return {(row.tenant_id, row.key): cast(Row, row) for row in rows}


def _by_run_id(tx: Tx, drafts: Sequence[_Draft]) -> dict[tuple[int, str | None], Row]:
    rows = tx.conn.execute(
        sa.select(R.c.id, R.c.tenant_id, R.c.public_id, R.c.args, D.c.name)
        .join(D, D.c.id == R.c.definition_id)
        .where(
            R.c.tenant_id.in_({draft.tenant_id for draft in drafts}),
            R.c.public_id.in_([draft.spec.run_id for draft in drafts]),
        )
    )
    return {(row.tenant_id, row.public_id): cast(Row, row) for row in rows}


def payloads_equal(tx: Tx, stored: str | None, text: str | None) -> bool:
    """Whether a stored value is this JSON text. Text of the codec is canonical."""
    return (payloads.get(tx, stored) if stored is not None else None) == text


def _taken(draft: _Draft, public_id: str) -> Conflict:
    key = draft.spec.idempotency_key
    what = f"the idempotency key {key!r}" if key is not None else f"the run id {draft.spec.run_id!r}"
    message = f"{what} belongs to run {public_id!r}, which was started otherwise"
    return Conflict(message, run=public_id, key=key, workflow=draft.spec.workflow)


def _without_repeats(drafts: list[_Draft], results: dict[int, Started | SignoffError]) -> list[_Draft]:
    """Items of one batch that have a key or an id in common: the first is stored, equal ones are the same run."""
    first: dict[tuple[int, str, str], _Draft] = {}
    rest = []
    for draft in drafts:
        names = [
            (draft.tenant_id, what, value)
            for what, value in (("key", draft.spec.idempotency_key), ("id", draft.spec.run_id))
            if value is not None
        ]
        earlier = next((first[name] for name in names if name in first), None)
        if earlier is None:
            first.update(dict.fromkeys(names, draft))
            rest.append(draft)
        elif _same_start(earlier.spec, draft.spec):
            earlier.repeats.append(draft.index)
        else:
            results[draft.index] = _taken(draft, earlier.public_id)
    return rest


def _same_start(one: StartSpec, other: StartSpec) -> bool:
    same = (one.workflow, one.args, one.idempotency_key) == (other.workflow, other.args, other.idempotency_key)
    return same and other.run_id in (None, one.run_id)


def _admit(
    tx: Tx, drafts: Sequence[_Draft], results: dict[int, Started | SignoffError]
) -> list[tuple[_Draft, limits.Admission]]:
    groups: dict[tuple[int, str], list[_Draft]] = {}
    for draft in drafts:
        groups.setdefault((draft.tenant_id, draft.definition.name), []).append(draft)
    admitted = []
    for (tenant_id, _), group in sorted(groups.items()):  # in one order everywhere: they lock rows
        decided = limits.admit_new(tx, tenant_id, group[0].definition, [draft.delay for draft in group])
        for draft, admission in zip(group, decided, strict=True):
            if isinstance(admission, limits.Admission):
                admitted.append((draft, admission))
            else:
                results.update(dict.fromkeys((draft.index, *draft.repeats), admission))
    return sorted(admitted, key=lambda pair: pair[0].index)


_NAMED = ("tenant_id", "public_id", "id")


def _insert(
    tx: Tx, admitted: Sequence[tuple[_Draft, limits.Admission]], results: dict[int, Started | SignoffError]
) -> None:
    if not admitted:
        return
    for draft, _ in admitted:
        draft.stored_args = payloads.put(tx, None, draft.spec.args) if draft.spec.args is not None else None
    values = [_values(tx, draft, admission) for draft, admission in admitted]
    rows: Sequence[Sequence[Any]]
    if any(draft.spec.run_id is not None for draft, _ in admitted):
        insert = insert_new(tx, R).returning(*(R.c[name] for name in _NAMED))
        rows = tx.conn.execute(insert, [dict(zip(_COLUMNS, row, strict=True)) for row in values]).all()
    else:
        rows = tx.dialect.insert_returning(tx, R, _COLUMNS, values, _NAMED)
    ids = {(tenant_id, public_id): run_id for tenant_id, public_id, run_id in rows}
    lost = _insert_keys(tx, [draft for draft, _ in admitted], ids)
    labels = []
    begun, others = 0, False
    for (draft, admission), row in zip(admitted, values, strict=True):
        run_id = ids.get((draft.tenant_id, draft.public_id))
        if run_id is None or draft.index in lost:
            # another transaction made the same start in this very moment: ours finds its run now
            if admission.admitted:
                limits.give_back(tx, draft.tenant_id, draft.definition)
            _without_existing(tx, [draft], results)
            results.update(dict.fromkeys(draft.repeats, results[draft.index]))
            continue
        results[draft.index] = Started(run_id, draft.public_id)
        results.update(dict.fromkeys(draft.repeats, Started(run_id, draft.public_id, True)))
        labels += [{"run_id": run_id, "key": key, "value": value} for key, value in draft.spec.labels.items()]
        if draft.stored_args is not None and draft.stored_args.startswith("@"):
            tx.conn.execute(sa.update(PAYLOAD).where(PAYLOAD.c.id == draft.stored_args[1:]).values(run_id=run_id))
        given = dict(zip(_COLUMNS, row, strict=True))
        if given["ready"] and given["parent_id"] is None and not (given["args"] or "").startswith("@"):
            # a worker of this process can begin it without a read
            tx.notify("run", run_id, begun=newborn(tx, {**given, "id": run_id}))
            begun += 1
        else:
            tx.notify("run", run_id)
            others = others or admission.ready is not None or admission.wake_at is not None
    if labels:
        tx.conn.execute(sa.insert(LABEL), labels)
    if begun:
        tx.notify("ready", begun=begun)
    if others:
        tx.notify("ready")


def _insert_keys(tx: Tx, drafts: Sequence[_Draft], ids: Mapping[tuple[int, str], int]) -> set[int]:
    """Stores the idempotency keys; those of another transaction win, and the runs made here go again."""
    keyed = {
        (draft.tenant_id, draft.spec.idempotency_key): draft
        for draft in drafts
        if draft.spec.idempotency_key is not None and (draft.tenant_id, draft.public_id) in ids
    }
    if not keyed:
        return set()
    values = [
        {"tenant_id": tenant_id, "key": key, "run_id": ids[tenant_id, draft.public_id], "digest": draft.digest}
        for (tenant_id, key), draft in keyed.items()
    ]
    insert = insert_new(tx, KEY).returning(KEY.c.tenant_id, KEY.c.key)
    stored = {(row.tenant_id, row.key) for row in tx.conn.execute(insert, values)}
    lost = [draft for key, draft in keyed.items() if key not in stored]
    if lost:
        tx.conn.execute(sa.delete(R).where(R.c.id.in_([ids[draft.tenant_id, draft.public_id] for draft in lost])))
    return {draft.index for draft in lost}


_COLUMNS = (
    "tenant_id", "public_id", "definition_id", "priority", "admitted", "ready", "wake_at", "created_at", "args",
    "requester", "labels", "parent_id", "parent_no", "options",
)  # fmt: skip


def _values(tx: Tx, draft: _Draft, admission: limits.Admission) -> tuple[Any, ...]:
    """What is not as the table's defaults have it, in the order of `_COLUMNS`."""
    spec, settings = draft.spec, draft.definition.settings
    options = dict(spec.options)
    if spec.retention:
        options["retention"] = dict(spec.retention)
    if spec.on_complete:
        options["on_complete"] = dict(spec.on_complete)
    elif settings.get("on_complete"):
        options["on_complete"] = {"name": settings["on_complete"], "context": None}
    if settings.get("sensitive"):
        options.setdefault("sensitive", True)
    return (
        draft.tenant_id,
        draft.public_id,
        draft.definition.id,
        spec.priority,
        admission.admitted,
        admission.ready,
        admission.wake_at,
        tx.now,
        draft.stored_args,
        draft.requester,
        json.dumps(dict(spec.labels)) if spec.labels else None,
        spec.parent_id,
        spec.parent_no,
        json.dumps(options) if options else None,
    )
