"""Explorers: sliders and fields over the core, the same in Jupyter, in Colab and on a page of the book without a server.

A view function turns one state of the controls into HTML; an `Explorer` keeps a view in step with its controls. Everything
here must load in the reader's browser: pure Python, ipywidgets that versions 7 and 8 share, figures as SVG text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode

import ipywidgets as widgets

from scaling_lib import hardware, units
from scaling_lib import roofline as rl
from scaling_lib.hardware import Chip
from scaling_lib.show import svg

LINK: dict[str, str] = {}
"""What the page's address asks for: `explorer`, the name of one, and values for its controls. Filled before cells run."""

STORED = ("bf16", "fp8", "int8", "fp4", "int4")
"""Formats that arrays are offered in; whether a chip multiplies in them is another question."""

SIZES = tuple(2**power for power in range(8, 16))
MAX_LOG2_M = 14

_COPY = (
    "const code = this.parentNode.querySelector('code'), say = text => { this.textContent = text };"
    "getSelection().selectAllChildren(code);"  # so that the keyboard can copy where a page may not
    "navigator.clipboard?.writeText(code.textContent).then(() => say('Copied'), () => say('Selected: now copy it'))"
)
_PARTS = {"mxu": "matrix unit", "hbm": "memory"}


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


def roofline_view(chip: str, dtype: str, log2_m: int, k: int, n: int) -> View:
    """The roofline explorer for one state: X[m, k] · W[k, n], all in one dtype.

    Args:
        chip: name of a chip.
        dtype: of all arrays and of the arithmetic.
        log2_m: m, the rows of X, as a power of two.
        k: the contracted dimension.
        n: columns of W.

    Raises:
        ValueError: for what the library refuses: an unknown chip, a dtype for which it has no peak, a size below 1.
    """
    m = 2**log2_m
    link = _link("roofline", chip=chip, dtype=dtype, log2_m=log2_m, k=k, n=n)
    return _view(hardware.chip(chip), m, k, n, dtype, dtype, f"m = {m:,}", link)


def matmul_view(m: int, k: int, n: int, x: str, w: str, chip: str) -> View:
    """The "your matmul" explorer for one state: X[m, k] · W[k, n], X and W stored in dtypes of their own.

    Args:
        m: rows of X.
        k: the contracted dimension.
        n: columns of W.
        x: dtype X and Y are stored in.
        w: dtype W is stored in.
        chip: name of a chip.

    Raises:
        ValueError: for what the library refuses, such as a dtype of the arithmetic for which the chip has no peak.
    """
    link = _link("matmul", m=m, k=k, n=n, x=x, w=w, chip=chip)
    return _view(hardware.chip(chip), m, k, n, x, w, "your matmul", link)


def _view(chip: Chip, m: int, k: int, n: int, x: str, w: str, label: str, link: str) -> View:
    cost = rl.matmul(m, k, n, x=x, w=w)
    critical = rl.critical_batch(chip, k=k, n=n, x=x, w=w)
    numbers = _numbers(chip, cost, critical, f"X[{m:,}, {k:,}] in {x} · W[{k:,}, {n:,}] in {w}")
    return View(numbers, svg.roofline(chip, cost, label), _python(chip, m, k, n, x, w), link)


def _numbers(chip: Chip, cost: rl.Cost, critical: rl.CriticalBatch, shapes: str) -> str:
    """One sentence, and a table of what the library says of a cost."""
    (dtype,) = cost.flops
    limits, rate = rl.bound(cost, chip), units.rate_unit(dtype)
    counted = rate.replace("/s", "s")
    attained = f"{units.human(limits.flops_per_s, rate)}, {limits.flops_per_s / chip.flops_per_s(dtype):.1%} of the peak"
    words = f"<b>{_PARTS[limits.binds].capitalize()} binds</b> on {chip}: at most {attained}."
    rows = {
        "operations": units.human(cost.total_flops, counted),
        "bytes moved": units.human(cost.bytes(), "B"),
        "intensity": f"{units.human(cost.intensity())} {counted} per byte; the ridge is {units.human(rl.ridge(chip, dtype))}",
        **{f"{_PARTS[part]} ({part})": units.human(seconds, "s") for part, seconds in limits.parts_s.items()},
        "maximum, all overlaps": units.human(limits.lower_s, "s"),
        "sum, nothing overlaps": units.human(limits.upper_s, "s"),
        "binds": limits.binds,
        f"attained {rate}": attained,
        "critical batch, exact": "no m is enough" if critical.exact is None else f"m = {units.human(critical.exact, digits=4)}",
        "critical batch, rule of thumb": f"m = {units.human(critical.asymptotic, digits=4)}",
    }
    table = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows.items())
    sentence = f'<p class="explorer-words">{escape(shapes)}. {words}</p>'
    return f'{sentence}<table class="explorer-numbers" style="text-align:left"><tbody>{table}</tbody></table>'


def _python(chip: Chip, m: int, k: int, n: int, x: str, w: str) -> str:
    code = f"""\
from scaling_lib import roofline
from scaling_lib.hardware import chip

stored = {{"x": "{x}", "w": "{w}"}}
cost = roofline.matmul({m}, {k}, {n}, **stored)
limits = roofline.bound(cost, chip("{chip}"))
critical = roofline.critical_batch(
    chip("{chip}"), k={k}, n={n}, **stored
)
print(limits)
print(critical)"""
    return (
        f'<pre class="explorer-python"><code>{escape(code)}</code></pre>'
        f'<button type="button" class="explorer-copy" onclick="{escape(_COPY)}">Copy as Python</button>'
    )


def _link(explorer: str, **state: object) -> str:
    address = f"?{urlencode({'explorer': explorer, **state})}#explorer-{explorer}"
    return f'<a class="explorer-link" href="{escape(address)}">Link to this state</a>'


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
        """Show what is wrong, or nothing."""
        text = f'<span class="explorer-problem" role="status" style="overflow-wrap:anywhere">⚠ {escape(words)}</span>'
        self.problem.value = text if words else ""


class Explorer(widgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """Controls above the numbers and the figure that they lead to.

    While a control holds something the library refuses, its words stand beside that control, and the last good picture stays.

    Args:
        name: of the explorer, in links.
        controls: by the name of their value in the state; one is called "chip".
        view: makes the picture of a state.
        prepare: runs before each new picture, for controls that depend on others.

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
    ) -> None:
        self.name, self.controls, self._view, self._prepare = name, controls, view, prepare
        self.state: dict[str, Any] = {}
        self.shown = View("", "", "", "")
        self._updating = False
        self._outputs = tuple(widgets.HTML(layout=widgets.Layout(max_width="100%")) for _ in range(3))
        self._update()
        refused = self._follow_link() if LINK.get("explorer") == name else {}
        for control in controls.values():
            control.widget.observe(self._update, names="value")
        for field, words in refused.items():
            controls[field].say(words)
        rows = [_row(control.widget, control.problem) for control in controls.values()]
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
                except ValueError as error:  # each value is fine, but not together on this chip
                    problems["chip"] = str(error)
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


def roofline_explorer(*, chip: str = "v5e", dtype: str = "bf16", log2_m: int = 5, k: int = 8192, n: int = 8192) -> Explorer:
    """Sliders over X[m, k] · W[k, n] on a chip: the time of each part, what binds, and the point on the roofline.

    Args:
        chip: where to start; the reader chooses among all chips with a sourced peak and HBM bandwidth.
        dtype: of all arrays and of the arithmetic, among those the chip has a peak for.
        log2_m: m, the rows of X, as a power of two.
        k: the contracted dimension, a power of two.
        n: columns of W, a power of two.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    chips = _chips()
    controls = {
        "chip": _dropdown("chip", [*chips]),
        "dtype": _dropdown("number format", [*next(iter(chips.values())).peak_flops_per_s]),
        "log2_m": _control(widgets.IntSlider, "log2 of m, rows of X", value=0, min=0, max=MAX_LOG2_M),
        "k": _control(widgets.SelectionSlider, "k, contracted", options=SIZES, value=SIZES[0]),
        "n": _control(widgets.SelectionSlider, "n, columns of W", options=SIZES, value=SIZES[0]),
    }
    of_chip, of_dtype = controls["chip"].widget, controls["dtype"].widget

    def offer_dtypes() -> None:
        """Offer the dtypes the chip has a peak for; keep the one chosen where it is among them."""
        offered, chosen = tuple(chips[of_chip.value].peak_flops_per_s), of_dtype.value
        if offered != tuple(of_dtype.options):
            of_dtype.options = offered
            of_dtype.value = chosen if chosen in offered else offered[0]

    controls["chip"].fill("chip", hardware.chip(chip).name)
    offer_dtypes()
    for field, value in {"dtype": units.dtype_name(dtype), "log2_m": log2_m, "k": k, "n": n}.items():
        controls[field].fill(field, str(value))
    return Explorer("roofline", controls, roofline_view, offer_dtypes)


def matmul_explorer(
    *, m: int = 32, k: int = 8192, n: int = 28672, x: str = "bf16", w: str = "int8", chip: str = "v5e"
) -> Explorer:
    """Your matmul: sizes typed in freely, formats of X and W chosen apart, on a chip.

    Args:
        m: rows of X.
        k: the contracted dimension.
        n: columns of W.
        x: dtype X and Y are stored in.
        w: dtype W is stored in.
        chip: where it runs.

    Raises:
        ValueError: for a value that the control cannot hold.
    """
    controls = {
        "m": _size_field("m", "m, rows of X"),
        "k": _size_field("k", "k, contracted"),
        "n": _size_field("n", "n, columns of W"),
        "x": _dropdown("X stored in", STORED),
        "w": _dropdown("W stored in", STORED),
        "chip": _dropdown("chip", [*_chips()]),
    }
    start = {"m": m, "k": k, "n": n, "x": units.dtype_name(x), "w": units.dtype_name(w), "chip": hardware.chip(chip).name}
    for field, value in start.items():
        controls[field].fill(field, str(value))
    matmul_view(**{field: control.read(control.widget.value) for field, control in controls.items()})  # refuses what it must
    return Explorer("matmul", controls, matmul_view)


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


def _chips() -> dict[str, Chip]:
    """The chips that have a roofline: a sourced peak and a sourced HBM bandwidth."""
    return {c.name: c for c in hardware.CHIPS.values() if c.peak_flops_per_s and "hbm_bytes_per_s" in c.figures}


def _control(
    kind: Callable[..., Any], description: str, read: Callable[[Any], Any] = lambda value: value, **traits: Any
) -> Control:
    wide = widgets.Layout(width="420px", max_width="100%")
    widget = kind(description=description, style={"description_width": "150px"}, layout=wide, **traits)
    return Control(widget, read, widgets.HTML(layout=widgets.Layout(max_width="100%")))


def _dropdown(description: str, options: Any) -> Control:
    return _control(widgets.Dropdown, description, options=options, value=options[0])


def _size_field(name: str, description: str) -> Control:
    return _control(widgets.Text, description, lambda text: read_size(name, text), value="1")


def _row(*parts: Any) -> Any:
    return widgets.HBox(parts, layout=widgets.Layout(flex_flow="row wrap", align_items="center", max_width="100%"))
