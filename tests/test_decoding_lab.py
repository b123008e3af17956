"""Lab 7a: its exercises answered rightly and wrongly, its tests of distributions broken on purpose, its cells out of order.

Its cells run here in one namespace, with fewer steps of training and without figures.
"""

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling_lib.xla import llama
from tests.cells import assert_checks_a_number, at, changed, code_cells, how_many_lack, run

LAB = Path(__file__).parents[1] / "labs/07a-decoding.md"
QUICKER = {
    "STEPS, FEWER = 140, 100": "STEPS, FEWER = 60, 25",
    "BATCHES = (1, 4, 8, 16, 32, 64)": "BATCHES = (1, 16, 64)",
    "budget_s=4": "budget_s=1",
}
LEFT_OUT = re.compile(r"new_axes|losses\[0\] < 2")  # figures, and what takes more training
LONG = re.compile(r"interleaved\(|timed\(|written\(|counted\(n\)|read_cached\(")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("07a"), pytest.mark.usefixtures("compiles_quickly")]


@cache
def sources():
    """The sources of the code cells but for figures, quicker."""
    return changed(code_cells(LAB, LEFT_OUT), QUICKER)


@cache
def played():
    """What all cells define."""
    return run(sources())


MEASURED = {"one": {"plain": 3e-4, "check": 4e-4, "draft": 8e-5}, "tries": {4: SimpleNamespace(kept=1.5)}}
"""Times and guesses kept, with which no wrong answer is another by chance."""


@pytest.mark.weekly
def test_every_cell_but_the_longest_may_run_twice():
    assert "target" in run(source for source in sources() for _ in range(1 if LONG.search(source) else 2))


def questions():
    """The cells that check a number."""
    return [source for source in sources() if "check.answer(" in source]


def test_a_number_is_checked_and_each_wrong_one_that_a_hint_is_for_gets_it():
    assert len(questions()) >= 6
    for source in questions():
        two_bytes = [played()["knee"]] if "your_knee = ..." in source else []  # a weight's, where a slip is the right answer
        scope = assert_checks_a_number(source, played() | MEASURED, two_bytes)
        assigned = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
        (slips,) = (node.value for node in assigned if ast.unparse(node.targets[0]) == "slips")
        assert len(slips.keys) == len(scope["slips"]), source  # the second hint for a number would silently replace the first


def loops():
    """A reader's loops, and what the check says of them."""
    lab = played()
    target, prompt_length = lab["target"], lab["opening"].shape[1]

    def decoding(place=lambda position: np.array([position]), token=np.array, keep_old=False, short=0, step=None, made=list):
        def loop(given, held, first, at, new):
            found, run = [first], step or given
            for position in range(at, at + new - 1 - short):
                logits, newer = run(target, held, token(found[-1:]), place(position))
                held = held if keep_old else newer
                found.append(int(np.argmax(logits[0])))
            return made(found)

        return loop

    def baked(params, held, tokens, position):
        logits, held = llama.decode(params, held, jnp.asarray(tokens)[:, None], jnp.array([position]))
        return logits[:, 0], held

    static = jax.jit(baked, static_argnums=3)
    return {
        "Right": decoding(),
        "Not answered yet": lambda *parts: None,
        "that cache is gone": decoding(keep_old=True),
        r"token \d+ is another. At which place": decoding(place=lambda position: np.array([position + 2])),
        r"token \d+ is another": decoding(place=lambda position: np.array([position - prompt_length + 1])),
        "TypeError, .* arrays of one number": decoding(token=list),
        "IndexError, .* arrays of one number": decoding(token=lambda found: np.array(found[-1])),
        r"compiled beside the steps: \d+\. Is the list an array": decoding(
            made=lambda found: jnp.concatenate([jnp.array([one]) for one in found])
        ),
        "23 tokens in place of 24": decoding(short=1),
        r"\d+ programs compiled for 24 tokens": decoding(place=int, step=static),
    }


def test_a_loop_is_checked_and_each_mistake_is_named():
    for words, loop in loops().items():
        assert re.search(words, played()["loop_check"](loop)), words


def test_another_error_of_a_loop_is_the_readers_to_see():
    def raises(*parts):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        played()["loop_check"](raises)


def test_scales_are_checked_and_each_mistake_is_named():
    def most(weight, axis):
        return jnp.max(jnp.abs(weight), axis, keepdims=True)

    answers = {
        "Right": lambda w, summed: most(w, summed) / 3,
        "Not answered yet": lambda w, summed: None,
        "one scale for all": lambda w, summed: most(w, None) / 3,
        "the shape is": lambda w, summed: most(w, (0, 2, 3)) / 3,
        "not (3, 1, 1, 128)": lambda w, summed: most(w, summed[0]) / 3,
        "becomes 1": most,
        "for int8": lambda w, summed: most(w, summed) / 127,
        "must become 3": lambda w, summed: jnp.mean(jnp.abs(w), summed, keepdims=True) / 3,
    }
    for words, answer in answers.items():
        assert words in played()["scales_check"](answer), words


def test_the_rule_is_taken_in_any_form_and_others_are_seen_by_what_comes_out():
    answers = {
        "Not answered yet": [lambda p, q, uniform: None],
        "Right": [lambda p, q, uniform: uniform < p / q, lambda p, q, uniform: uniform <= jnp.minimum(1, p / q)],
        "all is kept": [lambda p, q, uniform: p == p],
        "too many": [lambda p, q, uniform: p >= 0.3 * q],
        "too few": [lambda p, q, uniform: p >= q, lambda p, q, uniform: uniform < p, lambda p, q, uniform: p != p],
    }
    for words, rules in answers.items():
        for rule in rules:
            assert words in played()["rule_check"](rule), words


def test_a_rule_that_no_program_takes_is_told_what_its_arrays_are():
    rules = {
        "TracerBoolConversionError": lambda p, q, uniform: uniform < min(1, p[0] / q[0]),
        "ValueError": lambda p, q, uniform: uniform < min(1, p / q),
        "TracerArrayConversionError": lambda p, q, uniform: np.minimum(1, p / q) > uniform,
        "AttributeError": lambda p, q, uniform: True,
    }
    for name, rule in rules.items():
        assert re.search(f"{name}.*use jnp", played()["rule_check"](rule)), name


def test_a_rule_that_keeps_as_many_but_others_is_seen():
    lab = played()
    share = lab["kept_share"]
    assert "not the right ones" in lab["rule_check"](lambda p, q, uniform: uniform < share)


def test_a_threshold_in_place_of_the_rule_turns_the_lab_red():
    cell = sources()[at(sources(), "return uniform * q < p")]
    with pytest.raises(AssertionError, match="Not yet"):
        run(changed([cell], {"uniform * q < p": "p >= 0.5 * q"}), played())


def test_the_target_writes_what_the_draft_would_not(monkeypatch):
    lab = played()
    tokens, both = lab["tries"][4].tokens, lab["both_odds"]
    assert lab["even_test"](tokens)[1].p_value > lab["SAME"]
    monkeypatch.setitem(lab["on_the_line"].__globals__, "both_odds", lambda tokens: reversed(list(both(tokens))))
    assert lab["even_test"](tokens)[1].p_value < lab["SAME"]


def test_points_of_tokens_drawn_from_the_target_are_even(monkeypatch):
    """Against probabilities that are known, without a model."""
    lab = dict(played())
    draw = np.random.default_rng(1)
    p, q = (draw.dirichlet(np.ones(7), (400, 9)).astype(np.float32) for _ in range(2))
    tokens = (p.cumsum(-1) < draw.random((400, 9, 1))).sum(-1)
    monkeypatch.setitem(lab["on_the_line"].__globals__, "both_odds", lambda _: (p, q))
    assert lab["even_test"](np.minimum(tokens, 6))[1].p_value > 1e-3
    assert lab["even_test"]((tokens + 1) % 7)[1].p_value < lab["SAME"]


@pytest.mark.weekly
def test_a_cell_out_of_order_names_what_it_lacks():
    assert how_many_lack(sources()) > 20
