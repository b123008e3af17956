"""Sphinx extension for the pages that look at the whole course; what they list stands in the pages that they list.

`takeaway` shows those of a section, above what the page adds. `exercise-list` has every exercise by level and time.
`decks` links the slides, `wrong-answers` has those of one page that a hint is for, `plan` is the timetable of a workshop day.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from inventory import ROOT, Exercise, Page, course, takeaways
from plain import LEVELS, escaped
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


@dataclass(frozen=True)
class Item:
    """A line of a plan: what is done, for how long, and whether it goes first when time runs short."""

    kind: str
    what: str
    minutes: int
    optional: bool


def plan_items(lines: Iterable[str], pages: Iterable[Page]) -> Iterator[Item]:
    """What a plan's lines say, such as `section sec-rings`, `optional exercise ex-x`, `lab 03-sharding`, `break 15`.

    Minutes come from the pages. Others, such as breaks and questions, say their own: `talk 10 What you will be able to do`.
    A lab can be cut to a part of its time: `lab 03-sharding 40 to the second puzzle`.
    """
    minutes = {section.label: section.minutes for page in pages for section in page.sections}
    minutes |= {exercise.label: exercise.minutes for page in pages for exercise in page.exercises if exercise.label}
    minutes |= {page.doc.removeprefix("labs/"): page.minutes for page in pages if page.is_lab}
    for line in filter(None, map(str.strip, lines)):
        parts = re.fullmatch(r"(optional )?(section|exercise|lab|break|talk) (\S+)(?: (\d+) (.+)| (.+))?", line)
        if not parts:
            raise ValueError(f"no line of a plan: {line!r}")
        optional, kind, what, cut, words, title = parts.groups()
        if kind in ("break", "talk"):
            yield Item(kind, title or "Break", int(what), bool(optional))
        elif what not in minutes:
            raise ValueError(f"no {kind} is called {what!r}")
        elif cut and not int(cut) < minutes[what]:
            raise ValueError(f"{what} takes {minutes[what]} minutes in all, so {cut} are no part of it")
        else:
            yield Item(kind, f"{what} {words}" if cut else what, int(cut) if cut else minutes[what], bool(optional))


class _Written(SphinxDirective):
    """A directive that writes MyST."""

    def parsed(self, text: str) -> list[nodes.Node]:
        """The nodes of a text in MyST."""
        return self.parse_text_to_nodes(text)

    def failed(self, error: ValueError) -> list[nodes.Node]:
        """No nodes, and a warning, which `make book` takes for an error."""
        return [self.state_machine.reporter.warning(str(error), line=self.lineno)]


class Takeaway(_Written):
    """The takeaways of a section with a link to it, and below them what the page adds: symbols, units, an example."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """A box."""
        label = self.arguments[0]
        try:
            told = "\n\n".join(takeaways(label))
        except ValueError as error:
            return self.failed(error)
        added = "\n".join(self.content)
        return self.parsed(f":::::{{admonition}} {{ref}}`{label}`\n:class: tip takeaway\n{told}\n\n{added}\n:::::\n")


class ExerciseList(_Written):
    """Every exercise and puzzle, one table a level, the shortest first."""

    def run(self) -> list[nodes.Node]:
        """The tables."""
        everything = [exercise for page in course() for exercise in page.exercises]
        where = {page.doc: page.title.partition(":")[0] if page.is_lab else f"Chapter {int(page.doc[9:11])}" for page in course()}
        text = []
        for level, words in LEVELS.items():
            found = sorted((each for each in everything if each.level == level), key=lambda each: each.minutes)
            total = sum(each.minutes for each in found)
            text.append(f"**Level {level}, {words}.** {len(found)} exercises, {total / 60:.0f} hours.\n")
            text.append("| minutes | exercise | where |\n|---|---|---|")
            text += [f"| {each.minutes} | {_named(each)} | {{doc}}`{where[each.doc]} </{each.doc}>` |" for each in found]
            text.append("")
        return self.parsed("\n".join(text))


class LabList(_Written):
    """Every lab with its minutes, and how many exercises of each level it has."""

    def run(self) -> list[nodes.Node]:
        """The table."""
        labs = [page for page in course() if page.is_lab]
        text = ["| lab | minutes | exercises of level 1, 2, 3 |", "|---|---|---|"]
        for lab in labs:
            by_level = [sum(each.level == level for each in lab.exercises) for level in LEVELS]
            counted = ", ".join(map(str, by_level))
            text.append(f"| {{doc}}`/{lab.doc}` | {lab.minutes} | {counted} |")
        return self.parsed("\n".join(text))


class Decks(SphinxDirective):
    """The slides of each chapter."""

    def run(self) -> list[nodes.Node]:
        """A list of links; the decks are written after the pages."""
        found = nodes.bullet_list()
        for page in (page for page in course() if not page.is_lab):
            link = nodes.reference("", page.title, refuri=f"../slides/{page.doc.removeprefix('chapters/')}.html")
            found += nodes.list_item("", nodes.paragraph("", "", link))
        return [found]


class WrongAnswers(_Written):
    """For one page: its exercises, and the wrong answers that have a hint."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A list of exercises, each with its wrong answers."""
        (page,) = (page for page in course() if page.doc == self.arguments[0])
        text = []
        for exercise in page.exercises:
            text.append(f"{_named(exercise)} ({exercise.minutes} minutes)\n")
            text += [f"- `{wrong}`: {escaped(hint)}" if wrong else f"- *{hint}*" for wrong, hint in exercise.hints]
            text.append("")
        return self.parsed("\n".join(text))


class Plan(_Written):
    """The timetable of a day; a plan that does not fit its `:minutes:` is an error."""

    has_content = True
    option_spec = {"start": directives.unchanged_required, "minutes": directives.positive_int}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        """The timetable, and what it adds up to."""
        try:
            pages = course()
            items = list(plan_items(self.content, pages))
            check_fits(items, self.options["minutes"])
        except ValueError as error:
            return self.failed(error)
        titles = {exercise.label: _named(exercise) for page in pages for exercise in page.exercises}
        clock = datetime.strptime(self.options["start"], "%H:%M")
        text = ["| at | minutes | what | when time runs short |", "|---|---|---|---|"]
        for item in items:
            shown = {
                "section": f"{{ref}}`{item.what}`",
                "exercise": f"Exercise: {titles.get(item.what)}",
                "lab": "Lab: {doc}`/labs/" + item.what.replace(" ", "`, ", 1) + ("" if " " in item.what else "`"),
            }.get(item.kind, item.what)
            text.append(f"| {clock:%-H:%M} | {item.minutes} | {shown} | {'skip' if item.optional else ''} |")
            clock += timedelta(minutes=item.minutes)
        total, spare = sum(item.minutes for item in items), sum(item.minutes for item in items if item.optional)
        text.append(f"\n{total} of {self.options['minutes']} minutes; {spare} of them can be skipped.\n")
        return self.parsed("\n".join(text))


def check_fits(items: Iterable[Item], minutes: int) -> None:
    """Raises ValueError if a plan takes longer than there is time."""
    total = sum(item.minutes for item in items)
    if total > minutes:
        raise ValueError(f"the plan takes {total} minutes, and there are {minutes}")


def _named(exercise: Exercise) -> str:
    return f"{{ref}}`{_cell(exercise.title)} <{exercise.label}>`" if exercise.label else _cell(exercise.title)


def _cell(text: str) -> str:
    """Fit for a cell of a table."""
    return text.replace("|", "\\|")


def _outdated(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages with lists are read again in every build: what they list stands elsewhere."""
    course.cache_clear()
    listed = re.compile(r"\{(takeaway|exercise-list|lab-list|decks|wrong-answers|plan)\}")
    return [doc for doc in env.found_docs if (path := ROOT / f"{doc}.md").exists() and listed.search(path.read_text("utf-8"))]


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directives."""
    for name, directive in {
        "takeaway": Takeaway,
        "exercise-list": ExerciseList,
        "lab-list": LabList,
        "decks": Decks,
        "wrong-answers": WrongAnswers,
        "plan": Plan,
    }.items():
        app.add_directive(name, directive)
    app.connect("env-get-outdated", _outdated)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
