"""Who holds what: the parts are those that JAX gives, and the drawing shows them."""

import itertools
import re
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest

from scaling_lib.sharding import Sharding, matmul_plan
from scaling_lib.show import holdings, svg
from scaling_lib.show.holdings import Part, draw, draw_plan, held
from scaling_lib.xla import arrays, simulate
from tests.test_explorers import assert_room

IJK = {"I": 8192, "J": 4096, "K": 16384}


@pytest.mark.parametrize(
    "text", ["A[I_X, J]", "A[I_XY, J]", "A[I_YX, J]", "A[I_Y, J_ZX]", "T[I, J_Z, K_X]", "v[I_ZYX]", "A[I, J]", "s[]"]
)
def test_parts_are_those_that_jax_gives(text):
    mesh = simulate.mesh(X=3, Y=2, Z=2)
    rank = len(arrays.dimensions(text))
    shape = (12 * 5, 12 * 7, 12 * 11)[:rank]
    parts = held(text, dict(mesh.shape))
    cut = [1 + max(part.at[dim] for part in parts.values()) for dim in range(rank)]
    for device, index in arrays.sharding(mesh, text).devices_indices_map(shape).items():
        (where,) = np.argwhere(mesh.devices == device)
        starts = [number * size // n for number, size, n in zip(parts[tuple(where)].at, shape, cut, strict=True)]
        assert starts == [each.start or 0 for each in index]
    assert len(parts) == 12


def test_terms_of_a_sum_differ_where_copies_would_be_equal():
    mesh = {"X": 2, "Y": 3}
    assert held("A[I_X, J]{U_Y}", mesh)[1, 2] == Part((1, 0), (2,))
    assert len(set(held("A[I_X, J]{U_Y}", mesh).values())) == 6
    assert len(set(held("A[I_X, J]", mesh).values())) == 2


def paths(drawing, kind):
    return ElementTree.fromstring(drawing.svg).findall(f"{{*}}path[@class='{kind}']")


def boxes(drawing, kind="part"):
    """Left, top, width and height of each box, and its color."""
    found = []
    for path in paths(drawing, kind):
        for box in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", path.get("d")):
            found.append((*map(float, box), path.get("fill")))
    return found


def test_copies_have_one_color_and_different_parts_have_others():
    def colors(array, **mesh):
        return sorted(Counter(color for *_, color in boxes(draw(array, mesh=mesh))).values())

    assert colors("A[I_X, J]", X=4, Y=2) == [2] * 4
    assert colors("A[I, J]", X=4, Y=2) == [8]
    assert colors("A[I_XY, J]", X=4, Y=2) == [1] * 8
    assert colors("A[I_X, J]{U_Y}", X=4, Y=2) == [1] * 8


def test_a_part_lies_where_it_belongs_in_the_whole():
    """Rows go down and columns to the right; the outermost axis makes the largest steps."""
    drawing = draw("A[I_XY, J]", mesh={"X": 2, "Y": 2})
    wholes = device_rows(drawing)
    inside = [(y - top) / high for (_, y, *_), (_, top, _, high, _) in zip(by_device(drawing), wholes, strict=True)]
    assert inside == pytest.approx([0, 0.25, 0.5, 0.75], abs=0.01)
    other = draw("A[I_YX, J]", mesh={"X": 2, "Y": 2})
    inside = [(y - top) / high for (_, y, *_), (_, top, _, high, _) in zip(by_device(other), wholes, strict=True)]
    assert inside == pytest.approx([0, 0.5, 0.25, 0.75], abs=0.01)
    right = draw("A[I, J_X]", mesh={"X": 2})
    (x0, _, wide, high, _), (x1, *_) = by_device(right)
    whole = boxes(right, "whole")
    assert high == whole[0][3]
    assert wide == pytest.approx(whole[0][2] / 2, abs=0.1)
    assert (x0 - whole[0][0], x1 - whole[1][0]) == pytest.approx((0, wide), abs=0.1)


def device_rows(drawing):
    """The outlines of the whole in the order of the devices: (0, 0), (0, 1), (1, 0), (1, 1)."""
    return sorted(boxes(drawing, "whole"), key=lambda box: box[1::-1])


def by_device(drawing):
    """The filled boxes in the order of the devices."""
    wholes = device_rows(drawing)
    return [
        next(box for box in boxes(drawing) if x <= box[0] < x + wide and y <= box[1] < y + high) for x, y, wide, high, _ in wholes
    ]


def test_sums_are_hatched_and_nothing_else_is():
    assert len(paths(draw("A[I, J]{U_X}", mesh={"X": 4}), "terms")) == 1
    assert paths(draw("A[I_X, J]", "B[I, J]", mesh={"X": 4}), "terms") == []


def test_leading_dimensions_are_bands():
    bands = draw("T[B_X, I, J]", mesh={"X": 4})
    wholes = sorted(boxes(bands, "whole"))
    assert paths(bands, "bands")[0].get("d").count("M") == 4 * 3
    inside = [(y - top) / high for (_, y, *_), (_, top, _, high, _) in zip(sorted(boxes(bands)), wholes, strict=True)]
    assert inside == pytest.approx([0, 0.25, 0.5, 0.75], abs=0.01)
    assert {round(wide) for _, _, wide, *_ in boxes(bands)} == {round(wholes[0][2])}
    both = draw("T[B_X, H_Y, I, J]", mesh={"X": 2, "Y": 2})
    assert paths(both, "bands")[0].get("d").count("M") == 4 * 3
    inside = [(y - top) / high for (_, y, *_), (_, top, _, high, _) in zip(by_device(both), device_rows(both), strict=True)]
    assert inside == pytest.approx([0, 0.25, 0.5, 0.75], abs=0.01)
    assert paths(draw("T[B, I_X, J]", mesh={"X": 4}), "bands") == []


@pytest.mark.parametrize(
    ("mesh", "drawn", "words"),
    [
        ({}, 1, "one."),
        ({"X": 1}, 1, "one."),
        ({"X": 3}, 3, "X right."),
        ({"X": 8}, 8, "X right, row by row."),
        ({"X": 2, "Y": 3}, 6, "X down, Y right."),
        ({"X": 2, "Y": 2, "Z": 4}, 16, "X, Y down, Z right."),
        ({"X": 4, "Y": 1, "Z": 4}, 16, "X down, Z right."),
        ({"X": 16, "Y": 16}, 16, "X (4 of 16) down, Y (4 of 16) right."),
        ({"data": 4, "model": 7}, 16, "data down, model (4 of 7) right."),
        ({"X": 100}, 13, "X (13 of 100) right, row by row."),
    ],
)
def test_devices_of_every_mesh_or_the_first_of_them(mesh, drawn, words):
    drawing = draw("A[I, J]", mesh=mesh)
    assert len(boxes(drawing)) == drawn <= holdings.MOST_DEVICES
    assert f"drawn: {words}" in drawing.description
    assert_room(drawing.svg)


def test_what_stands_in_words():
    drawing = draw("A[I_X, J]{U_Y}", "B[J, K]", mesh={"X": 2, "Y": 3}, sizes={"I": 6, "J": 10, "K": 7})
    assert repr(drawing) == (
        "Who holds what on 6 devices; drawn: X down, Y right. A[I_X, J]{U_Y} in 2 parts, terms of a sum along Y; "
        "B[J, K] whole, copies along X, Y."
    )
    texts = [text.text for text in ElementTree.fromstring(drawing.svg).findall("{*}text")]
    assert texts[:-1] == ["Devices: X down, Y right", "A[I_X, J]{U_Y}", "3 × 10", "B[J, K]", "10 × 7"]
    assert texts[-1] == "Same color: copies. Hatched: terms of a sum."


def test_sizes_give_proportions():
    drawing = draw("A[I, J]", mesh={}, sizes={"I": 100, "J": 400})
    ((_, _, wide, high, _),) = boxes(drawing, "whole")
    assert wide == pytest.approx(2 * high, rel=0.01)


def test_a_plan_is_drawn_as_given_multiplied_and_wanted():
    def headings(product, **more):
        plan = matmul_plan(product, IJK, {"X": 4, "Y": 4}, "v5e:4x4", **more)
        texts = [text.text for text in ElementTree.fromstring(draw_plan(plan).svg).findall("{*}text")]
        return [text for text in texts if text.endswith(":")], [text for text in texts if "[" in text]

    assert headings("A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]") == (
        ["Given, in the matmul and wanted:"], ["A[I_X, J]", "B[J, K_Y]", "C[I_X, K_Y]"],
    )  # fmt: skip
    textbook = ("all-gather", "all-reduce", "reduce-scatter")
    assert headings("A[I, J_X] · B[J, K_Y] -> C[I, K_Y]", kinds=textbook) == (
        ["Given:", "In the matmul and wanted:"], ["A[I, J_X]", "B[J, K_Y]", "A[I, J]", "B[J, K_Y]", "C[I, K_Y]"],
    )  # fmt: skip
    assert headings("A[I, J_X] · B[J_X, K_Y] -> C[I, K_Y]{U_X}", kinds=textbook) == (
        ["Given, in the matmul and wanted:"], ["A[I, J_X]", "B[J_X, K_Y]", "C[I, K_Y]{U_X}"],
    )  # fmt: skip
    assert headings("A[I, J_X] · B[J_X, K_Y] -> C[I_X, K_Y]", kinds=textbook) == (
        ["Given and in the matmul:", "Wanted:"], ["A[I, J_X]", "B[J_X, K_Y]", "C[I, K_Y]{U_X}", "C[I_X, K_Y]"],
    )  # fmt: skip


ARRAYS = ["A[I_X, J]", "A[I_XY, J_Z]", "A[I, J]{U_XYZ}", "T[B_X, I_Y, J, K_Z]", "v[I_X]", "a_long_name[some_X, dims_Y, others_Z]"]
MESHES = [{"X": 2, "Y": 2, "Z": 2}, {"X": 16, "Y": 1, "Z": 1}, {"X": 2, "Y": 8, "Z": 1}, {"X": 8, "Y": 16, "Z": 24}]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_labels_have_room_and_every_part_is_seen_inside_its_whole(mesh):
    for many in [*itertools.combinations(ARRAYS, 3), *itertools.combinations(ARRAYS, 1), ARRAYS]:
        drawing = draw(*many, mesh=mesh, sizes=dict.fromkeys(["I", "J", "K", "B", "some", "dims", "others"], 1920 * 1024))
        assert_room(drawing.svg)
        wholes = boxes(drawing, "whole")
        for x, y, wide, high, _ in boxes(drawing):
            assert min(wide, high) >= 1.5
            assert x + wide <= svg.WIDTH
            assert any(left - 0.1 <= x <= left + w + 0.1 and top - 0.1 <= y <= top + h + 0.1 for left, top, w, h, _ in wholes)
        assert len(drawing.svg) < 40_000


@pytest.mark.parametrize(
    ("arrays", "mesh", "sizes", "words"),
    [
        ((), {"X": 2}, None, "arrays is empty; give at least one"),
        (("A[I_Q, J]",), {"X": 2}, None, "'Q' is no axis of the mesh, which has X=2"),
        (("A[I_X, J",), {"X": 2}, None, "does not read as notation"),
        (("A[I_X, J]",), {"X": 0}, None, "X=0 is not a size"),
        (("A[I_X, J]",), {"X": 2}, {"I": 7, "J": 4}, "I=7 is no multiple of X=2; 8 would do"),
        (("A[I_X, J]",), {"X": 2}, {"I": 8}, "give a size for J"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(arrays, mesh, sizes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        draw(*arrays, mesh=mesh, sizes=sizes)


def test_parts_of_an_unknown_mesh_are_an_error():
    with pytest.raises(ValueError, match="'Y' is no axis of the mesh, which has X=2"):
        draw(Sharding.parse("A[I_X, J_Y]"), mesh={"X": 2})
    with pytest.raises(ValueError, match="'X' is no axis of the mesh"):
        held("A[I_X, J]", {"Y": 2})
    with pytest.raises(ValueError, match=r"Y=1\.5"):
        held("A[I_X, J]", {"X": 2, "Y": 1.5})
