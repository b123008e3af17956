import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from scaling_lib import roofline as rl
from scaling_lib.hardware import CHIPS, chip
from scaling_lib.show import check, plots, tables

mpl.use("agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def lines(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_the_roofline_has_its_ridge_where_the_library_says():
    ax = plots.roofline(chip("v5e"), dtypes=("bf16", "int8"), levels=("hbm", "ici"))
    drawn = lines(ax)
    assert list(drawn) == ["HBM, 819 GB/s", "ICI, 45 GB/s", "bf16, 197 TFLOP/s", "int8, 393 TOP/s"]
    assert drawn["bf16, 197 TFLOP/s"].get_xdata()[0] == rl.ridge(chip("v5e"))
    assert drawn["HBM, 819 GB/s"].get_xdata()[-1] == rl.ridge(chip("v5e"), "int8")
    assert drawn["HBM, 819 GB/s"].get_ydata()[0] == chip("v5e").hbm_bytes_per_s


def test_points_lie_on_the_roof():
    cost = rl.matmul(64, 8192, 8192)
    ax = plots.roofline(chip("v5e"), points={"decode": cost})
    (point,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert point.get_xdata()[0] == cost.intensity()
    assert point.get_ydata()[0] == pytest.approx(rl.attainable_flops_per_s(cost.intensity(), chip("v5e")))


def test_axes_carry_units_and_resources_keep_their_color():
    ax = plots.roofline(chip("v5p"))
    assert "FLOPs per byte" in ax.get_xlabel()
    assert "FLOP/s" in ax.get_ylabel()
    assert lines(ax)["HBM, 2.77 TB/s"].get_color() == plots.COLORS["hbm"]
    assert len(set(plots.COLORS.values())) == len(plots.COLORS)


def test_a_table_shows_as_text_and_as_html():
    table = tables.chips([chip("v5e")])
    assert "197 TFLOP/s" in str(table)
    assert table._repr_html_().startswith('<table class="dataframe">')
    assert "<th>chip" in table._repr_html_().replace(" ", "")
    assert repr(table) == str(table)


def test_an_unsourced_figure_shows_as_a_dash():
    (row,) = tables.chips([chip("tpu7x")]).rows
    assert row["int8 peak"] == tables.ABSENT


def test_sources_and_conflicts_show_every_row():
    from scaling_lib import catalog

    assert sum(len(tables.sources(c).rows) for c in CHIPS.values()) == len(catalog.chip_figures())
    conflicts = tables.conflicts().rows
    assert 0 < len(conflicts) < sum(not row.chosen for row in catalog.chip_figures())  # the others confirm
    assert all(row["chosen"] != row["other"] for row in conflicts)
    assert {"chip": "v5e", "quantity": "hbm_bytes_per_s"}.items() <= next(
        row for row in conflicts if row["chip"] == "v5e" and row["quantity"] == "hbm_bytes_per_s"
    ).items()


@pytest.mark.parametrize(
    ("given", "ok", "words"),
    [
        (..., False, "Not answered yet"),
        ("240", False, "is not a number"),
        (240.0, True, "Right: 240 tokens"),
        (243, True, "Right"),
        (480, False, "factor of 2 too large"),
        (120, False, "half of it"),
        (240e3, False, "1,000 too large"),
        (100, False, "100 tokens is too small"),
        (1000, False, "too large"),
        (-240, False, "sign"),
        (0, False, "too small"),
        (float("nan"), False, "not finite"),
        (777, False, "the int8 ridge"),
    ],
)
def test_answers_and_their_slips(given, ok, words):
    verdict = check.answer(given, 240.0, unit="tokens", slips={777.0: "That is the int8 ridge."})
    assert verdict.ok is ok
    assert words in repr(verdict)


def test_gib_and_gb_are_told_apart_at_a_close_tolerance():
    assert "GiB to GB" in check.answer(17.18, 16.0).words
    assert "GB to GiB" in check.answer(14.9, 16.0).words


def test_a_wrong_answer_does_not_give_the_right_one_away():
    assert "240" not in check.answer(100, 240.0).words
