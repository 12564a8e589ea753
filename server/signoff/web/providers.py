"""The identity providers of a server, as its operator writes them down: in a TOML or JSON file, or as JSON."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from signoff.people.groups import clean_group
from signoff.people.permissions import Role
from signoff.store.scope import ROLES

_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


class ProviderConfig(BaseModel):
    """One provider. What its group claim says is mapped to roles and groups; names that are not mapped say nothing.

    With `roles` the role follows the provider at each sign-in: the highest that is mapped, else `default_role`.
    Without, `default_role` is given to new accounts, and admins change it. No role at all: the sign-in is refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]  # in addresses: /sign-in/<id>/callback
    name: Annotated[str, Field(min_length=1, max_length=60)]  # on the button
    issuer: Annotated[str, Field(min_length=1)]
    client_id: Annotated[str, Field(min_length=1)]
    client_secret: str | None = Field(default=None, repr=False)
    client_secret_env: str | None = None
    client_secret_file: str | None = None
    scopes: list[str] = ["openid", "email", "profile"]
    group_claim: str = "groups"
    roles: dict[str, Role] = {}
    groups: dict[str, str] = {}
    default_role: Role | None = None
    trusted: bool = False  # that it knows whose an address is
    sign_out: bool = True  # there as well, where it offers that
    tenant: str = "default"
    switch: bool = False  # whether who signs in here may go on to other tenants that the account belongs to

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
            raise ValueError("the issuer begins with https:// (http only on this machine)")
        if "openid" not in self.scopes:
            raise ValueError("scopes must hold openid")
        if (
            sum(value is not None for value in (self.client_secret, self.client_secret_env, self.client_secret_file))
            > 1
        ):
            raise ValueError("give one of client_secret, client_secret_env, client_secret_file")
        for group in self.groups.values():
            clean_group(group)
        return self

    def secret(self) -> str | None:
        """The client's secret; None for a public client. Raises ValueError when it is not where it should be."""
        if self.client_secret_env is not None:
            if not (found := os.environ.get(self.client_secret_env)):
                raise ValueError(f"{self.id}: the variable {self.client_secret_env} is not set")
            return found
        if self.client_secret_file is not None:
            try:
                return Path(self.client_secret_file).read_text("utf-8").strip()
            except OSError as error:
                raise ValueError(f"{self.id}: {self.client_secret_file}: {error.strerror}") from error
        return self.client_secret

    def role_of(self, claimed: list[str]) -> str | None:
        """The highest role that the claimed groups are mapped to, else the default."""
        mapped = [self.roles[name] for name in claimed if name in self.roles]
        return max(mapped, key=ROLES.index) if mapped else self.default_role


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")
    provider: list[ProviderConfig]


def read_providers(source: str) -> list[ProviderConfig]:
    """From a file's name (.toml, else JSON), or from JSON itself. Raises a ValueError that says what is wrong."""
    where, found = _parse(source)
    try:
        providers = _File.model_validate(found).provider
    except ValidationError as error:
        # without the input, which may be a secret
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False)]
        raise ValueError(f"{where}: {'; '.join(lines)}") from None
    ids = [provider.id for provider in providers]
    if len(set(ids)) != len(ids):
        raise ValueError(f"{where}: two providers have the same id")
    for provider in providers:
        provider.secret()
    return providers


def _parse(source: str) -> tuple[str, Any]:
    if source.lstrip().startswith(("{", "[")):
        where, text, is_toml = "SIGNOFF_OIDC", source, False
    else:
        where, is_toml = source, source.endswith(".toml")
        try:
            text = Path(source).read_text("utf-8")
        except OSError as error:
            raise ValueError(f"{source}: {error.strerror}") from error
    try:
        found = tomllib.loads(text) if is_toml else json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return where, {"provider": found} if isinstance(found, list) else found
