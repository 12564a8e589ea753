"""Alembic's entry: one tree of revisions for both databases."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import context
from sqlmodel import AutoString

from signoff.store.migrate import VERSION_TABLE, engine_for
from signoff.store.tables import Base
from signoff.store.types import BigId, UtcDateTime


def is_ours(name: str | None, kind: str, parents: Any) -> bool:
    """Authors keep their own tables in the same database; those are none of our business."""
    return kind != "table" or (name or "").startswith("signoff_")


def is_comparable(item: Any, name: str | None, kind: str, reflected: bool, other: Any) -> bool:
    """SQLite does not say which way an index is sorted, so those that say DESC would always look changed."""
    return kind != "index" or context.get_context().dialect.name != "sqlite" or name not in SORTED


SORTED = {
    index.name
    for table in Base.metadata.tables.values()
    for index in table.indexes
    if not all(isinstance(part, sa.Column) for part in index.expressions)
}


def render_item(kind: str, item: Any, autogen_context: Any) -> str | bool:
    """Without this, generated revisions name types that they do not import."""
    if kind == "type" and isinstance(item, BigId | UtcDateTime):
        return f"{type(item).__name__}()"
    if kind == "type" and isinstance(item, AutoString):
        return "sa.String()"
    return False


def run(connection: sa.Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_name=is_ours,
        include_object=is_comparable,
        render_item=render_item,
        render_as_batch=True,
        transactional_ddl=True,
        compare_type=True,
    )
    with context.begin_transaction():
        context.run_migrations()


connection = context.config.attributes.get("connection")
if connection is not None:
    run(connection)
else:
    with engine_for(context.get_x_argument(as_dictionary=True)["url"]).begin() as connection:
        run(connection)
