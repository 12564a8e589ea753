"""A person who fills in a form, and a browser that sends what its HTML holds."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import date, datetime, time
from html.parser import HTMLParser
from typing import Any

from signoff.web.forms import Field, Form
from signoff.web.forms.moments import split_moment
from signoff.web.forms.prefill import kind_of, same
from signoff.web.forms.spans import say_span
from signoff.web.templating import environment

Sent = dict[str, list[str]]
_ENVIRONMENT = environment()
_PAGE = _ENVIRONMENT.from_string(
    '{% from "forms/form.html" import form_field, error_summary with context %}<form>{{ error_summary(form) }}'
    "{% for field in form.fields %}{{ form_field(field) }}{% endfor %}"
    "{% if form.decision %}{{ form_field(form.decision) }}{% endif %}</form>"
)


def render(form: Form) -> str:
    return _PAGE.render(form=form, here="/somewhere")


def typed(form: Form, answer: Any, *, apart: int = 3) -> Sent:
    """What somebody types and chooses who means this JSON value.

    `apart`: between the ids of rows, as they are after some were taken away.
    """
    sent: Sent = {}
    _enter(form.top, answer, sent, apart)
    return sent


def _enter(item: Field, value: Any, sent: Sent, apart: int) -> None:
    if item.kind in ("const", "hidden"):
        assert same(item.default, value)
        return
    if item.toggled:
        if value is None:
            return
        sent[f"{item.name}!"] = ["1"]
    match item.kind:
        case "group":
            for child in item.children:
                if child.key in value:
                    _enter(child, value[child.key], sent, apart)
        case "tuple":
            for child, inner in zip(item.children, value, strict=True):
                _enter(child, inner, sent, apart)
        case "list" | "map":
            assert item.make is not None
            entries = list(value.items()) if isinstance(value, dict) else value
            sent[f"{item.name}#"] = [str(no * apart) for no in range(len(entries))]
            for no, inner in zip(sent[f"{item.name}#"], entries, strict=True):
                row = item.make(no)
                if item.kind == "map":
                    for child, part in zip(row.children, inner, strict=True):
                        _enter(child, part, sent, apart)
                else:
                    _enter(row, inner, sent, apart)
        case "several":
            sent[item.name] = [choice.key for choice in item.choices if any(same(choice.value, one) for one in value)]
        case "tick":
            sent[item.name] = ["true"]
        case "choice":
            sent[item.name] = [_key(item, value)]
        case "union":
            if value is None:
                sent[item.name] = [""]
                return
            kind = kind_of(item, value)
            assert kind is not None
            sent[item.name] = [kind.key]
            _enter(kind, value, sent, apart)
        case "datetime" if value is not None:
            text, zone = split_moment(value)
            sent[item.name] = [text]
            if item.zoned:
                sent[f"{item.name}~"] = [zone]
        case "duration" if value is not None:
            sent[item.name] = [say_span(value)]
        case "json":
            sent[item.name] = [json.dumps(value)]
        case _:
            text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
            sent[item.name] = [text]


def _key(item: Field, value: Any) -> str:
    return next(choice.key for choice in item.choices if same(choice.value, value))


class _Browser(HTMLParser):
    """Successful controls, with the changes that the HTML standard makes to their values."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.sent: defaultdict[str, list[str]] = defaultdict(list)
        self.ids: list[str] = []
        self.references: list[str] = []
        self._area: str | None = None
        self._text = ""
        self._select: tuple[str, list[str], list[str]] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        self.references += given.get("aria-describedby", "").split() + ([given["for"]] if "for" in given else [])
        name, value = given.get("name", ""), given.get("value", "")
        if tag == "input":
            kind = given.get("type", "text")
            if kind in ("checkbox", "radio"):
                if "checked" in given:
                    self.sent[name].append(value)
            else:
                self.sent[name].append(_sanitised(kind, value))
        elif tag == "textarea":
            self._area, self._text = name, ""
        elif tag == "select":
            self._select = (name, [], [])
        elif tag == "option" and self._select is not None:
            self._select[1].append(value)
            if "selected" in given:
                self._select[2].append(value)

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._area is not None:
            text = self._text.removeprefix("\n")
            self.sent[self._area].append(text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n"))
            self._area = None
        elif tag == "select" and self._select is not None:
            name, options, selected = self._select
            self.sent[name].append((selected or options)[-1 if selected else 0])
            self._select = None


def _sanitised(kind: str, value: str) -> str:
    try:
        match kind:
            case "date":
                date.fromisoformat(value)
            case "time":
                time.fromisoformat(value)
            case "datetime-local":
                datetime.fromisoformat(value)
    except ValueError:
        return ""
    if kind in ("time", "datetime-local") and "." in value and len(value.rpartition(".")[2]) > 3:
        return ""
    return value.replace("\r", "").replace("\n", "")


def sent_by_browser(form: Form) -> Sent:
    """What a browser sends that shows the form and is not touched any more. Every reference in it leads somewhere."""
    browser = _Browser()
    browser.feed(render(form))
    browser.close()
    assert len(set(browser.ids)) == len(browser.ids), browser.ids
    assert set(browser.references) <= set(browser.ids), set(browser.references) - set(browser.ids)
    return dict(browser.sent)
