"""The forms of a built page judge as `scaling_lib.show.check` does: what is typed, what each hint is for, and each tolerance."""

import json

import pytest

from scaling_lib.show import check
from scaling_lib.units import human
from tests.test_book import DOCS, ROOT
from tests.test_exercises import exercises, questions, typed

pytestmark = pytest.mark.book
WITH_FORMS = [
    doc for doc in DOCS if "chapters/" in doc and "{exercise-start}" in (ROOT / f"{doc}.md").read_text(encoding="utf-8")
]

# Fills the field of one form with each of some texts, as a reader would, and returns what the form says of each.
SAID = """(form, texts) => texts.map(text => {
  form.querySelector("input, select").value = text;
  form.requestSubmit();
  return form.querySelector("output").textContent;
})"""


def by_python(asked, given):
    """What the check of the cell says: the same question, asked again from what the page knows of it."""
    (right, within, _), *others = asked["verdicts"]
    hints = {value: words.removeprefix("Not yet. ") for value, _, words in others if words.startswith("Not yet. ")}
    if asked["options"]:
        return check.choice(given, right, hints).words
    how = {"unit": asked["unit"], "tolerance": within, "slips": hints, "general": len(others) > len(hints)}
    return check.answer(given, right, **how).words.replace(f": {human(given, asked['unit'])} is too", ": that is too")


def beside(asked):
    """Numbers at, just inside and just outside of every tolerance, and far from all."""
    if asked["options"]:
        return asked["options"]
    near = (
        value * (1 + sign * within * by) for value, within, _ in asked["verdicts"] for sign in (1, -1) for by in (0.999, 1.001)
    )
    return [*near, *(value for value, _, _ in asked["verdicts"]), 1.37 * asked["verdicts"][0][0], 0, -1e30]


@pytest.fixture(params=WITH_FORMS, scope="module")
def forms(request, site, browser):
    """A page's forms, and for each the name that its cell asks for."""
    page = browser.new_page()
    page.goto(f"{site}/{request.param}.html", wait_until="domcontentloaded", timeout=60_000)
    source = ROOT / f"{request.param}.md"
    yield source, dict(zip(questions(source), page.query_selector_all("form.check"), strict=True))
    page.close()


def test_a_page_judges_as_its_cells_do(forms):
    source, found = forms
    answers = {name: given for _, solution in exercises(source).values() for name, given in typed(solution).items()}
    for name, form in found.items():
        asked = json.loads(form.get_attribute("data-question"))
        assert form.is_visible()
        assert form.query_selector("label :is(input, select)"), "a field without a label"
        right, *_ = form.evaluate(SAID, [str(answers[name])])
        assert right == asked["verdicts"][0][2], f"{name}: the typed answer gets {right!r}"
        texts = beside(asked)
        assert len(texts) >= 20 or asked["options"]
        said = form.evaluate(SAID, [text if asked["options"] else repr(text) for text in texts])
        wanted = [by_python(asked, text) for text in texts]
        assert dict(zip(texts, said, strict=True)) == dict(zip(texts, wanted, strict=True)), name


def test_what_is_no_number_is_refused_and_arithmetic_is_taken(forms):
    _, found = forms
    numbers = {name: form for name, form in found.items() if form.query_selector("input")}
    assert numbers
    for name, form in numbers.items():
        refused = ["12 tokens", "1,5", "alert(1)", "2 **", "1/0", "..", "e"]
        assert {words.split(". ")[0] for words in form.evaluate(SAID, refused)} == {"That is no number"}, name
        right = json.loads(form.get_attribute("data-question"))["verdicts"][0]
        same = [f"{right[0]!r} * 2**10 / 1024", f"({right[0]!r} + 0)", f"{right[0]!r} × 2^0"]
        assert form.evaluate(SAID, same) == [right[2]] * 3, name
