"""The contest of training plans: its scores against estimates made one by one."""

import pytest

from scaling_lib.hardware import Slice, slice_of
from scaling_lib.search import Choices, contest
from scaling_lib.training import Plan, estimate
from scaling_lib.transformer import Transformer

MODEL = Transformer(n_layers=6, d_model=320, n_heads=20, n_kv_heads=4, head_dim=16, d_ff=768, vocab_size=640)
BASE = Plan(loss_chunks=2)
CHOICES = Choices(zero=(1, 3), schedule="1f1b", remat=("none", "full"))
BATCH, T = 12, 48


@pytest.fixture(scope="module")
def on():
    whole = slice_of("v5p:2x2x4")
    small = Slice(whole.chip.but(usable_hbm_bytes=12e6), whole.shape)
    return contest.contest(MODEL, small, BATCH, T=T, base=BASE, choices=CHOICES)


def steps(on, *, fit=True):
    """Every plan of FSDP, tensor, context and data ways with every remat policy and stage of the choices."""
    found = []
    for fsdp in (1, 2, 4):
        for tensor in (1, 2, 4):
            for context in (1, 2, 4):
                if 16 % (fsdp * tensor * context):
                    continue
                data = 16 // (fsdp * tensor * context)
                for zero in (1, 3):
                    for remat in ("none", "full"):
                        plan = BASE.but(fsdp=fsdp, tensor=tensor, context=context, data=data, zero=zero, remat=remat)
                        try:
                            found.append(estimate(MODEL, on.hidden.slice, plan, BATCH, T=T))
                        except ValueError:
                            continue
    return [step for step in found if step.fits or not fit]


def test_no_plan_of_the_space_beats_the_bests(on):
    every = steps(on)
    assert len(every) > 10
    for step in every:
        low, high = on.ratios(step)
        assert min(low, high) >= 1 - 1e-9
        assert low == pytest.approx(step.lower_s / on.hidden.best[0].lower_s, rel=1e-12)
        assert high == pytest.approx(step.upper_s / on.shown.best[0].upper_s, rel=1e-12)


def test_the_bests_are_best_by_their_own_measure(on):
    assert on.ratios(on.hidden.best[0])[0] == 1
    assert on.ratios(on.shown.best[0])[1] == 1
    assert on.hidden.best[0].plan != on.shown.best[0].plan


def test_a_score_is_ranked_by_its_worse_end(on):
    best = contest.score(on.shown.best[0].plan, on)
    assert best.shown_ratio == 1 < best.hidden_ratio == best.ratio
    far = contest.score(BASE.but(data=2, tensor=4, context=2, remat="full"), on)
    assert far.ratio == max(far.hidden_ratio, far.shown_ratio) > best.ratio
    low, high = sorted((far.hidden_ratio, far.shown_ratio))
    assert f"{far.estimate.plan}: {low:.2f} to {high:.2f} times the best step" in str(far)
    assert f"{far.estimate.binds} binds" in str(far)


@pytest.mark.parametrize(
    ("ratios", "medal"),
    [((1.0, 1.05), "gold"), ((1.0, 1.051), "silver"), ((1.2, 1.0), "silver"), ((1.21, 1.0), "bronze"), ((1.0, 1.51), None)],
)
def test_medals_go_by_the_worse_end_and_gold_is_ok(on, ratios, medal):
    score = contest.Score(estimate=on.hidden.best[0], hidden_ratio=ratios[0], shown_ratio=ratios[1])
    assert (score.medal, score.ok) == (medal, medal == "gold")


def test_the_change_is_one_and_the_best_of_all_single_ones(on):
    plan = BASE.but(tensor=4, context=4, remat="full")
    score = contest.score(plan, on)
    assert score.change is not None
    assert score.changed.fits
    assert score.changed.ratio < score.ratio
    ends = [
        max(on.ratios(step))
        for step in steps(on)
        if sum(getattr(step.plan, name) != getattr(plan, name) for name in ("remat", "zero")) == 1 and step.plan.axes == plan.axes
    ]
    moved = [
        max(on.ratios(step))
        for step in steps(on)
        if (step.plan.remat, step.plan.zero) == (plan.remat, plan.zero)
        and sum(step.plan.axes[axis] != ways for axis, ways in plan.axes.items()) == 2
    ]
    assert ends
    assert moved
    assert score.changed.ratio <= min(ends + moved) * (1 + 1e-12)
    assert f"would help most: {score.change}" in str(score)


def test_of_a_plan_that_does_not_fit_the_change_is_one_of_memory(on):
    (plan, *_) = (step.plan for step in steps(on, fit=False) if not step.fits)
    score = contest.score(plan.but(placement=None), on)
    assert not score.fits
    assert score.medal is None
    assert "does not fit" in str(score)
    assert score.changed.fits or score.changed.estimate.memory.total < score.estimate.memory.total


def test_a_plan_that_is_best_by_both_needs_no_change():
    found = contest.contest("Llama-3 8B", "v5e:4x4", 16, T=4096, choices=Choices(remat="full"))
    score = contest.score(Plan(fsdp=16, remat="full"), found)
    assert (score.hidden_ratio, score.shown_ratio, score.medal, score.change) == (1, 1, "gold", None)
    assert "no single change helps by more than 1 %" in str(score)


@pytest.mark.parametrize(("name", "value"), [("moments", "bf16"), ("math", "fp8"), ("flash", False), ("master", None)])
def test_the_arithmetic_is_not_free(on, name, value):
    with pytest.raises(ValueError, match=f"{name}=.* is against the rules of this contest; give {name}="):
        contest.score(BASE.but(fsdp=4, tensor=4, **{name: value}), on)


def test_a_plan_that_cannot_run_says_why(on):
    with pytest.raises(ValueError, match="do not divide"):
        contest.score(BASE.but(fsdp=16), on)
    with pytest.raises(ValueError, match="devices"):
        contest.score(BASE.but(fsdp=4), on)


def test_a_contest_without_any_plan_says_why():
    whole = slice_of("v5p:2x2x1")
    tiny = Slice(whole.chip.but(usable_hbm_bytes=1e5), whole.shape)
    with pytest.raises(ValueError, match=r"slice='v5p:2x2x1' can run no plan to compare with: .*lacking"):
        contest.contest(MODEL, tiny, 4, T=T, choices=CHOICES)


@pytest.mark.parametrize(("faster", "named"), [(0.995, False), (0.985, True)])
def test_a_change_is_named_from_a_hundredth_of_the_time_on(on, faster, named):
    step = on.shown.best[0]
    before, after = (contest.Score(estimate=step, hidden_ratio=1.0, shown_ratio=1.2 * part) for part in (1, faster))
    assert contest._helps(after, before) == named
