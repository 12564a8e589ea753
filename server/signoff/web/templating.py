"""The Jinja environment of all pages, with its words, addresses of files, and filters."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from signoff.approvals.inbox import SOON
from signoff.resources import static_dir, templates_dir
from signoff.web import say
from signoff.web.addresses import segment
from signoff.web.wording import (
    NOTE_ICONS,
    coming_up,
    differences,
    doing,
    effect,
    followed,
    note_words,
    problem_words,
    step_note,
    step_state,
    stuck_words,
    timed_out,
    told,
    tone,
    under_way,
    verdict,
)

EVENT_WORDS = {"created": "not sent yet", "buffered": "waiting", "consumed": "taken", "set_aside": "did not fit"}


@cache
def asset(name: str) -> str:
    """The address of a static file; it changes with the file, so that browsers may keep it for ever."""
    return f"/static/{name}?v={_fingerprint(static_dir() / name)}"


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.is_file() else "0"


def _short(public_id: str) -> str:
    return public_id if len(public_id) <= 16 else f"{public_id[:6]}…{public_id[-6:]}"


def _has_nested(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, list | dict) for item in value)


def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(templates_dir()),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.globals.update(
        asset=asset, soon=SOON, status_words=say.STATUS_WORDS, kind_words=say.KIND_WORDS, event_words=EVENT_WORDS
    )
    env.filters.update(
        blocked_words=lambda blocked: blocked.get("message", "The code no longer matches what was recorded."),
        browser=say.browser,
        clock=say.clock,
        coming_up=coming_up,
        compact=lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str),
        count=say.count,
        differences=differences,
        doing=doing,
        effect=effect,
        followed=followed,
        door=say.door,
        duration=say.duration,
        exact=say.exact,
        has_nested=_has_nested,
        initials=say.initials,
        is_number=say.is_number,
        iso=say.iso,
        listed=say.listed,
        note_icon=lambda note: NOTE_ICONS.get(note.kind, "comment"),
        note_words=note_words,
        person=say.person,
        plain=say.plain,
        pretty=say.pretty,
        problem_words=problem_words,
        relative=say.relative,
        segment=segment,
        sentence=say.sentence,
        short=_short,
        step_note=step_note,
        step_state=step_state,
        stuck_words=stuck_words,
        timed_out=timed_out,
        told=told,
        tone=tone,
        under_way=under_way,
        verdict=verdict,
        words=say.words,
    )
    env.tests["is_number"] = say.is_number
    return env
