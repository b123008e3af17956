"""What all explorers share: the view of a state, the controls that hold it, and the widget that keeps them in step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from textwrap import dedent
from typing import Any
from urllib.parse import urlencode

import ipywidgets as widgets

from scaling_lib import units

LINK: dict[str, str] = {}
"""What the page's address asks for: `explorer`, the name of one, and values for its controls. Filled before cells run."""

OWN = "your own"
"""The entry of a list of ready-made ones that stands for what the reader wrote."""

_COPY = (
    "const code = this.parentNode.querySelector('code'), say = text => { this.textContent = text };"
    "getSelection().selectAllChildren(code);"  # so that the keyboard can copy where a page may not
    "navigator.clipboard?.writeText(code.textContent).then(() => say('Copied'), () => say('Selected: now copy it'))"
)

_PLACE = "display:block;white-space:pre;overflow-x:auto"


@dataclass(frozen=True)
class View:
    """What an explorer shows for one state, as HTML: the numbers, the figure, the library call, and a link to the state."""

    numbers: str
    svg: str
    python: str
    link: str

    @property
    def static(self) -> str:
        """What stands in print, and on a page without JavaScript."""
        return self.svg + self.numbers


@dataclass(frozen=True)
class Control:
    """A widget of an explorer, the state's value in what it holds, and the place beside it for what is wrong with that.

    Args:
        widget: a core widget with a `value`.
        read: makes the state's value of it, or raises `ValueError` with words for the reader.
        problem: shows those words.
    """

    widget: Any
    read: Callable[[Any], Any]
    problem: Any

    def fill(self, name: str, text: str) -> None:
        """Set the widget from text, as an address holds it.

        Raises:
            ValueError: where the widget cannot hold it; its value stays.
        """
        options = getattr(self.widget, "options", None)
        if options is not None:
            offered = {str(option): option for option in options}
            if text not in offered:
                raise ValueError(f"{name}={text!r} is not offered here; {units.near(text, offered)}")
            self.widget.value = offered[text]
        elif isinstance(self.widget, widgets.IntSlider):
            low, high = self.widget.min, self.widget.max
            if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
                raise ValueError(f"{name}={text!r} is not a whole number from {low} to {high}")
            self.widget.value = int(text)
        else:
            self.read(text)
            self.widget.value = text

    def say(self, words: str) -> None:
        """Show what is wrong, or nothing. Lines after the first point at a place in the text, so they keep their columns."""
        first, *more = words.split("\n")
        place = f'<code tabindex="0" style="{_PLACE}">{escape(dedent(chr(10).join(more)))}</code>' if more else ""
        text = f'<span class="explorer-problem" role="status" style="overflow-wrap:anywhere">⚠ {escape(first)}{place}</span>'
        self.problem.value = text if words else ""


class Explorer(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Controls above the numbers and the figure that they lead to.

    While a control holds something the library refuses, its words stand beside that control, and the last good picture stays.

    Args:
        name: of the explorer, in links.
        controls: by the name of their value in the state.
        view: makes the picture of a state.
        prepare: runs before each new picture, for controls that depend on others.
        joint: the control beside which it is said that values do not go together, or what finds it from the words.
        helpers: widgets above the controls that are no part of the state; a change of one runs `prepare`, too.
        groups: names of controls that stand side by side where there is room; the others have a row each.

    Attributes:
        name: of the explorer, in links.
        state: the values shown: those of the controls when they last made sense.
        shown: the view of that state.
    """

    # IPython asks for this before all else, and ipywidgets 7 would answer with its own; None lets it ask for the bundle.
    _ipython_display_ = None

    def __init__(
        self,
        name: str,
        controls: Mapping[str, Control],
        view: Callable[..., View],
        prepare: Callable[[], None] = lambda: None,
        joint: str | Callable[[str], str] = "chip",
        helpers: Sequence[Any] = (),
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        self.name, self.controls, self._view, self._prepare, self._joint = name, controls, view, prepare, joint
        self.state: dict[str, Any] = {}
        self.shown = View("", "", "", "")
        self._updating = False
        self._outputs = tuple(widgets.HTML(layout=widgets.Layout(max_width="100%")) for _ in range(3))
        self._update()
        refused = self._follow_link() if LINK.get("explorer") == name else {}
        for widget in (*helpers, *(control.widget for control in controls.values())):
            widget.observe(self._update, names="value")
        for field, words in refused.items():
            controls[field].say(words)
        each = {field: _row(control.widget, control.problem) for field, control in controls.items()}
        first = {group[0]: widgets.Box([each[field] for field in group], layout=_flow("min(100%, 580px)")) for group in groups}
        rest = {field for group in groups for field in group[1:]}
        rows = [*map(_row, helpers), *(first.get(field, row) for field, row in each.items() if field not in rest)]
        super().__init__(children=(*rows, *self._outputs), layout=widgets.Layout(max_width="100%"))
        self.add_class("explorer")
        self.add_class(f"explorer-{name}")

    def _follow_link(self) -> dict[str, str]:
        """Take the state from the page's address; what cannot be taken is left out, and said by field."""
        refused = {}
        for field, control in self.controls.items():
            if field in LINK:
                try:
                    control.fill(field, LINK[field])
                except ValueError as error:
                    refused[field] = f"{error}; the link's value was left out"
                self._update()
        return refused

    def _update(self, _change: object = None) -> None:
        if self._updating:  # `_prepare` moves a control itself
            return
        self._updating = True
        try:
            self._prepare()
            problems, state = {}, {}
            for field, control in self.controls.items():
                try:
                    state[field] = control.read(control.widget.value)
                except ValueError as error:
                    problems[field] = str(error)
            if not problems:
                try:
                    self._show(state, self._view(**state))
                except ValueError as error:  # each value is fine, but not together
                    joint = self._joint(str(error)) if callable(self._joint) else self._joint
                    problems[joint] = str(error)
            for field, control in self.controls.items():
                control.say(problems.get(field, ""))
        finally:
            self._updating = False

    def _show(self, state: dict[str, Any], view: View) -> None:
        self.state, self.shown = state, view
        for output, html in zip(self._outputs, (view.svg, view.numbers, view.python + view.link), strict=True):
            output.value = html

    def _repr_mimebundle_(self, **_kwargs: object) -> dict[str, Any]:
        """The live widgets, and the same state as plain HTML for print and for pages without JavaScript."""
        return {
            "text/plain": f"{self.name} explorer: {self.state}",
            "text/html": self.shown.static,
            "application/vnd.jupyter.widget-view+json": {"version_major": 2, "version_minor": 0, "model_id": self.model_id},
        }


def words_and_table(sentence: str, rows: Mapping[str, str]) -> str:
    """The numbers of a view: a sentence, which is HTML, above a table of plain texts by the name of their row."""
    table = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows.items())
    words = f'<p class="explorer-words">{sentence}</p>'
    return f'{words}<table class="explorer-numbers" style="text-align:left"><tbody>{table}</tbody></table>'


def python(code: str) -> str:
    """The library call behind a view, with a button that copies it."""
    return (
        f'<pre class="explorer-python"><code>{escape(code)}</code></pre>'
        f'<button type="button" class="explorer-copy" onclick="{escape(_COPY)}">Copy as Python</button>'
    )


def link(explorer: str, **state: object) -> str:
    """A link to a state of an explorer."""
    address = f"?{urlencode({'explorer': explorer, **state})}#explorer-{explorer}"
    return f'<a class="explorer-link" style="margin-left:0.8em" href="{escape(address)}">Link to this state</a>'


def control(
    kind: Callable[..., Any], description: str, read: Callable[[Any], Any] = lambda value: value, **traits: Any
) -> Control:
    """A widget that fits a phone, and its place for words; `read` makes the state's value of what it holds."""
    wide = widgets.Layout(width="420px", max_width="100%")
    widget = kind(description=description, style={"description_width": "150px"}, layout=wide, **traits)
    return Control(widget, read, widgets.HTML(layout=widgets.Layout(max_width="100%")))


def narrow(of: Control, width: str = "156px") -> Control:
    """A control as wide as two of them side by side have on a phone; its label has room for 13 letters."""
    of.widget.style.description_width, of.widget.layout.width = "92px", width
    return of


def dropdown(description: str, options: Any) -> Control:
    """A choice among options."""
    return control(widgets.Dropdown, description, options=options, value=options[0])


def size_field(name: str, description: str) -> Control:
    """A field for the size of a dimension, typed in freely."""
    return control(widgets.Text, description, lambda text: read_size(name, text), value="1")


def read_size(name: str, text: str) -> int:
    """The array dimension in typed text: digits, with commas between thousands if you like, or "8e3".

    Raises:
        ValueError: with the library's own words, for anything else.
    """
    typed = text.strip()
    if re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", typed):
        typed = typed.replace(",", "")
    return units.size(name, _number(typed))


def _number(typed: str) -> object:
    """The number that text spells, or the text itself where it spells none."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(typed)
    return typed


def _row(*parts: Any) -> Any:
    return widgets.HBox(parts, layout=_flow())


def _flow(max_width: str = "100%") -> Any:
    return widgets.Layout(display="flex", flex_flow="row wrap", align_items="center", max_width=max_width)


def follow_choice(choice: Any, text: Any, write: Callable[[str], str], name: Callable[[str], str]) -> Callable[[], None]:
    """What keeps a list of ready-made entries and the text field that they fill in step: call it when either changed.

    Args:
        choice: the widget with the list; one entry is `OWN`, for text of the reader's.
        text: the widget with the text.
        write: the text of an entry.
        name: the entry that a text is, or `OWN`. Where it raises `ValueError`, which is said beside the field, it is `OWN`.
    """
    last = OWN

    def follow() -> None:
        nonlocal last
        if choice.value not in (last, OWN):
            text.value = write(choice.value)
        last = OWN
        with suppress(ValueError):
            last = name(text.value)
        choice.value = last

    return follow
