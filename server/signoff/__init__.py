"""Long-running work that people have a say in: durable workflows in plain Python, approvals in the browser."""

from __future__ import annotations

from signoff.engine.pools import PoolLimits
from signoff.engine.settings import EngineSettings
from signoff.replay.asked import Comment
from signoff.replay.step import Step
from signoff.runtime.engine import Engine
from signoff.runtime.subscription import RunChanged
from signoff.workflow import attempt
from signoff.workflow.choices import Option, option
from signoff.workflow.definitions import (
    Action,
    Ask,
    Call,
    Compensation,
    Event,
    Mutation,
    Query,
    Workflow,
    action,
    ask,
    event,
    mutation,
    query,
    workflow,
)
from signoff.workflow.errors import (
    Conflict,
    EventError,
    EventTimeout,
    FieldError,
    InvalidInput,
    LimitExceeded,
    NeedsDecision,
    NondeterministicCode,
    NonRetryable,
    NotFound,
    Refused,
    RegistrationError,
    RetryAfter,
    RunBlocked,
    RunCanceled,
    RunFailed,
    SignoffError,
    StepFailed,
    StepLost,
)
from signoff.workflow.options import Retention
from signoff.workflow.registry import Registry
from signoff.workflow.retry import Retry
from signoff.workflow.rules import AllOf, AnyOf, Decided, NOf, Rule, all_of, any_of, n_of
from signoff.workflow.selectors import group, role, user

__all__ = [
    "Action",
    "AllOf",
    "AnyOf",
    "Ask",
    "Call",
    "Comment",
    "Compensation",
    "Conflict",
    "Decided",
    "Engine",
    "EngineSettings",
    "Event",
    "EventError",
    "EventTimeout",
    "FieldError",
    "InvalidInput",
    "LimitExceeded",
    "Mutation",
    "NOf",
    "NeedsDecision",
    "NonRetryable",
    "NondeterministicCode",
    "NotFound",
    "Option",
    "PoolLimits",
    "Query",
    "Refused",
    "RegistrationError",
    "Registry",
    "Retention",
    "Retry",
    "RetryAfter",
    "Rule",
    "RunBlocked",
    "RunCanceled",
    "RunChanged",
    "RunFailed",
    "SignoffError",
    "Step",
    "StepFailed",
    "StepLost",
    "Workflow",
    "action",
    "all_of",
    "any_of",
    "ask",
    "attempt",
    "event",
    "group",
    "mutation",
    "n_of",
    "option",
    "query",
    "role",
    "user",
    "workflow",
]  # fmt: skip
