"""The Makefile says in one line what is missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(*arguments, folder=ROOT):
    return subprocess.run(["make", "-s", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def python_39(tmp_path):
    """An interpreter that claims to be too old."""
    fake = tmp_path / "python3.9"
    fake.write_text("#!/bin/sh\necho 3.9\n")
    fake.chmod(0o755)
    return fake


@pytest.mark.parametrize("python", ["no-such-python", "python_39"])
def test_a_missing_or_old_python_is_one_clear_line(python, tmp_path, request):
    name = request.getfixturevalue(python) if python == "python_39" else python
    done = make("book", f"PYTHON={name}", f"VENV={tmp_path}/venv")
    first = done.stderr.splitlines()[0]
    assert done.returncode != 0
    assert "the course supports Python 3.11 to 3.13: give PYTHON=" in first


def test_draft_asks_for_a_page(tmp_path):
    (tmp_path / "venv/bin").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "node_modules").mkdir()
    for made in ("venv/ready", "package-lock.json", "node_modules/ready"):
        (tmp_path / made).touch()
    done = make("draft", "VENV=venv", "CONSTRAINTS=", folder=tmp_path)
    assert done.stderr.splitlines()[0] == "make: give a page, like: make draft PAGE=chapters/01-roofline.md"


def test_help_names_every_target():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = next(line for line in text.splitlines() if line.startswith(".PHONY")).split()[1:]
    shown = make("help").stdout
    assert [target for target in targets if target not in shown and target != "help"] == []
