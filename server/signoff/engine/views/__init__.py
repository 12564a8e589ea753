"""What pages, API and handles see of runs: projections, never rows.

Every view takes one set of queries, however many rows it shows. Values are JSON text; sensitive ones are not shown.
"""

from __future__ import annotations

from signoff.engine.views.history import (
    EventView,
    LogView,
    RoundView,
    event_view,
    events_view,
    last_logs_view,
    logs_view,
    rounds_view,
)
from signoff.engine.views.runs import CompletionView, RunFilter, RunPage, RunSummary, RunView, page, run_view
from signoff.engine.views.steps import (
    AttemptView,
    Awaited,
    Progress,
    StepView,
    open_steps_view,
    step_state,
    steps_following,
    steps_view,
)
from signoff.engine.views.values import REDACTED

__all__ = [
    "REDACTED", "AttemptView", "Awaited", "CompletionView", "EventView", "LogView", "Progress", "RoundView",
    "RunFilter", "RunPage", "RunSummary", "RunView", "StepView", "event_view", "events_view", "last_logs_view",
    "logs_view", "open_steps_view", "page", "rounds_view", "run_view", "step_state", "steps_following", "steps_view",
]  # fmt: skip
