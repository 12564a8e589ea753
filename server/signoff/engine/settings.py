"""Settings of an engine: limits, defaults, sizes. Sizes are bytes, durations seconds."""

from __future__ import annotations

from dataclasses import dataclass

from signoff.workflow.retry import Retry

CANCEL_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    max_value_bytes: int = 16 * 1024 * 1024
    max_steps: int = 25_000  # per round
    max_journal_bytes: int = 64 * 1024 * 1024  # per run
    retry: Retry | bool | None = None  # default of actions that ask for `retry=True` and have none of their own
    timeout: float | None = None  # per attempt, of actions
    cancel_grace: float = CANCEL_GRACE
    cached_programs: int = 1_000  # parked runs whose program is kept in memory
    max_active: int = 2_000  # runs that one worker holds at once
    max_sync_threads: int = 32  # attempts of sync functions at once
    handler_limit: float = 1.0  # computing without awaiting
    loop_limit: float = 1.0  # a step function that blocks the event loop for longer is reported
    max_lost: int = 5  # lost attempts of one step before it fails
    check_replay: bool = False  # replay after every advance and compare (tests)
