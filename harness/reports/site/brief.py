"""Markdown of briefs and weeks as HTML, and as the words that are searched."""

import re
from collections.abc import Callable

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

WORD = re.compile(r"[^\W_]+(?:[_.-][^\W_]+)*")


def as_page(text: str, link: Callable[[str], str | None]) -> Markup:
    """
    Markdown as HTML, without its title, which the page has already.

    Args:
        text: Markdown; HTML in it is shown as text.
        link: Where a link leads on the page; None for one that leads nowhere, which is unlinked.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    if tokens and (tokens[0].type, tokens[0].tag) == ("heading_open", "h1"):
        tokens = tokens[3:]
    for token in tokens:
        _relink(token.children or [], link)
    html = markdown.renderer.render(tokens, markdown.options, {})
    # a table or a drawing scrolls in a box of its own, so that a phone scrolls down only
    box = '<div class="wide" tabindex="0" role="region" aria-label="table">'
    html = html.replace("<table>", f"{box}<table>").replace("</table>", "</table></div>")
    return Markup(html.replace("<pre>", '<pre tabindex="0">'))


def _relink(tokens: list[Token], link: Callable[[str], str | None]) -> None:
    dead = 0
    for token in tokens:
        if token.type == "link_open":
            target = link(str(token.attrs["href"]))
            if target is None:
                token.type, token.tag, token.attrs = "link_open", "span", {}
                dead += 1
            else:
                token.attrs["href"] = target
        elif token.type == "link_close" and dead:
            token.tag = "span"
            dead -= 1


def as_words(text: str) -> str:
    """The distinct words of a text in lower case, in the order of the first of each."""
    return " ".join(dict.fromkeys(word.lower() for word in WORD.findall(text)))
