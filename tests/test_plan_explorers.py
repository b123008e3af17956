"""The explorers of training: a plan priced for every state that its controls allow, and the budget of a run against chips."""

import contextlib
import itertools
import time

import pytest
from bs4 import BeautifulSoup

from scaling_lib.hardware import CHIPS, chip, slice_of
from scaling_lib.show import steps
from scaling_lib.show.explorers import base, budget_explorer, budget_view, plan_explorer, plan_view
from scaling_lib.show.explorers.budget import FAILURES
from scaling_lib.show.explorers.plan import REMATS, SLICES
from scaling_lib.training import Plan, estimate, why_not
from scaling_lib.training.goodput import LLAMA_3_CHIP_MTBF_S, goodput
from scaling_lib.training.money import bill
from scaling_lib.training.pipeline import SCHEDULES
from scaling_lib.training.sizing import links_bind, quick_plan, slices
from scaling_lib.transformer import MODELS
from scaling_lib.units import human
from tests.test_explorers import assert_link_carries, assert_room, html_of, move, on_screen, printed, problems, rows, words

PLAN = {
    "model": "Llama-3 70B", "slice": "v5p:8x8x8", "count": 1, "batch": 512, "T": 8192, "data": 1, "fsdp": "rest", "tensor": 4,
    "context": 1, "pipeline": 1, "expert": 1, "zero": 3, "microbatches": 1, "schedule": "1f1b", "virtual_stages": 1,
    "uneven_stages": False, "remat": "full", "sequence_parallel": True, "loss_chunks": 1, "efficiency": 1.0,
}  # fmt: skip
BUDGET = {
    "model": "Llama-3 70B", "chip": "v5p", "tokens": 15 * 10**12, "batch_tokens": 2**22, "T": 8192, "usd_per_chip_hour": "list",
    "efficiency": 0.7, "failures": "none", "checkpoint_s": 30, "restart_s": 600, "slice": "v5p:8x8x8",
}  # fmt: skip
LLAMA_3S = "as for Llama 3 405B"


# Plans.


def test_the_plan_view_shows_what_the_library_says():
    view = plan_view(**PLAN)
    of = estimate("Llama-3 70B", "v5p:8x8x8", Plan(fsdp=128, tensor=4, remat="full"), 512, T=8192)
    shown = rows(view)
    assert shown["plan"] == "tensor 4 · fsdp 128, remat full"
    assert shown["a step"] == f"{human(of.lower_s, 's')} if all hides, {human(of.upper_s, 's')} if nothing does"
    assert shown["beside math"] == f"{human(of.exposed_s('full'), 's')} to {human(of.exposed_s('none'), 's')}"
    slow = estimate("Llama-3 70B", "v5p:8x8x8", of.plan, 512, T=8192, overlap="none")
    assert shown["MFU"] == f"{slow.mfu:.1%} to {of.mfu:.1%}"
    assert shown["tokens/s"] == f"{human(slow.tokens_per_s)} to {human(of.tokens_per_s)}"
    assert shown["tokens a chip"] == "8,192"
    assert shown["memory"] == f"{human(of.memory.total, 'GiB')} of {human(of.usable_bytes, 'GiB')} a device"
    assert shown["the most of it"] == f"activations, {human(of.memory.activations, 'GiB')}"
    assert shown["lie on"] == "tensor on 2 of axis 0, 2 of axis 1; fsdp on 4 of axis 0, 4 of axis 1, 8 of axis 2"
    assert words(view) == f"The matrix unit binds: {of.inequality}. It fits: {shown['memory']}."
    assert view.svg == steps.parts(of).svg


def test_one_plan_in_full():
    """A golden text: a changed constant, sign, unit or word shows here."""
    view = plan_view(**PLAN | {"slice": "v5e:16x16", "model": "Llama-3 8B", "batch": 256, "loss_chunks": 8})
    assert BeautifulSoup(view.numbers, "html.parser").get_text("|") == (
        "The matrix unit binds|: batch (sequences) is 256, and must be at least 11.3. |It fits: 4.47 GiB of 15.8 GiB a device."
        "|plan|tensor 4 · fsdp 64, remat full|a step|2.86 s if all hides, 4.07 s if nothing does|beside math|0 s to 1.22 s"
        "|MFU|52.6% to 74.9%|tokens/s|515,000 to 734,000|tokens a chip|8,192|memory|4.47 GiB of 15.8 GiB a device"
        "|the most of it|activations, 2.12 GiB"
        "|lie on|tensor on 2 of axis 0, 2 of axis 1; fsdp on 8 of axis 0, 8 of axis 1"
    )


def test_the_rest_is_what_is_left_and_without_zero_it_makes_copies():
    assert rows(plan_view(**PLAN | {"tensor": 8, "data": 2}))["plan"] == "tensor 8 · fsdp 32 · data 2, remat full"
    assert rows(plan_view(**PLAN | {"zero": 0, "data": 2}))["plan"] == "tensor 4 · data 128, remat full"
    assert plan_view(**PLAN | {"fsdp": 128}).svg == plan_view(**PLAN).svg
    tpu7x = plan_view(**PLAN | {"slice": "tpu7x:4x4x4", "count": 2, "batch": 64})
    assert rows(tpu7x)["plan"] == "tensor 4 · fsdp 64, remat full"  # two devices a chip, two slices


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"tensor": "3"}, "fsdp", "tensor=3 is 3 devices, but v5p:8x8x8 has 512; take ways that multiply to 512"),
        ({"fsdp": "64"}, "fsdp", "tensor=4 · fsdp=64 is 256 devices, but v5p:8x8x8 has 512; fsdp=128 would do"),
        ({"tensor": "128"}, "tensor", "tensor=128 does not divide the 64 heads of Llama-3 70B; give one of 1, 2, 4"),
        ({"expert": "2"}, "expert", "expert=2, but Llama-3 70B has no experts; give expert=1"),
        ({"pipeline": "32"}, "pipeline", "pipeline=32 does not divide the 80 layers of Llama-3 70B; give one of"),
        ({"batch": "500"}, "batch", "batch=500 sequences do not divide into data · fsdp · expert = 128 replicas"),
        ({"microbatches": "8"}, "batch", "batch=512 sequences do not divide"),
        ({"T": "8190"}, "T", "T=8190 tokens do not divide by context · tensor = 4, over which they are shared"),
        ({"zero": 0, "fsdp": "128"}, "zero", "zero=0 shares nothing out, but fsdp=128; call these ways data=128"),
        ({"virtual_stages": "5"}, "virtual_stages", "virtual_stages=5 with pipeline=1"),
        ({"pipeline": "4", "schedule": "interleaved"}, "virtual_stages", "an interleaved schedule needs 2 or more chunks"),
        ({"slice": "v5p-128"}, "slice", "is a Cloud name"),
        ({"slice": "<b>"}, "slice", "slice='<b>' does not read as chip:shape; write it like 'v5e:16x16'"),
        ({"slice": ""}, "slice", "does not read as chip:shape"),
        ({"batch": "0"}, "batch", "batch=0 is not a size"),
        ({"fsdp": "all"}, "fsdp", "fsdp='all' is not a number"),
        ({"data": "9" * 400}, "data", "too large"),
        ({"slice": "v100:8x2"}, "slice", "no sourced figure"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_run_is_said_beside_what_is_at_fault(change, field, said):
    explorer = plan_explorer()
    move(explorer, **{name: value for name, value in change.items() if name != field})
    before = on_screen(explorer)
    move(explorer, **{name: value for name, value in change.items() if name == field})
    assert said in problems(explorer)[field]
    assert len(problems(explorer)) == 1
    if field in change:
        assert on_screen(explorer) == before
    move(explorer, **{name: str(PLAN[name]) if isinstance(value, str) else PLAN[name] for name, value in change.items()})
    assert problems(explorer) == {}
    assert explorer.shown == plan_view(**PLAN)


@pytest.mark.parametrize(
    ("change", "would"),
    [
        ({"remat": "none"}, "microbatches=2"),
        ({"model": "Llama-3.1 405B", "remat": "none"}, "remat=full would do"),
        ({"model": "Llama-3.1 405B", "zero": 0}, "zero=3"),
        ({"model": "Llama-3.1 405B", "slice": "v5e:4x4", "batch": 64}, "take more chips, or pipeline stages"),
    ],
)
def test_a_plan_that_does_not_fit_is_drawn_and_what_would_do_does(change, would):
    state = PLAN | change
    view = plan_view(**state)
    assert f"; {would}" in words(view)
    of = estimate(state["model"], state["slice"], printed(view)[1]["plan"], state["batch"], T=state["T"])
    assert not of.fits
    missing = human(of.memory.total - of.usable_bytes, "GiB")
    assert f"It does not fit: {missing} too much for the {human(of.usable_bytes, 'GiB')} of a device" in words(view)


def test_the_change_that_would_do_fits():
    view = plan_view(**PLAN | {"remat": "none"})
    assert "microbatches=2 would do" in words(view)
    assert "It fits" in words(plan_view(**PLAN | {"remat": "none", "microbatches": 2, "fsdp": 128}))
    assert "does not fit" in words(view)


def test_moving_each_control_shows_the_view_of_the_new_state():
    explorer = plan_explorer()
    changes = [
        {"tensor": "8"}, {"data": "2"}, {"pipeline": "4"}, {"microbatches": "8"},
        {"schedule": "interleaved", "virtual_stages": "5"}, {"remat": "selective"},
        {"zero": 1}, {"loss_chunks": "4"}, {"sequence_parallel": False}, {"context": "2"},
        {"efficiency": 0.65}, {"model": "Llama-3.1 70B"}, {"batch": "1,024"}, {"T": "4096"}, {"uneven_stages": True},
        {"count": "2"}, {"slice": "v5p:8x8x16"}, {"fsdp": "16"},
    ]  # fmt: skip
    for change in changes:
        move(explorer, **change)
        assert problems(explorer) == {}, change
        assert explorer.shown == plan_view(**explorer.state)
        assert on_screen(explorer) == html_of(explorer.shown)
    assert {name for change in changes for name in change} | {"expert"} == set(explorer.state)
    assert explorer.state["batch"] == 1024
    move(explorer := plan_explorer(model="Mixtral 8x7B"), expert="8")
    assert explorer.shown == plan_view(**PLAN | {"model": "Mixtral 8x7B", "expert": 8})


def test_a_picked_slice_fills_the_field_and_another_is_your_own():
    explorer = plan_explorer()
    pick = explorer.children[0].children[0]
    assert pick.value == "v5p:8x8x8"
    move(explorer, slice="V5P:8x8x16")
    assert (pick.value, explorer.state["slice"]) == (base.OWN, "v5p:8x8x16")
    pick.value = "h100:8x128"
    assert explorer.state["slice"] == explorer.controls["slice"].widget.value == "h100:8x128"
    move(explorer, slice="no slice")
    assert pick.value == base.OWN


def test_every_usual_slice_can_train_a_model_from_the_start():
    for name in SLICES:
        batch = slice_of(name).devices
        move(explorer := plan_explorer(), batch=str(batch), slice=name)
        assert problems(explorer) == {}, name
        assert explorer.state["slice"] == slice_of(name).name == name


def test_labels_of_any_plan_have_room():
    ways = ({"tensor": 1}, {"tensor": 8, "data": 2}, {"pipeline": 4, "microbatches": 8, "context": 2}, {"zero": 0})
    for way, name, remat in itertools.product(ways, ("v5p:8x8x8", "h100:8x64", "tpu7x:4x8x8"), REMATS):
        for model in ("GPT-2 small", "Llama-3 8B", "Llama-3.1 405B", "Mixtral 8x22B"):
            state = (
                PLAN | {"slice": name, "batch": 4096, "model": model, "remat": remat, "uneven_stages": True, "tensor": 1} | way
            )
            with contextlib.suppress(ValueError):
                assert_room(plan_view(**state).svg)
    shown = plan_view(**PLAN | {"count": 8, "data": 4, "context": 2, "pipeline": 4, "microbatches": 8, "fsdp": 32, "batch": 1024})
    assert "dcn" in shown.svg
    assert_room(shown.svg)


def test_the_plan_code_to_copy_gives_the_same_numbers():
    for change in ({}, {"slice": "h100:8x64", "pipeline": 4, "microbatches": 4}, {"count": 4, "zero": 1, "efficiency": 0.6}):
        view = plan_view(**PLAN | {"sequence_parallel": False} | change)
        out, names = printed(view)
        step = names["step"]
        assert str(step) in out
        assert rows(view)["a step"] == f"{human(step.lower_s, 's')} if all hides, {human(step.upper_s, 's')} if nothing does"
        assert eval("steps.parts(step)", names).svg == view.svg


def test_a_change_of_a_usual_plan_takes_no_longer_than_a_picture_of_a_film_may():
    explorer, took = plan_explorer(), {}
    for ways in ("1", "2", "8", "16", "4"):
        repeats = []
        for _ in range(3):
            move(explorer, tensor="32")
            start = time.perf_counter()
            move(explorer, tensor=ways)
            repeats.append(time.perf_counter() - start)
        took[ways] = min(repeats)
    assert max(took.values()) < 0.05, took


def test_schedules_and_models_offered_are_all_there_are():
    controls = plan_explorer().controls
    assert tuple(controls["schedule"].widget.options) == SCHEDULES
    assert list(controls["model"].widget.options) == list(MODELS) == list(budget_explorer().controls["model"].widget.options)


def test_wrong_arguments_of_both_are_errors():
    for wrong in (
        {"model": "llama9"}, {"slice": "v5e-4x4"}, {"batch": 0}, {"fsdp": "all"}, {"fsdp": 3}, {"zero": 4},
        {"schedule": "zigzag"}, {"remat": "some"}, {"efficiency": 0.33}, {"tensor": 1.5}, {"uneven_stages": "maybe"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=str(*wrong)):
            plan_explorer(**wrong)
    with pytest.raises(ValueError, match="fsdp='all' is no number of ways"):
        plan_view(**PLAN | {"fsdp": "all"})
    for wrong in (
        {"model": "llama9"}, {"chip": "v100"}, {"tokens": 0}, {"batch_tokens": 8191}, {"T": 0}, {"usd_per_chip_hour": -1},
        {"efficiency": 0}, {"failures": "many"}, {"slice": "v5e:4x4"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=str(*wrong)):
            budget_explorer(**wrong)
    with pytest.raises(ValueError, match="failures='many' is unknown"):
        budget_view(**BUDGET | {"failures": "many"})


# Links.


@pytest.fixture
def link(monkeypatch):
    return lambda **values: monkeypatch.setattr(base, "LINK", values)


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (plan_explorer, PLAN),
        (plan_explorer, PLAN | {"slice": "v5e:8x16", "tensor": 8, "fsdp": 16, "zero": 1, "remat": "none", "efficiency": 0.55}),
        (plan_explorer, PLAN | {"pipeline": 4, "microbatches": 8, "schedule": "zero-bubble", "sequence_parallel": False}),
        (budget_explorer, BUDGET),
        (budget_explorer, BUDGET | {"chip": "h200", "slice": "h200:8x32", "usd_per_chip_hour": 2.5, "failures": LLAMA_3S}),
    ],
)
def test_a_link_carries_the_state(make, state, link):
    assert_link_carries(make, state, link)


def test_bad_values_of_a_link_are_left_out_and_said(link):
    link(explorer="plan", model="<script>", batch="x", tensor="8", zero="7", T="4096")
    explorer = plan_explorer()
    assert explorer.state == PLAN | {"tensor": 8, "T": 4096}
    assert {field for field, said in problems(explorer).items() if "left out" in said} == {"model", "batch", "zero"}
    link(explorer="budget", chip="v5e", slice="h100:8x4", usd_per_chip_hour="free", failures=LLAMA_3S)
    explorer = budget_explorer()
    assert explorer.state == BUDGET | {"chip": "v5e", "slice": "2 × v5e:16x16", "failures": LLAMA_3S}
    assert {field for field, said in problems(explorer).items() if "left out" in said} == {"slice", "usd_per_chip_hour"}


# Budgets.


@pytest.mark.parametrize("failures", FAILURES)
def test_the_budget_view_shows_what_the_library_says(failures):
    view = budget_view(**BUDGET | {"failures": failures})
    step = quick_plan(MODELS["Llama-3 70B"], slice_of("v5p:8x8x8"), 512, 8192, 0.7)
    share = 1.0
    if failures != "none":
        share = goodput(chips=512, chip_mtbf_s=LLAMA_3_CHIP_MTBF_S, checkpoint_s=30, restart_s=600).useful
        assert rows(view)["goodput"].startswith(f"{share:.1%}; a failure every {LLAMA_3_CHIP_MTBF_S / 512 / 3600:.3g} h")
    low, high = (
        bill(chip("v5p"), chips=512, tokens=15e12, tokens_per_s=2**22 / seconds, goodput=share)
        for seconds in (step.lower_s, step.upper_s)
    )
    assert words(view) == (
        f"15 trillion tokens on v5p:8x8x8: {human(low.days)} to {human(high.days)} days, "
        f"${low.usd / 1e6:.3g} million to ${high.usd / 1e6:.3g} million."
    )
    assert rows(view)["price"] == "$4.20 a chip and hour"
    assert rows(view)["plan"] == str(step.plan)
    assert rows(view)["tokens a chip"] == human(2**22 / 512)


def test_where_links_bind_is_said_and_drawn():
    many = [quick_plan(MODELS["Llama-3 70B"], each, 512, 8192, 0.7) for each in slices(chip("v5p"))]
    from_chips = links_bind(many)
    view = budget_view(**BUDGET)
    assert rows(view)["links bind"] == f"from {human(from_chips)} chips, {human(2**22 / from_chips)} tokens a chip"
    assert "links-bind" in view.svg
    calm = budget_view(**BUDGET | {"batch_tokens": 2**26})
    assert rows(calm)["links bind"] == "on none of these, up to 16,384 chips"
    assert "links-bind" not in calm.svg


def test_a_slice_that_the_model_does_not_fit_is_said():
    view = budget_view(**BUDGET | {"model": "Llama-3.1 405B", "slice": "v5p:2x2x4"})
    assert words(view).startswith("No plan of FSDP and tensor ways runs on v5p:2x2x4: the model and this batch fit v5p:4x4x8 to")
    assert 'class="point"' not in view.svg


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"tokens": "lots"}, "tokens", "tokens='lots' is not a number"),
        ({"tokens": "0"}, "tokens", "tokens=0 is not a size"),
        ({"batch_tokens": "4e6"}, "batch_tokens", "4000000 is no whole number of sequences of T=8192 tokens; give 3997696"),
        ({"batch_tokens": "100"}, "batch_tokens", "give 8192"),
        ({"usd_per_chip_hour": "cheap"}, "usd_per_chip_hour", "usd_per_chip_hour='cheap' is no price"),
        ({"usd_per_chip_hour": "0"}, "usd_per_chip_hour", "write dollars like '2.50'"),
        ({"usd_per_chip_hour": "<b>"}, "usd_per_chip_hour", "'<b>' is no price"),
        ({"chip": "h200"}, "usd_per_chip_hour", "no source states a list price of h200; write your own"),
        ({"model": "MaxText default 1024B", "chip": "v5e"}, "model", "fits on no slice of v5e by FSDP and tensor ways"),
        ({"T": "1.5"}, "T", "T=1.5 is not a size"),
        ({"checkpoint_s": ""}, "checkpoint_s", "checkpoint_s='' is not a number"),
    ],
)  # fmt: skip
def test_a_budget_that_makes_no_sense_is_said_beside_its_field(change, field, said):
    explorer = budget_explorer()
    move(explorer, **change)
    assert said in problems(explorer)[field]
    assert len(problems(explorer)) == 1


def test_moving_each_control_of_the_budget_shows_the_view_of_the_new_state():
    explorer = budget_explorer()
    assert explorer.controls["tokens"].widget.value == "15,000,000,000,000"
    changes = [
        {"failures": LLAMA_3S}, {"checkpoint_s": "60"}, {"restart_s": "900"}, {"efficiency": 0.5}, {"tokens": "2e12"},
        {"usd_per_chip_hour": "$1.99"}, {"slice": "v5p:4x4x8"}, {"chip": "h100"}, {"T": "4096"}, {"batch_tokens": "8,388,608"},
        {"model": "Llama-3 8B"},
    ]  # fmt: skip
    for change in changes:
        move(explorer, **change)
        assert problems(explorer) == {}
        assert explorer.shown == budget_view(**explorer.state)
        assert on_screen(explorer) == html_of(explorer.shown)
    assert {name for change in changes for name in change} == set(explorer.state)
    assert (explorer.state["slice"], explorer.state["usd_per_chip_hour"]) == ("h100:8x64", 1.99)


def test_every_chip_that_can_be_priced_is_offered_with_its_slices_and_drawn_with_room():
    offered = budget_explorer().controls["chip"].widget.options
    assert {"v4", "v5e", "v5p", "v6e", "tpu7x", "h100", "b200", "gb200"} <= set(offered) <= set(CHIPS)
    for name in offered:
        each = chip(name)
        many = tuple(map(str, slices(each)))
        explorer = budget_explorer(chip=name, usd_per_chip_hour=2.5, model="Llama-3 8B")
        assert tuple(explorer.controls["slice"].widget.options) == many
        for marked in (many[0], many[len(many) // 2], many[-1]):
            move(explorer, slice=marked)
            assert problems(explorer) == {}
            assert_room(explorer.shown.svg)


def test_the_budget_code_to_copy_gives_the_same_numbers():
    for change in ({}, {"failures": LLAMA_3S, "usd_per_chip_hour": 2.5}, {"model": "Llama-3.1 405B"}):
        view = budget_view(**BUDGET | change)
        out, _ = printed(view)
        line = next(text for text in out.splitlines() if text.startswith("v5p:8x8x8: "))
        days, usd = line.removeprefix("v5p:8x8x8: ").split(" days, $")
        assert f": {human(float(days))} to" in words(view)
        assert f"${float(usd) / 1e6:.3g} million to" in words(view)


# Sizes.


def test_usual_slices_double_and_can_be_built():
    for name in ("v4", "v5e", "v5p", "v6e", "tpu7x", "h100", "gb200"):
        chips = [each.chips for each in slices(chip(name))]
        assert [b / a for a, b in itertools.pairwise(chips)] == [2] * (len(chips) - 1)
        assert chips[-1] == 16_384
        assert chips[0] in (16, 64)


def test_a_quick_plan_is_the_fastest_of_those_that_fit():
    model, on, batch, T = MODELS["Llama-3 70B"], slice_of("v5p:8x16x16"), 512, 8192
    tried = []
    for tensor in (4, 8, 16):
        plan = Plan(fsdp=2048 // tensor, tensor=tensor, remat="full", loss_chunks=8)
        assert why_not(plan, model, on, batch, T) is None
        tried.append(estimate(model, on, plan, batch, T=T))
    best = min(tried, key=lambda step: (round(step.lower_s, 12), step.upper_s))
    found = quick_plan(model, on, batch, T)
    assert found.plan.but(placement=None) == best.plan.but(placement=None)
    assert found.lower_s == best.lower_s
    assert quick_plan(model, on, batch, T, 0.5).plan == found.plan


def test_a_quick_plan_adds_up_gradients_where_memory_asks_for_it_and_no_more():
    small = quick_plan(MODELS["Llama-3 70B"], slice_of("v5p:4x4x4"), 512, 8192)
    assert small.fits
    assert small.plan.microbatches == 2
    fewer = small.plan.but(microbatches=1)
    assert not estimate(small.model, small.slice, fewer, 512, T=8192).fits
    assert quick_plan(MODELS["Llama-3.1 405B"], slice_of("v5p:2x2x4"), 512, 8192) is None
    assert quick_plan(MODELS["DeepSeek-V3"], slice_of("v5p:8x8x8"), 512, 4096).plan.expert == 64


def test_links_bind_between_two_slices_where_the_lines_cross():
    model = MODELS["Llama-3 8B"]
    many = [quick_plan(model, each, 512, 8192) for each in slices(chip("v5e"))]
    fits = [step for step in many if step is not None]
    crossing = links_bind(fits)
    binds = [step.slice.chips for step in fits if step.binds != "math"]
    assert binds[0] / 2 < crossing <= binds[0]
    assert links_bind(fits[:3]) is None
    assert links_bind(fits[-1:]) == 16_384
    assert links_bind([]) is None


def test_quick_plans_refuse_what_is_no_size():
    for wrong in ({"batch": 0, "T": 8}, {"batch": 8, "T": 1.5}):
        with pytest.raises(ValueError, match="is not a size"):
            quick_plan(MODELS["Llama-3 8B"], slice_of("v5e:4x4"), **wrong)
