"""The search, held to `estimate` plan by plan on small spaces, and to its size on large ones."""

import itertools
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from scaling_lib.hardware import Slice, chip, slice_of
from scaling_lib.search import Choices, best_training_plans
from scaling_lib.search.places import Places
from scaling_lib.search.space import Question, Space
from scaling_lib.training import Plan, estimate, why_not
from scaling_lib.training.plan import RULES
from scaling_lib.training.wires import AXES, GROUPS, placements
from scaling_lib.transformer import MODELS, Experts, Transformer, parameters

DENSE = Transformer(n_layers=6, d_model=384, n_heads=6, n_kv_heads=3, d_ff=960, vocab_size=1200)
TIED = Transformer(n_layers=4, d_model=256, n_heads=4, d_ff=640, vocab_size=5000, tied_embeddings=True)
MOE = Transformer(
    n_layers=4, d_model=256, n_heads=4, n_kv_heads=2, d_ff=512, vocab_size=1000,
    experts=Experts(n_experts=6, top_k=2, d_ff=192, every=2),
)  # fmt: skip


# --- Equal to one estimate after the other. ---


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def all_splits(model, slice, batch, base, choices):
    """Every split, from the definition: what the choices leave open, with what cannot matter counted once."""

    def of(name, otherwise):
        given = getattr(choices, name)
        return otherwise if given is None else given

    every = [of(axis, divisors(slice.devices) if axis != "expert" or model.experts else [1]) for axis in AXES]
    for degrees in itertools.product(*every):
        axes = dict(zip(AXES, degrees, strict=True))
        if math.prod(degrees) != slice.devices:
            continue
        p, shared = axes["pipeline"], axes["fsdp"] * axes["context"] * axes["expert"]
        zeros = [z for z in choices.zero if z or axes["fsdp"] == 1] if shared > 1 else [min(choices.zero)]
        virtual = [v for v in range(2, model.L + 1) if p * v <= model.L and model.L % (p * v) == 0]
        if base.uneven_stages:
            virtual = sorted({*virtual, *(v for v in (2, 4, 8, 16) if p * v <= model.L)})
        schedules = [(s, v) for s in choices.schedule for v in (of("virtual_stages", virtual) if s == "interleaved" else [1])]
        remats = [r for r in choices.remat if r != "selective" or not base.flash]
        by = of("context_by", [base.context_by]) if axes["context"] > 1 else [of("context_by", [base.context_by])[0]]
        for (schedule, v), m, zero, remat, loss, off, keys in itertools.product(
            schedules if p > 1 else [("1f1b", 1)], of("microbatches", divisors(batch)), zeros, remats,
            of("loss_chunks", [base.loss_chunks]), of("offload", [base.offload]), by,
        ):  # fmt: skip
            yield base.but(
                **axes, zero=zero, schedule=schedule, virtual_stages=v, microbatches=m, remat=remat, loss_chunks=loss,
                offload=off, context_by=keys, placement=None,
            )  # fmt: skip


def by_hand(model, slice, batch, T, base, choices, **how):
    """Every split and placement by `estimate`: the splits that run, with rank and axes; placed plans; refusals by rule."""
    runs, plans, refused, least = [], 0, Counter(), math.inf
    for plan in all_splits(model, slice, batch, base, choices):
        if why_not(plan, model, slice, batch, T):
            refused[next(rule.kind for rule in RULES if rule.why(plan, model, batch, T))] += 1
            continue
        placed = [estimate(model, slice, plan.but(placement=one), batch, T=T, **how) for one in placements(plan.axes, slice)]
        plans += len(placed)
        held = float(placed[0].memory.total)
        if not placed[0].fits:
            refused["memory"] += 1
            least = min(least, held)
            continue
        rank = min((round(one.seconds, 9), round(one.upper_s, 9)) for one in placed)
        runs.append(((*rank, held), tuple(ways > 1 for ways in plan.axes.values()), plan))
    return sorted(runs, key=lambda run: run[0]), plans, refused, least


def small(name, bytes, count=1):
    """A slice of a chip with little memory, so that some plans fit."""
    slice = slice_of(name, count)
    return Slice(slice.chip.but(usable_hbm_bytes=bytes), slice.shape, count)


CASES = {
    "dense on a torus": (DENSE, small("v5p:2x2x4", 20e6), 12, 48, Plan(), Choices(), {}),
    "nothing hidden": (DENSE, small("v5e:2x4", 30e6), 12, 48, Plan(), Choices(), {"overlap": "none", "efficiency": 0.5}),
    "shares that show, latency": (
        TIED, small("v5p:2x2x2", 20e6), 8, 64, Plan(sequence_parallel=False), Choices(zero=(1, 3)),
        {"overlap": {"tensor": 0.5, "fsdp": 0.2}, "hop_s": 1e-6, "start_s": 1e-5},
    ),
    "experts": (MOE, small("v5e:2x4", 20e6), 12, 32, Plan(), Choices(zero=(0, 2, 3), schedule="1f1b"), {"causal": False}),
    "experts on GPUs": (MOE, small("h100:2x6", 14e6), 12, 36, Plan(), Choices(remat=("full", "none"), schedule=("1f1b",)), {}),
    "GPU nodes": (TIED, small("h100:4x4", 20e6), 16, 64, Plan(), Choices(), {"overlap": {"tensor": 0.5}}),
    "slices over DCN": (DENSE, small("v5e:2x2", 30e6, 3), 12, 48, Plan(), Choices(), {}),
    "two devices a chip": (TIED, small("tpu7x:2x2x1", 60e6), 8, 64, Plan(), Choices(), {}),
    "uneven stages": (DENSE, small("v5p:2x2x2", 60e6), 8, 48, Plan(uneven_stages=True), Choices(zero=3, tensor=(1, 2)), {}),
    "more choices": (
        DENSE, small("v5p:2x2x2", 30e6), 12, 48, Plan(flash=False, dropout=True, master=None),
        Choices(pipeline=(1, 2), zero=(1, 3), microbatches=(1, 2, 5, 6), loss_chunks=(1, 3), virtual_stages=3,
                remat=("selective", (), "none"), offload=((), ("optimizer",), ("activations",)), context_by=("gather", "ring")),
        {"ici": "peak"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_search_is_one_estimate_after_the_other(case):
    model, slice, batch, T, base, choices, how = CASES[case]
    found = best_training_plans(model, slice, batch, T=T, keep=25, base=base, choices=choices, **how)
    runs, plans, refused, least = by_hand(model, slice, batch, T, base, choices, **how)
    assert found.plans == plans
    assert {kind: reason.count for kind, reason in found.reasons.items()} == dict(refused)
    assert found.feasible == len(runs) > 25
    assert found.splits == len(runs) + refused.total()
    ranks = [(round(one.seconds, 9), round(one.upper_s, 9), float(one.memory.total)) for one in found.best]
    assert np.array(ranks) == pytest.approx(np.array([rank for rank, _, _ in runs[:25]]), rel=1e-12, abs=1.1e-9)
    for one in found.best:  # each is a split of its own, with its fastest placement
        open_plan = one.plan.but(placement=None)
        assert estimate(model, slice, open_plan, batch, T=T, **how).seconds == pytest.approx(one.seconds, rel=1e-12)
    assert len({one.plan.but(placement=None) for one in found.best}) == 25
    other = next(run for run in runs if run[1] != tuple(ways > 1 for ways in found.best[0].plan.axes.values()))
    assert found.runner_up.seconds == pytest.approx(other[0][0], abs=1.1e-9)
    assert found.runner_up.upper_s == pytest.approx(other[0][1], abs=1.1e-9)
    assert math.isfinite(least) == ("memory" in found.reasons)


def test_examples_of_reasons_are_what_why_not_says():
    model, slice, batch, T, base, choices, how = CASES["dense on a torus"]
    space = Space(Question(model, slice, batch, T, base, choices.of(base)))
    found = best_training_plans(model, slice, batch, T=T, base=base, choices=choices, **how)
    assert set(space.refused) == {"heads", "layers", "batch", "schedule"}
    for kind, refused in space.refused.items():
        assert found.reasons[kind].example == why_not(refused.example, model, slice, batch, T)
        assert next(rule.kind for rule in RULES if rule.why(refused.example, model, batch, T)) == kind
    memory = found.reasons["memory"].example
    assert "lacking" in memory
    assert "v5p has 0.0186 GiB" in memory


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("v5p:4x4x8", (2, 1, 2, 4, 3, 8)),
        ("v5p:4x4x4", (4, 2, 4, 6, 1, 1)),
        ("v5p:2x2x4", (2, 3, 2, 2, 1, 2)),
        ("v5e:8x16", (4, 2, 1, 4, 3, 4)),
        ("tpu7x:4x4x4", (2, 1, 4, 8, 6, 1)),
        ("h100:8x4", (4, 2, 2, 3, 2, 1)),
    ],
)
def test_placements_are_those_of_the_wires(name, degrees):
    slice = slice_of(name, 3)
    places = Places(slice, np.array([degrees]), tuple(GROUPS), ici="achievable", hop_s=0, start_s=0)
    found = [canonical(places.placement(0, j)) for j in range(places.count(0))]
    expected = [canonical(one) for one in placements(dict(zip(AXES, degrees, strict=True)), slice)]
    assert sorted(found) == sorted(expected)
    assert len(found) == len(set(found)) > 1


def canonical(placement):
    return json.dumps(
        {axis: sorted((str(place), ways) for place, ways in parts.items()) for axis, parts in placement.items()}, sort_keys=True
    )


# --- Large spaces. ---

ROOT = Path(__file__).parents[1]
# VmHWM, for ru_maxrss of a process begins at what its parent held, here JAX and compilers.
LARGE = """
from pathlib import Path
from scaling_lib.search import best_training_plans
found = best_training_plans("Llama-3.1 405B", "v5p:16x16x24", 2048, T=8192)
best = found.best[0]
print(found.plans, found.feasible, len(found.best), best.fits, best.plan.devices, best.seconds, best.plan.pipeline)
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def test_a_large_space_in_little_memory():
    out = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True, timeout=300, cwd=ROOT)
    line, kib = out.stdout.splitlines()
    plans, feasible, kept, fits, devices, seconds, stages = line.split()
    assert int(plans) > 3_000_000
    assert int(feasible) > 10_000
    assert (kept, fits, devices, stages) == ("10", "True", "6144", "3")  # 3 divides 126 layers and neither heads nor batch
    ideal_s = 6 * parameters(MODELS["Llama-3.1 405B"]).total * 2048 * 8192 / (6144 * chip("v5p").flops_per_s())
    assert ideal_s < float(seconds) < 1.2 * ideal_s
    assert int(kib) < 1_000_000


# --- Where nothing can run. ---


def test_a_factor_that_divides_nothing():
    found = best_training_plans("Llama-3.1 405B", "v5p:16x20x28", 2048, T=8192)
    assert found.best == ()
    assert found.runner_up is None
    assert found.plans == found.feasible == 0
    assert found.why_none == (
        "8,960 devices are 2^8 · 5 · 7, and 5 divides none of 2048 sequences (data, fsdp), 128 heads (tensor), "
        "8192 tokens (context), 126 layers (pipeline)"
    )
    nearest = {(one.change, str(one.value)) for one in found.nearest}
    assert {("uneven_stages", "True"), ("batch", "2045"), ("batch", "2050"), ("slice", "v5p:16x16x32")} <= nearest
    held_to_estimate(found)
    assert "5 divides none" in found.explain()
    assert "batch=2050" in found.explain()


def test_uneven_stages_make_it_run():
    choices = Choices(schedule="1f1b", remat="full", zero=3)
    found = best_training_plans("Llama-3.1 405B", "v5p:16x20x28", 2048, T=8192, base=Plan(uneven_stages=True), choices=choices)
    assert found.best[0].plan.pipeline % 5 == 0
    assert found.nearest == ()
    assert found.why_none is None


def test_a_model_that_does_not_fit():
    found = best_training_plans("Llama-3 70B", "v5p:2x2x1", 32, T=8192)
    assert found.best == ()
    assert found.plans > 0
    assert found.why_none == found.reasons["memory"].example
    least = min(
        float(estimate(MODELS["Llama-3 70B"], "v5p:2x2x1", plan, 32, T=8192).memory.total)
        for plan in all_splits(MODELS["Llama-3 70B"], slice_of("v5p:2x2x1"), 32, Plan(), Choices())
        if not why_not(plan, MODELS["Llama-3 70B"], slice_of("v5p:2x2x1"), 32, 8192)
    )
    usable = chip("v5p").usable_hbm_bytes
    assert f"{(least - usable) / 2**30:.0f} GiB are lacking" in found.why_none
    nearest = {one.change: one for one in found.nearest}
    assert str(nearest["slice"].value) == "v5p:2x2x4"
    assert best_training_plans("Llama-3 70B", "v5p:2x2x2", 32, T=8192).best == ()  # no smaller one would do
    assert nearest["offload"].value == ("optimizer",)
    held_to_estimate(found)


def test_beyond_a_pod_several_slices():
    found = best_training_plans("Llama-3.1 405B", "v5e:16x16", 256, T=4096, choices=Choices(pipeline=1))
    nearest = {one.change: one.value for one in found.nearest}
    assert str(nearest["slice"]) == "2 × v5e:16x16"
    held_to_estimate(found)


def test_gpu_nodes_are_doubled():
    found = best_training_plans("Llama-3 70B", "h100:8x1", 64, T=4096)
    assert [str(one.value) for one in found.nearest if one.change == "slice"] == ["h100:8x2"]
    held_to_estimate(found)


def test_a_batch_in_parts_of_a_size_that_is_asked_for():
    choices = Choices(tensor=1, context=1, pipeline=1, expert=1, microbatches=3)
    found = best_training_plans("Llama-3 8B", "v5e:4x4", 16, T=4096, choices=choices)
    assert [one.value for one in found.nearest if one.change == "batch"] == [48]
    held_to_estimate(found)


def test_a_batch_below_the_devices_of_one_axis():
    found = best_training_plans("Llama-3 8B", "v5e:4x4", 7, T=4096, choices=Choices(tensor=1, context=1, pipeline=1))
    assert [one.value for one in found.nearest if one.change == "batch"] == [16]
    assert [one.estimate.slice.chips for one in found.nearest if one.change == "slice"] == []
    held_to_estimate(found)


def held_to_estimate(found):
    """What is named as a way out is one."""
    assert found.nearest
    for one in found.nearest:
        e = one.estimate
        again = estimate(e.model, e.slice, e.plan, e.batch, T=e.T)
        assert again.fits
        assert again.seconds == e.seconds
        changed = {"batch": e.batch, "slice": e.slice, "uneven_stages": e.plan.uneven_stages, "offload": e.plan.offload}
        unchanged = {"batch": found.batch, "slice": found.slice, "uneven_stages": False, "offload": ()}
        for name, value in changed.items():
            assert value == (one.value if name == one.change else unchanged[name])


# --- Words, data, arguments. ---


def test_words_and_data():
    found = best_training_plans("Llama-3 8B", "v5e:4x8", 32, T=8192, overlap="none")
    text, data = found.explain(), json.loads(json.dumps(found.to_json()))
    best = found.best[0]
    assert f"{found.plans:,} plans" in text
    assert f"{best.binds} binds: {best.inequality}" in text
    assert all(f"{kind}: {reason.count:,} splits" in text for kind, reason in found.reasons.items())
    assert data["best"][0]["seconds"] == best.seconds
    assert data["best"][0]["plan"]["fsdp"] == best.plan.fsdp
    assert data["best"][0]["memory_bytes"]["total"] == float(best.memory.total)
    assert data["runner_up"]["slice"] == "v5e:4x8"
    assert data["reasons"]["memory"]["count"] == found.reasons["memory"].count
    assert data["feasible"] == found.feasible
    placed = {axis: {int(place): n for place, n in parts.items()} for axis, parts in data["best"][0]["plan"]["placement"].items()}
    assert placed == best.plan.placement


def test_why_the_best_wins():
    axes = {"fsdp": None, "pipeline": 1, "context": 1}
    text = best_training_plans(
        "Mixtral 8x7B", "h100:8x4", 256, T=4096, choices=Choices(**axes, data=1, tensor=(1, 4)), overlap="none"
    ).explain()
    assert "It takes" in text
    assert "tensor 0 s against" in text
    alike = best_training_plans("Llama-3 8B", "v5p:4x4x4", 64, T=8192).explain()
    assert "As long, but with nothing hidden" in alike
    assert "No plan with other axes" in best_training_plans(DENSE, "v5e:1x1", 4, T=48).explain()


def test_the_same_twice():
    first, second = (best_training_plans(DENSE, "v5p:2x2x4", 12, T=48) for _ in range(2))
    assert [one.plan for one in first.best] == [one.plan for one in second.best]
    assert first.reasons == second.reasons


def test_progress_ends_at_all_plans():
    told = []
    found = best_training_plans(DENSE, "v5p:2x2x4", 12, T=48, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (found.plans, found.plans)
    assert told == sorted(told)
    assert len(told) > 3


def test_pinned_degrees():
    found = best_training_plans("Llama-3 8B", "v5p:4x4x4", 64, T=4096, choices=Choices(tensor=8, pipeline=(1, 2), zero=1))
    assert {(one.plan.tensor, one.plan.zero) for one in found.best} <= {(8, 0), (8, 1)}
    assert {one.plan.pipeline for one in found.best} <= {1, 2}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"model": "Llama-3 8"}, "Llama-3 8B"),
        ({"slice": "v5p:4x4x5"}, "nearest"),
        ({"batch": 0}, "batch=0"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"T": 0}, "T=0"),
        ({"keep": 0}, "keep=0"),
        ({"efficiency": 1.5}, "efficiency=1.5"),
        ({"ici": "fast"}, "ici='fast'"),
        ({"hop_s": -1}, "hop_s=-1"),
        ({"overlap": "some"}, "overlap='some'"),
        ({"choices": Choices(tensor=7)}, "tensor=7 cannot multiply to the 64 devices"),
    ],
)
def test_arguments_that_make_no_sense(arguments, says):
    usual = {"model": "Llama-3 8B", "slice": "v5p:4x4x4", "batch": 64, "T": 4096} | arguments
    with pytest.raises(ValueError, match=says):
        best_training_plans(usual.pop("model"), usual.pop("slice"), usual.pop("batch"), **usual)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tensor": ()}, r"tensor=\(\) leaves nothing"),
        ({"fsdp": 0}, "fsdp=0"),
        ({"zero": 4}, "zero=4"),
        ({"zero": 0, "fsdp": 8}, "zero=0 shares nothing out, but fsdp=8"),
        ({"zero": (1, "3")}, "zero='3'"),
        ({"schedule": "1f2b"}, "did you mean '1f1b'"),
        ({"context_by": "rings"}, "context_by='rings'"),
        ({"offload": ("optimizer",)}, "one tuple for each choice"),
        ({"offload": (("weights",),)}, "offload holds 'weights'"),
        ({"microbatches": (2, 2.5)}, "microbatches=2.5"),
    ],
)
def test_choices_that_no_plan_has(arguments, says):
    with pytest.raises(ValueError, match=says):
        Choices(**arguments)


def test_zero_0_alone_leaves_no_fsdp():
    found = best_training_plans(TIED, "v5e:2x4", 8, T=64, choices=Choices(zero=0))
    assert {one.plan.fsdp for one in found.best} == {1}
