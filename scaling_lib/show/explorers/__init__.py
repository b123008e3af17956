"""Explorers: sliders and fields over the core, the same in Jupyter, in Colab and on a page of the book without a server.

A view function turns one state of the controls into HTML; an `Explorer` keeps a view in step with its controls. Everything
here must load in the reader's browser: pure Python, ipywidgets that versions 7 and 8 share, figures as SVG text.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scaling_lib.show.explorers.base import LINK, Control, Explorer, View, read_size

if TYPE_CHECKING:
    from scaling_lib.show.explorers.batch import batch_explorer, batch_view
    from scaling_lib.show.explorers.budget import budget_explorer, budget_view
    from scaling_lib.show.explorers.cache import cache_explorer, cache_view
    from scaling_lib.show.explorers.memory import memory_explorer, memory_view
    from scaling_lib.show.explorers.model import model_explorer, model_view
    from scaling_lib.show.explorers.plan import plan_explorer, plan_view
    from scaling_lib.show.explorers.roofline import matmul_explorer, matmul_view, roofline_explorer, roofline_view
    from scaling_lib.show.explorers.schedule import schedule_explorer, schedule_view
    from scaling_lib.show.explorers.serving import serving_explorer, serving_view
    from scaling_lib.show.explorers.sharding import sharding_explorer, sharding_view
    from scaling_lib.show.explorers.speculation import speculation_explorer, speculation_view
    from scaling_lib.show.explorers.tiling import tiling_explorer, tiling_view
    from scaling_lib.show.explorers.torus import torus_explorer, torus_view

__all__ = [
    "LINK",
    "Control",
    "Explorer",
    "View",
    "batch_explorer",
    "batch_view",
    "budget_explorer",
    "budget_view",
    "cache_explorer",
    "cache_view",
    "matmul_explorer",
    "matmul_view",
    "memory_explorer",
    "memory_view",
    "model_explorer",
    "model_view",
    "plan_explorer",
    "plan_view",
    "read_size",
    "roofline_explorer",
    "roofline_view",
    "schedule_explorer",
    "schedule_view",
    "serving_explorer",
    "serving_view",
    "sharding_explorer",
    "sharding_view",
    "speculation_explorer",
    "speculation_view",
    "tiling_explorer",
    "tiling_view",
    "torus_explorer",
    "torus_view",
]


def __getattr__(name: str) -> Any:
    """An explorer or its view, loaded when first asked for: a page shows one or two, and each brings its part of the core."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    about = name.rpartition("_")[0].replace("matmul", "roofline")
    return getattr(import_module(f"{__name__}.{about}"), name)
