"""Every link inside the course arrives: of the built site, of notebooks and of documents; and the references are sound."""

import json
import re
from collections import Counter
from xml.etree import ElementTree

import pytest
import yaml
from pybtex.database import parse_file

from tests import addresses
from tests.addresses import REPOSITORY, ROOT, SITE, lost_in_document, lost_in_site
from tests.test_book import DOCS, HTML

NOTEBOOKS = sorted(path for folder in ("chapters", "labs") for path in (ROOT / folder).glob("*.ipynb"))
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md") for path in ROOT.glob(pattern))


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


def text_of(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def lost(found):
    return sorted({each for each in found if each})


# The repository.


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_every_link_of_a_document_arrives(path):
    assert lost(lost_in_document(url, path) for url in addresses.links_of(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=names(NOTEBOOKS))
def test_every_link_of_a_notebook_arrives(path):
    assert lost(lost_in_document(url, path) for url in addresses.links_of(text_of(path))) == []


def test_the_links_that_are_read_are_many():
    assert sum(len(addresses.links_of(text_of(path))) for path in NOTEBOOKS) > 300
    assert len(addresses.links_of((ROOT / "README.md").read_text(encoding="utf-8"))) > 4


def test_addresses_of_the_site_and_of_the_repository_are_those_of_the_configuration():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert (config["html"]["baseurl"], config["repository"]["url"], config["repository"]["branch"]) == (SITE, REPOSITORY, "main")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("no-such.md", "no such file"),
        ("../../etc/passwd", "no such file"),
        ("CONTRIBUTING.md#no-such", "no such heading"),
        (f"{REPOSITORY}/blob/main/no-such.py", "no no-such.py"),
        (f"{REPOSITORY.replace('github.com', 'colab.research.google.com/github')}/blob/main/labs/00.ipynb", "no labs/00.ipynb"),
        (f"{addresses.BINDER}?urlpath=lab/tree/labs/00.ipynb", "no labs/00.ipynb"),
        ("_build", "no such file"),
    ],
)
def test_a_link_that_does_not_arrive_is_found(url, words):
    assert words in lost_in_document(url, ROOT / "README.md")


@pytest.mark.parametrize(
    "url", ["CONTRIBUTING.md#set-up", "deploy", "#contribute-cite", f"{REPOSITORY}/tree/main/labs", f"{REPOSITORY}/issues"]
)
def test_a_link_that_arrives_is_taken(url):
    assert lost_in_document(url, ROOT / "README.md") == ""


# The bibliography.

ENTRIES = parse_file(ROOT / "references.bib").entries  # a key given twice is refused here


def cited():
    """Keys, with the page that cites each first."""
    found = {}
    for path in sorted([*ROOT.glob("chapters/*.md"), *ROOT.glob("labs/*.md")]):
        for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", path.read_text(encoding="utf-8")):
            found |= {key.strip(): path.name for key in keys.split(",") if key.strip() not in found}
    return found


def test_every_citation_has_an_entry_and_every_entry_is_cited():
    assert sorted(set(cited()) ^ set(ENTRIES)) == []
    assert len(ENTRIES) > 40


@pytest.mark.parametrize("key", list(ENTRIES))
def test_a_reference_says_who_what_when_and_where(key):
    entry = ENTRIES[key]
    assert entry.persons.get("author") or entry.persons.get("editor")
    assert entry.fields["title"].strip()
    assert re.fullmatch(r"(19|20)\d\d", entry.fields["year"])
    forms = {"doi": r"10\.\d{4,}/\S+", "url": r"https?://\S+", "eprint": r"\d{4}\.\d{4,5}", "pages": r"\d+--\d+"}
    given = {name: entry.fields[name] for name in forms if name in entry.fields}
    assert given
    assert [name for name, text in given.items() if not re.fullmatch(forms[name], text)] == []


@pytest.mark.parametrize("of", ["title", "url", "doi", "eprint"])
def test_no_reference_stands_there_twice(of):
    given = Counter(re.sub(r"[{}\s]+", " ", entry.fields[of]).strip().lower() for entry in ENTRIES.values() if of in entry.fields)
    assert [each for each, count in given.items() if count > 1] == []


# The built site.


@pytest.mark.book
@pytest.mark.parametrize("doc", DOCS)
def test_every_link_of_a_page_arrives(doc):
    """Links, buttons, images, scripts and styles, also by the address of the published site."""
    path = HTML / f"{doc}.html"
    assert lost(lost_in_site(url, path, HTML) for url in addresses.page(path).links) == []


@pytest.mark.book
def test_every_link_of_the_pages_that_are_no_part_of_the_contents_arrives():
    """Search, index, slides and the site's own entrance."""
    ours = {HTML / f"{doc}.html" for doc in DOCS}
    others = [path for path in HTML.rglob("*.html") if path not in ours and "_static" not in path.relative_to(HTML).parts]
    assert {"index.html", "search.html", "genindex.html"} <= {path.name for path in others}
    found = {path: lost(lost_in_site(url, path, HTML) for url in addresses.page(path).links) for path in others}
    assert {str(path.relative_to(HTML)): urls for path, urls in found.items() if urls} == {}


@pytest.mark.book
@pytest.mark.parametrize("path", [*NOTEBOOKS, *DOCUMENTS], ids=names([*NOTEBOOKS, *DOCUMENTS]))
def test_every_link_from_outside_to_the_site_arrives(path):
    text = text_of(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
    assert lost(lost_in_site(url, path, HTML) for url in addresses.links_of(text) if url.startswith(SITE)) == []


@pytest.mark.book
def test_every_link_of_the_site_that_does_not_arrive_is_found():
    page = HTML / f"{DOCS[0]}.html"
    for url in ("no-such.html", "#no-such", f"{SITE}no-such.html", "../_images/no-such.png", "01-roofline.html#no-such"):
        assert lost_in_site(url, page, HTML), url
    for url in ("01-roofline.html#sec-in-short", "https://example.org/no-such", f"{SITE}chapters/01-roofline.html", "#"):
        assert not lost_in_site(url, page, HTML), url


@pytest.mark.book
def test_the_sitemap_has_every_page_of_the_book_and_nothing_else():
    space = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
    listed = [url.findtext(f"{space}loc") for url in ElementTree.parse(HTML / "sitemap.xml").getroot()]
    assert sorted(listed) == sorted(f"{SITE}{doc}.html" for doc in DOCS)
    assert f"Sitemap: {SITE}sitemap.xml" in (HTML / "robots.txt").read_text(encoding="utf-8")
