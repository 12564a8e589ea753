"""The body of a question: markdown from the author, or from data that went through them, as harmless HTML."""

from __future__ import annotations

from functools import cache
from typing import Final

import nh3
from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore

# No images: a picture would tell its server who reads the question, and when.
_TAGS: Final = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "blockquote", "pre", "code", "em", "strong", "s", "a"),
    *("ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES: Final = {"a": {"href", "title"}, "ol": {"start"}}
_SCHEMES: Final = {"http", "https", "mailto"}


def render_body(markdown: str | None) -> str:
    """Sanitised HTML; the empty string for no body. Headings begin at level 3, below those of the page."""
    if not markdown:
        return ""
    return nh3.clean(
        _parser().render(markdown),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    parser.core.ruler.push("headings_below_the_page", _lower_headings)
    return parser


def _lower_headings(state: StateCore) -> None:
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1:]) + 2)}"
