import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import hardware
from scaling_lib.hardware import CHIPS, Chip, chip, slice_of

TPUS = [c for c in CHIPS.values() if c.kind == "tpu"]


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e"])
def test_clock_times_matrix_units_gives_the_published_peak(name):
    # Two independent sources: the compiler's clock and MXU shape, and the vendor's peak.
    c = chip(name)
    assert c.clock_hz * c.mxus * 2 * c.mxu_dim**2 == pytest.approx(c.flops_per_s("bf16"), rel=0.01)


@pytest.mark.parametrize("c", TPUS, ids=str)
def test_a_pod_has_the_chips_of_its_shape(c):
    pod = hardware.Slice(c, c.pod_shape)
    assert pod.chips == c.pod_chips
    assert all(pod.wraps)


@pytest.mark.parametrize("c", TPUS, ids=str)
def test_what_the_compiler_gives_is_a_little_less_than_what_there_is(c):
    assert 0.94 * c.hbm_bytes < c.usable_hbm_bytes < c.hbm_bytes


@pytest.mark.parametrize("c", TPUS, ids=str)
def test_achievable_ici_is_nine_tenths_of_the_stated_rate(c):
    if "ici_link_peak_bytes_per_s" in c.figures:
        assert c.ici_link_bytes_per_s == pytest.approx(0.9 * c.ici_link_peak_bytes_per_s)


@pytest.mark.parametrize("c", CHIPS.values(), ids=str)
def test_faster_links_are_nearer(c):
    rates = [c.figures[q] for q in ("hbm_bytes_per_s", "fabric_bytes_per_s", "dcn_bytes_per_s") if q in c.figures]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("c", CHIPS.values(), ids=str)
def test_nobody_measured_more_than_the_peak(c):
    if "measured_bf16_flops_per_s" in c.figures:
        assert c.measured_bf16_flops_per_s < c.flops_per_s("bf16")
    if "measured_hbm_bytes_per_s" in c.figures:
        assert c.measured_hbm_bytes_per_s < c.hbm_bytes_per_s


@pytest.mark.parametrize(
    ("alias", "name"),
    [("Trillium", "v6e"), ("Ironwood", "tpu7x"), ("v7x", "tpu7x"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"),
     ("TPU v6 lite", "v6e"), ("NVIDIA H100 80GB HBM3", "h100"), ("V5E", "v5e")],
)  # fmt: skip
def test_aliases_resolve(alias, name):
    assert chip(alias).name == name


def test_every_alias_resolves():
    assert {chip(alias).name for alias in hardware._ALIASES} <= set(CHIPS)


def test_unknown_chip_offers_near_names():
    with pytest.raises(ValueError, match=r"chip='v5x' is unknown; did you mean '"):
        chip("v5x")


def test_unsourced_figure_is_an_error_and_not_zero():
    with pytest.raises(ValueError, match=r"no sourced figure for vmem_bytes_per_s of v100; known for: .*v5e"):
        _ = chip("v100").vmem_bytes_per_s
    with pytest.raises(ValueError, match=r"dtype='int8' has no sourced peak on tpu7x; it has: bf16, fp8"):
        chip("tpu7x").flops_per_s("int8")


def test_a_reader_can_make_a_chip_of_measurements():
    mine = Chip("my laptop", {"float32": 1.1e11}, {"hbm_bytes_per_s": 2e10})
    assert mine.flops_per_s("f32") / mine.hbm_bytes_per_s == 5.5
    assert mine.but(hbm_bytes_per_s=4e10).hbm_bytes_per_s == 4e10
    assert mine.hbm_bytes_per_s == 2e10


@pytest.mark.parametrize(
    ("peaks", "figures", "words"),
    [
        ({"f32": 0}, {}, "f32=0 must be positive"),
        ({"f32": float("nan")}, {}, "not finite"),
        ({"f31": 1.0}, {}, "dtype='f31' is unknown; did you mean 'f32'"),
        ({}, {"hbm_bytes_per_s": -1}, "hbm_bytes_per_s=-1 must be positive"),
        ({}, {"hbm_gb_per_s": 1}, "unknown quantity 'hbm_gb_per_s'; did you mean 'hbm_bytes_per_s'"),
    ],
)
def test_bad_chips_are_refused(peaks, figures, words):
    with pytest.raises(ValueError, match=words):
        Chip("mine", peaks, figures)


def test_chips_are_values():
    assert chip("v5e") == dataclasses.replace(chip("v5e"))
    assert chip("v5e") != chip("v5e").but(usd_per_hour=1.0)


@pytest.mark.parametrize(
    ("name", "wraps"),
    [
        ("v5e:16x16", (True, True)), ("v5e:8x16", (False, True)), ("v5e:4x8", (False, False)), ("v6e:16x16", (True, True)),
        ("v5p:4x4x4", (True,) * 3), ("v5p:4x4x8", (True,) * 3), ("v5p:2x2x4", (False,) * 3), ("v4:2x2x1", (False,) * 3),
        ("tpu7x:16x24x24", (True,) * 3), ("h100:8x4", (False, False)), ("v5e:1x1", (False, False)),
    ],
)  # fmt: skip
def test_which_axes_wrap(name, wraps):
    assert slice_of(name).wraps == wraps


@pytest.mark.parametrize(
    ("name", "count", "chips", "devices", "hosts"),
    [
        ("v5e:16x16", 1, 256, 256, 32), ("v5e:2x2", 1, 4, 4, 1), ("v5p:8x8x8", 4, 2048, 2048, 512),
        ("tpu7x:4x4x4", 1, 64, 128, 16),
        ("v4:4x4x4", 2, 128, 128, 32), ("h100:8x4", 1, 32, 32, 4), ("gb200:72x2", 1, 144, 144, 36),
    ],
)  # fmt: skip
def test_chips_devices_and_hosts(name, count, chips, devices, hosts):
    s = slice_of(name, count=count)
    assert (s.chips, s.devices, s.hosts) == (chips, devices, hosts)


def test_dcn_of_a_slice_is_the_share_of_all_its_chips():
    assert slice_of("v5e:16x16").dcn_bytes_per_s == pytest.approx(6.4e12 / 8)  # docs: 6.4 Tb/s a pod


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5e:3x5", r"none of 1x1, 2x2.*nearest: v5e:4x4"),
        ("v5e:32x32", r"a pod has 256 chips; nearest: v5e:16x16"),
        ("v5e:4x4x4", r"its torus has 2 axes"),
        ("v5p:3x3x3", r"inside a 4x4x4 cube.*nearest"),
        ("v5p:4x4x6", r"every axis is a multiple of 4"),
        ("v5p:2x1x2", r"a host is 2x2x1"),
        ("v5p:16x20x32", r"a pod has 8960 chips"),
        ("v7:2x2", r"its torus has 3 axes"),
        ("v5q:4x4", r"chip='v5q' is unknown; did you mean"),
        ("h100:16x2", r"joins at most 8 GPUs"),
        ("h100:8", r"a node and nodes"),
        ("v5e", r"write it like 'v5e:16x16'"),
        ("v5e:0x4", r"shape=0 is not a size"),
        ("v5p-128", r"counts cores, two per chip, so 128 is 64 chips: write 'v5p:4x4x4'"),
        ("v4-32", r"write 'v4:2x2x4'"),
        ("v5p-8", r"write 'v5p:2x2x1'"),
        ("v5litepod-16", r"counts chips, so 16 is 16 chips: write 'v5e:4x4'"),
        ("v5p-6", r"no v5p slice has that many"),
        ("tpu7x-128", r"two per chip, so 128 is 64 chips: write 'tpu7x:4x4x4'"),
        ("v5p-9", r"9 is no whole number of chips"),
        ("v5e:2x16", r"none of"),
        ("v5e:12x4", r"none of"),
        ("v5e:6x6", r"none of"),
    ],
)
def test_impossible_slices_say_what_would_do(name, words):
    with pytest.raises(ValueError, match=words):
        slice_of(name)


@pytest.mark.parametrize("count", [0, -1, 1.5, float("nan")])
def test_count_of_slices_is_checked(count):
    with pytest.raises(ValueError, match="count="):
        slice_of("v5e:4x4", count=count)


@given(st.sampled_from(TPUS), st.data())
def test_every_slice_that_can_be_built_reads_back_from_its_name(c, data):
    shape = data.draw(st.sampled_from(sorted(hardware.tpu_shapes(c))))
    s = slice_of(hardware.Slice(c, shape).name)
    assert s.shape == shape
    assert s.chips <= c.pod_chips
    assert s.hosts * c.chips_per_host >= s.chips


def test_chips_is_read_lazily_and_cannot_be_changed():
    with pytest.raises(TypeError):
        CHIPS["mine"] = chip("v5e")  # type: ignore[index]
    with pytest.raises(AttributeError):
        _ = hardware.nothing


@pytest.mark.parametrize(
    ("alias", "name"),
    [("v5litepod", "v5e"), ("v4p", "v4"), ("tpu7", "tpu7x"), ("v7", "tpu7x"), ("a100", "a100-80gb"), ("tpu v5p", "v5p"),
     ("tpu v5e", "v5e"), ("tpu v6e", "v6e"), ("tpu v7x", "tpu7x"), ("nvidia h200", "h200"), ("nvidia b200", "b200"),
     ("nvidia gb200", "gb200"), ("nvidia b300", "b300"), ("nvidia a100-sxm4-40gb", "a100-40gb"), ("TPU7x", "tpu7x"),
     ("nvidia a100-sxm4-80gb", "a100-80gb"), ("tesla v100-sxm2-32gb", "v100"), ("tesla v100-sxm2-16gb", "v100"),
     (" v5e ", "v5e")],
)  # fmt: skip
def test_every_name_people_and_jax_use_is_the_right_chip(alias, name):
    assert chip(alias).name == name


def test_a_cloud_name_given_as_a_chip_says_which_slice_it_is():
    with pytest.raises(ValueError, match=r"chip='v5p-128' is a whole slice; .*write 'v5p:4x4x4'"):
        chip("v5p-128")


def test_cloud_names_of_chip_counting_generations_are_not_halved():
    with pytest.raises(ValueError, match=r"counts chips, so 8 is 8 chips: write 'v6e:2x4'"):
        slice_of("v6e-8")


def test_slices_smaller_than_a_host_take_a_host_each():
    assert slice_of("v5e:2x2", count=3).hosts == 3
    assert slice_of("v5e:1x1", count=2).hosts == 2
    assert slice_of("v5e:4x4", count=3).hosts == 6


def test_dcn_counts_one_slice_and_not_all_of_them():
    assert slice_of("v5p:4x4x4", count=4).dcn_bytes_per_s == 64 * chip("v5p").dcn_bytes_per_s


def test_a_slice_prints_its_name_and_how_many():
    assert (str(slice_of("v5e:4x4")), str(slice_of("v5e:4x4", count=2))) == ("v5e:4x4", "2 × v5e:4x4")


@pytest.mark.parametrize("name", ["v5p:28x20x16", "v5p:8x4x4", "v5p:4x2x4", "v5p:2x4x4", "v5e:16x8", "v4:4x4x12"])
def test_slices_may_be_turned(name):
    assert slice_of(name).name == name


@pytest.mark.parametrize("name", ["v5p:2x2x8", "v5p:1x2x2", "v5p:4x4x2x2", "v5p:2x2x3", "v5e:1x2", "v5e:2x18", "h100:9x1"])
def test_slices_that_no_host_or_cube_can_make(name):
    with pytest.raises(ValueError, match="cannot be built"):
        slice_of(name)


def test_figures_are_copied_so_that_a_chip_cannot_be_changed_from_outside():
    figures = {"hbm_bytes_per_s": 1e9}
    mine = Chip("mine", {"f32": 1e9}, figures)
    figures["hbm_bytes_per_s"] = 2e9
    assert mine.hbm_bytes_per_s == 1e9


def test_a_wrap_needs_the_full_length_of_the_pod():
    long = dataclasses.replace(chip("v5e"), name="long", pod_shape=(8, 16))
    assert hardware.Slice(long, (8, 16)).wraps == (False, True)


def test_a_slice_holds_plain_integers():
    s = hardware.Slice(chip("v5e"), [4.0, 8], count=2.0)  # type: ignore[arg-type]
    assert s == hardware.Slice(chip("v5e"), (4, 8), count=2)
    assert str(s) == "2 × v5e:4x8"


# What MaxText and xpk make of Cloud names (AI-Hypercomputer/maxtext accelerator_to_spec_map.py), which the compiler takes too.
CLOUD = [
    "v4-8=v4:2x2x1",
    "v4-16=v4:2x2x2",
    "v4-32=v4:2x2x4",
    "v4-64=v4:2x4x4",
    "v4-128=v4:4x4x4",
    "v4-384=v4:4x4x12",
    "v4-1536=v4:8x8x12",
    "v4-4096=v4:8x16x16",
    "v4-6912=v4:12x12x24",
    "v5p-256=v5p:4x4x8",
    "v5p-640=v5p:4x4x20",
    "v5p-1152=v5p:4x12x12",
    "v5p-1408=v5p:4x4x44",
    "v5p-2176=v5p:4x4x68",
    "v5p-3456=v5p:12x12x12",
    "v5p-6016=v5p:4x4x188",
    "v5p-6144=v5p:12x16x16",
    "v5p-6272=v5p:4x28x28",
    "v5p-6400=v5p:8x20x20",
    "v5p-9216=v5p:12x16x24",
    "v5p-10368=v5p:12x12x36",
    "v5p-12288=v5p:16x16x24",
    "v5p-13824=v5p:12x24x24",
    "v5p-17920=v5p:16x20x28",
    "v5litepod-1=v5e:1x1",
    "v5litepod-4=v5e:2x2",
    "v5litepod-8=v5e:2x4",
    "v5litepod-16=v5e:4x4",
    "v5litepod-32=v5e:4x8",
    "v5litepod-64=v5e:8x8",
    "v5litepod-128=v5e:8x16",
    "v5litepod-256=v5e:16x16",
    "v6e-1=v6e:1x1",
    "v6e-8=v6e:2x4",
    "v6e-128=v6e:8x16",
    "v6e-256=v6e:16x16",
    "tpu7x-2=tpu7x:1x1x1",
    "tpu7x-8=tpu7x:2x2x1",
    "tpu7x-128=tpu7x:4x4x4",
]


@pytest.mark.parametrize("pair", CLOUD)
def test_a_cloud_name_is_refused_with_the_slice_that_cloud_builds(pair):
    cloud, name = pair.split("=")
    with pytest.raises(ValueError, match=f"write '{name}'"):
        slice_of(cloud)
    with pytest.raises(ValueError, match=f"whole slice.*write '{name}'"):
        chip(cloud)
    assert slice_of(name).shape == tuple(map(int, name.split(":")[1].split("x")))


def test_2d_slices_are_those_that_the_vendor_lists():
    listed = {(1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)}
    for name in ("v5e", "v6e"):
        assert {tuple(sorted(shape)) for shape in hardware.tpu_shapes(chip(name))} == listed
        assert slice_of(f"{name}:4x2").shape == (4, 2)


@pytest.mark.parametrize(
    ("name", "count", "hosts"),
    [("h100:8x4", 1, 4), ("h100:2x8", 1, 8), ("h100:1x8", 3, 24), ("gb200:5x3", 1, 6), ("gb200:72x2", 1, 36), ("v5e:2x2", 3, 3),
     ("v5e:1x1", 2, 2), ("v5p:2x2x1", 2, 2)],
)  # fmt: skip
def test_hosts_are_counted_node_by_node_and_slice_by_slice(name, count, hosts):
    assert slice_of(name, count=count).hosts == hosts


def test_chips_and_slices_are_dictionary_keys():
    assert {slice_of("v5e:4x4"): 1, chip("v5e"): 2}[slice_of("v5e:4x4")] == 1
    assert hash(chip("v5e")) == hash(dataclasses.replace(chip("v5e")))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Chip("mine", {"bf16": 1, "bfloat16": 2}), "names one dtype twice"),
        (lambda: Chip("mine", {}, kind="tpus"), "kind='tpus'"),  # type: ignore[arg-type]
        (lambda: Chip("mine", {}, {"devices": 1.9}), "devices=1.9 is not a size"),
        (lambda: hardware.Slice("v5e", (4, 4)), "chip='v5e' is not a Chip"),  # type: ignore[arg-type]
        (lambda: hardware.Slice(Chip("mine", {}, kind="tpu"), (4, 4)), "no pod_shape"),
        (lambda: slice_of("v5e:" + "9" * 5000), "does not read as chip:shape"),
    ],
)
def test_what_is_no_chip_or_slice_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_catalog_cannot_be_changed_through_a_chip():
    before = chip("v5e").hbm_bytes_per_s
    chip("v5e").figures["hbm_bytes_per_s"] = 1  # type: ignore[index]
    CHIPS["v5e"].figures["hbm_bytes_per_s"] = 1  # type: ignore[index]
    assert chip("v5e").hbm_bytes_per_s == hardware.CHIPS["v5e"].hbm_bytes_per_s == before
    CHIPS["v5e"].figures["hbm_bytes_per_s"] = before  # type: ignore[index]
