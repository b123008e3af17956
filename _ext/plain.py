"""Plain Markdown from the MyST that the pages are written in.

GitHub, Jupyter and Colab show the text cells of a notebook as plain Markdown, and the book shows a lab's notebook as it
is. Here directives, roles, labels and substitutions become what all of them can show. What this module does not know is
an error that names file and line, so that no MyST leaks into a notebook.
"""

import html
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from sys import version_info

from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from pybtex.backends.markdown import Backend as MarkdownBackend
from pybtex.database import BibliographyData, Entry, parse_file
from pybtex.style.formatting.plain import Style as PlainStyle

MYST = MdParserConfig(enable_extensions={"amsmath", "colon_fence", "dollarmath", "substitution"})
_PARSER = create_md_parser(MYST, RendererHTML)

_ADMONITIONS = {"attention", "caution", "danger", "error", "hint", "important", "note", "seealso", "tip", "warning"}
_CODE_ROLES = {"attr", "class", "const", "data", "exc", "func", "meth", "mod", "obj"}
_DROPPED = {"myst_block_break", "myst_line_comment", "myst_target"}
_VERBATIM = {"amsmath", "code_block", "html_block", "math_block"}

_LABELED_HEADING = re.compile(r"^\(([^()\n]+)\)=[ \t]*\n(?:[ \t]*\n)*(?:#+[ \t]+(.+))?", re.M)
_LABELED_DIRECTIVE = re.compile(r"^[:`]{3,}\{([\w-]+)\}[ \t]*(.*)\n((?::[\w-]+:.*\n)+)\s*(.*)", re.M)
_IN_PARAGRAPH = r"(?:(?!\n[ \t]*\n).)"
_INLINE = re.compile(
    rf"""
    \\.                                                                        # an escaped character
    | \{{(?P<role>[\w:+-]+)\}}(?P<ticks>`+)(?P<text>{_IN_PARAGRAPH}+?)(?P=ticks)   # a role
    | (?P<code>`+){_IN_PARAGRAPH}+?(?<!`)(?P=code)(?!`)                        # code
    | \$\${_IN_PARAGRAPH}+?\$\$                                                # math
    | \$(?:\\.|(?![$\\]){_IN_PARAGRAPH})+\$
    | \{{\{{\s*(?P<substitution>\w+)\s*\}}\}}
    """,
    re.X | re.S,
)


class PageError(Exception):
    """A page that cannot become a notebook; the message begins with the file and, where known, the line."""


@dataclass(frozen=True)
class Book:
    """What one page needs to know of the others: `labels` maps each label to its page and the text that names it."""

    root: Path
    labels: Mapping[str, tuple[Path, str]]
    references: BibliographyData
    substitutions: Mapping[str, str]


LEVELS = {1: "one formula", 2: "some steps", 3: "a question to find one's way in"}
"""How hard an exercise is."""


def effort_in_words(options: Mapping[str, str]) -> str:
    """What an exercise takes: its `minutes` and `level`."""
    return f"{options['minutes']} minutes, level {options['level']} of {max(LEVELS)}"


def checked() -> str:
    """When and with which versions the book was run: the value of the substitution `checked`."""
    python = f"{version_info.major}.{version_info.minor}"
    return f"{date.today():%Y-%m} with Python {python} and JAX {version('jax')}"


def read_book(root: Path) -> Book:
    """Collects labels and references from the book in the folder `root`."""
    labels = {}
    for page in [*root.glob("*.md"), *root.glob("chapters/**/*.md"), *root.glob("labs/**/*.md")]:
        text = page.read_text(encoding="utf-8")
        for label, heading in _LABELED_HEADING.findall(text):
            labels[label.lower()] = (page, _without_roles(heading))
        for directive, title, options, first_line in _LABELED_DIRECTIVE.findall(text):
            for label in re.findall(r"^:(?:label|name):[ \t]*(\S+)", options, re.M):
                kind = directive.removesuffix("-start").capitalize()
                named = (first_line if kind == "Figure" else title).rstrip(".")
                labels[label.lower()] = (page, f"{kind}: {_without_roles(named)}" if named else kind)
    references = root / "references.bib"
    return Book(
        root=root,
        labels=labels,
        references=parse_file(references) if references.exists() else BibliographyData(),
        substitutions={"checked": checked()},
    )


@dataclass
class PlainMarkdown:
    """Converts the Markdown cells of one page, to be given in order: gates and heading levels span cells.

    `evaluate` gives the text of an `{eval}` expression at this place of the page, or raises ValueError.
    """

    book: Book
    page: Path
    evaluate: Callable[[str], str]
    values: list[tuple[str, str]] = field(default_factory=list)  # each {eval} expression so far and its text
    solution: str = ""  # label of the exercise whose solution we are in
    exercise: bool = False
    heading_level: int = 1
    cited: list[str] = field(default_factory=list)

    def cell(self, text: str, line: int) -> str:
        """Plain Markdown for one cell, which begins at the given line of the page; empty if nothing is left of it."""
        parts = []
        for solution, chunks in groupby(self._blocks(text, line), key=lambda chunk: chunk[0]):
            body = "\n".join(chunk for _, chunk in chunks).strip("\n")
            if body.strip():
                parts.append(_details("Solution", body) if solution else body)
        return "\n\n".join(parts)

    def finish(self) -> None:
        """Complains about a gate that the page never closes."""
        if self.exercise or self.solution:
            raise PageError(f"{self.page}: an exercise or solution is never closed")

    def _error(self, line: int, message: str) -> PageError:
        return PageError(f"{self.page}:{line}: {message}")

    def _nested(self, text: str, line: int) -> str:
        outside = self.solution
        chunks = list(self._blocks(text, line))
        if any(solution != outside for solution, _ in chunks):
            raise self._error(line, "a solution's gates must stand outside other directives")
        return "\n".join(chunk for _, chunk in chunks).strip("\n")

    def _blocks(self, text: str, line: int) -> Iterator[tuple[str, str]]:
        """Converted chunks of the text, each with the solution that it belongs to."""
        lines = text.split("\n")
        done = 0
        for token in _PARSER.parse(text):
            if token.type == "heading_open" and token.level == 0:
                self.heading_level = int(token.tag[1])
            is_fence = token.type in {"fence", "colon_fence"}
            if token.map is None or not (is_fence or token.type in _VERBATIM | _DROPPED | {"math_block_label"}):
                continue
            start, end = token.map
            if done < start:
                yield self.solution, self._prose("\n".join(lines[done:start]), line + done)
            done = end
            directive = re.match(r"\{([\w:+-]+)\}[ \t]*(.*)", token.info) if is_fence else None
            if directive or token.type == "colon_fence":
                name, argument = directive.groups() if directive else (token.info, "")
                converted = self._directive(name, argument.strip(), token.content.rstrip("\n"), line + start)
                first = lines[start][: lines[start].index(token.markup)]
                others = re.sub(r"[^>\s]", " ", first)  # a list's marker stands on its first line only
                yield self.solution, first + converted.replace("\n", "\n" + others) if converted else ""
            elif token.type == "math_block_label":
                yield self.solution, re.sub(r"\$\$[^$]*$", "$$", "\n".join(lines[start:end]))
            elif token.type not in _DROPPED:
                yield self.solution, "\n".join(lines[start:end])
            elif end < len(lines) and not lines[end].strip():
                done += 1  # the blank line below what was dropped
        if done < len(lines):
            yield self.solution, self._prose("\n".join(lines[done:]), line + done)

    def _directive(self, name: str, argument: str, content: str, line: int) -> str:
        options, body, offset = _options(content)
        title = self._prose(argument, line)
        below = line + 1 + offset
        match name:
            case "exercise-start" | "exercise-end" | "solution-start" | "solution-end":
                return self._gate(name, argument, title, line, options)
            case "exercise":
                return f"{self._exercise_heading(title)}\n\n{self._nested(body, below)}"
            case "solution":
                return _details("Solution", self._nested(body, below))
            case "dropdown":
                return _details(title, self._nested(body, below))
            case "admonition" if "dropdown" in options.get("class", ""):
                return _details(title, self._nested(body, below))
            case "admonition":
                return _quote(title, self._nested(body, below))
            case _ if name in _ADMONITIONS:  # these take no title: text beside the name is the first of the body
                text = "\n".join(part for part in (title, self._nested(body, below)) if part)
                return _quote("See also" if name == "seealso" else name.capitalize(), text)
            case "math":
                return _math(f"{argument}\n{body}")
            case "takeaway":
                return self._takeaway(argument, body, line)
            case "code-block":
                return f"```{argument}\n{body}\n```"
            case "figure":
                caption = self._nested(body, below)
                image = f"![{options.get('alt', '')}]({argument})"
                return f"{image}\n\n*{caption}*" if caption else image
            case "table":
                return f"**{title}**\n\n{self._nested(body, below)}"
            case "bibliography":
                return self._bibliography()
            case "nb-exec-table":
                return "*Here the book shows how long each page took to run.*"
        raise self._error(line, f"unknown directive {{{name}}}: teach it to _ext/plain.py")

    def _gate(self, name: str, argument: str, title: str, line: int, options: Mapping[str, str]) -> str:
        """Opens or closes an exercise or a solution; only the opening of an exercise leaves text."""
        inside = "exercise" if self.exercise else "solution" if self.solution else ""
        kind, action = name.split("-")
        if inside != ("" if action == "start" else kind):
            raise self._error(line, f"{{{name}}} does not fit here: {inside or 'nothing'} is open")
        self.exercise = name == "exercise-start"
        self.solution = argument if name == "solution-start" else ""
        if not self.exercise:
            return ""
        effort = f"\n*{effort_in_words(options)}*\n" if "minutes" in options else ""
        return f"{self._exercise_heading(title)}\n{effort}"

    def _takeaway(self, label: str, body: str, line: int) -> str:
        from inventory import takeaways  # it reads pages, for which it needs this module

        try:
            told = "\n\n".join(takeaways(label, self.book.root))
        except ValueError as error:
            raise self._error(line, str(error)) from error
        return _quote(self._role("ref", label, line), self._nested(f"{told}\n\n{body}", line))

    def _exercise_heading(self, title: str) -> str:
        return "#" * min(self.heading_level + 1, 6) + (f" Exercise: {title}" if title else " Exercise")

    def _prose(self, text: str, line: int) -> str:
        """Converts roles and substitutions; code, math and escaped characters stay as they are."""

        def convert(match: re.Match[str]) -> str:
            here = line + text.count("\n", 0, match.start())
            if match["role"]:
                return self._role(match["role"], match["text"].replace("\n", " "), here)
            if match["substitution"]:
                if match["substitution"] not in self.book.substitutions:
                    raise self._error(here, f"unknown substitution {match[0]}")
                return self.book.substitutions[match["substitution"]]
            return match[0]

        return _INLINE.sub(convert, text)

    def _role(self, role: str, content: str, line: int) -> str:
        text, target = _text_and_target(content)
        match role.removeprefix("py:"):
            case "eval":
                try:
                    value = self.evaluate(content)
                except ValueError as error:
                    raise self._error(line, f"{{eval}}`{content}`: {error}") from error
                self.values.append((content, value))
                return escaped(value)
            case "ref" | "numref":
                if target.lower() not in self.book.labels:
                    raise self._error(line, f"unknown label {target!r}")
                page, name = self.book.labels[target.lower()]
                text = re.sub(r"\s*(%s|\{number\})", "", text).replace("{name}", name)
                if not (text or name):
                    raise self._error(line, f"label {target!r} names no heading: give the link a text")
                return self._link(text or name, page)
            case "doc":
                page = self._path(target).with_name(Path(target).name + ".md")
                if not page.exists():
                    raise self._error(line, f"no page {target!r}")
                heading = re.search(r"^# +(.+)$", page.read_text(encoding="utf-8"), re.M)
                return self._link(text or _without_roles(heading[1] if heading else target), page)
            case "download":
                return self._link(text or Path(target).name, self._path(target))
            case "cite" | "cite:p":
                return f"({'; '.join(self._citations(content, line, '{}, {}'))})"
            case "cite:t":
                return ", ".join(self._citations(content, line, "{} ({})"))
            case "term":
                return text or target
            case "abbr":
                return content
            case "math":
                return f"${content}$"
            case name if name in _CODE_ROLES:
                call = "()" if name in {"func", "meth"} and not target.endswith(")") else ""
                shown = target.rpartition(".")[2] if target.startswith("~") else target
                return f"`{text or shown + call}`"
        raise self._error(line, f"unknown role {{{role}}}: teach it to _ext/plain.py")

    def _path(self, target: str) -> Path:
        return self.book.root / target[1:] if target.startswith("/") else self.page.parent / target

    def _link(self, text: str, path: Path) -> str:
        return f"[{text}]({Path(os.path.relpath(path, self.page.parent)).as_posix()})"

    def _citations(self, keys: str, line: int, form: str) -> list[str]:
        links = []
        for key in re.split(r"\s*,\s*", keys.strip()):
            if key not in self.book.references.entries:
                raise self._error(line, f"no reference {key!r} in references.bib")
            entry = self.book.references.entries[key]
            self.cited.append(key)
            text = form.format(_authors(entry), entry.fields.get("year", "no date"))
            url = _url(entry)
            links.append(f"[{text}]({url})" if url else text)
        return links

    def _bibliography(self) -> str:
        """The works that the page has cited so far."""
        works = PlainStyle().format_bibliography(self.book.references, list(dict.fromkeys(self.cited)))
        return "\n".join(f"- {' '.join(work.text.render(MarkdownBackend()).split())}" for work in works)


def _options(content: str) -> tuple[dict[str, str], str, int]:
    """The options at the top of a directive, the body below them, and the lines above the body."""
    lines = content.split("\n")
    options = {}
    offset = 0
    while offset < len(lines) and (option := re.fullmatch(r":([\w-]+):[ \t]*(.*)", lines[offset].strip())):
        options[option[1]] = option[2]
        offset += 1
    return options, "\n".join(lines[offset:]), offset


def _text_and_target(content: str) -> tuple[str, str]:
    """Splits `text <target>`; a bare target has no text."""
    match = re.fullmatch(r"(.*?)\s*<([^<>]+)>", content)
    return (match[1], match[2]) if match else ("", content)


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{html.escape(summary, quote=False)}</summary>\n\n{body.strip()}\n\n</details>"


def _quote(title: str, body: str) -> str:
    lines = [f"**{title}**", "", *body.strip().split("\n")]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def _math(body: str) -> str:
    """One block of math a paragraph, lines aligned where the page breaks them, as Sphinx does it."""
    equations = []
    for equation in re.split(r"\n[ \t]*\n", body.strip()):
        aligned = r"\\" in equation and r"\begin" not in equation
        equations.append(f"\\begin{{aligned}}\n{equation}\n\\end{{aligned}}" if aligned else equation)
    return "\n\n".join(f"$$\n{equation}\n$$" for equation in equations)


def escaped(value: str) -> str:
    """The value with what Markdown would read as markup escaped."""
    return re.sub(r"[\\`*$<|~]|(?<!\w)_|_(?!\w)", r"\\\g<0>", value)


def _without_roles(text: str) -> str:
    return re.sub(r"\{[\w:+-]+\}`([^`]+)`", r"\1", text).strip()


def _authors(entry: Entry) -> str:
    people = entry.persons.get("author") or entry.persons.get("editor") or []
    names = [" ".join(str(part) for part in person.rich_prelast_names + person.rich_last_names) for person in people]
    if not names:
        return str(entry.rich_fields["title"])
    return f"{names[0]} et al." if len(names) > 2 or names[1:] == ["others"] else " and ".join(names)


def _url(entry: Entry) -> str:
    if "doi" in entry.fields:
        return f"https://doi.org/{entry.fields['doi']}"
    if "eprint" in entry.fields and "url" not in entry.fields:
        return f"https://arxiv.org/abs/{entry.fields['eprint']}"
    return str(entry.fields.get("url", ""))
