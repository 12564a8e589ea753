"""Random secrets that are shown once and stored as hashes: session ids, tokens, links."""

from __future__ import annotations

import hashlib
import hmac
import secrets


def new_secret(prefix: str = "") -> str:
    """256 random bits, safe in addresses, cookies and headers."""
    return prefix + secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """What is stored. Plain SHA-256 is enough for 256 random bits; passwords go through argon2 instead."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def same(one: str, other: str) -> bool:
    """Comparison in constant time."""
    return hmac.compare_digest(digest(one), digest(other))
