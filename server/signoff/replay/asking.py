"""A question as an ask step carries it, and the decisions that came back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, cast, get_args

from signoff.replay.plain import as_plain
from signoff.workflow.amounts import Seconds, as_seconds
from signoff.workflow.choices import Option, options_to_json
from signoff.workflow.codec import parse
from signoff.workflow.errors import InvalidInput, Undecodable
from signoff.workflow.events import Ask
from signoff.workflow.names import check_name
from signoff.workflow.rules import AllOf, AnyOf, Decided, NOf, Rule
from signoff.workflow.selectors import Selector, selectors_to_json
from signoff.workflow.values import ValueCodec

OnTimeout = Literal["raise", "cancel_run"]
Claim = Literal["optional", "required", "none"]
Members = Literal["live", "as_asked"]

MAX_REMINDERS: Final = 50


class AskOptions(TypedDict, total=False):
    """What `step.ask` takes whatever the type of its value is."""

    body: str
    facts: Mapping[str, Any] | None
    to: Selector | Iterable[Selector] | None
    exclude: Selector | Iterable[Selector] | None
    not_requester: bool
    options: Iterable[Option] | None
    due: Seconds | None
    remind: Iterable[Seconds]
    escalate_to: Selector | Iterable[Selector] | None
    escalate_after: Seconds | None
    timeout: Seconds | None
    on_timeout: OnTimeout
    claim: Claim
    extend: Seconds | None
    members: Members
    sensitive: bool | None
    name: str | None


def shown(ask: Ask[Any], title: Any, body: Any, facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """What people read."""
    return {
        "title": text_of(ask.name, "title", title), "body": text_of(ask.name, "body", body), "facts": facts_of(facts)
    }  # fmt: skip


def text_of(ask: str, what: Literal["title", "body"], text: Any) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"the {what} of ask {ask!r} is text, not {type(text).__name__}")
    if what == "title" and not text.strip():
        raise InvalidInput(f"the title of ask {ask!r} must say something")
    return text


def who(
    to: Selector | Iterable[Selector] | None,
    exclude: Selector | Iterable[Selector] | None,
    not_requester: bool,
    members: Members,
    rule: Rule | None,
    options: Iterable[Option] | None,
    claim: Claim,
    codec: ValueCodec,
) -> dict[str, Any]:
    """Who decides and by what rule. Only what was given: `to` besides."""
    if rule is not None and not isinstance(rule, AnyOf | NOf | AllOf):
        raise InvalidInput(f"rule= takes any_of(...), n_of(...) or all_of(...), not {rule!r}")
    if not isinstance(not_requester, bool):
        raise InvalidInput(f"not_requester= takes True or False, not {not_requester!r}")
    _one_of(claim, Claim, "claim")
    _one_of(members, Members, "members")
    question: dict[str, Any] = {"to": selectors_to_json(to)}
    if exclude is not None:
        question["exclude"] = selectors_to_json(exclude, "exclude=")
    if not_requester:
        question["not_requester"] = True
    if members != "live":
        question["members"] = members
    if rule is not None:
        question["rule"] = rule.to_json()
    if options is not None:
        question["options"] = options_to_json(options, codec)
    if claim != "optional":
        question["claim"] = claim
    return question


def when(
    due: Seconds | None,
    remind: Iterable[Seconds],
    escalate_to: Selector | Iterable[Selector] | None,
    escalate_after: Seconds | None,
    timeout: float | None,
    on_timeout: OnTimeout,
    has_default: bool,
    extend: Seconds | None,
) -> dict[str, Any]:
    """What time does: in seconds after asking. Only what was given: `due`, `timeout`, `on_timeout` besides."""
    _one_of(on_timeout, OnTimeout, "on_timeout")
    if on_timeout == "cancel_run" and has_default:
        raise InvalidInput("give default= or on_timeout='cancel_run', not both")
    if timeout is None and (has_default or on_timeout == "cancel_run"):
        raise InvalidInput("default= and on_timeout= say what a timeout does: give timeout= too")
    question: dict[str, Any] = {
        "due": None if due is None else as_seconds(due, "due="),
        "timeout": timeout,
        "on_timeout": on_timeout,
    }
    reminders = sorted({as_seconds(item, "remind=") for item in remind})
    if len(reminders) > MAX_REMINDERS:
        raise InvalidInput(f"remind= takes at most {MAX_REMINDERS} durations, not {len(reminders)}")
    if reminders:
        question["remind"] = reminders
    if escalate_to is not None:
        question["escalate_to"] = selectors_to_json(escalate_to, "escalate_to=")
        after = question["due"] if escalate_after is None else as_seconds(escalate_after, "escalate_after=")
        if after is None or not question["escalate_to"]:
            raise InvalidInput("escalate_to= names people, and due= or escalate_after= says when")
        question["escalate_after"] = after
    elif escalate_after is not None:
        raise InvalidInput("escalate_after= says when: give escalate_to= too")
    if extend is not None:
        if timeout is None and due is None:
            raise InvalidInput("extend= moves the deadline: give timeout= or due= too")
        question["extend"] = as_seconds(extend, "extend=", minimum=1.0)
    return question


class DecisionsDecoder:
    """Reads the recorded decisions of several people."""

    __slots__ = ("_codec",)

    def __init__(self, codec: ValueCodec) -> None:
        self._codec = codec

    def __call__(self, text: str | None) -> list[Decided[Any]]:
        raw = parse(text or "null")
        if not isinstance(raw, list) or not all(isinstance(item, dict) and "person" in item for item in raw):
            raise Undecodable("a single answer was recorded, and the rule asks for several decisions")
        return [self._decided(item) for item in raw]

    def _decided(self, raw: dict[str, Any]) -> Decided[Any]:
        return Decided(
            person=raw["person"],
            name=raw["name"],
            at=datetime.fromisoformat(raw["at"]),
            answer=self._codec.decode_raw(raw["answer"]),
            option=raw.get("option"),
            comment=raw.get("comment"),
            on_behalf_of=raw.get("on_behalf_of"),
            rejects=bool(raw.get("rejects")),
        )

    def by_default(self, text: str, at: datetime) -> list[Decided[Any]]:
        """What the deadline gives instead of people's decisions."""
        return [Decided("", "", at, self._codec.decode(text))]


def facts_of(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    if facts is None:
        return {}
    for label in facts:
        check_name(label, "fact")
    return cast("dict[str, Any]", as_plain(dict(facts), "facts="))


def _one_of(value: Any, words: Any, what: str) -> None:
    if value not in get_args(words):
        raise InvalidInput(f"{what}= takes {' or '.join(map(repr, get_args(words)))}, not {value!r}")
