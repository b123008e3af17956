"""The drawing of the systolic array: each cell as the simulation has it."""

from collections import Counter
from xml.etree import ElementTree

import pytest

from scaling_lib.show import mxu
from scaling_lib.show.palette import COLORS
from scaling_lib.systolic import simulate
from tests.test_explorers import assert_room, labels

X = [[i - 2 * j for j in range(5)] for i in range(7)]
W = [[i + j for j in range(2)] for i in range(5)]
RUN = simulate(X, W, 3)


def marks(drawing):
    """How often each class of mark is drawn, the legend left out."""
    marked = ElementTree.fromstring(drawing.svg).iter()
    return Counter(mark.get("class") for mark in marked if mark.get("class")) - Counter({"loading": 1})


@pytest.mark.parametrize("number", range(len(RUN.cycles)))
def test_cells_are_drawn_as_the_simulation_has_them(number):
    cycle, drawn = RUN.cycles[number], marks(mxu.systolic(RUN, [number]))
    counts = {state: len(getattr(cycle, state)) for state in ("busy", "padding", "holding", "loading")}
    assert {state: drawn[state] for state in counts} == counts
    assert sum(drawn[state] for state in ("busy", "padding", "holding", "idle")) == 9


def test_busy_cells_show_their_activations():
    number = next(number for number, cycle in enumerate(RUN.cycles) if len(cycle.busy) == 4)
    shown = Counter(text for _, text in labels(mxu.systolic(RUN, [number]).svg))
    for place in RUN.cycles[number].busy:
        shown[f"{RUN.cycles[number].activations[place]:g}"] -= 1
    assert min(shown.values()) == 0
    assert shown[f"cycle {number}"] == 1


@pytest.mark.parametrize("cycles", [[0], [0, 3], [0, 3, 6], [1, 2, 5, 8], list(range(9))])
def test_labels_have_room(cycles):
    for side in (2, 3, 8):
        assert_room(mxu.systolic(simulate(X, W, side), cycles).svg)


def test_the_drawing_is_described_and_shows_itself():
    drawing = mxu.systolic(RUN, [0, 4])
    assert drawing._repr_html_() == drawing.svg
    assert ElementTree.fromstring(drawing.svg).get("aria-label") == repr(drawing) == drawing.description
    assert "3 × 3 cells" in repr(drawing)
    assert "cycle 0: waits with a weight 1, takes a weight 1; cycle 4: multiplies 3" in repr(drawing)
    assert COLORS["mxu"] in drawing.svg
    assert COLORS["vmem"] in drawing.svg


@pytest.mark.parametrize("cycles", [[], [-1], [0, len(RUN.cycles)]])
def test_cycles_that_are_none_are_refused(cycles):
    with pytest.raises(ValueError, match=rf"is not among the {len(RUN.cycles)} cycles of this run"):
        mxu.systolic(RUN, cycles)
