"""A small typed client: one method for each thing that the API does, and Signoff's own errors for its problems."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Self
from urllib.parse import quote

import httpx

from signoff.client.models import Approval, ApprovalPage, Receipt, Run, Sent, Started
from signoff.workflow.errors import (
    Conflict,
    FieldError,
    InvalidInput,
    LimitExceeded,
    NeedsDecision,
    NotFound,
    Refused,
    SignoffError,
)

_TYPES: dict[str, type[SignoffError]] = {
    error.code: error for error in (Conflict, InvalidInput, LimitExceeded, NeedsDecision, NotFound)
}
Who = Mapping[str, str] | str  # {"user" | "group" | "role": name}, or the address of a user
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0  # seconds between two looks of `wait`


class ApiError(SignoffError):
    """An answer that none of Signoff's own errors stands for; `status` and `problem` are what the server sent."""

    code: ClassVar[str] = "api_error"

    def __init__(self, message: str, *, http_status: int, problem: dict[str, Any]) -> None:
        super().__init__(message)
        self.http_status = http_status
        self.problem = problem


class Client:
    """Use as `async with Client(url, token=...)`.

    Raises NotFound, Conflict, InvalidInput, LimitExceeded, NeedsDecision, Refused and ApiError as the server answers,
    and httpx.TransportError when it does not. timeout: seconds for one request. transport: for tests.
    """

    def __init__(
        self, url: str, *, token: str, timeout: float = 30.0, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1/",
            headers={"authorization": f"Bearer {token}", "accept": "application/json, application/problem+json"},
            timeout=timeout,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def start(
        self,
        workflow: str,
        args: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
        run_id: str | None = None,
        run_at: datetime | None = None,
        run_after: float | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Started:
        """Start a run; `args` are plain JSON by parameter name, `run_after` seconds. With a key it may be repeated."""
        body = {
            "workflow": workflow,
            "args": dict(args or {}),
            "version": version,
            "idempotency_key": idempotency_key,
            "run_id": run_id,
            "run_at": run_at.isoformat() if run_at is not None else None,
            "run_after": run_after,
            "priority": priority,
            "labels": dict(labels) if labels else None,
        }
        return Started.model_validate(await self._post("runs", body))

    async def run(self, run_id: str) -> Run:
        """What a run does, waits for, or how it ended."""
        return Run.model_validate(_unpack(await self._http.get(f"runs/{_segment(run_id)}")))

    async def wait(self, run_id: str, *, timeout: float | None = None) -> Run:
        """Look at the run until it is final, at growing intervals; TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            pause = _FIRST_PAUSE
            while not (run := await self.run(run_id)).is_final:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
        return run

    async def send(self, run_id: str, event: str, value: Any = None, *, idempotency_key: str | None = None) -> Sent:
        """Send an event to a run; `value` is plain JSON. With a key it may be repeated."""
        return await self._send(run_id, event, {"value": value, "idempotency_key": idempotency_key})

    async def send_error(self, run_id: str, event: str, message: str, *, idempotency_key: str | None = None) -> Sent:
        """Report a failure instead of a value: the run's wait raises EventError."""
        return await self._send(run_id, event, {"error": message, "idempotency_key": idempotency_key})

    async def _send(self, run_id: str, event: str, body: dict[str, Any]) -> Sent:
        return Sent.model_validate(await self._post(f"runs/{_segment(run_id)}/events/{_segment(event)}", body))

    # -- approvals

    async def approvals(self, tab: str = "mine", *, q: str = "", after: str | None = None) -> ApprovalPage:
        """A page of questions. tab: mine, groups, requested, decided; all and stuck for operators. `q` searches."""
        given = {"tab": tab, "q": q} | ({"after": after} if after is not None else {})
        return ApprovalPage.model_validate(_unpack(await self._http.get("approvals", params=given)))

    async def approval(self, approval_id: str) -> Approval:
        """A question with its decisions and its thread."""
        return Approval.model_validate(_unpack(await self._http.get(f"approvals/{_segment(approval_id)}")))

    async def decide(
        self,
        approval_id: str,
        answer: Any = None,
        *,
        option: str | None = None,
        comment: str | None = None,
        revision: int | None = None,
    ) -> Receipt:
        """Answer a question; `answer` is plain JSON. Refused says by `reason` what was in the way.

        revision: that of the question as it was looked at; without it the question is taken as it is now.
        """
        body = {"answer": answer, "option": option, "comment": comment, "revision": revision}
        return Receipt.model_validate(await self._post(f"approvals/{_segment(approval_id)}/decide", body))

    async def claim(self, approval_id: str, *, take_over: bool = False) -> Approval:
        """Claim a question that is put to one; operators take over claims of others."""
        return await self._about(approval_id, "claim", {"take_over": take_over})

    async def release(self, approval_id: str, *, reason: str | None = None) -> Approval:
        """Give up a claim; operators anybody's."""
        return await self._about(approval_id, "release", {"reason": reason})

    async def reassign(self, approval_id: str, to: Sequence[Who], *, reason: str, from_: Who | None = None) -> Approval:
        """Put a question to others; with `from_` only what was put to that person, group or role."""
        return await self._about(approval_id, "reassign", {"to": list(to), "from": from_, "reason": reason})

    async def delegate(self, approval_id: str, to: str, *, reason: str) -> Approval:
        """Let somebody answer in one's place."""
        return await self._about(approval_id, "delegate", {"to": to, "reason": reason})

    async def escalate(self, approval_id: str, *, reason: str) -> Approval:
        """Ask now those whom the question names for that."""
        return await self._about(approval_id, "escalate", {"reason": reason})

    async def extend(self, approval_id: str, *, by: float | None = None, reason: str | None = None) -> Approval:
        """Move the deadline by what the question allows, or as an operator by as many seconds as one says."""
        return await self._about(approval_id, "extend", {"by": by, "reason": reason})

    async def add(self, approval_id: str, to: Sequence[Who], *, reason: str) -> Approval:
        """Let others answer besides; for operators."""
        return await self._about(approval_id, "add", {"to": list(to), "reason": reason})

    async def comment(self, approval_id: str, text: str) -> Approval:
        """Write into the question's thread."""
        return await self._about(approval_id, "comments", {"text": text})

    async def _about(self, approval_id: str, deed: str, body: dict[str, Any]) -> Approval:
        return Approval.model_validate(await self._post(f"approvals/{_segment(approval_id)}/{deed}", body))

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        given = {name: value for name, value in body.items() if value is not None}
        return _unpack(await self._http.post(path, json=given))


def _segment(name: str) -> str:
    return quote(name, safe="")


def _unpack(response: httpx.Response) -> Any:
    if response.is_success:
        return response.json()
    try:
        problem = response.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": response.text[:500]}
    raise _error(response.status_code, problem)


def _error(status: int, problem: dict[str, Any]) -> SignoffError:
    message = str(problem.get("detail") or problem.get("title") or f"the server answered {status}")
    context = {
        key: value
        for key, value in problem.items()
        if key not in ("type", "title", "status", "detail", "errors", "reason")
    }
    fields = [
        FieldError(tuple(item.get("loc", ())), str(item.get("message", "")), item.get("input"))
        for item in problem.get("errors", ())
        if isinstance(item, dict)
    ]
    if problem.get("type") == Refused.code:
        return Refused(str(problem.get("reason", "")), message, fields, **context)
    found = _TYPES.get(str(problem.get("type")))
    if found is InvalidInput:
        # the server's sentence names the fields already
        return InvalidInput(message.partition(": ")[0] if fields else message, fields, **context)
    if found is not None:
        return found(message, **context)
    return ApiError(message, http_status=status, problem=problem)
