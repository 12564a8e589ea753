"""Client of the HTTP API.

async with Client("http://127.0.0.1:8000", token=...) as client:
    run = await client.start("orders/fulfill", {"order_id": "o-1"}, idempotency_key="o-1")
    await client.send(run.id, "order/payment", {"amount": 12})
    print((await client.wait(run.id)).result)
"""

from __future__ import annotations

from signoff.client.client import ApiError, Client
from signoff.client.models import (
    Approval,
    ApprovalPage,
    ApprovalRow,
    Awaited,
    Decision,
    Note,
    Progress,
    Receipt,
    Run,
    RunError,
    Running,
    Sent,
    Started,
    Why,
)

__all__ = [
    "ApiError",
    "Approval",
    "ApprovalPage",
    "ApprovalRow",
    "Awaited",
    "Client",
    "Decision",
    "Note",
    "Progress",
    "Receipt",
    "Run",
    "RunError",
    "Running",
    "Sent",
    "Started",
    "Why",
]
