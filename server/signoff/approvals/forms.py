"""An answer against its question: the author's type where this process has it, the stored JSON schema where not."""

from __future__ import annotations

from typing import Any, Final

from signoff.approvals.json_schema import check_schema
from signoff.workflow import codec
from signoff.workflow.errors import FieldError, InvalidInput, Refused
from signoff.workflow.registry import Registry, default_registry
from signoff.workflow.tagged import MARK

MAX_ANSWER: Final = 1024 * 1024  # characters of JSON; people do not type more, and no page shows it


def check_answer(ask: str, schema: dict[str, Any], answer: Any, registry: Registry | None = None) -> str:
    """The answer as JSON text for the journal. `Refused` with reason `form` and every field that does not fit."""
    try:
        text = codec.dump(answer)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused("form", "The answer is not plain JSON", [FieldError((), str(error))], ask=ask) from error
    if len(text) > MAX_ANSWER:
        raise Refused("form", f"The answer is longer than {MAX_ANSWER} characters", ask=ask)
    if isinstance(answer, dict) and MARK in answer:
        # The journal's own exact form. People's answers come as the JSON that a form or a program would write.
        raise Refused("form", "The answer does not fit", [FieldError((MARK,), "is not expected here")], ask=ask)
    known = (registry or default_registry).find_ask(ask)
    if known is None:
        if fields := check_schema(answer, schema):
            raise Refused("form", "The answer does not fit", fields, ask=ask)
        return text
    try:
        return codec.value_codec(known.type).check(text)
    except InvalidInput as error:
        raise Refused("form", "The answer does not fit", error.fields, ask=ask) from error
