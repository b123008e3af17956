import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from scaling_lib import roofline as rl
from scaling_lib import transformer as tf
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


@pytest.mark.parametrize("ratio", check.SLIPS)
def test_every_slip_is_recognized_and_only_it(ratio):
    verdict = check.answer(ratio * 240.0, 240.0, tolerance=0.01)
    assert not verdict.ok
    assert check.SLIPS[ratio] in verdict.words
    assert sum(hint in verdict.words for hint in check.SLIPS.values()) == 1


def test_words_that_begin_with_right_are_ok():
    verdicts = [check.said(words) for words in ("Right.", "Right: 3.", "Not yet: 3.", "Not answered yet.")]
    assert [verdict.ok for verdict in verdicts] == [True, True, False, False]
    assert str(verdicts[1]) == "Right: 3."


def test_a_count_has_no_general_slips():
    assert "half" in check.answer(3, 6).words
    assert check.answer(3, 6, general=False).words == "Not yet: 3 is too small."
    assert check.answer(3, 6, slips={3: "A little more."}, general=False).words == "Not yet. A little more."


def test_slips_are_the_ratios_their_hints_name():
    assert set(check.SLIPS) == {2, 0.5, 4, 0.25, 8, 0.125, 2**30 / 1e9, 1e9 / 2**30, 1e3, 1e-3, 1e6, 1e-6, -1}


def test_tolerance_is_relative_to_the_right_answer_and_includes_its_end():
    assert check.answer(102, 100.0, tolerance=0.02).ok
    assert not check.answer(102.1, 100.0, tolerance=0.02).ok
    assert not check.answer(103, 100.0).ok
    assert check.answer(98, 100.0).ok
    assert not check.answer(96, 100.0, tolerance=0.03).ok


def test_a_wide_tolerance_does_not_widen_the_slips():
    assert "too large" in check.answer(230, 100.0, tolerance=0.2).words
    assert "factor of 2" not in check.answer(230, 100.0, tolerance=0.2).words


def test_a_negative_right_answer_is_compared_by_size_and_sign():
    assert check.answer(-100, -100.0).ok
    assert "too small" in check.answer(-500, -100.0).words


def test_tables_show_the_columns_asked_for():
    (row,) = tables.chips([chip("v5e")], ["hbm_bytes", "clock_hz", "usd_per_hour"]).rows
    assert row == {"chip": "v5e", "hbm bytes": "16 GiB", "clock Hz": "1.5 GHz", "USD per hour": "1.20 USD"}
    main = tables.chips([chip("h100")]).rows[0]
    assert list(main)[:6] == ["chip", "bf16 peak", "int8 peak", "fp8 peak", "hbm bytes", "hbm B/s"]


def test_facts_have_a_row_for_each_figure_any_chip_has():
    rows = {row["quantity"]: row for row in tables.facts([chip("v5e"), chip("h100")]).rows}
    assert rows["pod_shape"] == {"quantity": "pod_shape", "v5e": "16x16", "h100": tables.ABSENT}
    assert rows["vmem_bytes"]["v5e"] == "128 MiB"
    assert rows["fabric_bytes_per_s"]["v5e"] == tables.ABSENT
    assert [q for q in rows if q.endswith("_flops_per_s")][:3] == ["bf16_flops_per_s", "fp8_flops_per_s", "int8_flops_per_s"]
    assert rows["int8_flops_per_s"]["v5e"] == "393 TOP/s"


def test_conflicts_say_by_how_much_the_other_figure_differs():
    row = next(r for r in tables.conflicts().rows if r["chip"] == "v5e" and r["other"] == "810 GB/s")
    assert (row["chosen"], row["differs by"]) == ("819 GB/s", "-1.1%")


def test_models_show_their_shape_and_counts():
    small, mixture = tables.models(["llama3-8b", "DeepSeek-V3"]).rows
    assert small == {
        "family": "Llama-3", "model": "Llama-3 8B", "L": "32", "D": "4,096", "F": "14,336", "N": "32", "K": "8", "H": "128",
        "V": "128,256", "attention": "grouped", "experts": tables.ABSENT, "parameters": "8,030,261,248",
        "active": tables.ABSENT, "KV a token": "131 kB",
    }  # fmt: skip
    assert (mixture["attention"], mixture["experts"]) == ("latent", "8 of 256, 2,048 wide, 1 shared")
    assert mixture["active"] == f"{tf.active_parameters(tf.model('DeepSeek-V3'), 'all'):,}"
    scout, gemma = tables.models(["Gemma-3 27B", "Llama-4 Scout"]).rows
    assert scout["F"] == tables.ABSENT
    assert list(small)[:5] == ["family", "model", "parameters", "active", "KV a token"]
    assert gemma["attention"] == "grouped, 52 of 62 layers 1,024"
    assert [row["attention"] for row in tables.models(["PaLM 8B", "GPT-2 small"]).rows] == ["multi-head", "multi-query"]


def test_all_models_are_listed_each_with_its_source_and_each_family_is_named_once():
    shown = tables.models().rows
    assert [row["model"] for row in shown] == [row["model"] for row in tables.model_sources().rows] == [*tf.MODELS]
    families = [row["family"] for row in shown if row["family"]]
    assert len(families) == len(set(families))
    assert all(row["source"] and row["date"] for row in tables.model_sources().rows)
    (row,) = tables.model_sources(["Llama-3 8B"]).rows
    assert (row["published"], row["counted from it"], row["known"]) == ("8.03 B", "+0.00%", "seen")


def test_numbers_in_tables_stay_as_they_were_written():
    assert "1e3" in str(tables.Table([{"a": "1e3"}]))


def test_each_resource_is_drawn_in_its_color_and_each_ceiling_with_its_dash():
    ax = plots.roofline(chip("v5e"), dtypes=("bf16", "int8"), levels=("hbm", "ici"), intensities=(2, 5e4))
    drawn = lines(ax)
    assert drawn["ICI, 45 GB/s"].get_color() == plots.COLORS["ici"]
    assert {drawn[f].get_color() for f in ("bf16, 197 TFLOP/s", "int8, 393 TOP/s")} == {plots.COLORS["mxu"]}
    assert [drawn[f].get_linestyle() for f in ("bf16, 197 TFLOP/s", "int8, 393 TOP/s")] == ["-", "--"]
    assert drawn["HBM, 819 GB/s"].get_ydata()[-1] == chip("v5e").flops_per_s("int8")
    assert ax.get_xlim() == (2, 5e4)
    assert ax.get_legend() is not None
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_points_are_labeled_and_placed_on_the_first_level():
    cost = rl.matmul(64, 8192, 8192, level="ici")
    ax = plots.roofline(chip("v5e"), levels=("ici",), points={"shared": cost})
    assert [text.get_text() for text in ax.texts] == ["shared"]
    (point,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert point.get_xdata()[0] == cost.intensity("ici")


def test_a_roofline_can_join_other_axes_and_axes_can_be_linear():
    ax = plots.new_axes("x", "y", loglog=False)
    assert ax.get_xscale() == "linear"
    assert plots.roofline(chip("v5e"), ax=ax) is ax


def test_the_style_is_large_enough_to_read_at_half_size():
    with mpl.rc_context():
        plots.use_style()
        width_px = mpl.rcParams["figure.figsize"][0] * 72
        assert mpl.rcParams["font.size"] / width_px * 350 > 9  # on a phone, in CSS pixels


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), "240"])
def test_an_exercise_without_a_right_value_is_an_error(bad):
    with pytest.raises(ValueError, match="expected="):
        check.answer(..., bad)


def test_the_right_value_is_told_and_not_the_readers():
    assert check.answer(243, 240.0, unit="tokens").words == "Right: 240 tokens."
    assert "half" not in check.answer(121, 240.0, tolerance=1e-3).words


def test_what_cannot_be_drawn_or_listed_is_refused():
    with pytest.raises(ValueError, match=r"dtypes=\(\)"):
        plots.roofline(chip("v5e"), dtypes=())
    with pytest.raises(ValueError, match="quantities holds 'hbm_gb', which no chip has; did you mean"):
        tables.chips([chip("v5e")], ["hbm_gb"])
    assert tables.figure("hbm_bytes", 2**30) == "1 GiB"


def test_a_fifth_dtype_is_still_drawn():
    many = CHIPS["v5e"].peak_flops_per_s | {"f32": 1e13, "fp8": 2e14, "int4": 4e14}
    c = type(chip("v5e"))("many", many, {"hbm_bytes_per_s": 1e12})
    assert len(lines(plots.roofline(c, dtypes=list(many)))) == 1 + 5
