from __future__ import annotations

import re

import pytest

from signoff.approvals.body import render_body


def test_markdown_becomes_html() -> None:
    html = render_body(
        "# Order\n\n- **12** items\n- [list](https://example.org/?a=1&b=2)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    assert "<h3>Order</h3>" in html
    assert "<strong>12</strong>" in html
    assert '<a href="https://example.org/?a=1&amp;b=2" rel="noopener noreferrer nofollow">list</a>' in html
    assert "<td>1</td>" in html


def test_nothing_is_nothing() -> None:
    assert render_body(None) == render_body("") == ""


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "![x](https://example.org/pixel.png)",
        "<a href='https://example.org' onclick='alert(1)'>x</a>",
        "<style>body{display:none}</style>",
        "<form action='/'><input name=csrf></form>",
        "<iframe src='https://example.org'></iframe>",
        '<https://example.org/"onmouseover="alert(1)>',
        "{{ 7 * 7 }} {% include 'x' %}",
    ],
)
def test_what_could_do_harm_does_not(hostile: str) -> None:
    html = render_body(hostile)
    tags = re.findall(r"<\s*/?\s*([a-z0-9]+)([^>]*)>", html)
    assert {tag for tag, _ in tags} <= {"p", "a"}
    for _, attributes in tags:
        assert not re.search(r"\son\w+\s*=|javascript:|data:", attributes)
    assert "49" not in html


def test_headings_stay_below_those_of_the_page() -> None:
    assert render_body("#### deep") == "<h6>deep</h6>\n"
    assert render_body("###### deeper") == "<h6>deeper</h6>\n"
