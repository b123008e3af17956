"""Where links of the book, of notebooks and of documents lead, and what is missing there; other hosts are not asked."""

import re
import subprocess
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from plain import _PARSER as MARKDOWN

ROOT = Path(__file__).parents[1]
SITE = "https://scaling-course.github.io/scaling-course/"
REPOSITORY = "https://github.com/scaling-course/scaling-course"
IN_REPOSITORY = re.compile(
    r"https://(?:github\.com|colab\.research\.google\.com/github)/scaling-course/scaling-course/(?:blob|tree|raw|edit)/main/([^?#]+)"
)
ADDED = {"scaling-course.pdf", "scaling-course-offline.zip"}
"""Files that the workflow adds to the published site."""
BINDER = "https://mybinder.org/v2/gh/scaling-course/scaling-course/main"


class Page(HTMLParser):
    """The links of a page, and the places in it that a link can name."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.places |= {named[name] for name in ("id", "name") if name in named}
        self.links += [named[name] for name in ("href", "src", "action", "poster", "data") if name in named]
        self.links += [part.split()[0] for part in named.get("srcset", "").split(",") if part]
        if named.get("property") in ("og:url", "og:image"):
            self.links.append(named["content"])


page = cache(Page)


@cache
def tracked() -> set[str]:
    """Files of the repository, and folders; also those that the next commit would add."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {str(place) for file in files if (ROOT / file).exists() for place in (Path(file), *Path(file).parents)}


@cache
def headings(document: Path) -> set[str]:
    """Places of a Markdown document, as GitHub names them."""
    tokens = MARKDOWN.parse(document.read_text(encoding="utf-8"))
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links_of(markdown: str) -> list[str]:
    """Targets of the links and images of a text."""
    inline = [child for token in MARKDOWN.parse(markdown) for child in token.children or []]
    found = [child.attrGet("href") or child.attrGet("src") for child in inline]
    return [str(target) for target in found if target]


def lost_in_repository(url: str) -> str:
    """What a link to a file of the repository, also by Colab or Binder, does not find; nothing if it leads elsewhere."""
    given = IN_REPOSITORY.match(url)
    path = unquote(given[1]).rstrip("/") if given else ""
    if url.startswith(BINDER):
        asked = parse_qs(urlsplit(url).query)
        path = re.sub(r"^(lab/)?tree/", "", (asked.get("urlpath") or asked.get("labpath") or ["."])[0])
    return f"{url}: the repository has no {path}" if path and path not in tracked() else ""


def lost_in_site(url: str, start: Path, site: Path) -> str:
    """What a link of a page of the built book does not find in it."""
    if url.startswith(SITE):
        if url.removeprefix(SITE) in ADDED:
            return ""
        url, start = url.removeprefix(SITE) or "index.html", site / "index.html"
    if re.match(r"[a-z][a-z+.-]*:|//", url):
        return lost_in_repository(url)
    path, _, place = url.partition("#")
    target = (start.parent / unquote(path.partition("?")[0])).resolve() if path else start
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return f"{url}: the site has no such file"
    if place and target.suffix == ".html" and unquote(place) not in page(target).places:
        return f"{url}: that page has no such place"
    return ""


def lost_in_document(url: str, start: Path) -> str:
    """What a link of a document or a notebook does not find in the repository."""
    if re.match(r"[a-z][a-z+.-]*:|//", url):
        return lost_in_repository(url)
    path, _, place = url.partition("#")
    target = (start.parent / unquote(path)).resolve() if path else start
    if not target.is_relative_to(ROOT) or str(target.relative_to(ROOT)) not in tracked():
        return f"{url}: the repository has no such file"
    if place and target.suffix == ".md" and target.parent.name not in ("chapters", "labs") and place not in headings(target):
        return f"{url}: that document has no such heading"
    return ""
