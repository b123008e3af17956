"""A rehearsal says what is not ready and what to do, and what the teachers' page shows of it is what it prints."""

import json
import re
import subprocess
import sys
from pathlib import Path

import inventory
import nbformat
import overview
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from scaling_lib import rehearsal
from scaling_lib.cli import main
from tests.test_overview import PLANS

ROOT = Path(__file__).parents[1]
ROOM = (ROOT / "chapters/teach-room.md").read_text(encoding="utf-8")
READY = rehearsal.Check("Python", "ok", "3.12.3")


def lab(folder, name, *sources):
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in sources]), folder / f"{name}.ipynb")
    return folder / f"{name}.ipynb"


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A folder of its own, on a machine on which all else is ready."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearsal, "machine", lambda: iter([READY]))
    return tmp_path


def rehearse(capsys, *arguments):
    status = main(["rehearse", *arguments])
    return status, capsys.readouterr().out


def test_a_lab_that_runs_is_ready_and_leaves_nothing_and_one_that_fails_says_its_cell_and_error(room, capsys):
    lab(room / "labs", "01-fine", "from pathlib import Path\nPath('left.txt').touch()", "answer = ...  # TODO")
    lab(room / "labs", "02-wrong", "x = 1", "print('so far')\nraise ValueError('first\\nno mesh of 8')", "x")
    status, out = rehearse(capsys, "01-fine")
    assert status == 0
    assert re.search(r"^lab 01-fine +ok +\d+ s$", out, re.M)
    assert re.search(r"^READY; 1 lab was run, \d+ s in all$", out, re.M)
    status, out = rehearse(capsys, "02-wrong")
    assert status == 5
    assert re.search(r"^lab 02-wrong +FIX +code cell 2 ends in ValueError: no mesh of 8", out, re.M)
    assert "\nNOT READY: lab 02-wrong; 1 lab was run" in out
    assert [path.name for path in room.iterdir()] == ["labs"]


def test_a_lab_that_is_too_slow_or_whose_kernel_dies_is_ended_and_told(room):
    slow = rehearsal.lab(lab(room, "slow", "x = 1", "import time\ntime.sleep(60)"), seconds=2)
    assert (slow.state, slow.found) == ("fix", "too slow: code cell 2 had not ended after 2 s")
    dead = rehearsal.lab(lab(room, "dead", "import os\nos._exit(1)"), seconds=30)
    assert dead.state == "fix"
    assert dead.found.startswith("the kernel died in code cell 1")


def test_without_notebooks_it_says_where_they_come_from(room, capsys):
    status, out = rehearse(capsys)
    assert status == 5
    assert re.search(r"^notebooks +FIX +none in labs +say where with --labs FOLDER; make editions", out, re.M)


def test_labs_are_found_in_the_bundle_and_an_unknown_one_is_said(room, capsys):
    lab(room / "notebooks/labs", "01-fine", "1")
    status, out = rehearse(capsys, "--quick", "--json")
    assert status == 0
    assert json.loads(out)["ready"] is True
    assert json.loads(out)["checks"][-1]["found"] == "1 in notebooks/labs"
    assert main(["rehearse", "01-fin"]) == 2
    assert capsys.readouterr().err == "scaling-lib: no lab is called '01-fin'; did you mean '01-fine'?\n"


def test_without_nbclient_it_says_what_to_install(room, monkeypatch):
    monkeypatch.setitem(sys.modules, "nbclient", None)
    found = rehearsal.lab(lab(room, "01-fine", "1"), seconds=30)
    assert (found.state, found.found) == ("fix", "not run: there is no nbclient")
    assert found.do == "pip install jupyterlab, or rehearse with --quick"


def test_packages_that_are_missing_or_old_are_named(monkeypatch):
    assert rehearsal.packages().state == "ok"
    have = {"jax": "0.9.9", "numpy": "2.10.0", "optax": "0.2.5"}

    def version(name):
        if name not in have:
            raise rehearsal.metadata.PackageNotFoundError
        return have[name]

    monkeypatch.setattr(rehearsal.metadata, "version", version)
    needs = ['jax>=0.10.2; extra == "jax"', 'numpy>=2; extra == "serving"', "optax>=0.2.5; extra == 'jax'"]
    needs += ['simpy>=4.1; extra == "serving"', 'typer>=0.29; extra == "cli"']
    monkeypatch.setattr(rehearsal.metadata, "requires", lambda name: needs)
    found = rehearsal.packages()
    assert (found.state, found.found) == ("fix", "jax 0.9.9 is older than 0.10.2; no simpy")
    assert found.do == "pip install 'scaling-lib[show,jax,labs,serving]'"


def test_a_jax_that_does_not_start_says_its_last_words(monkeypatch):
    monkeypatch.setattr(rehearsal, "_START", "import no_such_jax")
    assert rehearsal.devices().found == "ModuleNotFoundError: No module named 'no_such_jax'"


def test_little_memory_is_not_enough(monkeypatch):
    monkeypatch.setattr(rehearsal, "_free_bytes", lambda: 2**30)
    assert rehearsal._memory() == rehearsal.Check("memory", "fix", "1.0 GiB free", "close other programs: labs need 2 GiB")


def test_the_bundle_is_served_by_its_own_script_where_there_is_one(tmp_path):
    assert rehearsal.offline([tmp_path]).state == "note"
    (tmp_path / "serve.py").write_bytes((ROOT / "_ext/offline/serve.py").read_bytes())
    broken = rehearsal.offline([tmp_path])
    assert (broken.state, broken.found) == ("fix", "serve: no folder 'site' beside this file; unpack the whole archive first")
    (tmp_path / "site").mkdir()
    (tmp_path / "site/index.html").write_text("x" * 5000)
    assert rehearsal.offline([tmp_path]) == rehearsal.Check("offline bundle", "ok", "served, and its first page can be read")


@pytest.fixture(scope="module")
def here():
    """This machine, looked at in earnest."""
    command = [
        sys.executable,
        "-c",
        "from scaling_lib.cli import main; raise SystemExit(main(['rehearse', '--quick', '--json']))",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.stderr == ""
    return json.loads(done.stdout)["checks"]


def test_this_machine_is_looked_at(here):
    found = {check["name"]: check for check in here}
    assert found["packages"]["state"] == "ok"
    assert "JAX" in found["8 devices"]["found"]
    assert found["notebooks"]["found"] == f"{len(list(ROOT.glob('labs/*.ipynb')))} in labs"


def test_the_page_explains_each_line_and_its_example_has_them_as_they_are_printed(here):
    names = [check["name"] for check in here]
    (example,) = re.findall(r"```text\n(.*?)\n```", ROOM, re.S)
    lines = example.splitlines()
    assert lines[0].split() == ["what", "is", "found", "do"]
    shown = [re.split(r"  +", line)[0] for line in lines[2:] if line and not line.startswith("READY")]
    assert shown == [*names, "lab 01-roofline", "lab 03-sharding"]
    assert re.fullmatch(r"READY; 2 labs were run, \d+ s in all", lines[-1])
    explained = re.search(r"\| line \| `FIX` means \| do \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", ROOM)[1]
    assert [row.split(" | ")[0].strip("| ") for row in explained.splitlines()] == [*names, "lab"]


def test_the_page_rehearses_the_labs_of_each_plan():
    pages = inventory.course()
    text = (ROOT / "chapters/teach.md").read_text(encoding="utf-8")
    plans = [overview.plan_items(plan["lines"].splitlines(), pages) for plan in PLANS.finditer(text)]
    wanted = [[item.what.split()[0] for item in plan if item.kind == "lab"] for plan in plans]
    assert [line.split() for line in re.findall(r"`scaling-lib rehearse (\d[^`]*)`", ROOM)] == wanted
