"""How a model is served on the devices of a slice, checked against the model and the slice.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.training.wires import Placement, placements, whole
from scaling_lib.transformer import Quantization, Transformer

AXES = ("tensor", "sequence", "kv_batch", "width", "data")
"""Mesh axes, the innermost first: on a shared physical axis it has the part next to the chip."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "tensor": ("tensor", "sequence", "kv_batch"),
    "sequence": ("sequence",),
    "kv_batch": ("kv_batch",),
    "width": ("width",),
    "all": AXES,
}
"""Mesh axes that take part in one collective together. The ways of "tensor" share heads and hidden widths of all matmuls."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model is served. The five mesh axes multiply to the devices of the slice (TPU7x: two a chip; elsewhere one).

    The cache is split over heads, then over sequences of the batch, then over the tokens of each: `tensor` takes the key heads,
    and with more ways than there are the cache is repeated; `kv_batch` and `sequence` split it further. Both join `tensor` in
    splitting the weights.

    Args:
        tensor: ways to share query heads, key heads and hidden widths (1D weight-stationary).
        sequence: ways to share the tokens of each cached sequence; partial results are merged.
        kv_batch: ways to share the sequences of the cache; all-to-alls before and after attention bring queries to them.
        width: ways to share the model's width D of each matrix (2D weight-stationary), and the cached sequences.
        data: attention data parallelism: each has its own sequences and all of attention, and the feed-forward blocks are shared
            by all. With `expert`, experts alone are.
        expert: ways to share the experts, out of all devices; the rest of the devices shares each expert's hidden width.
        weights: dtype of the weights.
        quantization: of the weights, where scales are to be counted; in place of `weights` for the parts that it names.
        kv: dtype of the cache.
        kv_scale: dtype of one scale beside each head's key, and value, of a token; None for a cache without scales.
        activations: dtype of activations, of attention's and the head's matmuls.
        math: dtype of all other matmuls: "int8" or "fp8" where activations are quantized too.
        placement: where the mesh axes lie, as of `training.Plan`: `{"tensor": (0,), "data": (1,)}`; None for the fastest.

    Raises:
        ValueError: for values out of range; what needs the model and the slice, `why_not` finds.
    """

    tensor: int = 1
    sequence: int = 1
    kv_batch: int = 1
    width: int = 1
    data: int = 1
    expert: int = 1
    weights: str = "bf16"
    quantization: Quantization | None = None
    kv: str = "bf16"
    kv_scale: str | None = None
    activations: str = "bf16"
    math: str = "bf16"
    placement: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name in (*AXES, "expert"):
            object.__setattr__(self, name, units.size(name, getattr(self, name)))
        for name in ("weights", "kv", "activations", "math"):
            object.__setattr__(self, name, units.dtype_name(getattr(self, name)))
        if self.kv_scale is not None:
            object.__setattr__(self, "kv_scale", units.dtype_name(self.kv_scale))
        if not isinstance(self.quantization, Quantization | None):
            raise ValueError(f"quantization={self.quantization!r}: give transformer.Quantization(...), or None")

    @property
    def axes(self) -> dict[str, int]:
        """Ways of each mesh axis, the innermost first."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def devices(self) -> int:
        """Devices the layout is for."""
        return math.prod(self.axes.values())

    @property
    def split(self) -> int:
        """Ways that share heads and hidden widths, tensor · sequence · kv_batch."""
        return self.tensor * self.sequence * self.kv_batch

    @property
    def gathers(self) -> bool:
        """Whether the data ways share the feed-forward blocks, so that all sequences come together there."""
        return self.data > 1 and self.expert == 1

    def but(self, **changes: Any) -> Layout:
        """This layout with some arguments changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        ways = " · ".join(f"{axis} {ways}" for axis, ways in [*self.axes.items(), ("expert", self.expert)] if ways > 1)
        dtypes = [f"weights {self.weights}", f"cache {self.kv}"]
        return ", ".join([ways or "one device", *dtypes])


def why_not(layout: Layout, model: Transformer, slice: Slice) -> str | None:
    """Why a layout cannot run, with the number at fault and what would do; None where it can, which memory may still forbid.

    Args:
        layout: the layout.
        model: whose heads, widths and experts are split.
        slice: whose devices are used.
    """
    checks = (_devices(layout, slice), *(rule.why(layout, model) for rule in RULES), _place(layout, slice))
    return next(filter(None, checks), None)


def _devices(layout: Layout, slice: Slice) -> str | None:
    if layout.devices == slice.devices:
        return None
    product = " · ".join(f"{axis}={ways}" for axis, ways in layout.axes.items() if ways > 1) or "tensor=1"
    wrong = f"{product} is {layout.devices} devices, but {slice} has {slice.devices}"
    others = layout.devices // layout.tensor
    if slice.devices % others == 0:
        return f"{wrong}; tensor={slice.devices // others} would do"
    return f"{wrong}; take ways that multiply to {slice.devices}"


def _heads(layout: Layout, model: Transformer) -> str | None:
    t = layout.tensor
    if model.N % t:
        return f"tensor={t} does not divide the {model.N} heads of {model}; give one of {divisors(model.N)}"
    if (model.N * model.v_dim) % layout.split:
        return f"tensor · sequence · kv_batch = {layout.split} does not divide the {model.N} heads of {model} in parts"
    return None


def _key_heads(layout: Layout, model: Transformer) -> str | None:
    t = layout.tensor
    if not model.latent and model.K % t and t % model.K:
        near = divisors(math.gcd(model.K, layout.devices))
        return (
            f"tensor={t} and the {model.K} key heads of {model}: one must divide the other; "
            f"give tensor={near}, and the rest of the devices to kv_batch"
        )
    return None


def _widths(layout: Layout, model: Transformer) -> str | None:
    w, ways = layout.width, layout.split * (layout.data if layout.gathers else 1)
    if model.D % w:
        return f"width={w} does not divide the width {model.D} of {model}; give one of {divisors(model.D)}"
    if model.dense_layers and model.F % ways:
        return f"{_ways(layout)}{ways} ways do not divide the hidden width {model.F} of {model}; give one of {divisors(model.F)}"
    if model.experts and model.experts.shared_width % ways:
        return f"{_ways(layout)}{ways} ways do not divide the shared experts' width {model.experts.shared_width} of {model}"
    return None


def _ways(layout: Layout) -> str:
    return "tensor · sequence · kv_batch" + (" · data = " if layout.gathers else " = ")


def _experts(layout: Layout, model: Transformer) -> str | None:
    e = layout.expert
    if e == 1 and not model.experts:
        return None
    if not model.experts:
        return f"expert={e}, but {model} has no experts; give expert=1"
    if model.E % e:
        return f"expert={e} does not divide the {model.E} experts of {model}; give one of {divisors(model.E)}"
    if layout.devices % e:
        return f"expert={e} does not divide the {layout.devices} devices; give one of {divisors(layout.devices)}"
    inner = layout.devices // e
    if model.experts.d_ff % inner:
        return (
            f"{inner} devices share an expert of {model}, whose width {model.experts.d_ff} they do not divide; raise expert={e}"
        )
    return None


def _two_d(layout: Layout, model: Transformer) -> str | None:
    if layout.width > 1 and (model.experts or model.latent or layout.data > 1):
        return f"width={layout.width} is for dense models without data ways; give width=1"
    return None


@dataclass(frozen=True)
class Rule:
    """A rule that a layout must keep: `why` says why it does not, or None."""

    kind: str
    why: Callable[[Layout, Transformer], str | None]


RULES = (
    Rule("heads", _heads),
    Rule("key heads", _key_heads),
    Rule("hidden width", _widths),
    Rule("experts", _experts),
    Rule("2D", _two_d),
)
"""What the model asks of a layout, in the order in which `why_not` looks."""


def _place(layout: Layout, slice: Slice) -> str | None:
    if layout.placement is None:
        return None
    try:
        found = whole(layout.placement, slice, AXES)
    except ValueError as wrong:
        return str(wrong)
    for axis, ways in layout.axes.items():
        if (placed := math.prod(found.get(axis, {}).values())) != ways:
            return f"placement has {placed} ways for {axis}, but {axis}={ways}"
    return None


def located(layout: Layout, slice: Slice) -> Iterator[Placement]:
    """The placements a layout can have: its own, or all."""
    if layout.placement is not None:
        return iter([whole(layout.placement, slice, AXES)])
    return placements(layout.axes, slice, AXES)


def divisors(n: int) -> str:
    """The divisors of a number, as a list for a sentence."""
    found = [d for d in range(1, n + 1) if n % d == 0]
    return ", ".join(map(str, found if len(found) <= 12 else [*found[:11], "..."]))
