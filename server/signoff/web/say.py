"""How pages put times, durations, states and names into words."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

# The shown statuses with the word that people read; the key is also the name of icon and colour.
STATUS_WORDS = {
    "queued": "Queued",
    "running": "Running",
    "waiting": "Waiting",
    "sleeping": "Sleeping",
    "pausing": "Pausing",
    "paused": "Paused",
    "blocked": "Blocked",
    "canceling": "Canceling",
    "compensating": "Undoing",
    "completed": "Completed",
    "failed": "Failed",
    "canceled": "Canceled",
}
FINAL = frozenset({"completed", "failed", "canceled"})

KIND_WORDS = {
    "query": "Reads",
    "mutation": "Writes",
    "action": "Action",
    "child": "Child run",
    "sleep": "Sleep",
    "event": "Message",
    "ask": "Question",
    "marker": "Code change",
    "cancel": "Cancel request",
}

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(span: timedelta | float | None) -> str:
    """A span as people say it, in at most two units: `240 ms`, `12 s`, `3 h 20 min`, `4 d`."""
    if span is None:
        return ""
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    rest = round(seconds)
    for index, (size, unit) in enumerate(_UNITS):
        if rest >= size:
            major, rest = divmod(rest, size)
            if index + 1 < len(_UNITS):
                smaller, name = _UNITS[index + 1]
                if minor := rest // smaller:
                    return f"{major} {unit} {minor} {name}"
            return f"{major} {unit}"
    return f"{rest} s"


def relative(moment: datetime, now: datetime) -> str:
    """`3 min ago`, `in 3 h 58 min`, or `just now`. The past in one unit; what comes is not said to be nearer."""
    seconds = (now - moment).total_seconds()
    if -1 < seconds < 5:
        return "just now"
    span = duration(abs(seconds)) if abs(seconds) >= 1 else "1 s"
    if seconds <= -3600:
        return f"in {span}"
    first = " ".join(span.split(" ")[:2]) if abs(seconds) >= 10 else f"{round(abs(seconds))} s"
    return f"{first} ago" if seconds > 0 else f"in {first}"


def coming(moment: datetime, now: datetime) -> str:
    """`in 2 h`, or `now` for what is due already."""
    return relative(moment, now) if (moment - now).total_seconds() >= 1 else "now"


def ticking(moment: datetime, now: datetime) -> Markup:
    """`coming` as an element whose text the page keeps fresh."""
    return Markup('<time datetime="{}" title="{}" data-coming data-relative>{}</time>').format(
        iso(moment), exact(moment), coming(moment, now)
    )


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def exact(moment: datetime) -> str:
    """The whole moment with its zone, for titles."""
    moment = moment.astimezone(UTC)
    return f"{moment.day} {moment:%B %Y, %H:%M:%S} UTC"


def clock(moment: datetime, other: datetime | None = None) -> str:
    """Time of day, with the date when it is another day than `other`."""
    moment = moment.astimezone(UTC)
    if other is not None and moment.date() == other.astimezone(UTC).date():
        return f"{moment:%H:%M:%S}"
    return f"{moment.day} {moment:%b, %H:%M}"


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def ordinal(number: int) -> str:
    spoken = ("First", "Second", "Third", "Fourth", "Fifth", "Sixth")
    return spoken[number - 1] if 1 <= number <= len(spoken) else f"Number {number}"


def words(name: str) -> str:
    """A field or function name as a label: `ship_by_date` and `shipByDate` become `Ship by date`."""
    text = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).replace("_", " ").replace("-", " ").strip()
    if not text:
        return name
    text = " ".join(word if word.isupper() and len(word) > 1 else word.lower() for word in text.split())
    return text[0].upper() + text[1:]


def sentence(text: str) -> str:
    """A message as a sentence of its own. An address that it begins with stays as it is written."""
    if "@" not in text.partition(" ")[0]:
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def listed(items: list[str], last: str = "or") -> str:
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def initials(name: str) -> str:
    parts = [part for part in re.split(r"[\s.@_-]+", name) if part]
    return "".join(part[0] for part in parts[:2]).upper() or "?"


def person(actor: str | None) -> str:
    """An actor for people who read: the part of an address before `@` stays recognisable, a token says so."""
    if not actor:
        return "the system"
    if actor.startswith("token:"):
        return f"token {actor.removeprefix('token:')}"
    return actor


_DOORS = {
    "page": "on the page", "api": "through the API", "cli": "on the command line", "link": "by a link",
    "embedded": "by a program",
}  # fmt: skip


def door(via: str) -> str:
    """The way that something came in, in words."""
    return _DOORS.get(via, f"by {words(via).lower()}")


_BROWSERS = (
    ("Edg", "Edge"), ("OPR", "Opera"), ("Firefox", "Firefox"), ("FxiOS", "Firefox"), ("CriOS", "Chrome"),
    ("Chrome", "Chrome"), ("Safari", "Safari"), ("curl", "curl"), ("python-httpx", "a Python program"),
)  # fmt: skip
_SYSTEMS = (
    ("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"), ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"), ("Linux", "Linux"),
)  # fmt: skip


def browser(agent: str | None) -> str:
    """What a browser calls itself, in words: `Firefox on Linux`."""
    if not agent:
        return "An unknown browser"
    name = next((word for mark, word in _BROWSERS if mark in agent), "")
    system = next((word for mark, word in _SYSTEMS if mark in agent), "")
    if not name:
        return f"A browser on {system}" if system else agent[:60]
    return f"{name} on {system}" if system else sentence(name).rstrip(".")


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def relayout(text: str) -> str:
    """JSON text with line breaks and indents, each value just as it was written: no number is read and written anew."""
    lines, depth, before = [""], 0, ""
    for token in _JSON_TOKEN.findall(text):
        if token in ("}", "]"):
            depth -= 1
        if before == "," or (before in ("{", "[")) != (token in ("}", "]")):
            lines.append("  " * depth)
        lines[-1] += json.dumps(json.loads(token), ensure_ascii=False) if token[0] == '"' else token
        lines[-1] += " " if token == ":" else ""
        depth += token in ("{", "[")
        before = token
    return "\n".join(lines)


def pretty(value: Any) -> str:
    """JSON (as text or as a value) laid out for reading; text that is no JSON stays as it is."""
    if value is None:
        return "null"
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
        return relayout(value)
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def laid_out(text: str, most: int) -> tuple[str, bool]:
    """JSON text laid out in about `most` characters, and whether something was cut for that: long values first."""
    if len(text) <= most and len(whole := relayout(text)) <= most:
        return whole, False
    value, short = json.loads(text), ""
    for characters, items in ((400, 20), (120, 8), (40, 3)):
        short = json.dumps(_cut(value, characters, items), indent=2, ensure_ascii=False)
        if len(short) <= most:
            return short, True
    return f"{short[:most]}…", True


def _cut(value: Any, characters: int, items: int) -> Any:
    match value:
        case str() if len(value) > characters:
            return f"{value[:characters]}… ({len(value):,} characters)"
        case list():
            more = [f"… ({len(value):,} in all)"] if len(value) > items else []
            return [_cut(item, characters, items) for item in value[:items]] + more
        case dict():
            return {key: _cut(item, characters, items) for key, item in value.items()}
        case _:
            return value


def plain(value: Any) -> str:
    """A fact's value as a person reads it."""
    match value:
        case None:
            return "none"
        case True:
            return "yes"
        case False:
            return "no"
        case int():
            return f"{value:,}" if abs(value) >= 10_000 else str(value)
        case float():
            return f"{value:,}".removesuffix(".0")
        case str():
            return value
        case list() if all(not isinstance(item, list | dict) for item in value):
            return ", ".join(plain(item) for item in value) or "none"
        case _:
            return json.dumps(value, ensure_ascii=False, default=str)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
