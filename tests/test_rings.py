"""Collectives moved piece by piece around a ring or along a line, held to their prices; and the drawing of such a run."""

import functools
import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.patches import Circle

from scaling_lib.collectives import Group, all_gather, all_reduce, all_to_all, reduce_scatter
from scaling_lib.collectives import rings as simulated
from scaling_lib.collectives.rings import Piece, run
from scaling_lib.show import plots, rings
from scaling_lib.show.palette import COLORS

mpl.use("agg")

PRICES = {"all-gather": all_gather, "reduce-scatter": reduce_scatter, "all-reduce": all_reduce, "all-to-all": all_to_all}
WIRES = {"ring": (2, True), "ring, one way": (1, True), "line": (2, False)}
V = 7e6
ANY = st.builds(
    lambda kind, n, wires: run(kind, n, V, ways=WIRES[wires][0], wraps=WIRES[wires][1]),
    st.sampled_from([*PRICES]),
    st.integers(1, 9),
    st.sampled_from([*WIRES]),
)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def of(kind, n, wires="ring", array_bytes=V):
    ways, wraps = WIRES[wires]
    return run(kind, n, array_bytes, ways=ways, wraps=wraps)


def price(moved):
    group = Group(sizes=(moved.n,), wraps=(moved.wraps,), ways=moved.ways, link_bytes_per_s=1.0, hop_s=1.0)
    return PRICES[moved.kind](moved.array_bytes, group)


# Prices.


@pytest.mark.parametrize("wires", WIRES)
@pytest.mark.parametrize("kind", PRICES)
@pytest.mark.parametrize("n", range(2, 10))
def test_the_busiest_link_carries_what_is_priced(kind, n, wires):
    moved = of(kind, n, wires)
    cost = price(moved)
    assert moved.sent_bytes == pytest.approx(cost.sent_bytes, rel=1e-12)
    assert len(moved.steps) == cost.latency_s  # a hop takes a second here
    if (kind, wires) != ("all-reduce", "line"):
        assert moved.busiest_bytes == pytest.approx(cost.link_bytes, rel=1e-12)
    if (kind, wires) != ("all-to-all", "line"):
        assert moved.in_turn_bytes == pytest.approx(cost.link_bytes, rel=1e-12)


def test_the_textbooks_ring():
    # V/W with W both ways, but for the n - 1 parts of n that a device receives
    assert of("all-gather", 4, array_bytes=8e6).busiest_bytes == 8e6 / 2 * 3 / 4
    assert of("all-gather", 4, "line", array_bytes=8e6).busiest_bytes == 8e6 * 3 / 4
    assert of("all-to-all", 4, array_bytes=8e6).busiest_bytes == 4e6


@pytest.mark.parametrize("n", range(2, 10))
def test_on_a_line_an_all_reduce_loads_no_link_with_more_than_the_array(n):
    moved = of("all-reduce", n, "line")
    assert list(moved.link_bytes.values()) == pytest.approx([V] * 2 * (n - 1), rel=1e-12)
    assert price(moved).link_bytes == pytest.approx(2 * (n - 1) / n * V)


@pytest.mark.parametrize("n", range(3, 10))
def test_on_a_line_an_all_to_all_takes_longer_in_turn_than_its_busiest_link(n):
    moved = of("all-to-all", n, "line")
    assert moved.in_turn_bytes == pytest.approx((n - 1) / 2 * V)  # as one way around a ring
    assert 1.4 < moved.in_turn_bytes / moved.busiest_bytes < 2


@given(ANY)
def test_all_links_of_a_ring_are_equally_busy_in_every_step(moved):
    if moved.wraps:
        for step in moved.steps:
            assert len(step.sends) == moved.n * moved.ways
            assert len({send.bytes for send in step.sends}) == 1


# Moves.


@given(ANY)
def test_a_device_sends_what_it_holds_to_a_neighbor_that_then_has_it(moved):
    states = [moved.start, *(step.held for step in moved.steps)]
    for held, step, after in zip(states[:-1], moved.steps, states[1:], strict=True):
        for send in step.sends:
            assert set(send.pieces) <= held[send.source]
            assert send.to == (send.source + send.way) % moved.n
            assert moved.wraps or abs(send.to - send.source) == 1
            assert moved.ways == 2 or send.way == 1
            for piece in send.pieces:
                assert any((p.part, p.half) == (piece.part, piece.half) and p.of >= piece.of for p in after[send.to])
            whole = moved.array_bytes / moved.n
            assert send.bytes == pytest.approx(sum(whole if piece.half is None else whole / 2 for piece in send.pieces))


@given(ANY)
def test_every_contribution_to_every_part_arrives_once(moved):
    everyone, halves = frozenset(range(moved.n)), {piece.half for held in moved.start for piece in held}
    end = moved.steps[-1].held if moved.steps else moved.start
    for device, held in enumerate(end):
        parts = {device} if moved.kind in ("reduce-scatter", "all-to-all") else everyone
        assert {(piece.part, piece.half) for piece in held} == set(itertools.product(parts, halves))
        if moved.kind == "all-gather":
            assert all(piece.of == {piece.part} for piece in held)
        elif moved.kind == "all-to-all":
            assert len(held) == moved.n * len(halves)
            assert {next(iter(piece.of)) for piece in held} == everyone
        else:
            assert all(piece.of == everyone for piece in held)


@given(ANY)
def test_what_is_added_or_passed_on_is_never_doubled_or_lost(moved):
    if moved.kind in ("reduce-scatter", "all-to-all"):
        total = sorted((p.part, i, str(p.half)) for held in moved.start for p in held for i in p.of)
        for step in moved.steps:
            assert sorted((p.part, i, str(p.half)) for held in step.held for p in held for i in p.of) == total


def test_the_part_of_the_opposite_device_comes_in_halves_by_both_ways():
    last = of("all-gather", 4).steps[-1]
    into = [send for send in last.sends if send.to == 0]
    assert sorted((send.way, *((p.part, p.half) for p in send.pieces)) for send in into) == [(-1, (2, 1)), (1, (2, 0))]
    assert all(piece.half is None for send in of("all-gather", 5).steps[-1].sends for piece in send.pieces)


def test_two_devices_of_a_ring_have_two_links():
    moved = of("all-gather", 2)
    assert moved.link_bytes == dict.fromkeys([(0, 1), (0, -1), (1, 1), (1, -1)], V / 4)


def test_one_step_in_full():
    """A reduce-scatter of three, one way: part i ends at device i, so that it starts at the device after."""
    step = run("reduce-scatter", 3, 3.0, ways=1).steps[0]
    assert {(send.source, send.to, send.pieces) for send in step.sends} == {
        (i, (i + 1) % 3, (Piece((i - 1) % 3, frozenset({i})),)) for i in range(3)
    }
    assert step.held[0] == {Piece(0, frozenset({0})), Piece(1, frozenset({0, 2}))}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: run("allgather", 4, V), "kind='allgather' is unknown; did you mean 'all-gather'"),
        (lambda: run("all-gather", 0, V), "n=0 is not a size"),
        (lambda: run("all-gather", 33, V), "n=33 is more than 32 devices.*price it"),
        (lambda: run("all-gather", 4, -1), "array_bytes=-1 is too small"),
        (lambda: run("all-gather", 4, V, ways=3), "ways=3 is neither 1 nor 2"),
        (lambda: run("all-gather", 4, V, ways=1, wraps=False), "ways=1 on a line.*use ways=2"),
        (lambda: rings.draw(of("all-gather", 9)), "run has 9 devices; up to 8 can be drawn"),
    ],
)
def test_what_cannot_be_moved_says_why(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_the_largest_run_ends():
    assert len(run("all-to-all", simulated.MOST, V).steps) == simulated.MOST // 2


# The drawing.

drawn = functools.cache(rings.draw)  # by two tests, that only read it
DRAWN = [of(kind, n, wires) for kind in PRICES for n, wires in [(4, "ring"), (3, "ring"), (5, "line"), (3, "ring, one way")]]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def cells(ax, kind):
    return [patch for patch in ax.patches if patch.get_gid() == kind]


@pytest.mark.parametrize("moved", DRAWN, ids=lambda moved: f"{moved.kind} {moved.n} {moved.ways} {moved.wraps}")
def test_every_step_is_drawn_with_its_devices_arrows_and_contents(moved):
    ax = drawn(moved)
    states = [moved.start, *(step.held for step in moved.steps)]
    assert sum(isinstance(patch, Circle) for patch in ax.patches) == moved.n * len(states)
    around = sum(not 0 <= send.source + send.way < moved.n for step in moved.steps for send in step.sends)
    assert texts(ax).count("") == sum(len(step.sends) for step in moved.steps) + around  # arrows are texts without a word
    held = sum(len(piece.of) for state in states for pieces in state for piece in pieces)
    assert len(cells(ax, "kept")) + len(cells(ax, "arrived")) == held
    assert {to_hex(cell.get_facecolor(), keep_alpha=False).upper() for cell in cells(ax, "arrived")} == {COLORS["ici"]}


@pytest.mark.parametrize("moved", DRAWN, ids=lambda moved: f"{moved.kind} {moved.n} {moved.ways} {moved.wraps}")
def test_the_bar_arrives_at_the_bytes_of_the_formula(moved):
    ax = drawn(moved)
    wide = [bar.get_width() for bar in cells(ax, "so far")]
    assert wide[0] == 0
    assert wide == sorted(wide)
    assert wide[-1] == pytest.approx(6.5)
    formula = " ".join(texts(ax)).partition("link carries ")[2].partition(" = ")[0]
    spelled = formula.replace("−", "-").replace("·", "*").replace("²", "**2").replace("n - 1)/n * V/2", "n - 1)/n * V / 2")
    assert eval(spelled, {"n": moved.n, "V": V}) == pytest.approx(moved.busiest_bytes)


@pytest.mark.parametrize("kind", ["reduce-scatter", "all-to-all"])
def test_cells_lie_in_the_row_the_column_and_the_half_of_what_arrived(kind):
    moved = of(kind, 4)
    ax = rings.draw(moved)
    step, before = moved.steps[0], {(i, p.part, j, p.half) for i, held in enumerate(moved.start) for p in held for j in p.of}
    rows = [text.get_position()[1] for text in ax.texts if text.get_ha() == "right" and text.get_text().isdigit()][4:8]
    circles = [patch.center[0] for patch in ax.patches if isinstance(patch, Circle)][4:8]
    seen = set()
    for cell in cells(ax, "arrived"):
        x, y = cell.get_x() + cell.get_width() / 2, cell.get_y() + cell.get_height() / 2
        device = min(range(4), key=lambda i: abs(circles[i] - x))
        part = min(range(4), key=lambda i: abs(rows[i] - y))
        if abs(rows[part] - y) < 0.13:  # of this step
            column = 1.5 + (x - circles[device]) / cell.get_width()
            seen.add((device, part, round(column), int(y < rows[part])))
    assert seen == {(i, p.part, j, p.half) for i, held in enumerate(step.held) for p in held for j in p.of} - before


def test_what_arrives_in_a_step_is_what_the_simulation_says():
    ax = rings.draw(of("all-gather", 4, array_bytes=4e6))
    assert [len(cells(ax, kind)) for kind in ("kept", "arrived")] == [8 + 8 + 24, 16 + 8]  # in halves
    assert [text for text in texts(ax) if text.startswith("step")] == [
        "step 1: 1 MB per link, each way",
        "step 2: 500 kB per link, each way",
    ]
    assert [text for text in texts(ax) if text.startswith("so far")] == [
        f"so far {x} of 1.5 MB" for x in ("0 B", "1 MB", "1.5 MB")
    ]
    assert texts(ax).count("1 MB") == texts(ax).count("500 kB") == 8


@pytest.mark.parametrize(
    ("kind", "wires", "where"), [("all-gather", "line", "per link, each way"), ("all-to-all", "line", "over the busiest links")]
)
def test_the_caption_says_over_which_links(kind, wires, where):
    assert where in next(text for text in texts(rings.draw(of(kind, 4, wires))) if text.startswith("step 1"))


@pytest.mark.parametrize("n", [2, 4, 5, 8])
@pytest.mark.parametrize("kind", PRICES)
def test_words_have_room(kind, n):
    plots.use_style()
    ax = rings.draw(run(kind, n, 1.2345e6))
    written = [text for text in ax.texts if text.get_text()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in written]
    page = ax.figure.bbox
    assert [text for text, box in boxes if box.x0 < page.x0 or box.x1 > page.x1 or box.y0 < page.y0 or box.y1 > page.y1] == []
    assert [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)] == []
