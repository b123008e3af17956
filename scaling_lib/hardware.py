"""Chips and how they are wired: TPU slices (tori), several slices over DCN, GPU nodes and their networks.

Every figure is per chip unless its name says otherwise, in base units, from `catalog/chips.csv`. A chip is what you buy:
a TPU7x chip is two JAX devices, so `Slice.chips` and `Slice.devices` differ. Derived in chapters/01-roofline.md.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar, overload

from scaling_lib import catalog, units

__all__ = ["CHIPS", "Chip", "Slice", "chip", "quantities", "slice_of", "tpu_shapes"]

N = TypeVar("N", int, float)


class _Figure(Generic[N]):
    """Attribute access to one entry of `Chip.figures`; an absent one is an error, so it can never pass for zero."""

    def __init__(self, kind: type[N], doc: str) -> None:
        self.kind: type[N] = kind
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, chip: None, owner: type) -> _Figure[N]: ...
    @overload
    def __get__(self, chip: Chip, owner: type) -> N: ...
    def __get__(self, chip: Chip | None, owner: type) -> _Figure[N] | N:
        if chip is None:
            return self
        if self.name not in chip.figures:
            have = [c.name for c in _chips().values() if self.name in c.figures]
            raise ValueError(f"no sourced figure for {self.name} of {chip.name}; known for: {', '.join(have) or 'no chip'}")
        value: N = self.kind(chip.figures[self.name])
        return value


@dataclass(frozen=True)
class Chip:
    """One accelerator chip, from the catalog or made by you from your own measurements.

    Args:
        name: the TPU compiler's name where there is one ("v5e", "tpu7x"), else the usual one ("h100").
        peak_flops_per_s: dense peak by dtype name, per chip; operations per second for integer dtypes.
        figures: any of the quantities below, by name. Reading one that is absent raises `ValueError`.
        vendor: who makes it.
        kind: "tpu", "gpu" or "cpu".
        pod_shape: chips along each torus axis of the largest slice; empty where there is no torus.

    Raises:
        ValueError: for an unknown quantity or dtype, or a figure that is not a positive finite number.

    Source: `catalog/chips.csv`, shown with every conflict in chapters/appendix-chips.md; rule of choice in docs/adr/0004.
    """

    name: str
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    figures: Mapping[str, float] = field(default_factory=dict, hash=False)
    vendor: str = ""
    kind: Literal["tpu", "gpu", "cpu"] = "cpu"
    pod_shape: tuple[int, ...] = ()

    cores = _Figure(int, "TensorCores per chip.")
    devices = _Figure(int, "JAX devices per chip.")
    clock_hz = _Figure(float, "Clock of the matrix unit.")
    mxus = _Figure(int, "Matrix units a chip, all cores together.")
    mxu_dim = _Figure(int, "Side of one matrix unit; 128 means 128 × 128 multiply-adds a cycle.")
    vpu_flops_per_s = _Figure(float, "Vector unit, float32, all cores together.")
    hbm_bytes = _Figure(float, "Physical HBM.")
    usable_hbm_bytes = _Figure(float, "HBM that the compiler lets a program have.")
    hbm_bytes_per_s = _Figure(float, "Peak HBM bandwidth.")
    vmem_bytes = _Figure(float, "On-chip vector memory, all cores together.")
    vmem_bytes_per_s = _Figure(float, "Bandwidth between VMEM and the matrix unit.")
    ici_link_bytes_per_s = _Figure(float, "One ICI link, one way, as achieved by large transfers.")
    ici_link_peak_bytes_per_s = _Figure(float, "One ICI link, one way, as the vendor states it.")
    ici_axes = _Figure(int, "Axes of the torus; each has two links per chip.")
    chips_per_host = _Figure(int, "Chips that share a host machine.")
    pod_chips = _Figure(int, "Chips in the largest slice.")
    fabric_bytes_per_s = _Figure(float, "NVLink or xGMI of a GPU, one way, all its links together.")
    fabric_chips = _Figure(int, "How many GPUs share that fabric.")
    dcn_bytes_per_s = _Figure(float, "Data-center network, one way, a chip's share.")
    pcie_bytes_per_s = _Figure(float, "PCIe to the host, one way.")
    usd_per_hour = _Figure(float, "On-demand price.")
    measured_bf16_flops_per_s = _Figure(float, "Best bf16 matmul rate somebody measured and published.")
    measured_hbm_bytes_per_s = _Figure(float, "Best HBM copy rate somebody measured and published.")

    def __post_init__(self) -> None:
        peaks = {units.dtype_name(dtype): rate for dtype, rate in self.peak_flops_per_s.items()}
        if len(peaks) < len(self.peak_flops_per_s):
            raise ValueError(f"{self.name}: peak_flops_per_s names one dtype twice: {', '.join(map(str, self.peak_flops_per_s))}")
        if self.kind not in ("tpu", "gpu", "cpu"):
            raise ValueError(f"{self.name}: kind={self.kind!r} is none of 'tpu', 'gpu', 'cpu'")
        if unknown := set(self.figures) - set(quantities()):
            raise ValueError(f"{self.name}: unknown quantity {min(unknown)!r}; {units.near(min(unknown), quantities())}")
        for name, value in [*peaks.items(), *self.figures.items()]:
            if units.number(f"{self.name}: {name}", value) <= 0:
                raise ValueError(f"{self.name}: {name}={value!r} must be positive")
            figure = vars(Chip).get(name)
            if isinstance(figure, _Figure) and figure.kind is int:
                units.size(f"{self.name}: {name}", value)
        object.__setattr__(self, "peak_flops_per_s", peaks)
        object.__setattr__(self, "figures", dict(self.figures))

    def flops_per_s(self, dtype: object = "bf16") -> float:
        """Dense peak of the matrix unit for arithmetic in `dtype`; operations per second for integers.

        Raises:
            ValueError: where no source states a peak for that dtype on this chip.
        """
        name = units.dtype_name(dtype)
        if name not in self.peak_flops_per_s:
            have = ", ".join(self.peak_flops_per_s) or "none"
            raise ValueError(f"dtype={name!r} has no sourced peak on {self.name}; it has: {have}")
        return self.peak_flops_per_s[name]

    def but(self, **figures: float) -> Chip:
        """This chip with some figures changed: `chip("v5e").but(hbm_bytes_per_s=2e12)` answers a what-if."""
        return replace(self, figures={**self.figures, **figures})

    def __str__(self) -> str:
        return self.name


def quantities() -> list[str]:
    """Names of the figures a `Chip` can have, in the order of its documentation."""
    return [name for name, value in vars(Chip).items() if isinstance(value, _Figure)]


# Names people and JAX use -> ours. The second group is what `jax.Device.device_kind` prints.
_ALIASES = {
    "v5litepod": "v5e", "v5lite": "v5e", "v4p": "v4", "trillium": "v6e", "ironwood": "tpu7x", "v7x": "tpu7x", "tpu7": "tpu7x",
    "v7": "tpu7x", "a100": "a100-80gb",
    "tpu v4": "v4", "tpu v5 lite": "v5e", "tpu v5e": "v5e", "tpu v5": "v5p", "tpu v5p": "v5p", "tpu v6 lite": "v6e",
    "tpu v6e": "v6e", "tpu v7x": "tpu7x", "tesla v100-sxm2-16gb": "v100", "tesla v100-sxm2-32gb": "v100",
    "nvidia a100-sxm4-40gb": "a100-40gb", "nvidia a100-sxm4-80gb": "a100-80gb", "nvidia h100 80gb hbm3": "h100",
    "nvidia h200": "h200", "nvidia b200": "b200", "nvidia gb200": "gb200", "nvidia b300": "b300",
}  # fmt: skip


@cache
def _chips() -> dict[str, Chip]:
    chosen: dict[str, dict[str, str]] = {}
    for row in catalog.chip_figures():
        if row.chosen:
            chosen.setdefault(row.chip, {})[row.quantity] = row.value
    return {name: _from_catalog(name, row) for name, row in chosen.items()}


def _from_catalog(name: str, row: Mapping[str, str]) -> Chip:
    shape, kind = row.get("pod_shape", ""), row["kind"]
    assert kind in ("tpu", "gpu"), f"catalog: {name} has kind {kind!r}"
    peak = re.compile(r"(\w+)_flops_per_s")
    dtypes = {q: m[1] for q in row if (m := peak.fullmatch(q)) and m[1] in units.ITEMSIZE}
    return Chip(
        name=name,
        peak_flops_per_s={dtype: float(row[q]) for q, dtype in dtypes.items()},
        figures={q: float(value) for q, value in row.items() if q not in {"vendor", "kind", "pod_shape", *dtypes}},
        vendor=row["vendor"],
        kind="tpu" if kind == "tpu" else "gpu",
        pod_shape=tuple(map(int, shape.split("x"))) if shape else (),
    )


CHIPS: Mapping[str, Chip]
"""Every chip of the catalog by name; read from disk when first asked for."""


def __getattr__(name: str) -> Any:
    if name == "CHIPS":
        return MappingProxyType({name: replace(known) for name, known in _chips().items()})  # copies: nobody can change ours
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def chip(name: str) -> Chip:
    """The chip called `name`: "v5e", an alias such as "Trillium", or what JAX's `device_kind` prints.

    Raises:
        ValueError: for an unknown name; near names are offered. Cloud names such as "v5p-128" are slices: see `slice_of`.
    """
    key = str(name).strip().lower()
    key = _ALIASES.get(key, key)
    if key in _chips():
        return replace(_chips()[key])
    if cloud := _cloud_name(key):
        raise ValueError(f"chip={name!r} is a whole slice; {cloud}")
    raise ValueError(f"chip={name!r} is unknown; {units.near(key, [*_chips(), *_ALIASES])}")


@dataclass(frozen=True)
class Slice:
    """Chips wired together: a TPU slice "v5e:16x16", `count` of them joined by DCN, or GPU nodes "h100:8x4".

    Args:
        chip: the chip it is made of.
        shape: TPUs: chips along each torus axis. GPUs: (GPUs a node, nodes).
        count: how many such slices work together over DCN.

    Raises:
        ValueError: for a shape that cannot be built; the nearest that can are offered.

    NB: real pods also offer shapes of half a cube; those are left out. For twisted tori, see `torus.Torus`.
    Source: docs.cloud.google.com/tpu/docs (slice shapes, wraparound). Derived in chapters/02-tpus.md.
    """

    chip: Chip
    shape: tuple[int, ...]
    count: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.chip, Chip):
            raise ValueError(f"chip={self.chip!r} is not a Chip; look it up with hardware.chip(...)")
        object.__setattr__(self, "count", units.size("count", self.count))
        object.__setattr__(self, "shape", tuple(units.size("shape", n) for n in self.shape))
        if why := _why_not(self.chip, self.shape):
            raise ValueError(f"shape={'x'.join(map(str, self.shape))!r} cannot be built from {self.chip}: {why}")

    @property
    def name(self) -> str:
        """The name the TPU compiler takes for one of the slices, chip and shape joined by a colon."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        """Chips in all slices together."""
        return math.prod(self.shape) * self.count

    @property
    def devices(self) -> int:
        """JAX devices in all slices together, two per chip on TPU7x and one elsewhere."""
        return self.chips * (self.chip.devices if self.chip.kind == "tpu" else 1)

    @property
    def hosts(self) -> int:
        """Host machines in all slices together."""
        per_host = self.chip.chips_per_host
        if self.chip.kind == "tpu":
            return self.count * math.ceil(math.prod(self.shape) / per_host)
        return self.count * self.shape[1] * math.ceil(self.shape[0] / per_host)

    @property
    def wraps(self) -> tuple[bool, ...]:
        """For each axis, whether its ends are joined, making it a ring.

        A 2D slice wraps only on an axis of full pod length (16). A 3D slice is cut from cubes of 4 × 4 × 4 joined by optical
        switches: made of whole cubes, all its axes wrap; smaller than a cube, none does. GPUs have no rings.
        """
        if self.chip.kind != "tpu":
            return (False,) * len(self.shape)
        if len(self.shape) == 2:
            full = max(self.chip.pod_shape)
            return tuple(n == full for n in self.shape)
        return (all(n % 4 == 0 for n in self.shape),) * len(self.shape)

    @property
    def dcn_bytes_per_s(self) -> float:
        """Bytes per second, one way, that one slice can send into the data-center network with all its hosts."""
        return math.prod(self.shape) * self.chip.dcn_bytes_per_s

    def __str__(self) -> str:
        return self.name if self.count == 1 else f"{self.count} × {self.name}"


def slice_of(name: str, count: int = 1) -> Slice:
    """The slice called `name`: `slice_of("v5p:8x8x8")`, or four of them over DCN: `slice_of("v5p:8x8x8", count=4)`.

    Raises:
        ValueError: for an unknown chip, an impossible shape, or a Cloud name that counts cores ("v5p-128"): the message
            gives the slice that is meant.
    """
    text = str(name).strip().lower()
    if cloud := _cloud_name(text):
        raise ValueError(f"slice={name!r} is a Cloud name; {cloud}")
    match = re.fullmatch(r"(.+):([0-9]{1,6}(?:x[0-9]{1,6})*)", text)
    if not match:
        raise ValueError(f"slice={name!r} does not read as chip:shape; write it like 'v5e:16x16', 'v5p:8x8x8' or 'h100:8x4'")
    return Slice(chip(match[1]), tuple(map(int, match[2].split("x"))), count)


def _why_not(chip: Chip, shape: tuple[int, ...]) -> str | None:
    """Why `shape` cannot be built from `chip`, with the nearest shapes that can; None where it can."""
    if chip.kind == "tpu" and not chip.pod_shape:
        return "it has no pod_shape; give the chip one, like pod_shape=(16, 16)"
    if chip.kind != "tpu":
        if len(shape) != 2:
            return "give GPUs a node and nodes, like 'h100:8x4'"
        if shape[0] > chip.fabric_chips:
            return f"one {chip} fabric joins at most {chip.fabric_chips} GPUs"
        return None
    if shape in (shapes := tpu_shapes(chip)):
        return None
    if len(shape) != len(chip.pod_shape):
        why = f"its torus has {len(chip.pod_shape)} axes"
    elif math.prod(shape) > (most := math.prod(chip.pod_shape)):
        why = f"a pod has {most} chips"
    elif len(shape) == 2:
        why = "it is none of 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16"
    else:
        why = "inside a 4x4x4 cube the axes are 1, 2 or 4 and a host is 2x2x1; above it every axis is a multiple of 4"
    wanted = math.prod(shape)
    nearest = sorted(shapes, key=lambda s: (abs(math.log(math.prod(s) / wanted)), max(s), s))[:2]
    return f"{why}; nearest: {', '.join(chip.name + ':' + 'x'.join(map(str, s)) for s in nearest)}"


@cache
def _tpu_shapes_of_pod(pod_shape: tuple[int, ...]) -> frozenset[tuple[int, ...]]:
    shapes: set[tuple[int, ...]]
    if len(pod_shape) == 2:  # those the vendor lists; the v5e compiler refuses many others
        listed = [(2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)]
        shapes = {shape for shape in listed if shape[0] <= min(pod_shape) and shape[1] <= max(pod_shape)}
    else:  # optical switches join any cubes of a pod: the number of cubes is limited, not the length of an axis
        most = math.prod(pod_shape) // 64
        cubes = {
            (4 * a, 4 * b, 4 * c)
            for a in range(1, most + 1)
            for b in range(1, most // a + 1)
            for c in range(1, most // (a * b) + 1)
        }
        shapes = {*cubes, (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)}
    turned = {turn for shape in shapes for turn in itertools.permutations(shape)}
    hosts_fit = {shape for shape in turned if shape[0] % 2 == shape[1] % 2 == 0}  # a host's chips are wired 2 x 2
    return frozenset(hosts_fit | {(1,) * len(pod_shape)})


def tpu_shapes(chip: Chip) -> frozenset[tuple[int, ...]]:
    """Shapes of all slices of a TPU generation, every turn of each."""
    return _tpu_shapes_of_pod(chip.pod_shape)


def _cloud_name(text: str) -> str | None:
    """For a Cloud accelerator type ("v5p-128"), words that say which slice it is; None for any other text."""
    match = re.fullmatch(r"(v4|v5p|v5litepod|v5e|v6e|tpu7x|v7x)-([0-9]{1,6})", text)
    if not match:
        return None
    of, number = _chips()[_ALIASES.get(match[1], match[1])], int(match[2])
    counts_cores = of.cores > 1
    chips, rest = divmod(number, of.cores) if counts_cores else (number, 0)
    if rest or not chips:
        return f"it counts {'cores, two per chip' if counts_cores else 'chips'}, and {number} is no whole number of chips"
    same = [shape for shape in tpu_shapes(of) if math.prod(shape) == chips and list(shape) == sorted(shape)]
    same = same or [shape for shape in tpu_shapes(of) if math.prod(shape) == chips]
    counted = f"it counts {'cores, two per chip' if counts_cores else 'chips'}, so {number} is {chips} chips"
    if not same:
        return f"{counted}, and no {of} slice has that many"
    best = min(same, key=lambda shape: (sum(shape), shape))  # the one most like a cube
    return f"{counted}: write '{of}:{'x'.join(map(str, best))}'"
