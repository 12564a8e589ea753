"""`signoff.Engine`: a database, a registry and a worker put together, and everything that a program asks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, cast, overload

import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from signoff.approvals.clerk import Clerk
from signoff.approvals.sealer import Sealer
from signoff.engine import cleanup, definitions, pools, registration, starting, views
from signoff.engine.cleanup import Cleaned
from signoff.engine.execution import StepReplacements
from signoff.engine.pools import PoolLimits, PoolView
from signoff.engine.sending import Send, send_together
from signoff.engine.settings import EngineSettings
from signoff.engine.starting import Refusal, Started, StartSpec
from signoff.engine.status import Status
from signoff.engine.views import EventView, RunFilter, RunPage
from signoff.engine.worker import Worker
from signoff.people import tenants
from signoff.runtime import specs
from signoff.runtime.handles import Run
from signoff.runtime.watcher import Watcher
from signoff.store.clock import Clock
from signoff.store.liveness import open_liveness
from signoff.store.store import Scope, Store, Tx
from signoff.store.writer import Committer
from signoff.workflow.definitions import Call, StepFunction, Workflow
from signoff.workflow.errors import SignoffError
from signoff.workflow.options import StartOptions
from signoff.workflow.registry import Registry, default_registry

if TYPE_CHECKING:
    from sqlmodel.ext.asyncio.session import AsyncSession as SqlmodelSession

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = structlog.get_logger(__name__)

DEFAULT_GRACE = 10.0  # seconds that running attempts get when an engine closes


class Engine:
    """An open engine: use it as `async with Engine(url) as engine`.

    url: `sqlite:///orders.db`, `sqlite://` (in memory) or `postgresql://user@host/name`. SQLite is migrated by itself,
    PostgreSQL only with `migrate=True`. workflows: run these instead of all that were imported. worker: whether this
    process executes runs; with `False` it starts and watches them only. pools: limits that are set where a pool is new.
    grace: seconds that running attempts get when the engine closes. Raises a StoreError that says what to do.
    """

    store: Store
    watcher: Watcher
    clerk: Clerk
    worker: Worker | None

    def __init__(
        self,
        url: str,
        *,
        workflows: Iterable[Workflow[Any, Any]] | None = None,
        registry: Registry | None = None,
        migrate: bool = False,
        worker: bool = True,
        clock: Clock | None = None,
        settings: EngineSettings | None = None,
        pools: Mapping[str, PoolLimits] | None = None,
        replacements: StepReplacements | None = None,
        grace: float = DEFAULT_GRACE,
    ) -> None:
        self.url = url
        registry = default_registry if registry is None else registry
        self.registry = registry if workflows is None else registry.with_workflows(workflows)
        self.settings = settings or EngineSettings()
        self._migrate = migrate
        self._wants_worker = worker
        self._clock = clock
        self._pools = dict(pools or {})
        self._replacements = replacements
        self._grace = grace
        self._tenants: dict[str, int] = {}
        self._is_open = False

    # -- life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the database and start the worker; `async with` does it. RuntimeError if it is open."""
        if self._is_open:
            raise RuntimeError("this engine is open already; one more is another Engine(...)")
        self._is_open = True
        try:
            self.store = await Store.open(self.url, clock=self._clock, migrate=self._migrate or None)
        except BaseException:
            self._is_open = False
            raise
        self._starts: Committer[tuple[Scope, StartSpec], Started | None]
        self._starts = self.store.committer(starting.start_together, repeatable=False)
        self._sends: Committer[Send, EventView | None]
        self._sends = self.store.committer(send_together, repeatable=False)
        self.watcher = Watcher(self.store)
        self.worker = None
        self._sealer, self.clerk = Sealer(self.store), Clerk(self.store)
        try:
            self.watcher.open()
            await self._prepare()
            await self._sealer.start()
            await self.clerk.start()
            if self._wants_worker:
                worker = Worker(
                    self.store,
                    self.registry,
                    open_liveness(self.store),
                    settings=self.settings,
                    replacements=self._replacements,
                )
                await worker.start()
                self.worker = worker
        except BaseException:
            await self.close(grace=0)
            raise

    async def close(self, *, grace: float | None = None) -> None:
        """Let running attempts end for `grace` seconds, hand the rest back, close the database. Twice is fine."""
        worker, self.worker = self.worker, None
        try:
            if worker is not None:
                await worker.stop(self._grace if grace is None else grace)
        finally:
            self._is_open = False
            await self.clerk.stop()
            await self._sealer.stop()
            await self.watcher.close()
            await self.store.close()

    async def _prepare(self) -> None:
        self._tenants[tenants.DEFAULT_TENANT] = self._default = await self.store.write(tenants.ensure_tenant)
        if not self._wants_worker:  # a worker registers what it has by itself
            found = [new for new, _ in registration.definitions_of(self.registry)]
            await self.store.write(definitions.register_definitions, found)
        for name, limits in self._pools.items():
            other = await self.store.write(pools.declare, name, limits)
            if other is not None:
                logger.warning(
                    "a pool was declared otherwise elsewhere, which holds", pool=name, here=limits, there=other
                )

    # -- starting

    async def start(self, workflow: Workflow[P, R], *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a run; returns once it is durable.

        Raises InvalidInput (args, options), NotFound (workflow, version, tenant), Conflict (key or id taken by another
        start), LimitExceeded. Then nothing was stored.
        """
        return await self._start(Call(workflow, args, kwargs))

    async def _start(self, call: Call[R]) -> Run[R]:
        scope, spec = await self._spec(call)
        started = await self.begin(scope, spec, specs.options_of(call).session)
        return self._handle(started, scope, call)

    async def begin(self, scope: Scope, spec: StartSpec, session: AsyncSession | None = None) -> Started:
        """Starts that come at the same time share a commit where they cannot keep each other waiting."""
        if session is None and spec.waits_for_nobody:
            started = await self.store.write_with(self._starts, (scope, spec))
            if started is not None:
                return started
        return await self.write(session, starting.start, scope, spec)

    async def send(self, send: Send, session: AsyncSession | None = None) -> EventView:
        """Sends that come at the same time share a commit."""
        if session is None:
            sent = await self.store.write_with(self._sends, send)
            if sent is not None:
                return sent
        return await self.write(session, send)

    async def start_many(
        self, calls: Iterable[Call[R]], *, session: AsyncSession | None = None
    ) -> list[Run[R] | Refusal]:
        """Start all in one transaction, given as `workflow.call(...)`; bad ones are refused, the rest are started."""
        calls = list(calls)
        results: list[Run[R] | Refusal | None] = [None] * len(calls)
        prepared: list[tuple[int, Scope, StartSpec]] = []
        for index, call in enumerate(calls):
            try:
                prepared.append((index, *await self._spec(call)))
            except SignoffError as error:
                results[index] = Refusal.of(index, error)
        # the items may belong to several tenants
        given = [replace(spec, tenant_id=scope.tenant_id) for _, scope, spec in prepared]
        started = await self.write(session, starting.start_many, Scope.system, given)
        for (index, scope, _), result in zip(prepared, started, strict=True):
            if isinstance(result, Refusal):
                results[index] = Refusal.of(index, result.error)
            else:
                results[index] = self._handle(result, scope, calls[index])
        return [result for result in results if result is not None]

    async def enqueue(self, function: StepFunction[P, R], *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Run one query, mutation or action durably without a workflow: a run of one step."""
        return await self.enqueue_with()(function, *args, **kwargs)

    def enqueue_with(self, **options: Any) -> Enqueue:
        """`enqueue` with start options, which a function has no place for: those of `Workflow.options` but `version`.

        For example `await engine.enqueue_with(idempotency_key="k", on_complete=tell)(charge, order_id)`.
        """
        return Enqueue(self, StartOptions.make(**options))

    async def start_by_name(
        self,
        workflow: str,
        args: Mapping[str, Any] | None = None,
        *,
        scope: Scope | None = None,
        **options: Any,
    ) -> Run[Any]:
        """Start with args as plain JSON, as they come from outside; `options` as those of `Workflow.options`."""
        scope = scope or self.scope()
        spec = specs.spec_by_name(
            self.registry, workflow, args or {}, StartOptions.make(**options), self.settings.max_value_bytes
        )
        started = await self.begin(scope, spec)
        return Run(self, scope, started.public_id, key=started.run_id, existing=started.existing)

    async def _spec(self, call: Call[Any]) -> tuple[Scope, StartSpec]:
        spec = specs.spec_of(self.registry, call, self.settings.max_value_bytes)
        tenant = specs.options_of(call).tenant
        if tenant is None:
            return self.scope(), spec
        return await self.scope_of(tenant), spec

    def _handle(self, started: Started, scope: Scope, call: Call[R]) -> Run[R]:
        return Run(
            self, scope, started.public_id, key=started.run_id, existing=started.existing, codec=call.target.codec
        )

    # -- looking

    @overload
    def run(self, run_id: str, *, scope: Scope | None = None) -> Run[Any]: ...
    @overload
    def run(self, run_id: str, workflow: Workflow[..., R], *, scope: Scope | None = None) -> Run[R]: ...
    def run(self, run_id: str, workflow: Workflow[..., Any] | None = None, *, scope: Scope | None = None) -> Run[Any]:
        """A handle of a run that exists; whether it does shows at the first use (NotFound).

        `workflow` only gives the handle its result type.
        """
        return Run(self, scope or self.scope(), run_id, codec=workflow.codec if workflow is not None else None)

    async def runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        version: int | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        text: str | None = None,
        after: str | None = None,
        limit: int = 50,
        scope: Scope | None = None,
    ) -> RunPage:
        """Runs, newest first; `after` takes that of the page before."""
        wanted = RunFilter(
            status=[Status(item) for item in ([status] if isinstance(status, str) else status or ())],
            workflow=workflow,
            version=version,
            labels=dict(labels or {}),
            parent=parent,
            created_after=created_after,
            created_before=created_before,
            text=text,
        )
        return await self.store.read(views.page, scope or self.scope(), wanted, after, limit)

    async def cleanup(
        self,
        run_ids: Iterable[str],
        *,
        dry_run: bool = False,
        session: AsyncSession | None = None,
        scope: Scope | None = None,
    ) -> list[Cleaned]:
        """Delete final runs with all that is theirs; says for each id: deleted, not found, or not final."""
        return await self.write(session, cleanup.cleanup_many, scope or self.scope(), list(run_ids), dry_run=dry_run)

    async def pools(self) -> list[PoolView]:
        """Every pool with its limits and how many attempts hold a slot."""
        return list(await self.store.read(pools.pools_view))

    async def set_pool(self, name: str, limits: PoolLimits) -> None:
        """Change a pool's limits, live and for all processes; `max_parallel=0` pauses it."""
        await self.store.write(pools.change, name, limits)

    # -- scopes

    def scope(self) -> Scope:
        """Embedded code of the default tenant."""
        return Scope(self._default)

    async def scope_of(self, tenant: str) -> Scope:
        """Embedded code of a tenant, by its name; NotFound."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = await self.store.read(tenants.tenant_id, tenant)
        return Scope(found)

    @property
    def value_limit(self) -> int | None:
        """The deployment's limit of a value in bytes; None: the built-in one, which a workflow may change."""
        given = self.settings.max_value_bytes
        return None if given == EngineSettings().max_value_bytes else given

    # -- transactions

    async def write(
        self,
        session: AsyncSession | None,
        use_case: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """In a transaction of its own, or in the caller's (S7)."""
        if session is not None:
            return await self.store.join(cast("SqlmodelSession", session), use_case, *args, **kwargs)
        return await self.store.write(use_case, *args, **kwargs)


class Enqueue:
    """`engine.enqueue` with start options."""

    def __init__(self, engine: Engine, options: StartOptions) -> None:
        self._engine = engine
        self._options = options

    async def __call__(self, function: StepFunction[P, R], *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        engine, options = self._engine, self._options
        scope = engine.scope() if options.tenant is None else await engine.scope_of(options.tenant)
        text = function.codec.encode_call(args, kwargs)
        spec = specs.function_spec(function, text, options, engine.settings.max_value_bytes)
        started = await engine.begin(scope, spec, options.session)
        return Run(
            engine, scope, started.public_id, key=started.run_id, existing=started.existing, codec=function.codec
        )
