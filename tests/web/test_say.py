from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest

from signoff.web import addresses, say

NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0004, "0 ms"), (0.24, "240 ms"), (1, "1 s"), (9.94, "9.9 s"), (12, "12 s"), (59.7, "1 min"), (60, "1 min"),
     (12_000, "3 h 20 min"), (86_400, "1 d"), (90_000, "1 d 1 h"), (-3, "0 ms")],
)  # fmt: skip
def test_durations_as_people_say_them(seconds: float, said: str) -> None:
    assert say.duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "just now"),
        (7, "7 s ago"),
        (200, "3 min ago"),
        (-200, "in 3 min"),
        (-14_280, "in 3 h 58 min"),
        (90_000, "1 d ago"),
    ],
)
def test_times_beside_now(seconds: float, said: str) -> None:
    assert say.relative(NOW - timedelta(seconds=seconds), NOW) == said


@pytest.mark.parametrize(
    ("name", "label"), [("ship_by_date", "Ship by date"), ("shipByDate", "Ship by date"), ("VAT id", "VAT id")]
)
def test_names_become_labels(name: str, label: str) -> None:
    assert say.words(name) == label


@pytest.mark.parametrize("target", ["//evil.example", "/\\evil.example", "https://evil.example", "", None, "/a\nb"])
def test_only_this_site_comes_next(target: str | None) -> None:
    assert addresses.local(target) == "/"


def test_this_sites_own_paths_come_next() -> None:
    assert addresses.local("/runs/a?step=3") == "/runs/a?step=3"


@pytest.mark.parametrize("name", ["plain", "a/b", "ü ?#&", "a%2Fb", "/", ".", "..", "a//b"])
def test_a_name_survives_an_address(name: str) -> None:
    path = addresses.keep_slashes(f"/runs/{addresses.segment(name)}".encode())
    from urllib.parse import unquote

    segment = (path or unquote(f"/runs/{addresses.segment(name)}")).removeprefix("/runs/")
    assert "/" not in segment
    assert segment not in (".", ".."), "browsers take it for a way up, encoded or not"
    assert addresses.name_of(segment) == name


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1.10,"b":12345678901234567890,"c":1e400,"d":[],"e":{},"f":[{"g":null},-0.0]}',
        '"one"',
        "[]",
        '["a, b: {c}","\\"\\\\ é \\u00e9 \\n"]',
    ],
)
def test_json_is_laid_out_and_no_value_changes(text: str) -> None:
    shown = say.pretty(text)
    number = re.compile(r"(?<![\w\"])-?\d[\w.+]*")
    assert number.findall(shown) == number.findall(text)
    assert json.loads(shown, parse_float=str, parse_int=str) == json.loads(text, parse_float=str, parse_int=str)
    for value in (0.1, 1234567.891, 87.125, 1e22, 3.0):
        assert float(say.plain(value).replace(",", "")) == value


def test_data_is_laid_out_whole_or_cut_where_it_is_long() -> None:
    assert say.laid_out('{"total": 1.50, "no": 123456789012345678901}', 100) == (
        '{\n  "total": 1.50,\n  "no": 123456789012345678901\n}', False,
    )  # fmt: skip
    text, is_cut = say.laid_out(json.dumps({"long": "x" * 9000, "many": list(range(900)), "last": 1}), 2000)
    assert is_cut
    shown = json.loads(text)
    assert shown["long"] == f"{'x' * 400}… (9,000 characters)"
    assert shown["many"] == [*range(20), "… (900 in all)"]
    assert shown["last"] == 1
    text, is_cut = say.laid_out(json.dumps({f"key {no}": no for no in range(5000)}), 2000)
    assert (len(text), is_cut) == (2001, True)
