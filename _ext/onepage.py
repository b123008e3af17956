"""All pages of the book as one HTML document, to be printed: `pdf.py` does that.

Links stay in the document. Worked solutions move into an appendix, and where the site is live stands its static figure.
What a page hides (code of figures, forms) is left out; outputs that it folds are shown.
"""

import copy
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import yaml
from bs4 import BeautifulSoup
from bs4.element import Tag
from bs4.filter import SoupStrainer

STYLE = Path(__file__).parent / "print/print.css"
SOLUTIONS = "solutions"
LEFT_OUT = "script, form.check, .check-text, .headerlink, .toctree-wrapper, .tag_hide-input details.hide, .tag_hide-cell, summary"
# What is black anyway. Each would be an element of the PDF's structure.
PLAIN_SPAN = re.compile(r'<span(?: class="(?:n|nn|nx|o|p|pre|w)")?>([^<>]*)</span>')
FRAME = """<!DOCTYPE html>
<html lang="en" data-theme="light"><head><meta charset="utf-8"><title>{title}</title>
<link rel="stylesheet" href="_static/pygments.css"><style>{style}</style>
<script>window.MathJax = {{options: {{ignoreHtmlClass: "printed", processHtmlClass: "math"}}}}</script>
<script defer src="_static/live/mathjax/tex-mml-chtml.js"></script></head>
<body class="printed">{body}</body></html>"""


class PdfError(Exception):
    """Why there is no PDF, in one line."""


@dataclass(frozen=True)
class Page:
    """A page of the book; `part` is the caption above it, if it is the first of a part."""

    doc: str
    part: str = ""


@dataclass(frozen=True)
class Book:
    """What is printed: pages of a built site, in order."""

    html: Path
    pages: tuple[Page, ...]
    title: str
    author: str
    online: str

    @classmethod
    def read(cls, root: Path, html: Path) -> "Book":
        """The book that `_toc.yml` and `_config.yml` describe."""
        toc, config = (yaml.safe_load((root / name).read_text(encoding="utf-8")) for name in ("_toc.yml", "_config.yml"))
        return cls(html, tuple(pages(toc)), config["title"], config["author"], config["html"]["baseurl"])


def pages(toc: dict[str, Any]) -> Iterator[Page]:
    """The pages that a table of contents names."""

    def below(node: dict[str, Any], part: str) -> Iterator[Page]:
        yield Page(node["file"], part)
        for child in node.get("sections", ()):
            yield from below(child, "")

    yield Page(toc["root"])
    for part in toc.get("parts", ()):
        for number, chapter in enumerate(part["chapters"]):
            yield from below(chapter, "" if number else part["caption"])


def place(doc: str, anchor: str = "") -> str:
    """The id in the document of a page, or of a place on it."""
    name = re.sub(r"\W", "-", doc)
    return f"{name}--{anchor}" if anchor else name


def tag(name: str, *content: Tag | str, **attributes: str) -> Tag:
    """A new element."""
    made = Tag(name=name, attrs={key.rstrip("_"): value for key, value in attributes.items()}, can_be_empty_element=not content)
    made.extend(content)
    return made


def link(text: str, target: str) -> Tag:
    """A link to a place in the document."""
    return tag("a", text, href=f"#{target}")


def assemble(book: Book) -> str:
    """All pages as one HTML document: title, contents, pages, solutions."""
    body: list[Tag] = []
    entries: list[Tag] = []
    solved: list[Tag] = []
    for page in book.pages:
        article = _article(book, page.doc)
        if page.part:
            body.append(tag("h1", page.part, id=place(page.part), class_="part"))
            entries.append(tag("li", link(page.part, place(page.part)), class_="in"))
        solutions = list(_take_solutions(article, page.doc))
        for part in article.select(LEFT_OUT):
            part.decompose()
        for figure in article.select(".live-static"):
            here = urljoin(book.online, f"{page.doc}.html")
            figure.append(tag("p", "Its controls are at ", tag("a", here, href=here), ".", class_="way"))
        title = article.find("h1")
        if title is None:
            raise PdfError(f"{page.doc}.html has no title")
        name = title.get_text()
        entries.append(tag("li", link(name, place(page.doc)), class_="lab" if page.doc.startswith("labs/") else "page-entry"))
        answers = [tag("section", tag("h1", name), *solutions)] if solutions else []
        number = re.match(r"chapters/0?(\d+)-", page.doc)
        kicker = [tag("p", f"Chapter {number[1]}", class_="kicker")] if number else []
        for part in (article, *answers):
            _mend(book, part, page.doc)
        solved += answers
        body.append(tag("section", *kicker, article, class_=f"page {page.doc.split('/')[-1]}", id=place(page.doc)))
    if solved:
        entries.append(tag("li", link("Solutions", SOLUTIONS), class_="in"))
        body += [tag("h1", "Solutions", id=SOLUTIONS, class_="part"), tag("section", *solved, class_="page solutions")]
    cover = tag("section", tag("p", book.title, class_="name"), tag("p", book.author), tag("p", book.online), class_="title")
    contents = tag("nav", tag("p", "Contents", class_="kicker"), tag("ul", *entries), class_="contents")
    text = "".join(map(str, (cover, contents, *body)))
    return FRAME.format(title=book.title, style=STYLE.read_text(encoding="utf-8"), body=text)


def _article(book: Book, doc: str) -> Tag:
    file = book.html / f"{doc}.html"
    if not file.is_file():
        raise PdfError(f"no {file}: run `make book` first")
    text = PLAIN_SPAN.sub(r"\1", PLAIN_SPAN.sub(r"\1", file.read_text(encoding="utf-8")))
    article = BeautifulSoup(text, "html.parser", parse_only=SoupStrainer("article")).article
    if article is None:
        raise PdfError(f"{file} has no article")
    return article


def _take_solutions(article: Tag, doc: str) -> Iterator[Tag]:
    """Takes the solutions out of a page, each with a link back; where it stood, a link leads to it.

    A chapter has them in boxes behind their exercises; a lab folds prose, and hides the cells behind that.
    """
    for number, found in enumerate(article.select(".solution, details:not(.hide)"), 1):
        box = "solution" in found.get_attribute_list("class")
        asked = found.find_previous(class_="exercise") if box else found.find_parent("section")
        title = asked and asked.find(class_="admonition-title") if box else asked and asked.find(re.compile("h[1-6]"))
        if asked is None or title is None:
            raise PdfError(f"{doc}.html has a solution without an exercise")
        for part in found.select(
            ".headerlink, summary, .admonition-title, .tag_hide-input details.hide, script, form.check, .check-text"
        ):
            part.decompose()
        content = [found]
        while not box and (cell := content[-1].find_next_sibling()) and "tag_hide-cell" in cell.get_attribute_list("class"):
            content.append(cell)
            for part in cell.select("summary"):
                part.decompose()
        target = f"{SOLUTIONS}-{number}"
        found.insert_before(tag("p", link("Solution", target), " in the appendix.", class_="way"))
        heading = copy.copy(title)
        heading.name, heading.attrs = "h2", {"id": target}
        for mark in heading.select(".headerlink"):
            mark.decompose()
        back = tag("p", tag("a", "To the exercise", href=f"#{asked['id']}"), class_="way")
        yield tag("div", heading, *(part.extract() for part in content), back, class_="solution")


def _mend(book: Book, root: Tag, doc: str) -> None:
    """Ids become the document's, links lead into it, figures load at once, and titles stand below those of parts."""
    for part in root.find_all(True):
        if part.get("id") in ("exercise-content", "solution-content"):  # sphinx-exercise gives them to all
            del part["id"]
        elif "id" in part.attrs:
            part["id"] = place(doc, str(part["id"]))
        if href := part.get("href"):
            part["href"] = _address(book, str(href), doc)
        if part.name == "details":
            part.name = "div"
        elif part.name == "img":
            part["src"] = posixpath.normpath(f"{posixpath.dirname(doc)}/{part['src']}")
            del part["loading"]
        elif re.fullmatch("h[1-5]", part.name):
            part.name = f"h{int(part.name[1]) + 1}"


def _address(book: Book, address: str, doc: str) -> str:
    if urlsplit(address).scheme:
        return address
    path, _, anchor = address.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(doc), path)) if path else f"{doc}.html"
    if target.removesuffix(".html") in {page.doc for page in book.pages}:
        return f"#{place(target.removesuffix('.html'), anchor)}"
    return urljoin(book.online, target)
