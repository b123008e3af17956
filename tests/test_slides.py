"""A chapter's deck has all of the chapter: figures and takeaways on slides, the rest in the notes; it works without a network."""

from functools import cache

import pytest
from bs4 import BeautifulSoup

from tests.test_book import DOCS, HTML, soup

pytestmark = pytest.mark.book

CHAPTERS = [doc for doc in DOCS if doc.startswith("chapters/") and doc[9:11].isdigit()]
LIVE = "01-roofline"


@cache
def deck(doc):
    return BeautifulSoup((HTML / "slides" / f"{doc.removeprefix('chapters/')}.html").read_text(encoding="utf-8"), "html.parser")


def words(tag):
    return " ".join(tag.get_text(" ").split())


@pytest.mark.parametrize("doc", CHAPTERS)
def test_a_deck_loses_nothing_of_its_chapter(doc):
    page, slides = soup(doc), deck(doc).select_one(".slides")
    sections = [section for section in page.select("article section section") if not section.find_parent(class_="exercise")]
    kept = [section for section in sections if not section.h2 or "Further reading" not in section.h2.get_text()]
    shown, notes = slides.find_all("article"), slides.select("aside.notes")
    on_slides = {words(part) for article in shown for part in article.select("p, .takeaway")}
    spoken = {words(part) for note in notes for part in note.select("p")}
    exercises = page.select("article .exercise")
    assert len(slides.select("article .exercise")) == len(exercises) > 0
    for section in kept:
        for box in section.select(".admonition.takeaway"):
            assert words(box) in on_slides
        for paragraph in section.find_all("p", recursive=False):
            assert words(paragraph) in on_slides | spoken, words(paragraph)[:80]
    images = {image["src"] for section in kept for image in section.select("img")}
    assert images <= {image["src"] for image in slides.select("img")}


@pytest.mark.parametrize("doc", CHAPTERS)
def test_an_exercise_is_one_slide_with_its_form_and_without_the_code_of_the_check(doc):
    slides = deck(doc).select(".slides > section > section")
    assert not [slide for slide in slides if slide.select("section")]  # reveal.js would take it for a slide of its own
    forms = soup(doc).select("article .exercise form.check")
    assert len([slide for slide in slides if slide.select("article .exercise form.check")]) == len(forms) > 0
    assert not [cell for slide in slides for cell in slide.select("article .exercise .cell:has(form.check) .cell_input")]


@pytest.mark.parametrize("doc", CHAPTERS)
def test_every_address_of_a_deck_is_there(doc):
    slides = deck(doc)
    addresses = [tag[name] for name in ("src", "href") for tag in slides.select(f"[{name}]")]
    for address in addresses:
        path = address.partition("#")[0].partition("?")[0]
        if path and "://" not in path and not path.startswith(("mailto:", "data:")):
            assert (HTML / "slides" / path).resolve().exists(), address


def test_a_deck_moves_opens_the_speakers_view_and_its_explorer_lives(site, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    errors, elsewhere = [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda request: elsewhere.append(request.url) if not request.url.startswith((site, "blob:", "data:")) else None
    )
    page.on("response", lambda answer: errors.append(answer.url) if answer.status >= 400 else None)
    try:
        page.goto(f"{site}/slides/{LIVE}.html", wait_until="load")
        page.wait_for_function("window.Reveal?.isReady()")
        slides = page.evaluate("Reveal.getTotalSlides()")
        assert slides >= len(soup(f"chapters/{LIVE}").select("article .takeaway"))
        page.keyboard.press("ArrowRight")
        assert page.evaluate("Reveal.getIndices().h") == 1
        noted = 'Reveal.getSlides().findIndex((slide, n) => n && slide.querySelector("aside.notes").textContent.trim())'
        at = page.evaluate(f"Reveal.getIndices(Reveal.getSlides()[{noted}])")
        page.evaluate("([h, v]) => Reveal.slide(h, v)", [at["h"], at["v"]])
        notes = words(BeautifulSoup(page.inner_html(".present > .present > aside.notes"), "html.parser"))
        with context.expect_page() as opened:
            page.keyboard.press("s")
        speakers = opened.value
        speakers.wait_for_function("document.querySelector('.speaker-controls-notes .value')?.textContent.trim()")
        spoken = BeautifulSoup(speakers.inner_html(".speaker-controls-notes .value"), "html.parser")
        assert words(spoken)[:60] == notes[:60] != ""
        speakers.close()
        at = page.evaluate(
            "(cell => Reveal.getIndices(cell.closest('.slides > section > section')))(document.querySelector('.cell.tag_live'))"
        )
        page.evaluate("([h, v]) => Reveal.slide(h, v)", [at["h"], at["v"]])
        page.click(".present .live-bar button")
        page.wait_for_selector(".present .live-running .widget-subarea, .present .live-running .jupyter-widgets", timeout=60_000)
        assert page.inner_text(".present .live-error") == ""
    finally:
        context.close()
    assert errors == []
    assert elsewhere == []
