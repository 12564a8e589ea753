"""An answer against its question: the author's type where this process has it, the stored JSON schema where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from signoff.approvals.json_schema import check_schema, redact
from signoff.workflow import codec
from signoff.workflow.errors import FieldError, InvalidInput, Refused
from signoff.workflow.registry import Registry, default_registry
from signoff.workflow.tagged import MARK

MAX_ANSWER: Final = 1024 * 1024  # characters of JSON; people do not type more, and no page shows it


@dataclass(frozen=True, slots=True)
class Checked:
    """An answer that fits: `text` for the journal, and `shown` for people and records, its secrets redacted."""

    text: str
    shown: Any


def check_answer(
    ask: str, schema: dict[str, Any], answer: Any, registry: Registry | None = None, *, typed: bool = False
) -> Checked:
    """`Refused` with reason `form` and every field that does not fit.

    `answer` is plain JSON, or (`typed`, from code in this process) a value of the ask's own type.
    """
    known = (registry or default_registry).find_ask(ask)
    try:
        if typed and known is not None:
            text = known.codec.encode(answer)
        else:
            text = codec.dump(_plain(answer) if typed else answer)
            if isinstance(answer, dict) and MARK in answer:
                # The journal's own exact form. Answers come as the JSON that a form or a program would write.
                raise InvalidInput("", [FieldError((MARK,), "is not expected here")])
            if len(text) <= MAX_ANSWER:
                if known is not None:
                    text = known.codec.check(text)
                elif fields := check_schema(codec.parse(text), schema):
                    raise InvalidInput("", fields)
    except InvalidInput as error:
        raise Refused("form", "The answer does not fit", error.fields, ask=ask) from error
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise Refused("form", "The answer is not plain JSON", [FieldError((), str(error))], ask=ask) from error
    if len(text) > MAX_ANSWER:
        raise Refused("form", f"The answer is longer than {MAX_ANSWER} characters", ask=ask)
    value = codec.parse(text) if known is None else known.codec.decode(text)
    return Checked(text, redact(_plain(value), schema))


def _plain(value: Any) -> Any:
    return to_jsonable_python(value, by_alias=True, inf_nan_mode="strings", bytes_mode="base64")
