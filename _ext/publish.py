"""Sphinx extension of the published site: a map for search engines, cards and descriptions for links, and `robots.txt`.

`sphinx-sitemap` and `sphinxext-opengraph` do it; what a page is about, they would not find.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinxext import opengraph


def _prose(doctree: nodes.document) -> Iterator[nodes.paragraph]:
    """What the reader will be able to do, where a page opens with it, else the paragraphs outside boxes, tables and lists."""
    for box in doctree.findall(lambda node: isinstance(node, (nodes.admonition, nodes.block_quote))):
        if box[0].astext() == "Before you start":
            yield next(iter(box[1].findall(nodes.paragraph)))
            return
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section) and not next(iter(paragraph.findall(nodes.math)), None):
            yield paragraph


def first_words(doctree: nodes.document, length: int, titles: object = ()) -> str:
    """A page's description, in at most so many characters."""
    said = ""
    for paragraph in _prose(doctree):
        said = f"{said} {' '.join(paragraph.astext().split())}".lstrip()
        if len(said) > length:
            return said[: length - 1].rpartition(" ")[0].rstrip(" ,;:.") + "…"
    return said


def _write_robots(app: Sphinx, exception: Exception | None) -> None:
    if not exception and app.builder.format == "html":
        text = f"User-agent: *\nAllow: /\n\nSitemap: {app.config.html_baseurl}{app.config.sitemap_filename}\n"
        (Path(app.outdir) / "robots.txt").write_text(text, encoding="utf-8")


def _configure(app: Sphinx, config: Any) -> None:
    config.ogp_site_url = config.html_baseurl
    config.ogp_site_name = config.html_title


def setup(app: Sphinx) -> dict[str, Any]:
    """Sets both extensions up by what `_config.yml` says of the site."""
    app.setup_extension("sphinx_sitemap")
    app.setup_extension("sphinxext.opengraph")
    opengraph.get_description = first_words
    app.connect("config-inited", _configure)
    app.connect("build-finished", _write_robots)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
