"""The example shop's own table, in the same database as Signoff's, so that a step changes it exactly once."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum

import sqlalchemy as sa
from pydantic import BaseModel
from sqlmodel import Field, SQLModel


class OrderState(StrEnum):
    NEW = "new"
    REJECTED = "rejected"
    SHIPPED = "shipped"


class Address(BaseModel):
    name: str
    street: str
    city: str


class Order(BaseModel):
    """An order as workflows pass it around."""

    id: str
    item: str
    total: Decimal
    address: Address


class OrderRow(SQLModel, table=True):
    __tablename__ = "demo_order"
    id: str = Field(primary_key=True)
    item: str
    total: str  # a decimal as text: SQLite has no exact type for money
    customer: str
    street: str
    city: str
    state: str = OrderState.NEW
    tracking: str | None = None

    @classmethod
    def of(cls, order: Order) -> OrderRow:
        to = order.address
        return cls(
            id=order.id, item=order.item, total=str(order.total), customer=to.name, street=to.street, city=to.city
        )

    def to_order(self) -> Order:
        address = Address(name=self.customer, street=self.street, city=self.city)
        return Order(id=self.id, item=self.item, total=Decimal(self.total), address=address)


def create_tables(connection: sa.Connection) -> None:
    """Make the shop's table where it is missing."""
    SQLModel.metadata.create_all(connection, tables=[SQLModel.metadata.tables["demo_order"]])
