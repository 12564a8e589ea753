"""The people of the example, with passwords made for each database and kept beside it."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from signoff.people import groups, users
from signoff.people.passwords import hash_password_async
from signoff.runtime.engine import Engine
from signoff.store.tx import Tx
from signoff.store.urls import parse_url
from signoff.workflow.errors import Conflict

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True)
class DemoPerson:
    email: str
    name: str
    role: str
    groups: tuple[str, ...] = ()


ANA = DemoPerson("ana@example.org", "Ana", "approver", ("finance", "editors"))
BEN = DemoPerson("ben@example.org", "Ben", "approver", ("finance",))
SAM = DemoPerson("sam@example.org", "Sam", "approver", ("security", "editors"))
OMAR = DemoPerson("omar@example.org", "Omar", "admin")
PEOPLE = (ANA, BEN, SAM, OMAR)


async def ensure_people(engine: Engine, passwords_file: Path) -> dict[str, str]:
    """Make who is missing, and return the passwords by e-mail address."""
    known = _read(passwords_file)
    missing = [person for person in PEOPLE if person.email not in known]
    passwords = known | {person.email: new_password() for person in missing}
    if missing:
        # before the accounts: a crash in between must not leave accounts whose passwords nobody knows
        _write(passwords_file, passwords)
    for person in PEOPLE:
        if not missing and await engine.store.read(users.exists, person.email):
            continue
        hashed = await hash_password_async(passwords[person.email])
        await engine.store.write(_ensure, engine, person, hashed, person in missing, bool(missing))
    return passwords


def _ensure(tx: Tx, engine: Engine, person: DemoPerson, hashed: str, is_new: bool, is_older: bool) -> None:
    scope = engine.scope()
    try:
        with tx.savepoint():
            users.add_user(tx, scope, person.email, name=person.name, role=person.role, password_hash=hashed)
    except Conflict:
        if is_new:  # the passwords' file was lost
            users.set_password(tx, scope, person.email, hashed)
        if is_older:  # an earlier release had fewer people, and one who could do less
            users.set_role(tx, scope, person.email, person.role)
    for group in person.groups:
        groups.add_to_group(tx, scope, group, person.email)


def new_password() -> str:
    """Three pronounceable words, about 37 bits: for a demo on one's own machine."""
    words = ("".join(secrets.choice(_CONSONANTS) + secrets.choice(_VOWELS) for _ in range(2)) for _ in range(3))
    return "-".join(words)


def passwords_file(database: str) -> Path:
    """Beside a SQLite file; for PostgreSQL in the current folder, named after the database."""
    url = parse_url(database)
    if url.get_backend_name() == "sqlite" and url.database:
        return Path(f"{url.database}.passwords")
    return Path(f"signoff-demo-{url.database or 'memory'}.passwords")


def _read(file: Path) -> dict[str, str]:
    try:
        return dict(json.loads(file.read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _write(file: Path, passwords: dict[str, str]) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as target:
        json.dump(passwords, target, indent=2)
