"""Local passwords: argon2id, always off the event loop, and never a quick answer for an unknown account."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from signoff.workflow.errors import FieldError, InvalidInput

MIN_LENGTH: Final = 10
MAX_LENGTH: Final = 256  # characters; a bound on the work that a stranger can ask for

# A verification takes 64 MiB and a core for some 50 ms: a burst of sign-ins must not take the machine.
_threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="signoff-argon2")


@cache
def _hasher() -> PasswordHasher:
    return PasswordHasher()


@cache
def _nobodys_hash() -> str:
    return _hasher().hash("the password of an account that does not exist")


def check_password(password: str) -> None:
    """Raise `InvalidInput` for a password that is too short or too long."""
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        message = f"A password has {MIN_LENGTH} to {MAX_LENGTH} characters"
        raise InvalidInput(message, fields=[FieldError(("password",), message)])
    if not _encodable(password):
        message = "A password consists of characters that UTF-8 can write"
        raise InvalidInput(message, fields=[FieldError(("password",), message)])


def hash_password(password: str) -> str:
    """The argon2id hash of a password that meets the rules. Takes tens of milliseconds: not for an event loop."""
    check_password(password)
    return _hasher().hash(password)


def verify_password(stored: str | None, password: str) -> bool:
    """Whether the password fits. No stored hash takes as long as a wrong one, so time tells nothing of accounts."""
    if len(password) > MAX_LENGTH or not _encodable(password):
        return False
    try:
        _hasher().verify(stored or _nobodys_hash(), password)
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


def _encodable(password: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in password)


def needs_rehash(stored: str) -> bool:
    """Whether a stored hash was made with weaker parameters than today's."""
    return _hasher().check_needs_rehash(stored)


async def hash_password_async(password: str) -> str:
    """`hash_password`, in a thread."""
    return await asyncio.get_running_loop().run_in_executor(_threads, hash_password, password)


async def verify_password_async(stored: str | None, password: str) -> bool:
    """`verify_password`, in a thread."""
    return await asyncio.get_running_loop().run_in_executor(_threads, verify_password, stored, password)
