"""Ids and names in addresses. Run ids and event names may hold a slash, which a path segment must not."""

from __future__ import annotations

from pathlib import PurePath
from urllib.parse import quote, unquote, urlsplit

# Stands before a name of nothing but dots, which browsers would take for a way up. A private-use character.
DOTS = "\ue02e"
# Stands for an encoded slash between the middleware, which sees the raw path, and the handler. A private-use character.
SLASH = "\ue02f"


def segment(name: str) -> str:
    """A name as one path segment."""
    return quote(DOTS + name if name in (".", "..") else name, safe="")


def keep_slashes(raw_path: bytes) -> str | None:
    """The decoded path in which encoded slashes still differ from real ones; None when there are none."""
    if b"%2f" not in raw_path.lower():
        return None
    return unquote(raw_path.split(b"?")[0].decode("latin-1").replace("%2F", SLASH).replace("%2f", SLASH))


def name_of(value: str | PurePath) -> str:
    """The name in a path parameter."""
    return str(value).removeprefix("/").removeprefix(DOTS).replace(SLASH, "/")


def number_of(text: str, digits: int = 9) -> int | None:
    """A number in an address or a form; None for what is none, and for one that is too long for any column."""
    return int(text) if text.isdecimal() and len(text) <= digits else None


def local(target: str | None, fallback: str = "/") -> str:
    """Where to go next, if it lies on this site: a path, and no other host in disguise."""
    if not target or not target.startswith("/") or target.startswith(("//", "/\\")):
        return fallback
    return fallback if any(ord(char) < 32 or char == "\\" for char in target) else target


def is_host(header: bytes) -> bool:
    """Whether a Host header can be read: a name or an address, and a port that is one."""
    try:
        urlsplit(f"//{header.decode('ascii')}").port  # noqa: B018  # reading it is the check
    except ValueError:
        return False
    return True
