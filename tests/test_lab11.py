"""Lab 11 played from records: the reference design does all that is asked; wrong designs are refused, each with its reason."""

import ast
import json
from functools import cache
from pathlib import Path

import notebooks
import pytest

from scaling_lib.hardware import slice_of
from scaling_lib.search import design
from scaling_lib.search.commission import UNANSWERED
from scaling_lib.transformer import parameters, train_flops
from scaling_lib.xla import capstone
from tests.cells import code_cells, run, shown

LAB = Path(__file__).parents[1] / "labs/11-capstone.md"

pytestmark = pytest.mark.usefixtures("from_records")

SIZES = {"n_layers": 48, "d_model": 6144, "n_heads": 48, "n_kv_heads": 8, "d_ff": 16384, "vocab_size": 128256}
TOKENS = 3.2e12
TRAINING = {"slice": "v6e:16x16", "batch": 1024, "fsdp": 256}
SERVING = {"slice": "v6e:2x2", "tensor": 4, "batch": 256, "servers": 2, "engine": "disaggregated", "prefill_servers": 3}
CONTINUOUS = {"slice": "v6e:2x2", "tensor": 4, "batch": 256}


@cache
def asked():
    """The commission, as the lab's second cell states it."""
    return run(code_cells(LAB)[:2])["asked"]


@cache
def made():
    return design.built(SIZES)


def answers():
    """The lab's answer cells: name -> the statement that gives it."""
    cells = [cell for cell in notebooks.read_page(LAB, answers=True).cells if "answer" in cell.metadata.get("tags", [])]
    return {node.targets[0].id: node.value for cell in cells for node in ast.parse(cell.source).body}


def answered(**others):
    """The lab's cells with all answers in place; `others` are laid over them."""
    given = {**answers(), **{name: ast.parse(repr(value)).body[0].value for name, value in others.items()}}
    for source in code_cells(LAB):
        body = ast.parse(source)
        for node in body.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in given:
                node.value = given[node.targets[0].id]
        yield ast.unparse(body)


@pytest.mark.parametrize(
    ("changes", "tokens", "reason"),
    [
        ({"n_layers": 80, "d_model": 12288, "n_heads": 96, "d_ff": 32768}, 2.6e12, "too large: 2.00e+24 FLOPs, 1.64 times"),
        ({}, 3e11, "under-trained: 14.8 tokens a parameter, and 20 are asked for"),
        ({"n_layers": 32, "d_model": 4096, "n_heads": 32, "d_ff": 14336}, 4e12, "not good enough: loss 1.986, 0.036 over 1.95"),
        ({"d_model": 1000, "n_heads": 8}, TOKENS, "d_model=1000 is no multiple of 256: tiles of the MXU are padded; give 768 or"),
        ({"d_ff": 16000}, TOKENS, "d_ff=16000 is no multiple of 256"),
        ({"n_heads": 96, "n_kv_heads": 8}, TOKENS, "head_dim=64 is no multiple of 128"),
        ({"n_heads": 50, "head_dim": 128}, TOKENS, "n_kv_heads=8 does not divide n_heads=50"),
        ({}, 6e12, "6e+12 tokens are 1.50 times the 4e+12 that there are"),
        ({"vocab_size": 32000}, TOKENS, "vocab_size=32,000 has no room for the tokenizer's 128,000"),
        ({"width": 6144}, TOKENS, "unexpected keyword argument 'width'"),
        ({}, "3.2e12", "tokens='3.2e12'"),
    ],
)
def test_a_wrong_model_is_refused_with_its_reason(changes, tokens, reason):
    verdict = design.model({**SIZES, **changes}, tokens, asked())
    assert not verdict.ok
    assert any(reason in why for why in verdict.why), verdict
    assert str(verdict).startswith("Refused: the model")


def test_the_reference_model_is_taken_and_its_numbers_are_those_of_the_library():
    verdict = design.model(SIZES, TOKENS, asked())
    assert verdict.ok, verdict
    assert verdict.of == made()
    assert verdict.found["parameters"] == parameters(made()).total
    assert verdict.found["FLOPs"] == pytest.approx(train_flops(made(), T=4096, causal=True).model_flops * TOKENS / 4096)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (
            {**TRAINING, "batch": 2048},
            "batch=2048 is 8,388,608 tokens a step, over the critical batch of 4,194,304; give at most",
        ),
        ({**TRAINING, "remat": "none"}, "does not fit: 102.1 GiB a device over 31.2; the largest part is activations"),
        ({**TRAINING, "fsdp": 128}, "fsdp=128 is 128 devices, but v6e:16x16 has 256"),
        ({**TRAINING, "batch": 1000}, "batch=1000 sequences do not divide into"),
        ({**TRAINING, "slice": "v6e:8x16", "fsdp": 128}, "too slow: 82.3 days, 22.3 more than 60"),
        ({**TRAINING, "slice": "v5p:8x8x8", "fsdp": 512}, "over budget: 1,995,403 USD, 995,403 more than 1,000,000"),
        ({**TRAINING, "fsdp": 32, "tensor": 8}, "too dear: 1.84 times the best that the search finds"),
        ({**TRAINING, "slice": "v6e:4x4", "fsdp": 16}, "slice='v6e:4x4' cannot be rented; give one of 'v5e:16x16'"),
        ({**TRAINING, "weights": "bf16"}, "weights='bf16' is against the rules"),
        ({**TRAINING, "ways": 8}, "unexpected keyword argument 'ways'"),
        ({"slice": "v6e:16x16", "fsdp": 256}, "batch=0"),
    ],
)
def test_a_wrong_training_is_refused_with_its_reason(how, reason):
    verdict = design.training(made(), TOKENS, how, asked())
    assert not verdict.ok
    assert any(reason in why for why in verdict.why), verdict


def test_the_reference_training_is_the_best_that_the_search_finds():
    verdict = design.training(made(), TOKENS, TRAINING, asked())
    assert verdict.ok, verdict
    assert verdict.found["times the best"] == pytest.approx(1, abs=1e-3)
    assert verdict.found["days, all hidden"] < verdict.found["days"] < asked().days
    chips = slice_of(TRAINING["slice"])
    hours = verdict.found["days"] * 24 * chips.chips
    assert verdict.found["USD"] == pytest.approx(hours * chips.chip.usd_per_hour)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"slice": "v5e:1x1", "batch": 1, "servers": 8}, "does not fit: 4.25 GiB a device are lacking, for the weights alone"),
        ({**CONTINUOUS, "batch": 4000, "servers": 6}, "does not fit: batch=4000 conversations"),
        ({**CONTINUOUS, "servers": 2}, "overloaded: 1.92 times as many requests come as it can serve"),
        ({**CONTINUOUS, "servers": 5}, "too slow: each token after it takes"),
        ({**SERVING, "servers": 4, "prefill_servers": 4}, "too dear: 0.32 USD a million tokens more than 0.75"),
        ({**SERVING, "servers": 4, "prefill_servers": 4}, "too dear: 1.60 times the best that the search finds"),
        ({**CONTINUOUS, "tensor": 3}, "tensor=3 is 3 devices, but v6e:2x2 has 4"),
        ({**CONTINUOUS, "slice": "v6e:16x16", "tensor": 256}, "slice='v6e:16x16' is not in this contest"),
        ({**CONTINUOUS, "weights": "bf16"}, "weights='bf16' is not to be chosen"),
        ({"tensor": 4}, "missing 2 required keyword-only arguments: 'slice' and 'batch'"),
    ],
)
def test_a_wrong_fleet_is_refused_with_its_reason(how, reason):
    verdict = design.serving(made(), how, asked())
    assert not verdict.ok
    assert any(reason in why for why in verdict.why), verdict


def test_what_is_not_answered_is_not_refused_with_an_error():
    for verdict in (
        design.model(..., TOKENS, asked()),
        design.model(SIZES, ..., asked()),
        design.training(made(), TOKENS, ..., asked()),
        design.serving(made(), ..., asked()),
    ):
        assert not verdict.ok
        assert str(verdict) == UNANSWERED


def test_the_least_parameters_reach_the_loss_and_fewer_do_not():
    least = design.least_parameters(4e12, 1.95)
    assert design.loss(least, 4e12) == pytest.approx(1.95)
    assert design.loss(0.99 * least, 4e12) > 1.95
    with pytest.raises(ValueError, match="out of reach with tokens=1e"):
        design.least_parameters(1e11, 1.95)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """What the lab with all answers defines, and the folder in which it was run."""
    folder = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCALING_LIB_RECORDS", "only")
        patch.chdir(folder)
        return run(answered()), folder


def test_the_lab_with_all_answers_hands_in_the_design(lab):
    defined, folder = lab
    assert all(verdict.ok for verdict in defined["own"])
    assert {part: found.ok for part, found in defined["compiled"].items()} == {"training": True, "decode": True}
    written = json.loads((folder / "design.json").read_text())
    assert (written["sizes"], written["tokens"]) == (SIZES, TOKENS)
    assert (written["training"], written["serving"]) == (TRAINING, SERVING)
    assert "training step: fits" in written["compiled"]["training"]


@pytest.mark.parametrize("source", [source for source in code_cells(LAB) if "check.answer(" in source])
def test_each_number_is_checked_and_each_slip_gets_its_hint(lab, source):
    defined, _ = lab
    (name,) = (name for name in answers() if f"{name} = ..." in source)
    verdict, now = shown(source, defined, **{name: defined[name]})
    assert verdict.ok, verdict
    for wrong, hint in now["slips"].items():
        verdict, _ = shown(source, defined, **{name: wrong})
        assert (verdict.ok, verdict.words) == (False, f"Not yet. {hint}")


def test_a_design_of_ones_own_without_compiler_and_record_is_not_judged_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lab = run(answered(your_tokens=3.3e12, your_training={**TRAINING, "batch": 768}))
    assert all(verdict.ok for verdict in lab["own"])
    found = lab["compiled"]["training"]
    assert not found.judged
    assert not found.ok
    assert str(found).startswith("training step: not judged here, since")
    assert ("compiler, training", "not judged here", "") in lab["page"]
    assert json.loads((tmp_path / "design.json").read_text())["compiled"]["training"] == "not judged here"


def test_a_plan_that_the_compiled_step_cannot_express_is_not_judged():
    step = design.training(made(), TOKENS, {**TRAINING, "fsdp": 128, "context": 2}, asked()).of
    found = capstone.training_step(step)
    assert not found.judged
    assert "context=2 is not in xla.llama's training step" in str(found)
