"""One model with every kind of field, for pages and browsers."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, Field, HttpUrl, SecretStr


class Colour(Enum):
    RED = "red"
    DARK_BLUE = "dark_blue"


class Level(IntEnum):
    LOW = 1
    VERY_HIGH = 2


class Card(BaseModel):
    kind: Literal["card"]
    number: str = Field(description="The number on the front.")


class Transfer(BaseModel):
    kind: Literal["bank_transfer"]
    iban: str = Field(pattern="^[A-Z]{2}[0-9]+$", examples=["AT611904300234573201"])


class Person(BaseModel):
    name: str
    phones: list[str] = []


class Folder(BaseModel):
    """Holds other folders."""

    name: str
    inside: list[Folder] = []


class Kinds(BaseModel):
    approved: bool
    urgent: bool = Field(description="Skips the queue.")
    colour: Colour
    level: Level = Level.LOW
    size: Literal["s", "m", "l", "xl", "xxl", "xxxl", "custom"]
    terms: Literal[True] = Field(title="I have read the terms")
    contract: Literal["standard"]
    title: str = Field(min_length=1, max_length=80)
    code: str = Field(pattern="^[A-Z]{3}$", examples=["VIE"])
    note: str = ""
    mail: str | None = Field(default=None, json_schema_extra={"format": "email"})
    link: HttpUrl | None = None
    boxes: int = Field(ge=1, le=20)
    weight: float = Field(default=0.5, gt=0, json_schema_extra={"unit": "kg"})
    price: Decimal = Field(ge=0, decimal_places=2, json_schema_extra={"unit": "EUR"})
    ship_on: date
    at_time: time | None = None
    pick_up: AwareDatetime
    seen: datetime | None = None
    takes: timedelta = timedelta(hours=2, minutes=30)
    tags: list[str] = []
    contacts: list[Person] = Field(min_length=1)
    delivery: Person | None = None
    payment: Annotated[Card | Transfer, Field(discriminator="kind")]
    when: date | Colour = Colour.RED
    spot: tuple[float, float] = (48.2, 16.37)
    colours: set[Colour] = set()
    prices: dict[str, Decimal] = {}
    key: SecretStr
    folder: Folder | None = None
    extra: Any = None


FILLED: dict[str, Any] = {
    "approved": True,
    "urgent": False,
    "colour": "dark_blue",
    "level": 2,
    "size": "xxl",
    "terms": True,
    "contract": "standard",
    "title": '  Two spaces, <b>tags</b> & "quotes" ',
    "code": "VIE",
    "note": "first line\nsecond line",
    "mail": "ana@example.org",
    "link": "https://example.org/a?b=c",
    "boxes": 7,
    "weight": 1.25,
    "price": "1240.10",
    "ship_on": "2026-12-24",
    "at_time": "09:30",
    "pick_up": "2026-12-24T08:00+02:00",
    "seen": "2026-07-01T12:00:30",
    "takes": "P1DT2H0M0S",
    "tags": ["0042", " spaced "],
    "contacts": [{"name": "Ana", "phones": ["1", "2"]}, {"name": "Omar", "phones": []}],
    "delivery": {"name": "Gate", "phones": []},
    "payment": {"kind": "bank_transfer", "iban": "AT611904300234573201"},
    "when": "2027-01-31",
    "spot": [48.5, 16.25],
    "colours": ["red", "dark_blue"],
    "prices": {"red": "1.50", "two words": "2"},
    "folder": {"name": "top", "inside": [{"name": "under", "inside": []}]},
    "extra": {"big": 12345678901234567890, "list": [1, None]},
}
SECRET = "  s3cret "
