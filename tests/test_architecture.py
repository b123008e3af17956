"""The arrows of the design: who may import whom, and what the core may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scaling_lib"
CORE = [
    "units", "catalog", "hardware", "roofline", "torus", "tiling", "systolic", "collectives", "sharding", "transformer",
    "training", "inference",
]  # fmt: skip
MAY_IMPORT = {
    "units": set(),
    "catalog": {"units"},
    "hardware": {"units", "catalog"},
    "roofline": {"units", "hardware"},
    "torus": {"units", "hardware"},
    "tiling": {"units", "hardware"},
    "systolic": {"units", "hardware", "tiling"},
    "collectives": {"units", "hardware", "catalog"},
    "sharding": {"units", "hardware", "roofline", "collectives"},
    "transformer": {"units", "catalog", "hardware", "roofline"},
    "training": {"units", "catalog", "hardware", "roofline", "collectives", "transformer"},
    "inference": {"units", "catalog", "hardware", "roofline", "collectives", "transformer", "training"},
    "search": {*CORE, "serving"},
    "serving": {*CORE},
    "validation": {*CORE},
    "show": {*CORE, "serving", "validation"},
    "xla": {*CORE},
    "grading": {"units", "show"},
    "rehearsal": {"units"},
    "cli": {*CORE, "grading", "rehearsal", "search", "serving", "show", "validation", "xla"},
}


def modules_of(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """First names below `scaling_lib` that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "scaling_lib":
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("scaling_lib.")}
    return names - {"__version__"}


@pytest.mark.parametrize(
    "path",
    [p for p in modules_of(PACKAGE) if p.parent != PACKAGE or p.stem != "__init__"],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_arrows_point_one_way(path):
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert imported(path) - {room} <= MAY_IMPORT[room]


def test_the_walk_sees_an_import_inside_a_function(tmp_path):
    (tmp_path / "sly.py").write_text("def f():\n    from scaling_lib.show import plots\n    import scaling_lib.xla.simulate\n")
    assert imported(tmp_path / "sly.py") == {"show", "xla"}


def loaded_by(code: str) -> set[str]:
    """Top-level names of modules outside the standard library that `code` loads in a fresh process."""
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return {name.split(".")[0] for name in out.split()} - set(sys.stdlib_module_names) - {"scaling_lib"}


def test_the_core_loads_the_standard_library_alone():
    calls = "from scaling_lib import hardware, roofline as r; r.bound(r.matmul(3, 5, 7), hardware.chip('v5e'))"
    assert loaded_by("\n".join([*(f"import scaling_lib.{m}" for m in CORE), calls])) == set()


def test_the_show_and_xla_packages_load_nothing_themselves():
    assert loaded_by("import scaling_lib.show, scaling_lib.xla, scaling_lib.cli") == set()


def test_that_check_can_fail():
    assert "numpy" in loaded_by("import numpy")


def test_unused_dependencies_of_the_core_are_none():
    import tomllib

    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"] == []


def test_an_explorer_loads_its_own_part_of_the_core():
    script = "import sys; from scaling_lib.show.explorers import torus_explorer; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "scaling_lib.torus" in out.split()
    assert not {"scaling_lib.transformer", "scaling_lib.sharding"} & set(out.split())
