"""The code cells of a lab, run in one namespace as its tests play them: answered, changed, and out of order."""

import ast
import re

import notebooks
import pytest


def code_cells(page, left_out=None):
    """A page's code cells but for the installation, those with `left_out`, and the style of plots; the first has imports."""
    found = [cell for cell in notebooks.read_page(page).cells if cell.cell_type == "code"]
    plain = [cell.source for cell in found if "remove-cell" not in cell.metadata.get("tags", [])]
    kept = [source.replace("plots.use_style()\n", "") for source in plain if not (left_out and re.search(left_out, source))]
    assert kept[0].startswith(("from", "import"))
    return kept


def changed(sources, changes):
    """These cells with other words in place of some, each of which stands in them once."""
    page = "\0".join(sources)
    for old, new in changes.items():
        assert page.count(old) == 1, old
        page = page.replace(old, new)
    return page.split("\0")


def at(sources, words):
    """The place of the one cell that has these words."""
    (found,) = (i for i, source in enumerate(sources) if words in source)
    return found


def run(sources, over=None):
    """What these cells define, one after the other, over what others have defined."""
    namespace = dict(over or {"__name__": "lab"})
    for source in sources:
        exec(compile(source, source.splitlines()[0], "exec"), namespace)
    return namespace


def shown(source, over, **answers):
    """What a cell's last expression is where `name = ...` is `name = its answer`, and all that is defined then."""
    body = ast.parse(source)
    for node in body.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in answers:
            node.value = ast.Constant(answers[ast.unparse(node.targets[0])])
    body.body[-1] = ast.Assign([ast.Name("shown", ast.Store())], body.body[-1].value)
    namespace = dict(over)
    exec(compile(ast.fix_missing_locations(body), "cell", "exec"), namespace)
    return namespace.pop("shown"), namespace


def assert_checks_a_number(source, over, taken=()):
    """The right number is taken, and each wrong one that a hint is for gets it, but for those that are `taken` for right.

    Gives what the cell defines, unanswered.
    """
    name, expected = re.search(r"check\.answer\(\s*(\w+),\s*(.+?),\s*(?:unit|slips|tolerance)=", source).groups()
    unanswered, namespace = shown(source, over)
    assert unanswered.words.startswith("Not answered yet")
    right, _ = shown(source, namespace, **{name: float(eval(expected, namespace))})
    assert right.ok, source
    assert namespace["slips"], source
    for wrong, hint in namespace["slips"].items():
        if not any(wrong == pytest.approx(number) for number in taken):
            verdict, _ = shown(source, namespace, **{name: float(wrong)})
            assert not verdict.ok, source
            assert verdict.words == f"Not yet. {hint}"
    return namespace


NAMED = r"^name '\w+' is not defined$"


def how_many_lack(sources, errors=NameError, says=NAMED):
    """How many of the cells after the second need more than the first; each says what it lacks."""
    first, _, *rest = sources
    namespace, said = run([first]), []
    for source in rest:
        try:
            run([source], namespace)
        except errors as error:
            said.append(str(error))
    assert [words for words in said if not re.search(says, words)] == []
    return len(said)
