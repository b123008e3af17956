"""The labs as a reader in Colab runs them: a clean environment, the built wheel, an empty folder, `google.colab` loaded.

nbval executes each lab there once and compares every number it prints with the committed notebook. The last tests break
a lab on purpose and see the check turn red.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
LABS = sorted((ROOT / "labs").glob("*.ipynb"))

pytestmark = pytest.mark.lab


def run(*command, **kwargs):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900, **kwargs)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def requirements():
    """What Colab has: the dependencies of the extras that labs use, and the tools that run a notebook."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return [*extras["show"], *extras["jax"], *extras["labs"], "ipykernel", "nbval"]


@pytest.fixture(scope="session")
def colab(tmp_path_factory):
    """Path of a Python with what Colab has, without the library, and the environment in which its labs run."""
    folder = tmp_path_factory.mktemp("colab")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", folder / "venv")
    python = folder / "venv/bin/python"
    constraints = ROOT / f"constraints/python{sys.version_info[0]}.{sys.version_info[1]}.txt"
    pins = ["-c", constraints] if os.environ.get("CONSTRAINTS", "set") else []
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *pins, *requirements())
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "google/colab").mkdir(parents=True)
    (site / "google/colab/__init__.py").touch()
    (site / "google/colab/output.py").touch()  # JAX imports it where it sees Colab
    (site / "colab.pth").write_text("import google.colab\n")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "PYTEST", "TPU_"))
    }
    environment |= {"SCALING_LIB": str(wheel), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    return python, environment


@pytest.fixture
def with_compiler(colab, tmp_path):
    """The same, with the TPU compiler of this environment beside it."""
    python, environment = colab
    described = importlib.metadata.distribution("libtpu")._path  # importing it would change this process's environment
    parts = [described.with_name("libtpu"), described]
    (tmp_path / "compiler").mkdir()
    for part in parts:
        (tmp_path / "compiler" / part.name).symlink_to(part)
    return python, {**environment, "PYTHONPATH": str(tmp_path / "compiler")}


def nbval(colab, notebook, folder, cell_s=120):
    """Run one notebook from an empty folder; the finished process."""
    python, environment = colab
    folder.mkdir()
    nbformat.write(notebook, folder / "lab.ipynb")
    command = [python, "-m", "pytest", "--nbval", "--nbval-current-env", f"--nbval-cell-timeout={cell_s}", "-q", "lab.ipynb"]
    return subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


MEASURING = {"01-roofline", "07a-decoding", "07b-serving", "09-profiling", "10b-many-hosts"}  # one after the other


def in_turn(path):
    """A parameter of a test that runs a lab: those that measure go to one process."""
    return pytest.param(path, id=path.stem, marks=[pytest.mark.xdist_group("measuring" if path.stem in MEASURING else path.stem)])


@pytest.mark.parametrize("path", [in_turn(path) for path in LABS])
def test_a_lab_prints_in_colab_what_is_committed(path, colab, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    done = nbval(colab, notebook, tmp_path / "empty")
    assert done.returncode == 0, done.stdout + done.stderr
    code = sum(cell.cell_type == "code" for cell in notebook.cells)
    assert f"{code} passed" in done.stdout  # nothing skipped


def compiled(path):
    """A parameter of a test that compiles a lab's programs: two labs in each check, all weekly."""
    return pytest.param(path, id=path.stem, marks=[pytest.mark.weekly] * (path.stem not in ("02-tpus", "09-profiling")))


@pytest.mark.slow  # two at a time, for nothing here is measured; one process has them all and makes their environment
@pytest.mark.xdist_group("labs")
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no TPU compiler for this platform")
@pytest.mark.parametrize("path", [compiled(path) for path in LABS if "record=" in path.read_text(encoding="utf-8")])
def test_a_lab_compiled_live_prints_what_its_records_do(path, with_compiler, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    done = nbval(with_compiler, notebook, tmp_path / "empty", cell_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    python, environment = with_compiler
    libraries = "import libtpu, scaling_lib.xla.libtpu as found; print(found.library())"
    assert run(python, "-c", libraries, cwd=tmp_path, env=environment).strip().endswith("libtpu.so")


def test_the_library_that_ran_was_the_wheel(colab, tmp_path):
    python, environment = colab
    out = run(python, "-c", "import scaling_lib; print(scaling_lib.__file__)", cwd=tmp_path, env=environment)
    assert Path(out.strip()).is_relative_to(python.parents[1])


def beginning_of_a_lab():
    """The first lab up to the first number that it prints and that is compared; kept short, for proofs."""
    notebook = nbformat.read(LABS[0], as_version=4)
    for last, cell in enumerate(notebook.cells):
        ignored = "nbval-ignore-output" in cell.metadata.get("tags", [])
        if cell.cell_type == "code" and not ignored and any(o.output_type == "stream" for o in cell.outputs):
            notebook.cells = notebook.cells[: last + 1]
            return notebook
    raise AssertionError("the lab prints nothing that is compared")


def test_the_beginning_of_a_lab_passes(colab, tmp_path):
    done = nbval(colab, beginning_of_a_lab(), tmp_path / "empty")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_changed_printed_number_turns_a_lab_red(colab, tmp_path):
    notebook = beginning_of_a_lab()
    output = notebook.cells[-1].outputs[0]
    changed = output.text.replace("134,217,728", "134,217,729")
    assert changed != output.text
    output.text = changed
    done = nbval(colab, notebook, tmp_path / "empty")
    assert done.returncode == 1
    assert "134,217,729" in done.stdout
    assert "1 failed" in done.stdout


def test_a_failing_assert_turns_a_lab_red(colab, tmp_path):
    notebook = beginning_of_a_lab()
    notebook.cells[-1].source += "\nassert example.total_flops == 0"
    assert nbval(colab, notebook, tmp_path / "empty").returncode == 1


def test_a_hanging_cell_is_ended(colab, tmp_path):
    python, environment = colab
    notebook = beginning_of_a_lab()
    notebook.cells[-1].source = "import time; time.sleep(300)"
    (tmp_path / "lab.ipynb").write_text(json.dumps(notebook))
    command = [python, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=5", "-q", "lab.ipynb"]
    done = subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Timeout" in done.stdout
