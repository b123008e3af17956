"""The book as a PDF: of some pages in each run, of all of them weekly."""

import io
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cached_property

import onepage
import pdf
import pikepdf
import pypdfium2
import pytest
from bs4 import BeautifulSoup

from tests.test_book import DOCS, HTML, ROOT, article

pytestmark = pytest.mark.book
# A title in two lines, and the widest tables.
SOME = ("chapters/index", "chapters/01-roofline", "labs/03-sharding", "chapters/appendix-models")

LEAKS = ("{eval}", "{ref}", "{doc}", "{cite", "{{ ", ":::", "$$", r"\(", r"\frac", "Show code", "Run it here", "Check\n")
GET_CHROMIUM = "apt install chromium, or: python -m playwright install --with-deps chromium"


class Made:
    """A book that was printed."""

    def __init__(self, docs):
        book = onepage.Book.read(ROOT, HTML)
        self.book = replace(book, pages=tuple(page for page in book.pages if page.doc in docs))
        self.html = onepage.assemble(self.book)
        self.bytes = pdf.finished(pdf.printed(self.html, HTML, pdf.find_chromium()), self.book, self.html)
        self.file = pikepdf.open(io.BytesIO(self.bytes))
        self.pages = pypdfium2.PdfDocument(self.bytes)

    @cached_property
    def soup(self):
        return BeautifulSoup(self.html, "html.parser")

    @cached_property
    def texts(self):
        return [page.get_textpage().get_text_range() for page in self.pages]

    @cached_property
    def outline(self):
        """Level, title and page, from 1."""
        return [(entry.level, entry.get_title(), entry.get_dest().get_index() + 1) for entry in self.pages.get_toc()]


@pytest.fixture(scope="module", params=["some pages", pytest.param("the whole book", marks=pytest.mark.weekly)])
def made(request):
    return Made(SOME if request.param == "some pages" else DOCS)


def test_it_is_at_most_20_mb(made):
    assert len(made.bytes) < 20e6


def test_its_outline_has_every_page_in_order_and_then_the_solutions(made):
    titles = [article(page.doc).h1.get_text().removesuffix("#") for page in made.book.pages]
    parts = {page.part for page in made.book.pages if page.part}
    outline = [title for level, title, _ in made.outline if level <= 1]
    assert [title for title in outline[: outline.index("Solutions")] if title in titles] == titles
    assert parts <= {title for level, title, _ in made.outline if level == 0}
    numbers = [number for *_, number in made.outline]
    assert numbers == sorted(numbers)


def test_its_contents_name_the_page_of_each_title(made):
    first = next(number for *_, number in made.outline)
    contents = " ".join("\n".join(made.texts[1 : first - 1]).split())
    shown = re.findall(r"\d+", contents)
    for entry in made.soup.select("nav.contents a"):
        name = " ".join(entry.get_text().split())
        assert name in contents
        number = next(number for level, title, number in made.outline if level <= 1 and " ".join(title.split()) == name)
        assert str(number) in shown, f"{name} is on page {number}"


def test_every_figure_and_drawing_of_the_pages_is_in_it(made):
    wanted = Counter()
    for page in made.book.pages:
        of = article(page.doc)
        wanted.update(image["alt"] for image in of.select("img"))
        wanted.update(drawing["aria-label"] for drawing in of.select("svg[aria-label]"))
    assert wanted.total() >= 5
    there = Counter(
        " ".join(str(part.Alt).split()) for part in made.file.objects if isinstance(part, pikepdf.Dictionary) and "/Alt" in part
    )
    assert {alt: count for alt, count in wanted.items() if there[" ".join(alt.split())] < count} == {}
    pictures = sum(1 for page in made.pages for _ in page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE]))
    assert pictures >= len([image for page in made.book.pages for image in article(page.doc).select("img")])


def test_no_markup_and_no_button_is_in_its_text(made):
    for number, text in enumerate(made.texts, 1):
        for leak in (
            "{eval}",
            "{ref}",
            "{doc}",
            "{cite",
            "{{ ",
            ":::",
            "$$",
            r"\(",
            r"\frac",
            "Show code",
            "Run it here",
            "Check\n",
        ):
            assert leak not in text, f"page {number}"


def test_every_link_inside_it_arrives(made):
    places = set(map(str, made.file.Root.Dests.keys()))
    ids = [part["id"] for part in made.soup.select("[id]")]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    inside = [link["href"][1:] for link in made.soup.select("a[href^='#']")]
    assert set(inside) - set(ids) == set()
    links = [link for page in made.file.pages for link in page.get("/Annots", ()) if "/Dest" in link]
    assert links
    assert {str(link.Dest) for link in links} <= places


def test_each_exercise_leads_to_its_solution_and_back(made):
    solutions = made.soup.select(".solutions div.solution:has(> .way)")
    assert len(solutions) == sum(len(article(page.doc).select(".solution, details:not(.hide)")) for page in made.book.pages)
    assert solutions
    parts = made.soup.find_all(True)
    order = {id(part): number for number, part in enumerate(parts)}
    named = {part["id"]: part for part in parts if part.get("id")}
    ways = {way["href"][1:]: way for way in made.soup.select("section.page:not(.solutions) .way a")}
    for solution in solutions:
        way = ways[solution.select_one("[id]")["id"]]
        exercise = named[solution.select_one(":scope > .way a")["href"][1:]]
        assert order[id(exercise)] < order[id(way)]
    assert made.soup.select("section.page:not(.solutions) .solution") == []


def test_its_pages_are_numbered_and_none_is_empty(made):
    for number, text in enumerate(made.texts[1:], 2):
        assert re.match(rf"{number}\b", text), f"page {number} has the number {text[:20]!r}"
        assert len(text.strip()) > len(str(number)), f"page {number} is empty"


def test_what_is_wider_than_a_page_is_named_before_it_shrinks_the_whole_book():
    wide = '<section class="page" id="chapters-02"><div style="width: 900px">too much</div></section>'
    with pytest.raises(onepage.PdfError, match="wider than the page: chapters-02: too much"):
        pdf.printed(onepage.FRAME.format(title="x", style="", body=wide), HTML, pdf.find_chromium())


def test_a_missing_figure_is_named():
    lost = '<section class="page" id="x"><img src="_images/lost.png" alt="lost"></section>'
    with pytest.raises(onepage.PdfError, match=r"it has no http://book.invalid/_images/lost\.png"):
        pdf.printed(onepage.FRAME.format(title="x", style="", body=lost), HTML, pdf.find_chromium())


@pytest.mark.parametrize(
    ("html", "path", "line"),
    [
        (
            HTML,
            "/nowhere",
            f"pdf: no Chromium found: {GET_CHROMIUM}\n",
        ),
        ("/nowhere", os.environ["PATH"], "pdf: no /nowhere/chapters/index.html: run `make book` first\n"),
    ],
)
def test_without_a_browser_or_a_book_it_says_so_in_one_line_and_writes_nothing(html, path, line, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "_ext/pdf.py", "--html", html, "--out", tmp_path / "book.pdf"],
        env=os.environ | {"PATH": path, "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == line
    assert list(tmp_path.iterdir()) == []
