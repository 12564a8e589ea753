"""An answer against its question: the author's type where this process has it, the stored JSON schema where not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from signoff.approvals.json_schema import check_schema, redact
from signoff.workflow import codec
from signoff.workflow.choices import parts_of
from signoff.workflow.codec import ValueCodec
from signoff.workflow.errors import FieldError, InvalidInput, Refused
from signoff.workflow.registry import Registry, default_registry
from signoff.workflow.tagged import MARK

MAX_ANSWER: Final = 1024 * 1024  # characters of JSON; people do not type more, and no page shows it


@dataclass(frozen=True, slots=True)
class Checked:
    """An answer that fits: `text` for the journal, and `shown` for people and records, its secrets redacted."""

    text: str
    shown: Any
    rejects: bool = False


def find_option(options: str | None, name: str | None) -> dict[str, Any] | None:
    """The option that a decision names, of an approval's `options` column. `Refused` with reason `form`."""
    if options is None:
        if name is not None:
            raise Refused("form", "This question has no options", [FieldError(("option",), "is not expected here")])
        return None
    known: list[dict[str, Any]] = json.loads(options)
    found = next((option for option in known if option["name"] == name), None)
    if found is None:
        words = f"must be one of {', '.join(option['name'] for option in known)}"
        raise Refused("form", "Choose one of the options", [FieldError(("option",), words, name)])
    return found


def form_of(schema: dict[str, Any], option: dict[str, Any] | None) -> dict[str, Any]:
    """The JSON schema that an answer is filled in by: the option's own, or that of the ask."""
    form: dict[str, Any] = schema if option is None else option.get("schema", schema)
    return form


def check_answer(
    ask: str,
    schema: dict[str, Any],
    answer: Any,
    registry: Registry | None = None,
    *,
    typed: bool = False,
    option: dict[str, Any] | None = None,
) -> Checked:
    """`Refused` with reason `form` and every field that does not fit.

    `answer` is plain JSON, or (`typed`, from code in this process) a value of the ask's own type. `option`: the one
    that was chosen, which may have a form or an answer of its own.
    """
    known = (registry or default_registry).find_ask(ask)
    asked = None if known is None else known.codec
    form = form_of(schema, option)
    try:
        if option is not None and "value" in option:
            text = _check_fixed(option["value"], answer, typed)
        elif asked is None or (own := _codec_of(option, asked)) is None:
            text = _check_plain(form, _plain(answer) if typed else answer)
            text = text if asked is None else asked.check(text)
        else:
            text = _check_typed(own, answer) if typed else _check_json(own, answer)
            text = text if own is asked else asked.encode(own.decode(text))
    except InvalidInput as error:
        raise Refused("form", "The answer does not fit", error.fields, ask=ask) from error
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise Refused("form", "The answer is not plain JSON", [FieldError((), str(error))], ask=ask) from error
    if len(text) > MAX_ANSWER:
        raise Refused("form", f"The answer is longer than {MAX_ANSWER} characters", ask=ask)
    value = codec.parse(text) if asked is None else asked.decode(text)
    return Checked(text, redact(_plain(value), form), _is_no(value) if option is None else bool(option.get("rejects")))


def _check_fixed(value: Any, answer: Any, typed: bool) -> str:
    """The answer that an option stands for; nothing else may be given with it."""
    if answer is not None and answer != {} and (_plain(answer) if typed else answer) != value:
        raise InvalidInput("", [FieldError((), "this option takes no answer")])
    return codec.dump(value)


def _check_typed(own: ValueCodec, answer: Any) -> str:
    """A value of the type, or the plain JSON of one."""
    try:
        return own.encode(answer)
    except InvalidInput:
        if not isinstance(answer, dict | list | str):
            raise
        return _check_json(own, answer)


def _check_json(own: ValueCodec, answer: Any) -> str:
    text = _dump(answer)
    return text if len(text) > MAX_ANSWER else own.check(text)


def _check_plain(schema: dict[str, Any], answer: Any) -> str:
    text = _dump(answer)
    if len(text) <= MAX_ANSWER and (fields := check_schema(codec.parse(text), schema)):
        raise InvalidInput("", fields)
    return text


def _dump(answer: Any) -> str:
    if isinstance(answer, dict) and MARK in answer:
        # The journal's own exact form. Answers come as the JSON that a form or a program would write.
        raise InvalidInput("", [FieldError((MARK,), "is not expected here")])
    return codec.dump(answer)


def _codec_of(option: dict[str, Any] | None, asked: ValueCodec) -> ValueCodec | None:
    """The type that the form was made from, where it can be told: the ask's, or one of its union."""
    form = None if option is None else option.get("schema")
    if form is None or form == asked.json_schema():
        return asked
    parts = (codec.value_codec(part) for part in parts_of(asked.annotation))
    return next((part for part in parts if part.json_schema() == form), None)


def _is_no(value: Any) -> bool:
    """Whether a plain answer rejects: False, or `approved` is False."""
    approved = value.get("approved") if isinstance(value, dict) else getattr(value, "approved", None)
    return value is False or approved is False


def _plain(value: Any) -> Any:
    return to_jsonable_python(value, by_alias=True, inf_nan_mode="strings", bytes_mode="base64")
