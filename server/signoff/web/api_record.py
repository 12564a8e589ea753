"""The decision ledger for programs."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery
from litestar.response import Stream
from pydantic import Field

from signoff.approvals import ledger
from signoff.web.api import PROBLEMS, ApiRequest, backend_of
from signoff.web.pages.record import download


@get(
    "/ledger",
    responses={**PROBLEMS, 200: ResponseSpec(str, description="One row a line", media_type="application/jsonl")},
    summary="Export the decision ledger",
    operation_id="exportLedger",
    tags=["record"],
)
async def export_ledger(
    request: ApiRequest,
    format: FromQuery[
        Annotated[ledger.Format, Field(description="JSON lines, or a table for spreadsheets.")]
    ] = "jsonl",
) -> Stream:
    """The whole ledger in the order of its seals, rows without a seal last. Needs the role admin."""
    return download(await ledger.export(backend_of(request).store, request.user, format), format)


HANDLERS = [export_ledger]
