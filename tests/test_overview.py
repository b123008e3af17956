"""What pages about the whole course list is what the pages say; plans fit their day."""

import re
from pathlib import Path

import inventory
import overview
import pytest

ROOT = Path(__file__).parents[1]
PLANS = re.compile(r"^(`{3,}|:{3,})\{plan\}\n(?P<options>(?::\w+: [^\n]+\n)+)(?P<lines>.*?)\n\1$", re.M | re.S)


@pytest.fixture(scope="module")
def course():
    return inventory.course()


def plans():
    """Each plan of the book: where it stands, its minutes and its lines."""
    found = []
    for page in sorted((ROOT / "chapters").glob("*.md")):
        for number, plan in enumerate(PLANS.finditer(page.read_text(encoding="utf-8")), 1):
            options = dict(re.findall(r":(\w+): (.+)", plan["options"]))
            found.append(pytest.param(int(options["minutes"]), plan["lines"].splitlines(), id=f"{page.stem} {number}"))
    return found


def test_every_chapter_and_lab_of_the_book_is_in_the_inventory(course):
    numbered = {path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.glob("[cl]*s/[0-9]*.md")}
    assert {page.doc for page in course} == numbered


def test_the_minutes_of_sections_add_up_to_those_of_reading(course):
    for page in course:
        if not page.is_lab:
            text = (ROOT / f"{page.doc}.md").read_text(encoding="utf-8")
            reading = int(re.search(r"^    reading: (\d+)$", text, re.M)[1])
            assert sum(section.minutes for section in page.sections) == reading
            assert page.minutes == reading + sum(map(int, re.findall(r"^:minutes: (\d+)$", text, re.M)))
            assert all(section.label for section in page.sections)


def test_every_takeaway_is_found_in_a_section(course):
    for page in (page for page in course if not page.is_lab):
        text = (ROOT / f"{page.doc}.md").read_text(encoding="utf-8")
        found = [takeaway for section in page.sections for takeaway in section.takeaways]
        assert len(found) == text.count("{admonition} Takeaway")
        assert all(takeaway in text for takeaway in found)


def test_there_are_more_than_a_hundred_exercises_and_each_says_what_it_takes_and_has_a_hint(course):
    exercises = [exercise for page in course for exercise in page.exercises]
    assert len(exercises) >= 100
    for exercise in exercises:
        assert 0 < exercise.minutes <= 40
        assert exercise.level in (1, 2, 3)
        assert exercise.title


@pytest.mark.parametrize(("minutes", "lines"), plans())
def test_a_plan_fits_its_day_and_can_be_shortened(minutes, lines, course):
    items = list(overview.plan_items(lines, course))
    overview.check_fits(items, minutes)
    assert sum(item.minutes for item in items) >= 0.85 * minutes, "time is left over"
    assert sum(item.minutes for item in items if item.optional) >= 0.1 * minutes, "little can be skipped"
    longest = run = 0
    for item in items:
        run = 0 if item.kind == "break" else run + item.minutes
        longest = max(longest, run)
    assert longest <= 120, "nobody sits for longer than two hours"


def test_a_plan_that_does_not_fit_is_an_error(course):
    items = list(overview.plan_items(["section sec-rings", "optional lab 03-sharding", "break 15", "talk 5 Questions"], course))
    rings = next(section.minutes for page in course for section in page.sections if section.label == "sec-rings")
    lab = next(page.minutes for page in course if page.doc == "labs/03-sharding")
    assert [item.minutes for item in items] == [rings, lab, 15, 5]
    assert [item.optional for item in items] == [False, True, False, False]
    overview.check_fits(items, rings + lab + 20)
    with pytest.raises(ValueError, match=f"takes {rings + lab + 20} minutes, and there are {rings + lab + 19}"):
        overview.check_fits(items, rings + lab + 19)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("section sec-none", "no section is called 'sec-none'"),
        ("lab 99-none", "no lab is called '99-none'"),
        ("lunch 60", "no line of a plan: 'lunch 60'"),
        ("lab 03-sharding 600 all of it", "takes 60 minutes in all, so 600 are no part of it"),
    ],
)
def test_a_line_that_names_nothing_says_so(line, words, course):
    with pytest.raises(ValueError, match=words):
        list(overview.plan_items([line], course))


def test_a_section_without_a_takeaway_says_so():
    assert "links" in " ".join(inventory.takeaways("sec-tori"))
    with pytest.raises(ValueError, match="no section has the label sec-none"):
        inventory.takeaways("sec-none")
    with pytest.raises(ValueError, match="sec-in-short has no takeaway"):
        inventory.takeaways("sec-in-short")


BOXES = re.compile(r"^:::\{takeaway\} ([\w-]+)\n(.*?)\n:::$", re.M | re.S)


def test_every_section_with_takeaways_stands_on_the_formula_sheet_once_below_its_chapter(course):
    text = (ROOT / "chapters/formulas.md").read_text(encoding="utf-8")
    chapters = [
        (re.search(r"\{ref\}`([\w-]+)`", part)[1], [label for label, _ in BOXES.findall(part)])
        for part in re.split(r"^## ", text, flags=re.M)[1:]
    ]
    expected = [
        (
            re.search(r"^\((ch-[\w-]+)\)=$", (ROOT / f"{page.doc}.md").read_text(encoding="utf-8"), re.M)[1],
            [section.label for section in page.sections if section.takeaways],
        )
        for page in course
        if not page.is_lab
    ]
    assert chapters == expected


def test_every_box_of_the_formula_sheet_ends_in_an_example_that_the_library_computes():
    boxes = BOXES.findall((ROOT / "chapters/formulas.md").read_text(encoding="utf-8"))
    assert len(boxes) > 100
    for label, body in boxes:
        example = body.split("\n\n")[-1]
        assert example.startswith("Example: "), label
        assert "{eval}`" in example, label


def test_every_name_in_a_takeaway_is_computed_on_the_formula_sheet_too(course):
    text = (ROOT / "chapters/formulas.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```\{code-cell\}.*?^```$", text, re.M | re.S))
    for page in course:
        for takeaway in (told for section in page.sections for told in section.takeaways):
            for name in re.findall(r"\{eval\}`(\w+)`", takeaway):
                assert re.search(rf"\b{name}\b", code), name


def test_words_of_the_glossary_stand_once_and_in_order_and_each_leads_to_a_place_that_has_it():
    text = (ROOT / "chapters/glossary.md").read_text(encoding="utf-8")
    entries = re.search(r"^```\{glossary\}\n(.*?)^```", text, re.M | re.S)[1].strip().split("\n\n")
    words = [entry.splitlines()[0] for entry in entries]
    assert len(words) > 50
    assert words == sorted(set(words), key=str.casefold)
    chapters = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "chapters").glob("[0-9]*.md"))
    for entry in entries:
        labels = re.findall(r"\{ref\}`([\w-]+)`", entry)
        assert labels, entry
        assert all(f"\n({label})=\n" in chapters for label in labels), entry


def test_the_wrong_answers_of_every_page_are_listed(course):
    listed = re.findall(r"\{wrong-answers\} (\S+)", (ROOT / "chapters/teach-answers.md").read_text(encoding="utf-8"))
    assert listed == [page.doc for page in course]
