"""Link loads of slices as a heat map, and all-gathers from latency to bandwidth: what is drawn is what the core says."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.collections import LineCollection

from scaling_lib import catalog
from scaling_lib.collectives import Group, all_gather, all_to_all, over, tpu7x_calibration
from scaling_lib.hardware import chip, slice_of
from scaling_lib.show import curves, links, plots
from scaling_lib.show.palette import COLORS
from scaling_lib.torus import Torus

mpl.use("agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def torus(name):
    return Torus(slice_of(name))


def drawn(ax):
    (lines,) = [found for found in ax.collections if isinstance(found, LineCollection)]
    return lines


# The heat map.


@pytest.mark.parametrize("name", ["v5e:2x4", "v5e:4x4", "v5e:4x8", "v5e:8x16", "v5e:16x16"])
def test_every_link_is_drawn_once_with_its_load(name):
    (ax,) = links.all_to_all([torus(name)], 3e6)
    of, chips = torus(name), slice_of(name).chips
    seen, stubs = {}, 0
    for ((x0, y0), (x1, y1)), load in zip(drawn(ax).get_segments(), drawn(ax).get_array(), strict=True):
        if x0 % 1 or x1 % 1 or y0 % 1 or y1 % 1:
            stubs += 1
        else:
            seen[(int(y0), int(x0)), (int(y1), int(x1))] = load
    rings = [n for n, wrap in zip(of.shape, of.slice.wraps, strict=True) if wrap]
    around = sum(chips // n for n in rings)
    assert (len(seen), stubs) == (of.links - around, 2 * around)
    unit = max(of.all_to_all_loads().values()) * 3e6 / chips / drawn(ax).get_array().max()
    assert unit == pytest.approx(1e6)
    loads = of.all_to_all_loads()
    assert seen == pytest.approx({link: loads[link] * 3e6 / chips / unit for link in seen})


def test_the_darkest_link_is_the_busiest_of_the_price():
    group = over(slice_of("v5e:8x16"))
    (ax,) = links.all_to_all([torus("v5e:8x16")], 64e6)
    assert drawn(ax).get_array().max() == pytest.approx(all_to_all(64e6, group).link_bytes / 1e6)
    assert drawn(ax).get_clim() == (0, pytest.approx(128))
    assert [text.get_text() for text in ax.texts] == ["56", "96", "120", "128", "120", "96", "56", "128"]


def test_slices_side_by_side_share_their_colors_and_their_unit():
    small, large = links.all_to_all([torus("v5e:4x4"), torus("v5e:16x16")], 64e6)
    assert drawn(small).get_clim() == drawn(large).get_clim() == (0, 128)
    assert [ax.get_title() for ax in (small, large)] == ["v5e:4x4", "v5e:16x16"]
    assert [text.get_text() for text in small.texts] == ["48", "64", "48"] * 2
    assert [text.get_text() for text in large.texts] == ["128"] * 2
    bar = next(ax for ax in small.figure.axes if ax not in (small, large))
    assert bar.get_xlabel() == "MB over a link, one way"


@pytest.mark.parametrize(("array_bytes", "unit"), [(32, "B"), (64e3, "kB"), (64e9, "GB")])
def test_the_unit_suits_the_bytes(array_bytes, unit):
    (ax,) = links.all_to_all([torus("v5e:4x4")], array_bytes)
    assert ax.figure.axes[-1].get_xlabel() == f"{unit} over a link, one way"
    assert 1 <= drawn(ax).get_array().max() < 1000


# Curves.


def lines(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_a_curve_is_the_price_of_its_group():
    group = Group(sizes=(5,), wraps=(True,), link_bytes_per_s=3e10, hop_s=1e-6, start_s=2e-6)
    ax = curves.all_gathers({"mine": group, "no latency": group.but(hop_s=0.0)}, sizes_bytes=(1e3, 1e8))
    drawn = lines(ax)
    for label, of in (("mine", group), ("no latency", group.but(hop_s=0.0))):
        sizes, rates = drawn[label].get_data()
        assert (sizes[0], sizes[-1]) == (1e3, pytest.approx(1e8))
        assert rates == pytest.approx([size * 4 / 5 / all_gather(size, of).seconds for size in sizes])
    assert [line.get_linestyle() for line in drawn.values()] == ["-", "--"]
    assert {line.get_color() for line in drawn.values()} == {COLORS["ici"]}
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert "bytes" in ax.get_xlabel()
    assert "bytes/s" in ax.get_ylabel()


def test_one_calibration_goes_through_the_published_points():
    group = over(slice_of("tpu7x:2x2x1"))
    fitted = group.but(**vars(tpu7x_calibration()))
    points = curves.published_all_gathers()
    ax = curves.all_gathers({"bound": group, "fitted": fitted}, points={"published": points})
    assert list(zip(*lines(ax)["published"].get_data(), strict=True)) == points
    for size, rate in points:
        assert size * 3 / 4 / all_gather(size, fitted).seconds == pytest.approx(rate, rel=0.03)
        assert rate < size * 3 / 4 / all_gather(size, group).seconds
    bound = lines(ax)["bound"].get_ydata()
    assert bound == pytest.approx([2 * chip("tpu7x").ici_link_bytes_per_s / 2] * len(bound))


def test_published_points_are_a_devices_half_of_what_its_chip_receives():
    # the catalog's first row: a chip receives 1.5 MiB, three quarters of the 1 MiB that each of its two devices gathers
    (size, rate), *_ = curves.published_all_gathers("2x2x2")
    assert size == 2**20
    assert rate == next(run.value for run in catalog.measurements("tpu7x") if "on 2x2x2" in run.what) / 2


def test_shares_of_the_bound_by_hand():
    shares = curves.published_shares()
    assert shares["a100-80gb all-reduce by rings"] == [(2**34, pytest.approx(234.89 / 300))]
    assert shares["h200 all-reduce by rings"] == [(2**34, pytest.approx(367.61 / 450))]
    # in the network a port carries 9/8 of the array, while the published rate counts 14/8 of it
    assert shares["h200 all-reduce in the network"] == [(2**34, pytest.approx(482.26 / 450 * 9 / 14))]
    assert shares["v6e all-reduce on 16x16, counting not stated"] == [(606076928, pytest.approx(235.76 / (4 * 90)))]
    assert [share for _, share in shares["tpu7x all-gather, 2x2x1"]][::4] == pytest.approx([71.77 / 180, 178.77 / 180])


def test_shares_are_drawn_below_the_bound_and_the_unstated_one_is_hollow():
    ax = curves.shares_of_bound()
    drawn = lines(ax)
    assert set(drawn) == set(curves.published_shares())
    for label, points in curves.published_shares().items():
        assert list(zip(*drawn[label].get_data(), strict=True)) == points
        assert all(0 < share < 1 for _, share in points)
        assert (drawn[label].get_markerfacecolor() == "white") == label.endswith("not stated")
    given = plots.new_axes("x", "y", loglog=False)
    assert curves.shares_of_bound(ax=given) is given


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: links.all_to_all([], 1e6), "tori is empty"),
        (lambda: links.all_to_all([torus("v5p:4x4x4")], 1e6), "v5p:4x4x4 cannot be drawn; give slices of two axes"),
        (lambda: links.all_to_all([torus("v5e:1x1")], 1e6), "v5e:1x1 cannot be drawn"),
        (lambda: links.all_to_all([torus("v5e:4x4")], 0), "array_bytes=0 must be positive"),
        (lambda: curves.all_gathers({}), "groups is empty"),
        (lambda: curves.all_gathers({"one": over(slice_of("v5e:1x1"))}), r"groups\['one'\] is one device"),
        (lambda: curves.all_gathers({"a": over(slice_of("v5e:4x4"))}, sizes_bytes=(5, 5)), r"sizes_bytes=\(5, 5\)"),
        (lambda: curves.published_all_gathers("4x4x4"), "where='4x4x4' has no published all-gathers; 2x2x1 and 2x2x2 have"),
    ],
)
def test_what_cannot_be_drawn_says_why(call, words):
    with pytest.raises(ValueError, match=words):
        call()
