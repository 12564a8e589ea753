"""What the API answers. Members that a newer server adds are ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

FINAL = frozenset({"completed", "failed", "canceled"})


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Started(_Body):
    """`existing`: this start had been made before, by its key or run id."""

    id: str
    existing: bool


class Awaited(_Body):
    """What a run waits for; `who` may answer a question, as selectors."""

    kind: str
    name: str
    step_no: int
    since: datetime
    due_at: datetime | None = None
    who: list[Any] = []
    approval: str | None = None
    child_run: str | None = None


class Running(_Body):
    """A step whose attempt runs; `progress` from 0 to 1."""

    step_no: int
    kind: str
    name: str
    since: datetime
    progress: float | None = None
    progress_text: str | None = None


class RunError(_Body):
    type: str
    message: str
    data: Any = None
    step_no: int | None = None


class Run(_Body):
    """A run as it was when asked. `version_no` only grows."""

    id: str
    workflow: str
    version: int
    status: str
    generation: int
    priority: int = 0
    labels: dict[str, str] = {}
    requester: str | None = None
    parent: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_wake_at: datetime | None = None
    awaiting: list[Awaited] = []
    running: list[Running] = []
    result: Any = None
    error: RunError | None = None
    blocked: dict[str, Any] | None = None
    version_no: int

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


class Sent(_Body):
    """An event as it was stored. `state`: buffered until a step awaits it, then consumed."""

    id: str
    run: str
    name: str
    state: str
    sent_at: datetime | None = None
