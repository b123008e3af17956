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
