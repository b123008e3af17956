"""Checks of the built book in `_build/html`; `make book` builds it. The last test breaks a copy of the book on purpose."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import notebooks
import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build/html"

pytestmark = pytest.mark.book


def toc_files(node):
    for key in ("root", "file"):
        if key in node:
            yield node[key]
    for key in ("parts", "chapters", "sections"):
        for child in node.get(key, []):
            yield from toc_files(child)


DOCS = list(toc_files(yaml.safe_load((ROOT / "_toc.yml").read_text())))
EXECUTED = [d for d in DOCS if d.startswith("chapters/") and "{code-cell}" in (ROOT / f"{d}.md").read_text(encoding="utf-8")]


@pytest.fixture(scope="session", autouse=True)
def _built():
    assert HTML.is_dir(), "the book is not built: run `make book` first"


def soup(doc):
    return BeautifulSoup((HTML / f"{doc}.html").read_text(encoding="utf-8"), "html.parser")


def article(doc):
    return soup(doc).select_one("article")


def differences(doc, build):
    built = build / f"jupyter_execute/{doc}.ipynb"
    return notebooks.compare_built(ROOT / f"{doc}.md", built, build / f"evals/{doc}.json")


@pytest.mark.parametrize("doc", EXECUTED)
def test_this_build_printed_what_the_committed_notebook_shows(doc):
    assert differences(doc, ROOT / "_build") == []


@pytest.mark.parametrize("doc", DOCS)
def test_every_figure_has_alt_text_that_describes_it(doc):
    for image in article(doc).select("img"):
        alt = image.get("alt", "")
        assert len(alt) > 60, f"{image['src']}: alt text {alt!r} does not describe the figure"
        assert not re.search(r"\.(png|svg)|_images|[0-9a-f]{16}", alt), f"alt text {alt!r} is a file name"


def test_the_chapter_has_its_figures():
    assert len(article("chapters/01-roofline").select("img")) >= 4


@pytest.mark.parametrize("doc", DOCS)
def test_no_markup_leaks_into_the_text(doc):
    page = article(doc)
    for code in page.select("pre, code, script, .math, .sig"):
        code.decompose()
    text = page.get_text()
    for leak in ("{eval}", "{ref}", "{doc}", "{cite", "{{", ":::", "Traceback", "**"):
        assert leak not in text


@pytest.mark.parametrize("doc", [d for d in DOCS if (ROOT / f"{d}.ipynb").exists()])
def test_the_colab_button_opens_the_committed_notebook(doc):
    (button,) = [a["href"] for a in soup(doc).select("a[href^='https://colab.research.google.com']")][:1]
    assert button.endswith(f"/blob/main/{doc}.ipynb")


def test_the_site_opens_at_its_root():
    assert "chapters/index.html" in (HTML / "index.html").read_text(encoding="utf-8")


def test_the_first_screen_of_the_book_has_a_computed_number():
    shown = json.loads((ROOT / "_build/evals/chapters/index.json").read_text())
    first_words = article("chapters/index").get_text()[:900]
    assert all(value in first_words for _, value in shown)


@pytest.mark.weekly
def test_a_changed_catalog_value_turns_the_book_red(tmp_path):
    """Proof that the first test of this file can fail: build a copy of the book with another bandwidth for the v6e."""
    for name in ("chapters", "labs", "_ext", "_static", "scaling_lib"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_config.yml", "_toc.yml", "references.bib"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    catalog = tmp_path / "scaling_lib/catalog/chips.csv"
    text = catalog.read_text(encoding="utf-8")
    changed = re.sub(r"(?m)^(v6e,hbm_bytes_per_s),1.638e12,", r"\1,1.738e12,", text)
    assert changed != text
    catalog.write_text(changed, encoding="utf-8")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "--all", "--keep-going", "-q"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr  # no assert of the chapter sees it: the comparison must
    found = "\n".join(differences("chapters/01-roofline", tmp_path / "_build"))
    assert "1.64 TB/s" in found
    assert "1.74 TB/s" in found
    assert "v6e_ridge = 560" in found
    assert "v6e_ridge = 528" in found
