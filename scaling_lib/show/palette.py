"""The book's colors, for matplotlib and SVG alike; imports nothing, so that the reader's browser can load it."""

from __future__ import annotations

from collections.abc import Mapping

COLORS: Mapping[str, str] = {
    "mxu": "#0072B2", "vpu": "#56B4E9", "vmem": "#E69F00", "hbm": "#D55E00",
    "ici": "#009E73", "dcn": "#CC79A7", "pcie": "#666666",
}  # fmt: skip
"""One color a resource, the same in every figure of the book; told apart by color-blind readers (Okabe and Ito)."""

NEUTRAL = "#333333"
"""Points and text on white; SVG figures take the color of the text around them instead."""

PARTS: Mapping[str, str] = {
    "attention": "#332288", "scores": "#AA4499", "mlp": "#44AA99", "experts": "#117733", "idle": "#BBCCBB",
    "shared_experts": "#999933", "embedding": "#DDCC77", "head": "#CC6677", "rest": "#888888",
}  # fmt: skip
"""One color a part of a Transformer, and none that a resource has (Paul Tol's "muted"); "idle" are experts that a token skips."""

MODELS: tuple[str, ...] = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#CCBB44", "#66CCEE")
"""Colors of the models of one figure, in turn (Paul Tol's "bright")."""

STATES: Mapping[str, str] = {
    "weights": "#77AADD", "optimizer": "#EE8866", "activations": "#EEDD88", "gradients": "#FFAABB", "working": "#99DDFF",
    "buffers": "#44BB99", "logits": "#BBCC33", "head": "#AAAA00",
}  # fmt: skip
"""One color a part of a training step's memory (Paul Tol's "light"); pale, so that dark text reads on each."""
