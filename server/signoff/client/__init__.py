"""Client of the HTTP API.

async with Client("http://127.0.0.1:8000", token=...) as client:
    run = await client.start("orders/fulfill", {"order_id": "o-1"}, idempotency_key="o-1")
    await client.send(run.id, "order/payment", {"amount": 12})
    print((await client.wait(run.id)).result)
"""

from __future__ import annotations

from signoff.client.client import ApiError, Client
from signoff.client.models import Awaited, Run, RunError, Running, Sent, Started

__all__ = ["ApiError", "Awaited", "Client", "Run", "RunError", "Running", "Sent", "Started"]
