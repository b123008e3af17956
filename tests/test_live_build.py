"""What may stand in a live cell: the build refuses what a browser could not run."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import live
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("code", "blamed"),
    [
        ("import numpy as np", "numpy"),
        ("from matplotlib import pyplot", "matplotlib"),
        ("import math, json\nfrom scaling_lib import roofline", ""),
        ("from scaling_lib.show.explorers import roofline_explorer", ""),
        ("from scaling_lib.show import plots", "scaling_lib.show.plots (it needs matplotlib)"),
        ("def f():\n    import jax", "jax"),
        ("from scaling_lib.xla import program", "scaling_lib.xla (it needs jax)"),
        ("import scaling_lib.xla.program", "scaling_lib.xla.program (it needs jax)"),
        ("import tkinter", "tkinter"),
    ],
)
def test_an_import_that_no_browser_has_is_named(code, blamed):
    assert live._shipped().blame(ast.walk(ast.parse(code))) == blamed


def test_the_library_ships_with_its_data_and_without_what_needs_more():
    files = live._shipped().files
    assert "scaling_lib/catalog/chips.csv" in files
    assert "scaling_lib/show/explorers/torus.py" in files
    assert not any(path.startswith("scaling_lib/xla/") for path in files)


def test_of_xla_nothing_ships_not_even_plain_text_nor_data_nor_who_imports_it(tmp_path):
    sources = {
        "__init__.py": "",
        "core.py": "import math",
        "core.csv": "a,b",
        "xla/__init__.py": "",
        "xla/text.py": "import re",
        "xla/data.csv": "a,b",
        "show/uses.py": "from mine.xla import text",
        "show/xla_like.py": "import math",
    }
    for path, text in sources.items():
        (tmp_path / "mine" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / path).write_text(text, encoding="utf-8")
    packed = live.pack(tmp_path / "mine")
    assert set(packed.files) == {"mine/__init__.py", "mine/core.py", "mine/core.csv", "mine/show/xla_like.py"}


@pytest.mark.book
def test_a_live_cell_with_such_an_import_fails_the_build(tmp_path):
    shutil.copytree(ROOT / "_ext", tmp_path / "_ext", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copy(ROOT / "references.bib", tmp_path)
    (tmp_path / "node_modules").symlink_to(ROOT / "node_modules")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: page\n")
    front = (ROOT / "chapters/status.md").read_text(encoding="utf-8").split("\n# ")[0]
    cell = "```{code-cell} ipython3\n:tags: [live]\nimport numpy\nfrom scaling_lib.show.explorers import roofline_explorer\n\n"
    (tmp_path / "page.md").write_text(f"{front}\n# A page\n\n{cell}roofline_explorer()\n```\n", encoding="utf-8")
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "--all", "-W", "--keep-going", "-q"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "live cell: imports numpy, which no browser has" in done.stdout + done.stderr
