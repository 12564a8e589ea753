"""What all tables come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlmodel import SQLModel

from signoff.store.types import registry


class Base(SQLModel, registry=registry):
    metadata: ClassVar[sa.MetaData] = registry.metadata
    if TYPE_CHECKING:
        __table__: ClassVar[Any]  # SQLModel sets it on table classes, and does not say so
