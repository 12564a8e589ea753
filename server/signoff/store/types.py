"""Column types and the registry of our own tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import registry as orm_registry

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

# Constraint names must not depend on the database, or migrations could not name what they change.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

registry = orm_registry(metadata=sa.MetaData(naming_convention=NAMING))


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970 in UTC. Raises ValueError for a naive datetime, which names no moment."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone; use an aware datetime such as datetime.now(UTC)")
    return (moment - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


class BigId(sa.types.TypeDecorator[int]):
    """A 64-bit integer; on SQLite plain INTEGER, which alone can be the row id."""

    impl = sa.BigInteger
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Integer() if dialect.name == "sqlite" else sa.BigInteger())


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime: timestamptz on PostgreSQL, microseconds since 1970 as INTEGER on SQLite."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(sa.Integer() if dialect.name == "sqlite" else sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; use an aware datetime such as datetime.now(UTC)")
        return to_micros(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return from_micros(value) if isinstance(value, int) else value.astimezone(UTC)
