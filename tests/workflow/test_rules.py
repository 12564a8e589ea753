"""Rules and options as authors write them, and what is refused where it is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from signoff.workflow.choices import option, options_to_json, parts_of
from signoff.workflow.codec import value_codec
from signoff.workflow.errors import InvalidInput
from signoff.workflow.rules import AllOf, AnyOf, NOf, all_of, any_of, leaves, n_of, places, rule_from_json, several
from signoff.workflow.selectors import group, user

FINANCE, CISO = group("finance"), user("ciso@example.org")


def test_rules_read_as_they_are_said_and_come_back_from_json() -> None:
    rule = all_of(n_of(2, FINANCE), CISO, any_of(group("legal"), CISO, veto=False), staged=True)
    assert rule.to_json() == {
        "all_of": [
            {"n_of": 2, "of": [{"group": "finance"}]},
            {"any_of": [{"user": "ciso@example.org"}]},
            {"any_of": [{"group": "legal"}, {"user": "ciso@example.org"}], "veto": False},
        ],
        "staged": True,
    }
    assert rule_from_json(rule.to_json()) == rule
    assert [leaf.selectors for leaf in leaves(rule)] == [(FINANCE,), (CISO,), (group("legal"), CISO)]
    assert places(rule) == 4


def test_one_of_some_is_any_of_them() -> None:
    assert n_of(1, FINANCE) == any_of(FINANCE) == AnyOf((FINANCE,))
    assert [several(rule) for rule in (None, any_of(), n_of(1), n_of(2), all_of(CISO))] == [
        False, False, False, True, True,
    ]  # fmt: skip
    assert n_of(2) == NOf(2)
    assert all_of(FINANCE) == AllOf((AnyOf((FINANCE,)),))


@pytest.mark.parametrize(
    "make",
    [
        lambda: any_of("finance"),
        lambda: any_of([FINANCE]),
        lambda: n_of(FINANCE),
        lambda: n_of(0, FINANCE),
        lambda: n_of(True, FINANCE),
        lambda: n_of(2, "finance"),
        lambda: n_of(101),
        lambda: n_of(2, CISO),
        lambda: n_of(2, CISO, user("CISO@example.org")),
        lambda: n_of(2, FINANCE, veto="no"),
        lambda: all_of(),
        lambda: all_of("finance"),
        lambda: all_of(FINANCE, staged=1),
        lambda: all_of(*[n_of(60)] * 2),
        lambda: rule_from_json({"some_of": []}),
        lambda: option(""),
        lambda: option("ship", ""),
        lambda: option("ship", consequence=5),
        lambda: option("ship", "x" * 1001),
        lambda: option("ship", style="loud"),
        lambda: option("ship", rejects=1),
        lambda: option("ship", reason="why"),
        lambda: option("ship", form=bool, value=True),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput):
        make()


class Approve(BaseModel):
    kind: Literal["approve"] = "approve"
    price: Decimal


class Reject(BaseModel):
    kind: Literal["reject"] = "reject"


class Cheaper(Approve):
    by: int = 1


class Colour(StrEnum):
    RED = "red"


Answer = Approve | Reject
Tagged = Annotated[Approve | Reject, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("form", "of", "fits"),
    [
        (Approve, Answer, True),
        (Reject, Tagged, True),
        (Answer, Answer, True),
        (Approve | None, Answer, False),
        (Cheaper, Answer, False),
        (Cheaper, Approve, False),
        (Approve, Approve, True),
        (Approve, Any, True),
        (Approve, Approve | None, True),
        (bool, bool | Approve, True),
        (int, bool, False),
        (Colour, Colour | date, True),
        (Literal["a"], Literal["a", "b"], True),
        (Literal["c"], Literal["a", "b"], False),
    ],
)
def test_the_form_of_an_option_is_the_ask_s_or_one_of_its_union(form: Any, of: Any, fits: bool) -> None:
    if fits:
        (raw,) = options_to_json([option("it", form=form)], value_codec(of))
        assert raw["schema"] == value_codec(form).json_schema()
    else:
        with pytest.raises(InvalidInput):
            options_to_json([option("it", form=form)], value_codec(of))


def test_options_as_they_are_stored() -> None:
    codec = value_codec(Answer)
    stored = options_to_json(
        [
            option("approve_it", form=Approve, style="primary", consequence="ships"),
            option("no", "Never", rejects=True, value=Reject()),
            option("later", rejects=True, reason=False),
        ],
        codec,
    )
    assert stored == [
        {
            "name": "approve_it", "label": "Approve it", "rejects": False, "reason": False,
            "consequence": "ships", "style": "primary", "schema": value_codec(Approve).json_schema(),
        },
        {"name": "no", "label": "Never", "rejects": True, "reason": True, "value": {"kind": "reject"}},
        {"name": "later", "label": "Later", "rejects": True, "reason": False},
    ]  # fmt: skip
    for bad in ([], ["ship"], [option("a"), option("a")], [option(f"o{n}") for n in range(21)]):
        with pytest.raises(InvalidInput):
            options_to_json(bad, codec)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidInput) as caught:
        options_to_json([option("no", value=7)], codec)
    assert caught.value.fields


def test_the_parts_of_a_union() -> None:
    assert parts_of(Tagged) == parts_of(Answer) == [Approve, Reject]
    assert parts_of(Answer | None) == [Approve, Reject, type(None)]
    positive = Annotated[int, Field(ge=1)]
    assert parts_of(positive | None) == [positive, type(None)]
    assert parts_of(bool) == [bool]
