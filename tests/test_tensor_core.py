"""The block diagram of a chip: every number on it is the catalog's, and one that the catalog lacks is said to be missing."""

import re
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from scaling_lib.hardware import CHIPS, Chip, chip
from scaling_lib.show import tensor_core
from scaling_lib.show.palette import COLORS
from scaling_lib.units import GIB, MIB
from tests.test_explorers import assert_room, labels

TPUS = [c for c in CHIPS.values() if c.kind == "tpu"]
# Another value of every figure that the drawing shows, and the text that must then stand on it, for a chip of one core.
CHANGES = {
    "mxus": (3, "3 MXUs"),
    "mxu_dim": (160, "160 × 160"),
    "vpu_flops_per_s": (5e12, "5 TFLOP/s"),
    "vmem_bytes": (77 * MIB, "VMEM, 77 MiB"),
    "vmem_bytes_per_s": (7.7e12, "7.7 TB/s"),
    "hbm_bytes": (33 * GIB, "HBM, 33 GiB"),
    "hbm_bytes_per_s": (6.6e11, "660 GB/s"),
    "ici_axes": (5, "ICI, 10 links"),
    "ici_link_bytes_per_s": (5.5e10, "55 GB/s each"),
    "pcie_bytes_per_s": (4.4e10, "PCIe, 44 GB/s"),
    "dcn_bytes_per_s": (2.2e9, "DCN, 2.2 GB/s"),
    "chips_per_host": (11, "host of 11 chips"),
}


def texts(drawing):
    return [text for _, text in labels(drawing.svg)]


def count(drawing, name):
    return len(ElementTree.fromstring(drawing.svg).findall(f"{{*}}*[@class='{name}']"))


def without(c, *quantities):
    return replace(c, figures={name: value for name, value in c.figures.items() if name not in quantities})


@pytest.mark.parametrize("quantity", CHANGES)
def test_another_figure_changes_its_text_alone_on_the_drawing_and_in_its_description(quantity):
    value, text = CHANGES[quantity]
    complete = chip("v5e").but(**{name: before for name, (before, _) in CHANGES.items()})
    assert {text for _, text in CHANGES.values()} <= {*texts(tensor_core.draw(complete))}
    changed = tensor_core.draw(complete.but(**{quantity: value * 2}))
    gone = Counter(texts(tensor_core.draw(complete))) - Counter(texts(changed))
    assert gone == {text: 1}
    assert changed.description != tensor_core.draw(complete).description


@pytest.mark.parametrize("quantity", CHANGES)
def test_a_figure_that_the_catalog_lacks_is_said_to_be_missing(quantity):
    complete = chip("v5e").but(**{name: value for name, (value, _) in CHANGES.items()})
    assert "not sourced" not in "".join(texts(tensor_core.draw(complete)))
    lacking = tensor_core.draw(without(complete, quantity))
    assert sum("not sourced" in text for text in texts(lacking)) == 1
    assert lacking.description.count("not sourced") == 1
    assert_room(lacking.svg)


def test_no_other_number_stands_on_the_drawing():
    drawing = tensor_core.draw(without(chip("v5e"), *CHANGES))
    assert [text for text in texts(drawing) if re.search(r"\d", text)] == ["v5e chip, one JAX device"]
    assert_room(drawing.svg)


@pytest.mark.parametrize("c", TPUS, ids=str)
def test_every_tpu_is_drawn_with_room_for_its_labels(c):
    drawing = tensor_core.draw(c)
    assert_room(drawing.svg)
    assert repr(drawing) == ElementTree.fromstring(drawing.svg).get("aria-label")
    assert {"mxu", "vpu", "vmem", "hbm", "ici", "pcie", "dcn"} == {name for name in COLORS if count(drawing, name)}
    assert all(f'class="{name}"' in drawing.svg and color in drawing.svg for name, color in COLORS.items())
    assert count(drawing, "grid") == c.mxus / c.cores


def test_two_cores_of_one_device_share_its_hbm_and_two_devices_do_not():
    v5p, tpu7x = texts(tensor_core.draw(chip("v5p"))), texts(tensor_core.draw(chip("tpu7x")))
    assert {"v5p chip, one JAX device", "2 TensorCores, each:", "4 MXUs", "VMEM, 64 MiB", "7 TFLOP/s"} <= {*v5p}
    assert {"HBM, 96 GiB", "2.77 TB/s"} <= {*v5p}  # of the chip
    assert {"tpu7x chip", "2 JAX devices, each:", "TensorCore", "4 MXUs", "VMEM, 64 MiB"} <= {*tpu7x}
    assert {"HBM, 96 GiB", "3.69 TB/s"} <= {*tpu7x}  # half of the chip's
    assert count(tensor_core.draw(chip("v5p")), "behind") == count(tensor_core.draw(chip("tpu7x")), "behind") == 1
    assert count(tensor_core.draw(chip("v6e")), "behind") == 0


def test_larger_matrix_units_are_drawn_larger_and_each_link_is_a_line():
    def side(name):
        grid = ElementTree.fromstring(tensor_core.draw(chip(name)).svg).find("{*}rect[@class='grid']")
        return float(grid.get("width"))

    def links(name):
        paths = ElementTree.fromstring(tensor_core.draw(chip(name)).svg).findall("{*}path[@class='ici']")
        return [path.get("d").count("M") for path in paths]

    assert side("v6e") == 2 * side("v5e")
    assert (links("v5e"), links("v5p")) == ([4], [6])


def test_the_description_has_the_numbers():
    assert repr(tensor_core.draw(chip("v5p"))) == (
        "A v5p chip: 2 TensorCores, each with 4 MXUs, 128 × 128, a VPU (7 TFLOP/s), a scalar unit, and VMEM (64 MiB). "
        "It is one JAX device. VMEM to MXU: not sourced. HBM (96 GiB) to VMEM: 2.77 TB/s. ICI, 6 links, 90 GB/s each. "
        "PCIe, 16 GB/s, to a host of 4 chips. DCN: 6.25 GB/s."
    )


@pytest.mark.parametrize("name", ["h100", "b200"])
def test_a_chip_without_a_tensorcore_is_refused(name):
    with pytest.raises(ValueError, match=rf"chip={name} has no TensorCore to draw; give a TPU, like chip\('v5e'\)"):
        tensor_core.draw(chip(name))


def test_a_tpu_of_an_unknown_number_of_cores_is_refused():
    with pytest.raises(ValueError, match="no sourced figure for cores of mine"):
        tensor_core.draw(Chip("mine", {}, kind="tpu"))
