"""Tables of tenants, of people and groups in them, and of how they sign in."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Field

from signoff.store.tables.base import Base
from signoff.store.types import UtcDateTime


class Tenant(Base, table=True):
    __tablename__ = "signoff_tenant"
    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)  # for code and commands; it stays
    created_at: datetime = Field(sa_type=UtcDateTime)
    title: str | None = None  # what pages call it; None: its name


class User(Base, table=True):
    __tablename__ = "signoff_user"
    id: int | None = Field(default=None, primary_key=True)
    email: str = Field(unique=True)
    name: str = ""
    password_hash: str | None = None
    active: bool = True
    created_at: datetime = Field(sa_type=UtcDateTime)
    tenant_id: int | None = None  # that was used last


class Membership(Base, table=True):
    __tablename__ = "signoff_membership"
    tenant_id: int = Field(primary_key=True)
    user_id: int = Field(primary_key=True, index=True)
    role: str  # viewer, approver, operator, admin


class Group(Base, table=True):
    __tablename__ = "signoff_group"
    __table_args__ = (sa.UniqueConstraint("tenant_id", "name"),)
    id: int | None = Field(default=None, primary_key=True)
    tenant_id: int
    name: str


class GroupMember(Base, table=True):
    __tablename__ = "signoff_group_member"
    group_id: int = Field(primary_key=True)
    user_id: int = Field(primary_key=True, index=True)


class Token(Base, table=True):
    __tablename__ = "signoff_token"
    id: int | None = Field(default=None, primary_key=True)
    tenant_id: int
    name: str
    hash: str = Field(unique=True)  # SHA-256 of the token
    role: str
    user_id: int | None = None  # acts as this person, else as "token:<name>"
    created_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    revoked_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class Session(Base, table=True):
    __tablename__ = "signoff_session"
    hash: str = Field(primary_key=True)  # SHA-256 of the cookie's random id
    user_id: int | None = Field(default=None, index=True)
    tenant_id: int | None = None
    role: str | None = None  # when the id was given out; a role that differs now asks for a new id
    csrf: str
    data: str | None = None
    agent: str | None = None  # what the browser calls itself, for the list of sessions
    address: str | None = None  # network address at sign-in
    provider: str | None = None  # of the sign-in: None is a local password
    created_at: datetime = Field(sa_type=UtcDateTime)
    seen_at: datetime = Field(sa_type=UtcDateTime)
    expires_at: datetime = Field(sa_type=UtcDateTime)


class Identity(Base, table=True):
    """Who somebody is at an identity provider. The pair (issuer, subject) never changes; addresses may."""

    __tablename__ = "signoff_identity"
    issuer: str = Field(primary_key=True)
    subject: str = Field(primary_key=True)
    user_id: int = Field(index=True)
    created_at: datetime = Field(sa_type=UtcDateTime)
    seen_at: datetime = Field(sa_type=UtcDateTime)


class SetupLink(Base, table=True):
    __tablename__ = "signoff_setup_link"
    hash: str = Field(primary_key=True)
    purpose: str  # admin, password
    user_id: int | None = None
    tenant_id: int | None = None
    expires_at: datetime = Field(sa_type=UtcDateTime)
    used_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class SignInCount(Base, table=True):
    """Sign-in attempts in a running window, shared by all processes. `key` is a SHA-256, so no addresses lie about."""

    __tablename__ = "signoff_sign_in_count"
    key: str = Field(primary_key=True)
    count: int
    ends_at: datetime = Field(sa_type=UtcDateTime, index=True)
