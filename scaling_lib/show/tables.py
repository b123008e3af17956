"""Tables for pages, notebooks and the terminal, drawn by tabulate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from scaling_lib import catalog, hardware, transformer, units
from scaling_lib.hardware import Chip
from scaling_lib.transformer import Transformer

ABSENT = "—"
MAIN_QUANTITIES: Sequence[str] = ("hbm_bytes", "hbm_bytes_per_s", "ici_link_bytes_per_s", "ici_axes", "fabric_bytes_per_s",
                                  "dcn_bytes_per_s", "usd_per_hour")  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Rows of a table; shows as HTML in a notebook or page and as aligned text where it is printed."""

    rows: Sequence[Mapping[str, object]]

    def _draw(self, style: str) -> str:
        return str(tabulate(self.rows, headers="keys", tablefmt=style, disable_numparse=True))

    def __str__(self) -> str:
        return self._draw("simple")

    def _repr_html_(self) -> str:
        # The class that notebooks and themes style, light and dark, as they do for pandas.
        return self._draw("html").replace("<table>", '<table class="dataframe">', 1)

    __repr__ = __str__


def chips(chips: Iterable[Chip] | None = None, quantities: Sequence[str] | None = None) -> Table:
    """The catalog's chosen figures, one chip a row; a figure that no source gives shows as a dash.

    Args:
        chips: which chips; all if not given.
        quantities: names of `Chip` figures for the columns; the main ones, after the peaks, if not given.
    """
    many = list(hardware.CHIPS.values() if chips is None else chips)
    for name in quantities or ():
        if name not in hardware.quantities():
            raise ValueError(f"quantities holds {name!r}, which no chip has; {units.near(name, hardware.quantities())}")
    rows = []
    for chip in many:
        row: dict[str, object] = {"chip": chip.name}
        if quantities is None:
            row |= {f"{dtype} peak": _peak(chip, dtype) for dtype in ("bf16", "int8", "fp8")}
        for name in MAIN_QUANTITIES if quantities is None else quantities:
            row[_heading(name)] = figure(name, chip.figures[name]) if name in chip.figures else ABSENT
        rows.append(row)
    return Table(rows)


def facts(chips: Iterable[Chip]) -> Table:
    """Every chosen figure of some chips, one quantity a row and one chip a column."""
    many = list(chips)
    peaks = sorted({dtype for chip in many for dtype in chip.peak_flops_per_s}, key=list(units.ITEMSIZE).index)
    rows = [{"quantity": f"{dtype}_flops_per_s", **{chip.name: _peak(chip, dtype) for chip in many}} for dtype in peaks]
    if any(chip.pod_shape for chip in many):
        rows.append({"quantity": "pod_shape", **{chip.name: "x".join(map(str, chip.pod_shape)) or ABSENT for chip in many}})
    for name in hardware.quantities():
        if any(name in chip.figures for chip in many):
            shown = {chip.name: figure(name, chip.figures[name]) if name in chip.figures else ABSENT for chip in many}
            rows.append({"quantity": name, **shown})
    return Table(rows)


def sources(chip: Chip) -> Table:
    """Every row of the catalog about one chip: value, convention, source and date; those not chosen say so."""
    return Table(
        [
            {
                "quantity": row.quantity,
                "value": _value(row),
                "chosen": "yes" if row.chosen else "no",
                "convention": row.convention,
                "source": row.source,
                "date": row.date,
                "known": row.known,
            }
            for row in catalog.chip_figures()
            if row.chip == chip.name
        ]
    )


def conflicts() -> Table:
    """Where sources disagree: the chosen figure, the other one, and by how much they differ."""
    chosen = {(row.chip, row.quantity): row for row in catalog.chip_figures() if row.chosen}
    return Table(
        [
            {
                "chip": row.chip,
                "quantity": row.quantity,
                "chosen": _value(ours := chosen[row.chip, row.quantity]),
                "other": _value(row),
                "differs by": _difference(ours, row),
                "source of the other": row.source,
            }
            for row in catalog.chip_figures()
            if _value(row) != _value(chosen[row.chip, row.quantity])
        ]
    )


def models(names: Iterable[str] | None = None) -> Table:
    """Models of the catalog with their shapes and what follows from them, family by family.

    Args:
        names: which models; all if not given.
    """
    rows, before = [], ""
    for entry in _entries(names):
        model = transformer.model(entry.name)
        row = {
            "family": "" if entry.family == before else entry.family,
            "model": entry.name,
            "parameters": f"{transformer.parameters(model).total:,}",
            "active": f"{transformer.active_parameters(model, 'all'):,}" if model.experts else ABSENT,
            "KV a token": units.human(transformer.kv_cache_bytes(model, S=1), "B"),
        }
        row |= {letter: f"{getattr(model, letter):,}" for letter in "LDFNKHV"}
        row |= {"F": row["F"] if model.dense_layers else ABSENT, "attention": _attention(model), "experts": _experts(model)}
        rows.append(row)
        before = entry.family
    return Table(rows)


def model_sources(names: Iterable[str] | None = None) -> Table:
    """Where each model's shape comes from, how we know it, and how far its count is from the one that was published.

    Args:
        names: which models; all if not given.
    """
    rows = []
    for entry in _entries(names):
        total = transformer.parameters(transformer.model(entry.name)).total
        published = entry.published_total
        rows.append(
            {
                "model": entry.name,
                "published": f"{published / 1e9:,.6g} B" if published else ABSENT,
                "counted from it": f"{total / published - 1:+.2%}" if published else ABSENT,
                "known": entry.known,
                "source": entry.source,
                "date": entry.date,
                "note": entry.note,
            }
        )
    return Table(rows)


def _entries(names: Iterable[str] | None) -> list[catalog.ModelEntry]:
    wanted = None if names is None else {transformer.model(name).name for name in names}
    return [entry for entry in catalog.models() if wanted is None or entry.name in wanted]


def _attention(model: Transformer) -> str:
    """The kind of attention, and how many layers see how little of the context."""
    kind = "latent" if model.latent else "multi-head" if model.G == 1 else "multi-query" if model.K == 1 else "grouped"
    short = sum(each != "global" for each in model.layer_kinds)
    return kind + (f", {short} of {model.L} layers {model.window:,}" if short else "")


def _experts(model: Transformer) -> str:
    moe = model.experts
    if moe is None:
        return ABSENT
    return f"{moe.top_k} of {moe.n_experts}, {moe.d_ff:,} wide" + (f", {moe.n_shared} shared" if moe.n_shared else "")


def figure(quantity: str, value: float) -> str:
    """One catalog figure as people write it, its unit taken from the end of its name."""
    for suffix, unit in (("_flops_per_s", "FLOP/s"), ("_bytes_per_s", "B/s"), ("_hz", "Hz")):
        if quantity.endswith(suffix):
            return units.human(value, unit, digits=4)
    if quantity.endswith("_bytes"):
        return f"{value / units.MIB:g} MiB" if value < units.GIB else units.human(value, "GiB", digits=4)
    return f"{value:.2f} USD" if quantity.endswith("usd_per_hour") else f"{value:g}"


def _peak(chip: Chip, dtype: str) -> str:
    return units.human(chip.flops_per_s(dtype), units.rate_unit(dtype), 4) if dtype in chip.peak_flops_per_s else ABSENT


def _value(row: catalog.Figure) -> str:
    return row.value if row.unit == "text" else figure(row.quantity, float(row.value))


def _difference(ours: catalog.Figure, other: catalog.Figure) -> str:
    return "" if ours.unit == "text" else f"{float(other.value) / float(ours.value) - 1:+.1%}"


def _heading(quantity: str) -> str:
    for suffix, words in (("_flops_per_s", " FLOP/s"), ("_bytes_per_s", " B/s"), ("_bytes", " bytes"), ("_hz", " Hz")):
        if quantity.endswith(suffix):
            return quantity.removesuffix(suffix).replace("_", " ") + words
    return quantity.replace("_", " ").replace("usd", "USD")
