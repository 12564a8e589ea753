"""A form with every kind of field: who registers a supplier fills it in."""

from __future__ import annotations

import asyncio
from datetime import date, time, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, HttpUrl, SecretStr

from signoff import Step, action, ask, group, workflow


class Trade(StrEnum):
    FURNITURE = "furniture"
    KITCHEN = "kitchen"
    GARDEN = "garden"


class BankTransfer(BaseModel):
    kind: Literal["bank_transfer"]
    iban: str = Field(title="IBAN", pattern="^[A-Z]{2}[0-9A-Z]{13,32}$", examples=["AT611904300234573201"])


class Card(BaseModel):
    kind: Literal["card"]
    last_digits: str = Field(pattern="^[0-9]{4}$", examples=["4242"])


class Contact(BaseModel):
    name: str
    mail: str | None = Field(default=None, json_schema_extra={"format": "email"})
    phones: list[str] = []


class Address(BaseModel):
    street: str
    city: str


class Supplier(BaseModel):
    name: str = Field(min_length=2, max_length=80, description="As on their invoices.")
    trade: Trade
    size: Literal["small", "medium", "large"] = "small"
    web_site: HttpUrl | None = None
    tax_number: str = Field(pattern="^[A-Z]{2}[0-9]{8}$", examples=["AT12345678"])
    about: str = Field(default="", title="What they make", json_schema_extra={"long": True})
    employees: int = Field(default=1, ge=1, le=100_000)
    discount: float = Field(default=0, ge=0, le=60, json_schema_extra={"unit": "%"})
    credit: Decimal = Field(title="Credit limit", ge=0, decimal_places=2, json_schema_extra={"unit": "EUR"})
    partner_since: date
    opens_at: time | None = None
    first_delivery: AwareDatetime | None = None
    delivers_within: timedelta = timedelta(days=2, hours=12)
    review_on: date | Trade = Field(default=Trade.GARDEN, description="A day, or with all of a trade.")
    contacts: list[Contact] = Field(min_length=1)
    labels: set[str] = set()
    warehouse: Address | None = None
    location: tuple[float, float] | None = Field(default=None, description="Latitude and longitude.")
    prices: dict[str, Decimal] = Field(default={}, description="By article.", json_schema_extra={"unit": "EUR"})
    payment: Annotated[BankTransfer | Card, Field(discriminator="kind")]
    access_key: SecretStr | None = Field(default=None, title="Key of their shop", description="Never shown again.")
    contract: Literal["standard"] = "standard"
    newsletter: bool = False
    checked: Literal[True] = Field(title="I have seen their trade licence")


register = ask("suppliers/register", Supplier)


@action(name="suppliers/welcome")
async def welcome(name: str, credit: Decimal) -> str:
    await asyncio.sleep(0.3)
    return f"{name} may deliver for up to {credit:.2f} EUR"


@workflow("suppliers/register")
async def register_supplier(step: Step, name: str = "Woodworks") -> str:
    """Asks for all that there is to know about a supplier: every kind of field in one form."""
    supplier = await step.ask(
        register,
        title=f"Register {name} as a supplier",
        body="Every kind of field that a form can have. What you type is kept until you send it.",
        facts={"proposed by": step.run.requester or "nobody"},
        to=group("finance"),
    )
    return await step.run_action(welcome, supplier.name, supplier.credit)
