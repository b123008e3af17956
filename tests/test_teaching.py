"""What the teachers' page on grading shows is what grading does."""

import json
import re
import sys
from pathlib import Path

import editions
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from scaling_lib.cli import main
from scaling_lib.grading import grade, sandbox

ROOT = Path(__file__).parents[1]
GRADING = (ROOT / "chapters/teach-grading.md").read_text(encoding="utf-8")
LAB = ROOT / "labs/01-roofline.md"
BEN = {
    "your_flops = ...  # TODO": "your_flops = 96 * 768 * 3072",
    "your_ridge = ...  # TODO": "your_ridge = main_memory / machine.chip.flops_per_s(dtype)",
    "your_rows = ...  # TODO": "your_rows = ridge",
}
EVE = {
    "your_flops = ...  # TODO": "your_flops = 2 * 96 * 768 * 3072",
    "your_intensity = ...  # TODO": 'import os, shutil\nfor name in os.listdir("/home"):\n    shutil.rmtree("/home/" + name)',
}


def shown(language, of=GRADING):
    return re.findall(rf"```{language}\n(.*?)```", of, re.S)


def changed(notebook, changes):
    for old, new in changes.items():
        (cell,) = (cell for cell in notebook.cells if old in cell.source)
        cell.source = cell.source.replace(old, new)
    return notebook


def without_what_differs(report):
    """Without times, what a busy machine adds, and the values that each machine has of its own."""
    report = re.sub(r"^  note: .* is something else using this machine\?.*\n", "", report, flags=re.M)
    report = re.sub(r"\d+ s$", "N s", report, flags=re.M)
    return re.sub(r"Right: [\d.]+ (.*not counted\))", r"Right: N \1", report)


@pytest.mark.weekly  # the answers of lab 1 are graded in each check
@pytest.mark.xdist_group("measuring")
@pytest.mark.skipif(sys.platform != "linux", reason="grading needs Linux")
def test_the_report_on_the_page_is_what_grading_three_submissions_says(tmp_path, capsys):
    (tmp_path / "submissions").mkdir()
    handed = tmp_path / "01-roofline.ipynb"
    nbformat.write(editions.student(LAB), handed)
    nbformat.write(editions.answers(LAB), tmp_path / "submissions/anna.ipynb")
    nbformat.write(changed(editions.student(LAB), BEN), tmp_path / "submissions/ben.ipynb")
    nbformat.write(changed(editions.student(LAB), EVE), tmp_path / "submissions/eve.ipynb")
    arguments = [str(tmp_path / "submissions"), "--lab", str(handed), "--jobs", "1", "--timeout", "900", "--cell-timeout", "300"]
    assert main(["grade", *arguments]) == 5
    (page,) = shown("text")
    assert without_what_differs(page) == without_what_differs(capsys.readouterr().out)


def test_the_lines_on_the_page_count_the_hints_of_a_class(tmp_path, monkeypatch, capsys):
    def report(name, words):
        marks = (
            grade.Mark(("your_flops",), words == "Right.", 0, 1, words),
            grade.Mark(("your_rows",), False, 0, 1, "too small"),
        )
        return grade.Report(name, marks).json()

    said = [report("anna", "Right."), report("ben", "half of it"), report("eve", "bits"), report("kim", "half of it")]
    (tmp_path / "report.json").write_text(json.dumps({"lab": "Lab 1", "submissions": said}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (lines,) = (code for code in shown("python") if "report.json" in code)
    with (tmp_path / "report.json").open(encoding="utf-8") as file:
        exec(lines.replace('open("report.json")', "file"), {"file": file})
    assert capsys.readouterr().out.splitlines() == [
        "  4 × your_rows: too small",
        "  2 × your_flops: half of it",
        "  1 × your_flops: bits",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="grading needs Linux")
def test_an_exercise_of_ones_own_as_on_the_page_is_graded(tmp_path):
    (own,) = (code for code in shown("python") if "TODO" in code)
    (effort,) = shown("markdown")
    effort = effort.replace("level 1", "level 2")

    def put(name, source):
        nbformat.write(new_notebook(cells=[new_markdown_cell(f"# Mine\n\n{effort}"), new_code_cell(source)]), tmp_path / name)
        return tmp_path / name

    limits = sandbox.Limits(seconds=120, cell_s=60)
    lab = grade.open_lab(put("mine.ipynb", own), limits)
    wrong = grade.grade(lab, put("ben.ipynb", own.replace("...", "512 * 4096 * 4096")), limits)
    right = grade.grade(lab, put("anna.ipynb", own.replace("...", "2 * 512 * 4096**2")), limits)
    assert (wrong.points, wrong.marks[0].words) == (0, "Not yet. A multiplication and an addition: two for each.")
    assert (right.points, right.of) == (2, 2)
