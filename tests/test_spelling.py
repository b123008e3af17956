"""American spelling in all prose: pages, documents and docstrings, by Hunspell's dictionary and the course's own words."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import hunspell
import pytest
from markdown_it.token import Token
from plain import _PARSER as PARSER

ROOT = Path(__file__).parents[1]
WORDS = ROOT / "docs/words.txt"
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "chapters/*.md", "labs/*.md", "docs/**/*.md", "deploy/**/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
)
MODULES = sorted([*(ROOT / "scaling_lib").rglob("*.py"), *(ROOT / "_ext").rglob("*.py")])
CHUNK = re.compile(r"[^\s—–()\[\]{},;\"“”|→<>]+")
"""What stands between spaces or dashes."""
SIGNS = re.compile(r"[\d_./@:\\²³µ·+=]|^(sec|ch|ex)-")
"""In what is no word: a number, an address, a path, a formula, a label."""
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
NAME = re.compile(r"[A-Z]{2}|[a-z][A-Z]|^.?$")
"""No word either: an acronym, a name with a capital inside it, one letter."""


def as_said(token: Token) -> str:
    """A part of a sentence; a zero for code, a formula or a number, to which an ending may be attached."""
    if token.type == "text":
        return token.content
    if token.type == "image":
        return "".join(map(as_said, token.children))
    if token.type.endswith(("_open", "_close")):
        return ""
    return " " if token.type in ("softbreak", "hardbreak") else "0"


def in_markdown(text: str, line: int = 1) -> Iterator[tuple[int, str]]:
    """Prose of MyST with its line, also of what stands in boxes; no code, formulas, citations or options."""
    for token in PARSER.parse(text):
        here = line + (token.map[0] if token.map else 0)
        if token.type == "inline":
            yield here, "".join(map(as_said, token.children))
        elif token.type in ("colon_fence", "fence"):
            directive, _, argument = token.info.partition("}")
            if directive == "{code-cell":
                yield from ((here, alt) for alt in re.findall(r"^ *alt: (.+)$", token.content, flags=re.M))
            elif directive == "{eval-rst":
                yield here, re.sub(r"^ *(\.\.|:[\w-]+:).*$|`[^`]*`", " ", token.content, flags=re.M)
            elif directive.startswith("{"):
                said = "" if directive == "{solution-start" else argument
                yield here, re.sub(r"`[^`]*`|\$[^$]*\$|\{\w+\}|<[^>]*>", " ", said)
                body = re.sub(r"^:[\w-]+:.*$", "", token.content, flags=re.M)
                yield from in_markdown(body, here + 1)


NOT_SAID = re.compile(r"""`[^`]*`|"[^"]*"|^ *(>>>|\.\.\.).*$|^Args:|^ +\w+: |^ {4}(?! ).*$""", flags=re.M)
"""Of a docstring: code, quoted text, examples and names of arguments."""


def in_python(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings, also those below a name, with the line where each begins."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, NOT_SAID.sub(" ", inspect.cleandoc(node.value.value))


@pytest.fixture(scope="module")
def dictionary():
    found = hunspell.Hunspell("en_US")
    for word in WORDS.read_text(encoding="utf-8").split():
        found.add(word)
    return found


def unknown(prose: Iterator[tuple[int, str]], dictionary: hunspell.Hunspell) -> list[str]:
    found = []
    for line, text in prose:
        chunks = (chunk.strip(".:!?'*`…") for chunk in CHUNK.findall(text.replace("’", "'")))
        words = [word for chunk in chunks if not SIGNS.search(chunk) for word in WORD.findall(chunk)]
        stems = [word.removesuffix("'s") for word in words]
        found += [f"line {line}: {stem}" for stem in stems if not NAME.search(stem) and not dictionary.spell(stem)]
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_word_of_a_document_is_in_the_dictionary_or_among_our_words(path, dictionary):
    """Mend it, or add it to `docs/words.txt`."""
    assert unknown(in_markdown(path.read_text(encoding="utf-8")), dictionary) == []


def test_every_word_of_a_docstring_is_in_the_dictionary_or_among_our_words(dictionary):
    found = {path: unknown(in_python(path.read_text(encoding="utf-8")), dictionary) for path in MODULES}
    assert {str(path.relative_to(ROOT)): words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A roofline of one matmul, as measured.\n\nIt is a teh one.", ["line 3: teh"]),
        ("# The behaviour\n\n- a neighbour", ["line 1: behaviour", "line 3: neighbour"]),
        ("| a | b |\n|---|---|\n| modelling | **ca**tt |", ["line 3: modelling", "line 3: catt"]),
        (":::{admonition} Bofore\n:class: noote\nGo *thare*.\n:::", ["line 1: Bofore", "line 3: thare"]),
        ("```{code-cell} ipython3\n---\nmystnb:\n  image:\n    alt: A lline\n---\nx = 'wrnog'\n```", ["line 1: lline"]),
        ("A [liink](a-plaace.md) and ![a piccture](at-hoome.png)", ["line 1: liink", "line 1: piccture"]),
        ("Chips' words, the chip’s, non-empty, mis-speled", ["line 1: speled"]),
        ("`wrnog`, {ref}`sec-wrnog`, {cite:p}`wrnog2020`, $wrnog$, `wrnog`s, 5ths, {eval}`wrnog`ths", []),
        ("(sec-wrnog)=\n```python\nwrnog\n```\n$$wrnog$$\n% wrnog", []),
        ("---\nwrnog: 1\n---\nSee HBMs of wrnog.py at https://wrnog.org and JobSet.", []),
    ],
)
def test_a_wrong_or_british_word_is_found_in_prose_and_nowhere_else(text, found, dictionary):
    assert unknown(in_markdown(text), dictionary) == found


def test_a_wrong_word_of_a_docstring_is_found(dictionary):
    text = 'WRNOG = 1  # wrnog\n"""A teh of `wrnog`."""\n\ndef f():\n    """Do.\n\n    Args:\n        wrnog: a thng.\n    """'
    assert sorted(unknown(in_python(text), dictionary)) == ["line 2: teh", "line 5: thng"]


def test_our_words_are_sorted_and_each_is_needed():
    words = WORDS.read_text(encoding="utf-8").splitlines()
    assert words == sorted(set(words), key=lambda word: (word.lower(), word))
    known = hunspell.Hunspell("en_US")
    assert [word for word in words if known.spell(word)] == []
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*DOCUMENTS, *MODULES]).lower()
    assert [word for word in words if word.lower() not in text] == []
