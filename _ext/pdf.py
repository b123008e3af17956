"""The whole book as one PDF: `python _ext/pdf.py` prints the pages built in `_build/html` by Chromium.

Only files of the built site are read. docs/adr/0017 says why it is made this way.
"""

import argparse
import html
import io
import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pikepdf
from onepage import Book, PdfError, assemble, place
from playwright.sync_api import Error, Route, sync_playwright

ROOT = Path(__file__).parents[1]
SET = (Path(__file__).parent / "print/set.js").read_text(encoding="utf-8")
SITE = "http://book.invalid/"  # where the site seems to stand while it is printed; every answer comes from its folder
PAGE_PX, RIGHT_PT = 665, 48.2  # what print.css says: the width between the margins, and the right one
DIGIT_PT = 5.0  # how wide a digit of the contents is


def find_chromium() -> str:
    """The Chromium to print with: one on PATH, or Playwright's own download."""
    if found := next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None):
        return found
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    if not Path(own).exists():
        raise PdfError("no Chromium found: apt install chromium, or: python -m playwright install --with-deps chromium")
    return own


def printed(document: str, site: Path, chromium: str) -> bytes:
    """The PDF of an HTML document that stands at the root of a built site."""
    missing: list[str] = []

    def answer(route: Route) -> None:
        path = unquote(urlsplit(route.request.url).path).lstrip("/")
        if not path:
            route.fulfill(body=document, content_type="text/html")
        elif route.request.url.startswith(SITE) and (site / path).is_file():
            route.fulfill(path=site / path)
        else:
            missing.append(route.request.url)
            route.abort()

    with sync_playwright() as playwright:
        try:
            with playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]) as browser:
                page = browser.new_page(viewport={"width": PAGE_PX, "height": 900})
                page.set_default_timeout(300_000)
                page.route("**/*", answer)
                page.goto(SITE)
                page.emulate_media(media="print")
                wide = page.evaluate(SET)
                pdf = page.pdf(prefer_css_page_size=True, outline=True, tagged=True)
        except Error as error:
            why = f"it has no {', '.join(missing)}" if missing else error.message.splitlines()[0]
            raise PdfError(f"Chromium could not print the site: {why}") from error
    if wide:
        raise PdfError(f"wider than the page: {'; '.join(wide)}")
    if missing:
        raise PdfError(f"the book asks for what the site does not have: {', '.join(missing)}")
    return pdf


def finished(pdf: bytes, book: Book, document: str) -> bytes:
    """The PDF with page numbers in its contents and its author, a third as large: what describes its structure is packed.

    In the outline, Chromium joins the words at the end of a line to those of the next, so titles are those of the document.
    """
    titles = [re.sub("<[^>]*>", "", heading).split() for heading in re.findall(r"(?s)<h[1-6].*?</h[1-6]>", document)]
    spaced = {html.unescape("".join(words)): html.unescape(" ".join(words)) for words in titles}
    with pikepdf.open(io.BytesIO(pdf)) as file:
        for entry in (
            part for part in file.objects if isinstance(part, pikepdf.Dictionary) and {"/Title", "/Parent"} <= part.keys()
        ):
            entry.Title = spaced.get("".join(str(entry.Title).split()), str(entry.Title))
        numbers = {page.obj.objgen: number for number, page in enumerate(file.pages, 1)}
        places = {str(name): numbers[spot[0].objgen] for name, spot in file.Root.Dests.items()}
        font = pikepdf.Dictionary(Type=pikepdf.Name.Font, Subtype=pikepdf.Name.Type1, BaseFont=pikepdf.Name.Helvetica)
        for page in file.pages[1 : places[f"/{place(book.pages[0].doc)}"] - 1]:
            lines = {str(entry.Dest): entry.Rect for entry in page.get("/Annots", ())}  # of a title in two lines, the second
            name = page.add_resource(font, pikepdf.Name.Font)
            right = float(page.mediabox[2]) - RIGHT_PT
            shown = [
                f"1 0 0 1 {right - DIGIT_PT * len(str(places[target])):.1f} {float(rect[1]) + 4:.1f} Tm ({places[target]}) Tj"
                for target, rect in lines.items()
            ]
            page.contents_add(b"q", prepend=True)
            page.contents_add(f"Q /Artifact BMC BT {name} {DIGIT_PT / 0.556:.2f} Tf {' '.join(shown)} ET EMC".encode())
        file.docinfo["/Author"] = book.author
        packed = io.BytesIO()
        file.save(packed, object_stream_mode=pikepdf.ObjectStreamMode.generate)
    return packed.getvalue()


def main() -> int:
    """Writes the PDF whole, or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--html", type=Path, default=ROOT / "_build/html", help="the built site")
    parser.add_argument("--out", type=Path, default=ROOT / "_build/scaling-course.pdf")
    given = parser.parse_args()
    try:
        book = Book.read(ROOT, given.html)
        chromium = find_chromium()
        document = assemble(book)
        pdf = finished(printed(document, book.html, chromium), book, document)
    except PdfError as error:
        print(f"pdf: {error}", file=sys.stderr)
        return 1
    unfinished = given.out.with_suffix(".part")
    unfinished.write_bytes(pdf)
    os.replace(unfinished, given.out)
    print(f"{given.out}: {len(pdf) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
