"""Sphinx extension for slides: a deck for each chapter, made of the built page, so that no text is typed twice.

A section is a column of slides: its questions, formulas, figures and explorers, and at the end its takeaway. All other prose
of the section is in the speaker notes, where it stands on the page (press `s`). Explorers are as live as on the page. The decks
lie in `slides/` beside `chapters/`, so that addresses of images and scripts hold; reveal.js is served from the site.
"""

import copy
import posixpath
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

_ASSETS = Path(__file__).parent / "deck"
_REVEAL = ("reveal.css", "reveal.mjs", "plugin/notes.mjs")
_STYLES = ("theme.css", "pydata-sphinx-theme.css", "pygments.css", "sphinx-book-theme.css", "mystnb", "exercise.css", "live.css")
_SCRIPTS = ("mathjax", "require.js", "embed-amd.js", "live.mjs", "check.js")
_UNSHOWN = {"Further reading"}
_SHOWN_WHOLE = {"In short"}
CODE_LINES = 18  # of code and output together that fit a slide
_HIDDEN = {"tag_hide-input", "tag_hide-cell", "tag_remove-cell", "tag_remove-input"}


@dataclass
class Slide:
    """What is shown under a heading, and what the speaker says."""

    heading: str
    shown: list[Tag] = field(default_factory=list)
    notes: list[Tag] = field(default_factory=list)
    kind: str = ""


def deck(page: BeautifulSoup, doc: str) -> str:
    """The deck of a chapter's page; `doc` is its name, such as `chapters/03-sharding`."""
    article = page.select_one("article > section") or page.select_one("article section")
    if article is None:
        raise ExtensionError(f"slides: {doc} has no article")
    title = _heading(article)
    columns = [_opening(article, title)]
    for section in article.find_all("section", recursive=False):
        if _heading(section) not in _UNSHOWN:
            columns.append(list(_problems(section) if section.select_one(".exercise") else _slides(section)))
    setup = "".join(str(_own(cell, doc)) for cell in page.select(".cell.tag_live-setup"))
    body = "\n".join(f"<section>{''.join(_html(slide, doc) for slide in column)}</section>" for column in columns if column)
    template = (_ASSETS / "deck.html").read_text(encoding="utf-8")
    filled = {"title": title, "head": _head(page), "state": _state(page), "slides": body, "setup": setup, "doc": doc}
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: filled[match[1]], template)


def _heading(section: Tag) -> str:
    heading = section.find(re.compile("^h[1-4]$"), recursive=False)
    return re.sub(r"#$", "", heading.get_text()).strip() if heading else ""


def _classes(tag: Tag) -> set[str]:
    return set(tag.get_attribute_list("class")) - {None}


def _children(section: Tag) -> Iterator[tuple[str, Tag]]:
    """What stands in a section and those inside it, each with the heading above it."""
    heading = _heading(section)
    for child in section.find_all(True, recursive=False):
        if child.name == "section":
            yield from _children(child)
        elif not re.fullmatch("h[1-6]|script", child.name) and (child.get_text(strip=True) or child.select_one("img, svg")):
            yield heading, child


def _opening(article: Tag, title: str) -> list[Slide]:
    """The title with the first words of the chapter; what one can do after it, and each other box before the first section."""
    own = [child for child in article.find_all(True, recursive=False) if not re.fullmatch("h1|section|script|span", child.name)]
    before, rest = [], Slide(title, kind="title")
    for child in own:
        if "admonition" in _classes(child):
            before.append(Slide("", [child], kind="before"))
        elif child.name == "p" and not rest.shown:
            rest.shown.append(child)
        else:
            rest.notes.append(child)
    return [rest, *before] if rest.shown else before


def _slides(section: Tag) -> Iterator[Slide]:
    title = _heading(section)
    slide = Slide(title)
    for heading, child in _children(section):
        takeaway, visual = "takeaway" in _classes(child), _visual(child)
        if slide.heading != (heading or title) and not slide.shown:
            slide.heading = heading or title
        follows = any(_visual(shown) for shown in slide.shown) if takeaway else visual and child.select_one("img, svg")
        if follows and (takeaway or any("math" in _classes(shown) for shown in slide.shown)):
            yield slide
            slide = Slide(heading or title)
        if takeaway or visual:
            slide.shown.append(child)
            yield slide
            slide = Slide(heading or title)
        elif _is_question(child) or "math" in _classes(child) or title in _SHOWN_WHOLE:
            slide.shown.append(child)
        else:
            slide.notes.append(child)
    if slide.shown or slide.notes:
        yield slide


def _is_question(tag: Tag) -> bool:
    text = tag.get_text(" ", strip=True)
    return tag.name == "p" and text.endswith("?") and len(text) <= 200


def _visual(tag: Tag) -> bool:
    """Whether this is worth a slide: a figure, a table, an explorer, or a cell short enough to be read."""
    classes = _classes(tag)
    if classes & {"tag_live-setup", "solution", "tag_hide-output"}:
        return False
    if "cell" not in classes:
        return tag.name in ("figure", "table") or bool(classes & {"pst-scrollable-table-container", "table-wrapper"})
    if tag.select_one("img, svg, .cell_output table") or "tag_live" in classes:
        return True
    code = "" if classes & _HIDDEN else "".join(part.get_text() for part in tag.select(".cell_input"))
    output = "".join(part.get_text() for part in tag.select(".cell_output"))
    return bool(output.strip()) and (code + output).strip().count("\n") < CODE_LINES


def _problems(section: Tag) -> Iterator[Slide]:
    """A slide for each exercise, with its form; the solution is the speaker's."""
    said: list[Tag] = []
    for heading, child in _children(section):
        if "exercise" in _classes(child):
            solution = child.find_next_sibling(class_="solution")
            yield Slide(heading, [child], [*said, *([solution] if solution is not None else [])], "exercise")
            said = []
        elif "solution" not in _classes(child):
            said.append(child)


def _html(slide: Slide, doc: str) -> str:
    shown = "".join(str(_without_code(_own(tag, doc))) for tag in slide.shown)
    notes = "".join(str(_own(tag, doc)) for tag in slide.notes)
    level = "h1" if slide.kind == "title" else "h2"
    heading = f"<{level}>{slide.heading}</{level}>" if slide.heading else ""
    bare = "" if slide.shown else " bare"
    return (
        f'<section class="{slide.kind}{bare}"><article>{heading}{shown}</article><aside class="notes">{notes}</aside></section>\n'
    )


def _without_code(tag: Tag) -> Tag:
    """A cell with a figure, a table or a form shows it, and not its code; one that is live keeps its code, from which it runs."""
    for cell in tag.select(".cell") if "exercise" in _classes(tag) else [tag]:
        classes = _classes(cell)
        shows = classes & _HIDDEN or cell.select_one("img, svg, .cell_output table")
        if shows and "cell" in classes and "tag_live" not in classes:
            for code in cell.select(".cell_input, summary"):
                code.decompose()
            for fold in cell.select("details"):
                fold.unwrap()
    return tag


def _own(tag: Tag, doc: str) -> Tag:
    """A copy whose addresses hold in `slides/`, and which no other slide's address means; a section in it would be a slide."""
    copied: Tag = copy.copy(tag)
    for inner in copied.select("section"):
        inner.name = "div"
    for link in copied.select("a.headerlink"):
        link.decompose()
    for link in copied.select("a[href]"):
        target = str(link["href"])
        if not re.match(r"[a-z]+:", target):
            page, _, anchor = target.partition("#")
            folder = posixpath.dirname(doc)
            path = posixpath.normpath(posixpath.join(folder, page)) if page else f"{doc}.html"
            link["href"] = f"../{path}" + (f"#{anchor}" if anchor else "")
    for named in copied.select("[id]"):
        if not re.match("MathJax", str(named["id"])):
            del named["id"]
    return copied


def _head(page: BeautifulSoup) -> str:
    found = [link for link in page.select('head link[rel="stylesheet"]') if any(name in str(link["href"]) for name in _STYLES)]
    found += [link for link in page.select('head link[rel="stylesheet"]') if "course.css" in str(link["href"])]
    for script in page.select("head script"):
        source = str(script.get("src", ""))
        if any(name in source for name in _SCRIPTS) or (not source and "window.MathJax" in script.get_text()):
            found.append(script)
    return "\n".join(map(str, found))


def _state(page: BeautifulSoup) -> str:
    """The widgets as they were when the page was built."""
    return "\n".join(str(script) for script in page.select('script[type="application/vnd.jupyter.widget-state+json"]'))


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    html = Path(app.outdir)
    chapters = sorted(path for path in html.glob("chapters/[0-9]*.html"))
    if not chapters:  # a draft of another page
        return
    npm = Path(app.srcdir, app.config.live_npm).resolve() / "reveal.js/dist"
    if not npm.is_dir():
        raise ExtensionError(f"slides need {npm}: run `make book`, or `npm ci` beside package.json")
    for name in _REVEAL:
        target = html / "_static/reveal" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(npm / name, target)
    for name in ("deck.css", "deck.mjs"):
        shutil.copy(_ASSETS / name, html / "_static/reveal")
    (html / "slides").mkdir(exist_ok=True)
    for path in chapters:
        page = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        (html / "slides" / path.name).write_text(deck(page, f"chapters/{path.stem}"), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Writes the decks when all pages are written and mended."""
    app.setup_extension("course")
    app.setup_extension("live")
    app.connect("build-finished", _write, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
