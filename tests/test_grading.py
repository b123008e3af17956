"""Submissions are graded for what they answer, and stopped where they do what no submission may."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import editions
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from scaling_lib.cli import main
from scaling_lib.grading import grade, guard, notebook, sandbox
from scaling_lib.show import check

ROOT = Path(__file__).parents[1]
LABS = sorted((ROOT / "labs").glob("*.md"))
CHAPTERS = sorted(path.with_suffix(".md") for path in (ROOT / "chapters").glob("*.ipynb"))
MEASURING = {"01-roofline", "07a-decoding", "07b-serving", "09-profiling", "10b-many-hosts"}
"""Labs that measure, or start processes that wait for each other: one at a time."""

SOURCES = [
    "from scaling_lib.show import check\nFACTOR = 3",
    "right = 2 * FACTOR\nyour_number = ...  # TODO: bytes\nslips = {3.0: 'Twice that.'}\n"
    "check.answer(your_number, right, slips=slips, general=False)",
    "your_word = ...  # TODO\ncheck.choice(your_word, 'yes', {'no': 'Think again.'})",
    'def your_double(x):\n    """x -> 2 x"""\n    ...  # TODO\n\n\n'
    "check.Verdict(your_double(4) == 8, 'Right.' if your_double(4) == 8 else 'Not yet: 4 gives something else.')",
]
RIGHT = {1: ("...  # TODO: bytes", "6"), 2: ("...  # TODO", "'yes'"), 3: ("...  # TODO", "return 2 * x")}
LIMITS = sandbox.Limits(seconds=40, cell_s=20, output_bytes=2_000_000, memory_bytes=2 * 2**30, processes=20)


def handed_out(sources=SOURCES):
    cells = [new_markdown_cell("# Lab 99: a tiny one")]
    for number, source in enumerate(sources):
        cells.append(new_code_cell(source, id=f"cell-{number}", metadata={"level": number or 1}))
    return new_notebook(cells=cells)


def filled(change=None, right=RIGHT):
    """The tiny lab, answered; `change` gets its code cells."""
    made = handed_out()
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    for number, (old, new) in right.items():
        code[number].source = code[number].source.replace(old, new)
    if change:
        change(code)
    return made


def put(folder, name, made):
    folder.mkdir(exist_ok=True, parents=True)
    nbformat.write(made, folder / name)
    return folder / name


def asked():
    """What the tiny lab asks, without a run."""
    first = check.answer(..., 6, slips={3.0: "Twice that."}, general=False).question
    second = check.choice(..., "yes", {"no": "Think again."}).question
    return {1: first, 2: second, 3: None}


@pytest.fixture
def lab(tmp_path):
    path = put(tmp_path, "handed.ipynb", handed_out())
    cells = notebook.code(notebook.read(path))
    exercises = {n: grade.Exercise(cells[n].asked, cells[n].level, question) for n, question in asked().items()}
    return grade.Lab(path, "Lab 99: a tiny one", cells, exercises)


def submit(lab, tmp_path, change=None, limits=LIMITS, right=RIGHT):
    return grade.grade(lab, put(tmp_path / "in", "anna.ipynb", filled(change, right)), limits)


def laid(change):
    """How a submission would be run, without running it."""
    cells = notebook.code(handed_out())
    return notebook.fill(cells, notebook.code(filled(change)))


# What is taken from a submission


def test_only_answers_are_taken_from_an_edited_check_cell():
    def change(code):
        code[1].source = "your_number = 5\nright = 5\ncheck.answer(your_number, 5)"

    found = laid(change)
    assert found.remarks == ["edited check cell: that of your_number; the handed-out check was run"]
    assert "your_number = 5" in found.steps[1].source
    assert "right = 2 * FACTOR" in found.steps[1].source
    assert "right = 5" not in found.steps[1].source
    assert found.steps[1].check == "check.answer(your_number, right, slips=slips, general=False)"


def test_an_answer_may_take_steps_of_its_own():
    def change(code):
        code[1].source = code[1].source.replace("your_number = 6", "import math\nhalf = 3\nyour_number = math.prod([half, 2])")
        code[1].source += "\nprint(half)"

    found = laid(change)
    assert found.remarks == []
    assert "half = 3" in found.steps[1].source
    assert found.steps[1].source.endswith("print(half)")


def test_spaces_and_comments_are_no_edit():
    assert laid(lambda code: setattr(code[1], "source", "# mine\n" + code[1].source.replace(" = ", "  =  "))).remarks == []


def test_a_changed_cell_of_the_notebook_is_run_as_handed_out():
    found = laid(lambda code: setattr(code[0], "source", "FACTOR = 4"))
    assert found.steps[0].source == SOURCES[0]
    assert found.remarks == ["1 cell(s) changed; those handed out were run"]


def test_added_cells_run_where_they_stand_and_are_told():
    made = filled()
    made.cells.insert(2, new_code_cell("FACTOR = 5\nyour_word = 'yes'"))
    cells = notebook.code(handed_out())
    found = notebook.fill(cells, notebook.code(made))
    assert [step.cell for step in found.steps] == [0, None, 1, 2, 3]
    assert found.remarks == [
        "1 cell(s) added, and run in place",
        "added cells bind names of the notebook again: FACTOR",
        "answers count in their own cells alone, not in added ones: your_word",
    ]


def test_cells_are_found_without_their_ids():
    made = filled()
    for cell in made.cells:
        cell.pop("id")
    cells = notebook.code(handed_out())
    found = notebook.fill(cells, notebook.code(made))
    assert found.remarks == []
    assert [step.cell for step in found.steps] == [0, 1, 2, 3]
    assert "your_number = 6" in found.steps[1].source


def test_a_missing_cell_and_one_that_does_not_parse_are_told():
    def change(code):
        code[1].source = "your_number = = 6"
        code[2].source = ""

    remarks = laid(change).remarks
    assert remarks[0].startswith("the cell of your_number does not parse: invalid syntax in line 1")
    made = filled()
    del made.cells[3]
    cells = notebook.code(handed_out())
    assert notebook.fill(cells, notebook.code(made)).remarks == ["missing: the cell of your_word"]


def test_what_only_ipython_reads_is_read():
    found = laid(lambda code: setattr(code[3], "source", "%precision 3\n" + code[3].source))
    assert found.remarks == []
    assert found.steps[3].source.startswith("get_ipython().run_line_magic")


def test_a_cell_too_deep_to_parse_is_told():
    assert "does not parse" in laid(lambda code: setattr(code[1], "source", "x = " + "(" * 50_000)).remarks[0]


# What is refused before anything runs


def test_a_submission_for_another_lab_is_refused_by_its_title(lab, tmp_path):
    other = new_notebook(cells=[new_markdown_cell("# Lab 98: another"), new_code_cell("x = 1")])
    report = grade.grade(lab, put(tmp_path, "other.ipynb", other), LIMITS)
    assert "for another notebook: 0 of 4 code cells" in report.refused
    assert "“Lab 98: another”, this one's “Lab 99: a tiny one”" in report.refused
    assert report.marks == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "not JSON, so no notebook"),
        ('{"cells": 3}', "no list of cells"),
        ("[" * 100_000, "not JSON"),
        ('{"a": "\\ud800"}', "no list of cells"),
    ],
)
def test_what_is_no_notebook_is_refused(lab, tmp_path, text, words):
    (tmp_path / "broken.ipynb").write_text(text)
    assert words in grade.grade(lab, tmp_path / "broken.ipynb", LIMITS).refused


def test_a_folder_without_notebooks_and_a_lab_that_is_none_are_said_and_nothing_is_written(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    out = str(tmp_path / "report.json")
    lab = str(put(tmp_path, "handed.ipynb", handed_out()))
    assert main(["grade", str(tmp_path / "empty"), "--lab", lab, "--json", out]) == 2
    assert "empty has no notebook: nothing to grade" in capsys.readouterr().err
    assert main(["grade", lab, "--lab", str(tmp_path / "none.ipynb"), "--json", out]) == 2
    plain = str(put(tmp_path, "plain.ipynb", new_notebook(cells=[new_code_cell("1")])))
    assert main(["grade", lab, "--lab", plain, "--json", out]) == 2
    assert "has no exercise" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if "report" in path.name] == []


# Honest submissions


def test_answers_get_points_by_level_and_wrong_ones_their_hints(lab, tmp_path):
    wrong = RIGHT | {1: ("...  # TODO: bytes", "3"), 3: ("...  # TODO", "raise RuntimeError('oh')")}
    report = submit(lab, tmp_path, right=wrong)
    assert report.stopped == ""
    assert [(mark.points, mark.of) for mark in report.marks] == [(0, 1), (2, 2), (0, 3)]
    assert [mark.words for mark in report.marks] == ["Not yet. Twice that.", "Right: yes.", "RuntimeError: oh"]


def test_the_command_grades_a_folder_as_text_and_json(tmp_path, capsys):
    folder = tmp_path / "in"
    put(folder, "anna.ipynb", filled())
    put(folder / "b", "ben.ipynb", handed_out())
    (folder / "c.ipynb").write_text("no json")
    lab = put(tmp_path, "handed.ipynb", handed_out())
    out = tmp_path / "report.json"
    assert main(["grade", str(folder), "--lab", str(lab), "--json", str(out)]) == 5
    said = capsys.readouterr()
    assert "anna.ipynb: 6 of 6 points, 3 of 3 checks" in said.out
    assert "your_number (0 of 1): Not answered yet: replace the ... with your number." in said.out
    assert "c.ipynb: not graded, not JSON" in said.out
    assert said.err == "2 of 3 graded to their end\n"
    reports = {one["submission"]: one for one in json.loads(out.read_text())["submissions"]}
    assert {name: one["points"] for name, one in reports.items()} == {"anna.ipynb": 6, "b/ben.ipynb": 0, "c.ipynb": 0}
    assert reports["anna.ipynb"]["marks"][1]["names"] == ["your_word"]


def test_what_the_machine_measures_is_not_counted(tmp_path):
    sources = [*SOURCES[:1], "import time\nyour_time = ...  # TODO\ncheck.answer(your_time, time.time() % 1000)"]
    opened = grade.open_lab(put(tmp_path, "m.ipynb", handed_out(sources)), LIMITS)
    assert opened.exercises[1].measured
    report = grade.grade(opened, tmp_path / "m.ipynb", LIMITS)
    assert (report.points, report.of) == (0, 0)
    assert "not counted" in report.marks[0].words


# Hostile submissions: each is stopped, or gets no points by it


def test_a_number_is_judged_outside_so_that_a_patched_check_earns_nothing(lab, tmp_path):
    def change(code):
        code[1].source = code[1].source.replace(
            "your_number = 6", "your_number = 1\ncheck.answer = lambda *a, **k: check.Verdict(True, 'Right.')"
        )

    report = submit(lab, tmp_path, change)
    assert report.marks[0].points == 0
    assert report.marks[0].words == "Not yet: 1 is too small."


def attack(lab, tmp_path, code, limits=LIMITS):
    """A right submission whose second answer does this first."""
    return submit(lab, tmp_path, lambda cells: setattr(cells[2], "source", f"{code}\n{cells[2].source}"), limits)


SECRET = "the right answer"


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "answers" / "01.ipynb"
    path.parent.mkdir()
    path.write_text(SECRET)
    return path


WATCHED = {
    "reads the answers": "print(open({secret!r}).read())",
    "lists them": "import os\nos.listdir(os.path.dirname({secret!r}))",
    "removes them": "import os\nos.remove({secret!r})",
    "removes their folder": "import os, shutil\nshutil.rmtree(os.path.dirname({secret!r}))",
    "writes outside": "open({secret!r} + '.new', 'w')",
    "forks": "import os\nwhile True: os.fork()",
    "kills the grader": "import os, signal\nos.kill({grader}, signal.SIGKILL)",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "opens the network": "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=1)",
}


@pytest.mark.parametrize("what", WATCHED)
def test_what_no_submission_may_is_named_and_stopped(lab, tmp_path, secret, what):
    report = attack(lab, tmp_path, WATCHED[what].format(secret=str(secret), grader=os.getpid()))
    assert report.stopped.startswith("tried to "), report.text()
    assert report.stopped.endswith(", in the cell of your_word")
    assert [mark.passed for mark in report.marks] == [True, False, False]
    assert secret.read_text() == SECRET
    assert SECRET not in report.text()
    assert sorted(path.name for path in secret.parent.iterdir()) == [secret.name]


HARD = {
    "reads": "import ctypes\nlibc = ctypes.CDLL(None)\nif libc.open({secret!r}.encode(), 0) >= 0: your_word = 'no'",
    "removes": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.unlink({secret!r}.encode())",
    "signals": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.kill({grader}, 10)",
    "links": "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.symlink({secret!r}.encode(), b'here')\nlibc.open(b'here', 0)",
}


needs_landlock = pytest.mark.skipif(
    guard._LIBC.syscall(guard._CREATE_RULESET, None, 0, 1) < 6, reason="no Landlock of version 6 here"
)


@needs_landlock
@pytest.mark.parametrize("what", HARD)
def test_what_python_cannot_see_is_refused_by_the_kernel(lab, tmp_path, secret, what):
    code = HARD[what].format(secret=str(secret), grader=os.getpid())
    code += f"\nopened = libc.open({str(secret)!r}.encode(), 0)\nassert opened < 0, opened"
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        report = attack(lab, tmp_path, code)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [mark.passed for mark in report.marks] == [True, True, True], report.text()
    assert report.guards["files"] == "Landlock"
    assert secret.read_text() == SECRET
    assert not seen


def test_where_landlock_is_missing_the_report_says_so(tmp_path):
    done = sandbox.run([notebook.Step("x = 1", 0)], LIMITS, landlock=False)
    assert done.guards["files"] == "an audit hook only"
    report = grade.Report("anna.ipynb", guards=done.guards)
    assert "note: files guarded by an audit hook only" in report.text()


def test_a_cell_that_loops_for_ever_is_ended_and_the_next_ones_run(lab, tmp_path):
    report = attack(lab, tmp_path, "while True: pass", replace(LIMITS, cell_s=2))
    assert report.marks[1].words == "TooLong: ran longer than 2 s"
    assert report.stopped == ""
    assert [mark.passed for mark in report.marks] == [True, False, True]


def test_a_loop_that_cannot_be_interrupted_is_ended_with_all_below_it(lab, tmp_path):
    code = "import subprocess, sys, time\n"
    code += "subprocess.Popen([sys.executable, '-c', 'import os, time; os.setsid(); time.sleep(600.25)'])\n"
    code += "while True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass"
    report = attack(lab, tmp_path, code, replace(LIMITS, cell_s=1, seconds=15))
    assert report.stopped == "ran longer than 15 s in all, in the cell of your_word"
    assert report.marks[0].passed
    assert "600.25" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


EATING = {
    "prints a gigabyte": ("for _ in range(1000): print('x' * 1_000_000)", "printed more than 2 MB"),
    "starts processes": (
        "import subprocess, sys\nall = [subprocess.Popen(['/bin/sleep', '30']) for _ in range(50)]\nimport time\ntime.sleep(15)",
        "started more than 20 processes",
    ),
    "fills its folder": (
        "import time\nfor i in range(8): open(f'f{i}', 'wb').write(bytes(900_000))\ntime.sleep(15)",
        "wrote more than 4 MB",
    ),
    "leaves": ("import os\nos._exit(9)", "left with exit status 9"),
    "crashes": ("import ctypes\nctypes.string_at(0)", "was ended by SIGSEGV"),
}


@pytest.mark.parametrize("what", EATING)
def test_who_takes_too_much_is_stopped(lab, tmp_path, what):
    code, words = EATING[what]
    report = attack(lab, tmp_path, code, replace(LIMITS, file_bytes=1_000_000))
    assert report.stopped == f"{words}, in the cell of your_word", report.text()
    assert [mark.passed for mark in report.marks] == [True, False, False]


def test_memory_beyond_the_limit_is_refused(lab, tmp_path):
    report = attack(lab, tmp_path, "taken = bytearray(4 * 2**30)")
    assert report.marks[1].words == "MemoryError"
    assert report.marks[2].passed


def test_submissions_do_not_see_each_other_nor_what_one_left(lab, tmp_path):
    code = "import os, pathlib\nhere = os.listdir('.')\npathlib.Path('mine').write_text('x')\nassert here == [], here"
    for _ in range(2):
        assert attack(lab, tmp_path, code).marks[1].passed


def test_the_network_of_a_submission_is_its_own_where_that_is_allowed(lab, tmp_path):
    code = "import socket\nserver = socket.create_server(('127.0.0.1', 0))\n"
    code += "with socket.create_connection(server.getsockname()): pass\nprint('links:', socket.if_nameindex())"
    report = attack(lab, tmp_path, code)
    assert report.marks[1].passed, report.text()
    links = attack(lab, tmp_path, "import socket\nassert len(socket.if_nameindex()) == 1, socket.if_nameindex()").marks[1]
    assert links.passed == (report.guards["network"] == "its own network")


def test_the_environment_is_not_the_graders(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADER_TOKEN", "secret")
    assert attack(lab, tmp_path, "import os\nassert 'GRADER_TOKEN' not in os.environ").marks[1].passed


def test_made_up_results_of_a_number_do_not_count(lab, tmp_path):
    line = json.dumps({"end": 1, "error": "", "ok": True, "words": "Right.", "values": {"your_number": {"number": 5}}})
    code = (
        f"import os, sys\nos.write(int(sys.argv[2]), {(line + chr(10)).encode()!r})\nos.write(int(sys.argv[2]), b'{{no json\\n')"
    )

    def change(cells):
        cells[0].source = cells[0].source
        cells[1].source = code + "\n" + cells[1].source.replace("your_number = 6", "your_number = 5")

    report = submit(lab, tmp_path, change)
    assert not report.marks[0].passed
    assert report.marks[2].passed


# Labs as they stand


@pytest.mark.answers
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.xdist_group("measuring" if page.stem in MEASURING else page.stem)])
        for page in LABS
    ],
)
def test_the_answer_edition_of_a_lab_gets_full_points(page, tmp_path):
    path = page.with_suffix(".ipynb")
    read = notebook.read(path)
    cells, known = notebook.code(read), grade.recorded(read)
    answered = notebook.code(editions.answers(page))
    exercises = {}
    for number, cell in enumerate(cells):
        if cell.asked:
            typed = all(s.names.isdisjoint(cell.asked) or is_typed(s.text) for s in notebook.statements(answered[number].source))
            exercises[number] = grade.Exercise(cell.asked, cell.level, known.get(number) if typed else None)
    lab = grade.Lab(path, notebook.title(read), cells, exercises)
    report = grade.grade(lab, put(tmp_path, "answers.ipynb", editions.answers(page)), sandbox.Limits(seconds=900, cell_s=300))
    assert (report.refused, report.stopped) == ("", "")
    assert report.points == report.of > 0, report.text()


def is_typed(text):
    """Whether an answer is numbers alone, so that it is the same on each machine."""
    import ast

    return not any(isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) for node in ast.walk(ast.parse(text)))


@pytest.mark.answers
@pytest.mark.xdist_group("measuring")
def test_the_first_lab_opens_and_unanswered_gets_nothing(tmp_path):
    limits = sandbox.Limits(seconds=900, cell_s=300)
    path = put(tmp_path, "lab.ipynb", editions.student(LABS[0]))
    opened = grade.open_lab(path, limits)
    assert [e.names for e in opened.exercises.values() if e.measured] == [("your_ridge",), ("your_rows",)]
    report = grade.grade(opened, path, limits)
    assert (report.points, report.refused, report.stopped) == (0, "", "")
    assert report.of > 0
    assert all("Not answered yet" in mark.words for mark in report.marks)


@pytest.mark.weekly
@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
@pytest.mark.parametrize("edition", [editions.student, editions.answers], ids=["student", "answers"])
def test_a_chapter_runs_in_both_editions(page, edition, tmp_path):
    steps = [notebook.Step(cell.source, n) for n, cell in enumerate(edition(page).cells) if cell.cell_type == "code"]
    done = sandbox.run(steps, sandbox.Limits(seconds=1200, cell_s=300))
    assert done.stopped == "", done.tail
    assert [line["error"] for line in done.lines.values() if line["error"]] == []
