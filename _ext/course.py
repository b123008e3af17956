"""Sphinx extension of the course: records the numbers in the prose, asks exercises, and says when the book was run.

The text of each `{eval}` that a page shows goes to `_build/evals/<page>.json`, which a test compares with the committed
notebook. The substitution `{{ checked }}` gives the month and the versions of this run. An exercise says its minutes and
level, and a check that nobody has answered becomes a form that `_static/check.js` judges.
"""

import html
import json
import os
from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from myst_nb.core.execute.inline import ModifiedNotebookClient
from myst_nb.core.render import MimeData, NbElementRenderer
from myst_nb.ext.eval import EvalRoleAny
from plain import LEVELS, checked, effort_in_words
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx_exercise.directive import ExerciseStartDirective

_EVALS = "course_evals"  # key of a page's metadata, which Sphinx purges, and merges between processes, by itself


def eval_role(
    name: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Any,
    options: dict[str, Any] | None = None,
    content: Sequence[str] = (),
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """MyST-NB's `eval` role, which also notes the text that it shows."""
    role = EvalRoleAny()
    shown, messages = role(name, rawtext, text, lineno, inliner, options, content)
    environment = inliner.document.settings.env
    for bundle in shown:
        plain = [node.astext() for node in bundle.children if node.get("mime_type") == "text/plain"]
        environment.metadata[environment.docname].setdefault(_EVALS, []).append([role.text, "".join(plain)])
    return shown, messages


class Exercise(ExerciseStartDirective):  # type: ignore[misc]
    """The start of an exercise, which says in its first line how many `:minutes:` it takes and its `:level:`."""

    option_spec = {  # noqa: RUF012
        **ExerciseStartDirective.option_spec,
        "minutes": directives.positive_int,
        "level": lambda given: directives.choice(given, [str(level) for level in LEVELS]),
    }

    def run(self) -> list[nodes.Node]:
        """The node that the end of the exercise closes, and the line."""
        started: list[nodes.Node] = super().run()
        if "minutes" in self.options:
            started.append(nodes.paragraph("", effort_in_words(self.options), classes=["exercise-effort"]))
        return started


_plain_text = NbElementRenderer.render_text_plain


def _form_or_text(self: NbElementRenderer, data: MimeData) -> list[nodes.Element]:
    """A text output, or for a check that nobody has answered a form; its text stays where there are no scripts."""
    shown: list[nodes.Element] = _plain_text(self, data)
    if question := data.output_metadata.get("question"):
        asked = f'<form class="check" data-question="{html.escape(json.dumps(question))}" hidden></form>'
        shown[0]["classes"].append("check-text")
        shown.append(nodes.raw("", asked, format="html"))
    return shown


def _define_checked(app: Sphinx, config: Config) -> None:
    config.myst_substitutions = {"checked": checked(), **config.myst_substitutions}


def _write_evals(app: Sphinx, exception: Exception | None) -> None:
    if exception:
        return
    for docname in app.env.found_docs:
        path = Path(app.outdir).parent / "evals" / f"{docname}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        evals = app.env.metadata[docname].get(_EVALS, [])
        path.write_text(json.dumps(evals, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


# What the theme and others write, and what a reader with a screen reader or a slow connection needs instead.
_MENDED = {
    # A name that differs from what a button shows cannot be spoken to it.
    ' title="Search" aria-label="Search"': ' title="Search"',
    '<summary aria-label="Toggle hidden content">': "<summary>",
    # The arrow beside a part of the contents has no name.
    '<summary><span class="toctree-toggle"': '<summary aria-label="Pages of this part"><span class="toctree-toggle"',
    # Called a list, but without items.
    '<div role="list" class="citation-list">': '<div class="citation-list">',
    # A reader on a phone should not wait for figures far below.
    "<img ": '<img loading="lazy" ',
}


def _mend(app: Sphinx, exception: Exception | None) -> None:
    if exception or app.builder.format != "html":
        return
    for path in Path(app.outdir).rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        for theirs, ours in _MENDED.items():
            page = page.replace(theirs, ours)
        path.write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Replaces the role, defines the substitution, and writes the record at the end."""
    app.setup_extension("myst_nb")
    os.environ.setdefault("SCALING_LIB_RECORDS", "only")  # pages show records, so that the book is the same everywhere
    # A kernel warns on start that it talks to this machine without encryption; a reader of `make book` need not see it.
    quiet = partialmethod(ModifiedNotebookClient.__init__, extra_arguments=["--log-level=ERROR"])
    ModifiedNotebookClient.__init__ = quiet
    NbElementRenderer.render_text_plain = _form_or_text
    app.add_role("eval", eval_role, override=True)
    app.setup_extension("sphinx_exercise")
    app.add_directive("exercise-start", Exercise, override=True)
    app.connect("config-inited", _define_checked)
    app.connect("build-finished", _mend)
    app.connect("build-finished", _write_evals)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
