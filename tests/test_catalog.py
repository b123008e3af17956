import dataclasses
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from scaling_lib import catalog, hardware
from scaling_lib.hardware import CHIPS
from scaling_lib.show import tables

ROWS = catalog.chip_figures()
NUMBERS = [row for row in ROWS if row.unit != "text"]


def test_every_quantity_of_a_chip_has_exactly_one_chosen_figure():
    chosen = Counter((row.chip, row.quantity) for row in ROWS if row.chosen)
    assert set(chosen.values()) == {1}
    assert set(chosen) == {(row.chip, row.quantity) for row in ROWS}


def test_every_figure_has_a_source_a_date_and_a_way_of_knowing_it():
    for row in ROWS:
        assert row.source
        assert re.fullmatch(r"20\d\d(-\d\d)?", row.date), row
        assert row.known in {"seen", "derived", "secondary", "measured", "compiler"}, row
        assert "memory" not in row.known
        assert row.convention, row


def test_numbers_are_positive_and_in_base_units():
    assert all(float(row.value) > 0 for row in NUMBERS)
    units_of = {"_flops_per_s": {"FLOP/s", "OP/s"}, "_bytes_per_s": {"bytes/s"}, "_bytes": {"bytes"}, "_hz": {"Hz"}}
    for row in NUMBERS:
        for suffix, allowed in units_of.items():
            if row.quantity.endswith(suffix):
                assert row.unit in allowed, row
                break


def test_every_quantity_is_one_that_the_library_knows():
    peaks = {"bf16_flops_per_s", "f16_flops_per_s", "int8_flops_per_s", "fp8_flops_per_s", "fp4_flops_per_s"}
    assert {row.quantity for row in ROWS} <= {"vendor", "kind", "pod_shape", *peaks, *hardware.quantities()}


def test_published_speeds_stay_below_the_peak_of_what_ran_them():
    for name in ("v6e", "tpu7x"):
        c = CHIPS[name]
        for run in catalog.measurements(name):
            peak = c.flops_per_s() if run.unit == "FLOP/s" else c.hbm_bytes_per_s
            assert 0 < run.value < peak / c.devices


@pytest.fixture(scope="module")
def shown():
    """What the committed appendix prints, table by table."""
    notebook = nbformat.read(Path(__file__).parents[1] / "chapters/appendix-chips.ipynb", as_version=4)
    return {out.data["text/plain"] for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out}


@pytest.mark.parametrize("c", CHIPS.values(), ids=str)
def test_the_appendix_shows_every_figure_of_the_catalog(c, shown):
    assert str(tables.sources(c)) in shown


def test_the_appendix_shows_every_model_of_the_catalog_and_its_source():
    notebook = nbformat.read(Path(__file__).parents[1] / "chapters/appendix-models.ipynb", as_version=4)
    shown = [out.data["text/plain"] for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    assert shown == [str(tables.models()), str(tables.model_sources())]


def test_a_change_of_any_constant_turns_the_appendix_red(monkeypatch, shown):
    """Proof that the test above guards every constant: change each by 1 % and see that it would fail."""
    for i, row in enumerate(ROWS):
        if row.unit == "text":
            changed = dataclasses.replace(row, value=row.value + "0")
        else:
            changed = dataclasses.replace(row, value=repr(float(row.value) * 1.01))
        monkeypatch.setattr(catalog, "chip_figures", lambda rows=(*ROWS[:i], changed, *ROWS[i + 1 :]): rows)
        assert str(tables.sources(CHIPS[row.chip])) not in shown, row
