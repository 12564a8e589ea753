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
    hint: str | None = None  # why it stands still although nothing is wrong with it
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


class Decision(_Body):
    """What one person answered."""

    person: str
    name: str
    at: datetime
    via: str
    answer: Any = None
    comment: str | None = None
    revision: int
    ledger_id: int
    option: str | None = None
    rejects: bool = False
    on_behalf_of: str | None = None
    lapsed: bool = False


class Note(_Body):
    """What somebody wrote or did about a question; `actor` is None where the server did it by itself."""

    at: datetime
    kind: str
    actor: str | None = None
    name: str | None = None
    text: str | None = None
    data: dict[str, Any] = {}


class Why(_Body):
    """Why one may not answer: a fixed word and a sentence."""

    reason: str
    text: str


class ApprovalRow(_Body):
    """A line of a list of questions. `mine`: it waits for whom the token stands for."""

    id: str
    run: str
    workflow: str
    ask: str
    title: str
    who: str
    state: str
    created_at: datetime
    revision: int
    mine: bool
    requester: str | None = None
    business_key: str | None = None
    due_at: datetime | None = None
    timeout_at: datetime | None = None
    closed_at: datetime | None = None
    decided_by: str | None = None
    progress: str = ""
    claimed_by: str | None = None
    stuck: str | None = None


class ApprovalPage(_Body):
    """`after` leads to the next page."""

    rows: list[ApprovalRow]
    after: str | None = None


class Progress(_Body):
    """How many decisions there are of how many; `waits_for`: whose are missing, in words."""

    have: int
    need: int
    text: str
    waits_for: str = ""


class Approval(_Body):
    """A question as it was when asked for. `why_not` is None when one may answer it."""

    id: str
    run: str
    workflow: str
    step_no: int
    ask: str
    title: str
    who: str
    state: str
    created_at: datetime
    revision: int
    facts: dict[str, Any] = {}
    answer_schema: dict[str, Any] = {}
    options: list[Any] = []
    requester: str | None = None
    business_key: str | None = None
    progress: Progress
    due_at: datetime | None = None
    timeout_at: datetime | None = None
    closed_at: datetime | None = None
    claimed_by: str | None = None
    stuck: str | None = None
    decisions: list[Decision] = []
    notes: list[Note] = []
    why_not: Why | None = None


class Receipt(_Body):
    """What an answer was taken as. `complete`: the question is answered by now."""

    ledger_id: int
    approval: str
    run: str
    person: str
    at: datetime
    content_hash: str
    effect: str
    complete: bool = True
    progress: str = ""
