"""`scaling-lib plan` held to the library, and bad input at both: one line with the number at fault and what would do."""

import contextlib
import io
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling_lib import catalog, cli, hardware, units, validation
from scaling_lib import transformer as tf
from scaling_lib.cli.batches import batch_of
from scaling_lib.cli.quantities import quantity
from scaling_lib.hardware import slice_of
from scaling_lib.search import Choices, best_training_plans
from scaling_lib.training import Plan, estimate, why_not

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128_256,
}
PLAN = ["plan", "llama-3-8b", "v5p:4x4x4", "--batch", "64"]


def run(*arguments):
    """Status, standard output and error of the program."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(arguments)
    return status, out.getvalue(), err.getvalue()


def facts(*arguments, status=0):
    found, out, err = run(*arguments, "--json")
    assert (found, err) == (status, "")
    return json.loads(out)


def search(**changes):
    return best_training_plans("Llama-3 8B", "v5p:4x4x4", 64, **{"T": 8192, "keep": 3} | changes)


def test_the_best_plans_are_those_of_the_search():
    shown, found = facts(*PLAN, "--keep", "3"), search()
    assert [one["seconds"] for one in shown["best"]] == [one.seconds for one in found.best]
    assert {name: shown[name] for name in ("batch", "T", "plans", "splits", "feasible")} == {
        "batch": 64, "T": 8192, "plans": found.plans, "splits": found.splits, "feasible": found.feasible,
    }  # fmt: skip
    for one, best in zip(shown["best"], found.best, strict=True):
        assert Plan(
            **{name: value for name, value in one["plan"].items() if name not in ("placement", "offload")}
        ) == best.plan.but(placement=None)
        assert one["memory_bytes"]["total"] == best.memory.total
        assert (one["mfu"], one["tokens_per_s"], one["binds"]) == (best.mfu, best.tokens_per_s, best.binds)
        assert one["parts_s"] == best.parts_s


def test_the_table_shows_the_same_numbers_and_why():
    (status, out, err), found = run(*PLAN, "--keep", "2"), search(keep=2)
    assert (status, err) == (0, "")
    best = found.best[0]
    rank, *_ = [line for line in out.splitlines() if line.startswith("1 ")]
    for words in (
        units.human(best.seconds, "s"),
        f"{best.mfu:.1%}",
        f"{best.memory.total / units.GIB:.1f}/{best.usable_bytes / units.GIB:.1f}",
        f"{best.tokens_per_s:,.0f}",
        f"fsdp {best.plan.fsdp}",
    ):
        assert words in rank
    assert "next with other axes" in out
    assert f"{best.binds} binds" in out
    for kind, reason in found.reasons.items():
        assert f"{kind}: {reason}" in out
    assert out.startswith("batch 64 sequences of 8,192 = 524,288 tokens\n")


def test_pins_reach_the_search():
    options = ("--tensor", "2,4", "--pipeline", "1", "--remat", "full,mlp.up+mlp.gate", "--zero", "3", "--schedule", "1f1b")
    found = search(choices=Choices(tensor=(2, 4), pipeline=1, remat=("full", ("mlp.up", "mlp.gate")), zero=3, schedule="1f1b"))
    shown = facts(*PLAN, "--keep", "3", *options)
    assert shown["splits"] == found.splits
    assert [one["seconds"] for one in shown["best"]] == [one.seconds for one in found.best]
    assert {one["plan"]["tensor"] for one in shown["best"]} <= {2, 4}


def test_options_reach_the_estimate():
    shown = facts(
        *PLAN, "--plan", "fsdp=32,tensor=2,remat=full", "--set", "moments=bf16", "--set", "master=none,loss_chunks=4",
        "--math", "int8", "--overlap", "none", "--efficiency", "0.5", "--length", "4Ki",
    )  # fmt: skip
    plan = Plan(fsdp=32, tensor=2, remat="full", moments="bf16", master=None, loss_chunks=4, math="int8")
    own = estimate("Llama-3 8B", "v5p:4x4x4", plan, 64, T=4096, overlap="none", efficiency=0.5)
    assert (shown["seconds"], shown["memory_bytes"]["total"], shown["mfu"]) == (own.seconds, own.memory.total, own.mfu)
    assert shown["collectives"][0]["total_bytes"] == own.collectives[0].total_bytes


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("fsdp=64,sequence_parallel=no,flash=false", Plan(fsdp=64, sequence_parallel=False, flash=False)),
        ("data=64 zero=1", Plan(data=64, zero=1)),
        (
            "pipeline=4,fsdp=16,microbatches=4,schedule=zero-bubble",
            Plan(pipeline=4, fsdp=16, microbatches=4, schedule="zero-bubble"),
        ),
        ("fsdp=64,offload=optimizer+activations,remat=+", Plan(fsdp=64, offload=("optimizer", "activations"), remat=())),
        ("fsdp=64,offload=none,remat=mlp.up+", Plan(fsdp=64, remat=("mlp.up",))),
    ],
)
def test_a_plan_is_written_as_its_fields(text, plan):
    own = estimate("Llama-3 8B", "v5p:4x4x4", plan, 64, T=8192)
    shown = facts(*PLAN, "--plan", text, status=0 if own.fits else 3)
    assert (shown["seconds"], shown["memory_bytes"]["total"]) == (own.seconds, own.memory.total)


def test_places_reach_the_plan():
    def shown(place):
        return facts(*PLAN, "--plan", "fsdp=16,tensor=2,data=2,remat=full", "--place", place)["plan"]["placement"]

    assert shown("fsdp=0+1,tensor=2:2,data=2:2") == {"fsdp": {"0": 4, "1": 4}, "tensor": {"2": 2}, "data": {"2": 2}}
    assert shown("fsdp=2+1,tensor=0:2,data=0:2") == {"fsdp": {"2": 4, "1": 4}, "tensor": {"0": 2}, "data": {"0": 2}}


def test_several_slices_are_joined_over_the_data_center_network():
    shown = facts(*PLAN, "--slices", "2", "--batch", "128", "--plan", "fsdp=64,data=2,remat=full")
    assert shown["slice"] == "2 × v5p:4x4x4"
    assert (
        shown["seconds"]
        == estimate("Llama-3 8B", slice_of("v5p:4x4x4", 2), Plan(fsdp=64, data=2, remat="full"), 128, T=8192).seconds
    )


def test_a_budget_adds_days_and_dollars():
    own = estimate("Llama-3 8B", "v5p:4x4x4", Plan(fsdp=64, remat="full"), 64, T=8192)
    priced = [*PLAN, "--plan", "fsdp=64,remat=full", "--tokens", "1.5T"]
    shown = facts(*priced, "--price", "2")
    assert (shown["tokens"], shown["days"]) == (1.5e12, own.days(1.5e12))
    assert shown["usd"] == own.dollars(1.5e12, usd_per_chip_hour=2)
    assert facts(*priced)["usd"] == own.dollars(1.5e12)
    assert f"{own.days(1.5e12):,.1f} days, {own.dollars(1.5e12):,.0f} USD" in run(*priced)[1]
    heads = next(line for line in run(*PLAN, "--keep", "1", "--tokens", "15T")[1].splitlines() if line.startswith("#"))
    assert heads.split()[-2:] == ["days", "USD"]


def test_the_output_says_what_days_and_dollars_rest_on():
    priced = [*PLAN, "--plan", "fsdp=64,remat=full", "--tokens", "1T"]
    out = run(*priced)[1]
    v5p = hardware.chip("v5p")
    for words in ("matmuls at 1 of the peak (a bound", "no time lost to failures", f"{v5p.usd_per_hour:g} USD a chip and hour"):
        assert words in out
    (listed,) = [row for row in catalog.chip_figures() if (row.chip, row.quantity, row.chosen) == ("v5p", "usd_per_hour", True)]
    assert listed.source in out
    assert "4 USD a chip and hour (as given)" in run(*priced, "--price", "4")[1]
    assert "assumed: matmuls at 0.5 of the peak (as given)\n" in run(*priced[:-2], "--efficiency", "0.5")[1]
    shown = facts(*priced, "--goodput", "0.8")
    assert shown["days"] == pytest.approx(facts(*priced)["days"] / 0.8)
    assert shown["usd"] == pytest.approx(facts(*priced)["usd"] / 0.8)
    assert (shown["efficiency"], shown["goodput"], shown["usd_per_chip_hour"]) == (1, 0.8, v5p.usd_per_hour)


def test_what_published_runs_reached_does_for_an_efficiency():
    found = validation.reached("v5p")
    shown = facts(*PLAN, "--plan", "fsdp=64,remat=full", "--efficiency", "published")
    assert shown["efficiency"] == found.efficiency
    plan = Plan(fsdp=64, remat="full")
    assert shown["seconds"] == estimate("Llama-3 8B", "v5p:4x4x4", plan, 64, T=8192, efficiency=found.efficiency).seconds
    assert found.low < found.efficiency < found.high < 1


def test_the_published_efficiency_is_the_median_of_the_largest_group():
    groups = validation.training(splits=1).groups
    for chip, math in (("v5p", "bf16"), ("v6e", "bf16"), ("h100", "fp8")):
        found = validation.reached(chip, math)
        rows = groups[f"{chip}, {found.code}, {math}"]
        assert (
            found.runs
            == len(rows)
            == max(len(each) for each in groups.values() if (each[0].chip, each[0].precision) == (chip, math))
        )
        assert found.efficiency == statistics.median(row.efficiency for row in rows)


def test_a_chip_stands_for_its_slices_and_days_name_the_smallest_that_will_do():
    asked = ("plan", "llama-3.2-1b", "v5e", "--batch", "64", "--tensor", "1", "--pipeline", "1", "--context", "1")
    priced = (*asked, "--remat", "full", "--tokens", "100B")
    shown = facts(*priced)
    assert [one["slice"] for one in shown["slices"]] == ["v5e:4x4", "v5e:4x8", "v5e:8x8"]
    choices = Choices(tensor=1, pipeline=1, context=1, remat="full")
    for one in shown["slices"]:
        own = best_training_plans("Llama-3.2 1B", one["slice"], 64, T=8192, keep=1, choices=choices).best[0]
        assert (one["seconds"], one["days"]) == (own.seconds, own.days(100e9))
    middle = shown["slices"][1]
    assert facts(*priced, "--days", str(middle["days"] * 1.01))["in_time"] == "v5e:4x8"
    status, out, _ = run(*priced, "--days", str(middle["days"] * 1.01))
    assert (status, "v5e:4x8, 32 chips, is the smallest of these" in out) == (0, True)
    status, out, _ = run(*priced, "--days", "0.001")
    assert (status, "none of these slices is fast enough" in out) == (3, True)


def test_a_chip_that_nobody_prices_has_days_alone():
    priced = ("plan", "llama-3-8b", "b200:8x2", "--batch", "16", "--plan", "fsdp=16,remat=full", "--tokens", "1T")
    assert facts(*priced)["usd"] is None
    assert "USD" not in run(*priced)[1]


def test_a_configuration_does_in_place_of_a_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    by_name = facts(*PLAN, "--plan", "fsdp=64")["seconds"]
    for path in (tmp_path, tmp_path / "config.json"):
        assert facts("plan", str(path), *PLAN[2:], "--plan", "fsdp=64")["seconds"] == by_name


@pytest.mark.parametrize(
    "name",
    ["llama3-8b", "Llama-3 8B", "LLAMA_3_8B", "meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3-8B-Instruct", "llama-3-8b-hf"],
)
def test_a_name_may_be_spelled_in_many_ways(name):
    assert facts("plan", name, *PLAN[2:], "--plan", "fsdp=64")["model"] == "Llama-3 8B"


def test_where_nothing_can_run_the_reason_and_what_would_are_shown():
    status, out, err = run("plan", "llama-3-70b", "v5e:2x4", "--batch", "8")
    found = best_training_plans("Llama-3 70B", "v5e:2x4", 8, T=8192)
    assert (status, err) == (3, "")
    assert "No plan can run" in out
    assert "GiB are lacking" in out
    for change in found.nearest:
        assert str(change) in out
    shown = facts("plan", "llama-3-70b", "v5e:2x4", "--batch", "8", status=3)
    assert shown["best"] == []
    assert [one["words"] for one in shown["nearest"]] == [str(change) for change in found.nearest]


def test_a_plan_that_lacks_memory_is_shown_with_a_status_of_its_own():
    status, out, _ = run("plan", "llama-3-70b", "v5e:2x4", "--batch", "8", "--plan", "fsdp=8")
    assert status == 3
    assert "does not fit" in out


# --- The batch, in tokens or in sequences. ---


@pytest.mark.parametrize(
    ("text", "value"),
    [("8192", 8192), ("8Ki", 8192), ("8ki", 8192), ("4M", 4_000_000), ("4Mi", 4_194_304), ("4e6", 4_000_000), ("1.5T", 1.5e12),
     ("15B", 15e9), ("0.5Ki", 512), ("1_000", 1000), ("4,194,304", 4_194_304), ("2 Gi", 2**31), ("3k", 3000), ("3K", 3000)],
)  # fmt: skip
def test_whole_numbers_as_people_write_them(text, value):
    assert quantity("--n", text) == value


@pytest.mark.parametrize(
    "text", ["", "M", "4MB", "4m", "4.5", "0", "-3", "1e99", "nan", "inf", "0x10", "٣", "1e-3", "4Mii", "--", "1 2"]
)
def test_other_text_is_refused_by_the_options_name(text):
    with pytest.raises(ValueError, match=r"^--n="):
        quantity("--n", text)


@pytest.mark.parametrize(
    ("tokens", "T", "devices", "sequences"),
    [
        ("4Mi", 8192, 512, 512),  # exact
        ("4M", 8192, 512, 512),  # 488 is nearest, and shares a factor of 8 with the devices
        ("4M", 8192, 7, 490),
        ("9216", 8192, 8, 1),
        ("1000", 7, 5, 145),  # 142.86 asked for; multiples of 5 from 136 to 150, and 145 is nearest
        ("101", 100, 3, 1),
    ],
)
def test_tokens_become_sequences_that_the_devices_can_share_out(tokens, T, devices, sequences):
    found, says = batch_of(None, tokens, T, devices)
    assert found == sequences
    exact = quantity("--n", tokens) == sequences * T
    assert ("asked for (M is 10^6, Mi 2^20)" in says) is not exact
    assert f"{sequences * T:,} tokens" in says


def test_rounding_is_said():
    status, out, _ = run(*PLAN[:3], "--batch-tokens", "500k", "--plan", "fsdp=64,remat=full")
    assert status == 0
    assert out.startswith("batch 64 sequences of 8,192 = 524,288 tokens: +4.9% against the 500,000 asked for")


# --- Bad input, at the library and at the command line. ---

WRONG_PLANS = [
    ("fsdp=63", {"fsdp": 63}, 64, "fsdp=63 is 63 devices, but v5p:4x4x4 has 64; fsdp=64 would do"),
    ("fsdp=16,tensor=8", {"fsdp": 16, "tensor": 8}, 64, "is 128 devices, but v5p:4x4x4 has 64; fsdp=8 would do"),
    ("tensor=64", {"tensor": 64}, 64, "tensor=64 does not divide the 32 heads of Llama-3 8B; give one of 1, 2, 4, 8, 16, 32"),
    (
        "pipeline=64",
        {"pipeline": 64},
        64,
        "pipeline=64 does not divide the 32 layers of Llama-3 8B; give one of 1, 2, 4, 8, 16, 32",
    ),
    ("expert=2,fsdp=32", {"expert": 2, "fsdp": 32}, 64, "expert=2, but Llama-3 8B has no experts; give expert=1"),
    ("fsdp=64", {"fsdp": 64}, 60, "batch=60 sequences do not divide into"),
    ("fsdp=64,microbatches=3", {"fsdp": 64, "microbatches": 3}, 64, "give batch=192"),
    ("fsdp=32,context=2,tensor=1", {"fsdp": 32, "context": 2}, 64, None),
    ("pipeline=4,fsdp=16", {"pipeline": 4, "fsdp": 16, "schedule": "interleaved"}, 64, "virtual=1"),
]


@pytest.mark.parametrize(("text", "fields", "batch", "words"), WRONG_PLANS)
def test_a_plan_that_cannot_run_says_why_everywhere(text, fields, batch, words):
    model, where, plan = tf.model("Llama-3 8B"), slice_of("v5p:4x4x4"), Plan(**fields)
    schedule = ("--set", "schedule=interleaved") if plan.schedule == "interleaved" else ()
    status, out, err = run(*PLAN[:3], "--batch", str(batch), "--plan", text, *schedule)
    why = why_not(plan, model, where, batch, 8192)
    if words is None:
        assert why is None
        assert status in (0, 3)
        return
    assert words in why
    with pytest.raises(ValueError, match="^" + why[:20].replace("(", r"\(")):
        estimate(model, where, plan, batch, T=8192)
    assert (status, out, err) == (2, "", f"scaling-lib: {why}\n")


def test_a_plan_that_does_not_map_onto_the_torus_says_which_axis():
    wrong = {"fsdp": (0,), "tensor": (2,)}
    plan = Plan(fsdp=16, tensor=4, placement=wrong)
    why = why_not(plan, tf.model("Llama-3 8B"), slice_of("v5p:4x4x4"), 64, 8192)
    assert "placement uses 1 of axis 1, which has 4" in why
    assert run(*PLAN, "--plan", "fsdp=16,tensor=4", "--place", "fsdp=0,tensor=2") == (2, "", f"scaling-lib: {why}\n")


def test_experts_that_are_not_divided_say_so():
    why = why_not(Plan(expert=16, fsdp=4), tf.model("Mixtral 8x7B"), slice_of("v5p:4x4x4"), 64, 8192)
    assert "expert=16 does not divide the 8 experts of Mixtral 8x7B; give one of 1, 2, 4, 8" in why
    assert run("plan", "mixtral-8x7b", *PLAN[2:], "--plan", "expert=16,fsdp=4")[2] == f"scaling-lib: {why}\n"


@pytest.mark.parametrize("batch", [0, -1, 2.5, "many", None, float("nan")])
def test_a_batch_that_is_none_is_refused_by_the_library(batch):
    model, where = tf.model("Llama-3 8B"), slice_of("v5p:4x4x4")
    for call in (
        lambda: why_not(Plan(fsdp=64), model, where, batch, 8192),
        lambda: estimate(model, where, Plan(fsdp=64), batch, T=8192),
        lambda: best_training_plans(model, where, batch, T=8192),
    ):
        with pytest.raises(ValueError, match=r"^batch="):
            call()


@pytest.mark.parametrize("length", [0, -1, 1.5, "long", None])
def test_a_length_that_is_none_is_refused_by_the_library(length):
    for call in (
        lambda: estimate("Llama-3 8B", "v5p:4x4x4", Plan(fsdp=64), 64, T=length),
        lambda: best_training_plans("Llama-3 8B", "v5p:4x4x4", 64, T=length),
    ):
        with pytest.raises(ValueError, match=r"^T="):
            call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: estimate("Llama-3 8", "v5p:4x4x4", Plan(fsdp=64), 64, T=8192),
            "model='Llama-3 8' is unknown; did you mean 'Llama-3 8B'",
        ),
        (
            lambda: best_training_plans("Lama-3 8B", "v5p:4x4x4", 64, T=8192),
            "model='Lama-3 8B' is unknown; did you mean 'Llama-3 8B'",
        ),
        (lambda: best_training_plans("Llama-3 8B", "v5q:4x4x4", 64, T=8192), "chip='v5q' is unknown; did you mean"),
        (lambda: best_training_plans("Llama-3 8B", "v5p:4x4x5", 64, T=8192), "cannot be built from v5p"),
        (lambda: best_training_plans("Llama-3 8B", "v5p", 64, T=8192), "slice='v5p' does not read as chip:shape"),
        (lambda: estimate("Llama-3 8B", "v5p:4x4x4", Plan(fsdp=64), 64, T=8192, efficiency=0), "efficiency=0"),
        (lambda: estimate("Llama-3 8B", "v5p:4x4x4", Plan(fsdp=64), 64, T=8192, overlap="half"), "overlap='half' is unknown"),
        (lambda: estimate("Llama-3 8B", "v5p:4x4x4", Plan(fsdp=64, math="fp4"), 64, T=8192), "dtype='fp4' has no sourced peak"),
        (lambda: Plan(tensor=0), "tensor=0 is not a size"),
        (lambda: Plan(schedule="1b1f"), "schedule='1b1f' is unknown; did you mean '1f1b'"),
    ],
)
def test_other_mistakes_are_named_by_the_library(call, words):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        call()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("llama-3-8", *PLAN[2:]), "model='llama-3-8' is unknown; did you mean 'Llama-3 8B'"),
        (("llama-3-8b", "v5q:4x4x4", "--batch", "64"), "chip='v5q' is unknown; did you mean"),
        (("llama-3-8b", "v5p:4x4x5", "--batch", "64"), "shape='4x4x5' cannot be built from v5p"),
        (("llama-3-8b", "v5p:", "--batch", "64"), "slice='v5p:' does not read as chip:shape; write it like"),
        (("llama-3-8b", "v5p", "--batch", "64", "--plan", "fsdp=64"), "--plan is for one slice, and v5p stands for"),
        ((*PLAN[1:], "--days", "60"), "--days asks which slice is fast enough; give --tokens, like 15T, as well"),
        ((*PLAN[1:], "--days", "60", "--tokens", "15T"), "give v5p in place of v5p:4x4x4"),
        (("llama-3-8b", "v5p", "--batch", "64", "--days", "0", "--tokens", "15T"), "--days=0 must be above zero"),
        ((*PLAN[1:], "--goodput", "1.1"), "--goodput=1.1 is a part of the time; give more than 0, and at most 1"),
        (("llama-3-8b", "tpu7x:4x4x4", "--batch", "64", "--efficiency", "published"), "no published run on tpu7x in bf16"),
        (("llama-3-8b", "v5p-128", "--batch", "64"), "slice='v5p-128' is a Cloud name"),
        (("llama-3-8b", "v5p:4x4x4"), "give either --batch-tokens, like 4M, or --batch, in sequences; neither is given"),
        ((*PLAN[1:], "--batch-tokens", "4M"), "both are given"),
        (("llama-3-8b", "v5p:4x4x4", "--batch", "0"), "--batch=0 is out of range; give a whole number of at least 1"),
        (("llama-3-8b", "v5p:4x4x4", "--batch", "2.5"), "--batch=2.5 is 2.5, which is no whole number"),
        (("llama-3-8b", "v5p:4x4x4", "--batch-tokens", "0"), "--batch-tokens=0 is out of range"),
        (("llama-3-8b", "v5p:4x4x4", "--batch-tokens", "4K"), "is less than one sequence of 8,192 tokens; give at least 8192"),
        (("llama-3-8b", "v5p:4x4x4", "--batch-tokens", "4 million"), "does not read as a number; write it like 8192, 8Ki, 4M"),
        ((*PLAN[1:], "--length", "0"), "--length=0 is out of range"),
        ((*PLAN[1:], "--keep", "0"), "--keep=0 is out of range"),
        ((*PLAN[1:], "--slices", "none"), "--slices='none' does not read as a number"),
        ((*PLAN[1:], "--slices", "1e9"), "--slices=1000000000 is more than any cluster has; give at most 10,000"),
        ((*PLAN[1:], "--tokens", "lots"), "--tokens='lots' does not read as a number"),
        ((*PLAN[1:], "--plan", "fsdp=64", "--tokens", "1T", "--price", "0"), "usd_per_chip_hour=0.0 must be positive"),
        ((*PLAN[1:], "--efficiency", "1.5"), "efficiency=1.5 is a part of the peak"),
        ((*PLAN[1:], "--efficiency", "half"), "--efficiency='half' is not a number; write it like 0.6"),
        ((*PLAN[1:], "--overlap", "half"), "overlap='half' is unknown; give 'full', 'none'"),
        ((*PLAN[1:], "--math", "fp4"), "dtype='fp4' has no sourced peak on v5p; it has: bf16, int8, fp8"),
        ((*PLAN[1:], "--math", "bf17"), "dtype='bf17' is unknown; did you mean 'bf16'"),
        ((*PLAN[1:], "--remat", "ful"), "remat='ful' is unknown; give 'none', 'selective', 'full'"),
        ((*PLAN[1:], "--remat", "mlp.upp+mlp.gate"), "mlp.upp"),
        ((*PLAN[1:], "--schedule", "1b1f"), "schedule='1b1f' is unknown; did you mean '1f1b'"),
        ((*PLAN[1:], "--zero", "4"), "zero=4 is no stage; give 0, 1, 2 or 3"),
        ((*PLAN[1:], "--tensor", "3"), "tensor=3 cannot multiply to the 64 devices of v5p:4x4x4 with what is open"),
        ((*PLAN[1:], "--tensor", "two"), "--tensor=two is no whole number; write it like --tensor 1,2,4"),
        ((*PLAN[1:], "--tensor", ","), "--tensor is empty"),
        ((*PLAN[1:], "--tensor", "2", "--plan", "fsdp=64"), "--tensor narrows a search, but --plan asks for none"),
        ((*PLAN[1:], "--place", "fsdp=0"), "--place is for one plan"),
        ((*PLAN[1:], "--plan", "fsdp=64", "--place", "fsdp=x"), "--place fsdp=x does not read as axis=place"),
        ((*PLAN[1:], "--plan", "fsdp=64", "--place", "fsdp=0:4+1+2"), "gives parts for some places and not for others"),
        ((*PLAN[1:], "--plan", "fsdp=64", "--place", "fspd=0+1+2"), "placement names 'fspd'; mesh axes are 'tensor', 'expert'"),
        ((*PLAN[1:], "--set", "tensor=2"), "--set tensor is for what a search leaves alone; give --tensor"),
        ((*PLAN[1:], "--plan", "fsd=64"), "--plan names 'fsd', which no plan has; did you mean 'fsdp'"),
        ((*PLAN[1:], "--plan", "fsdp"), "--plan fsdp does not read as name=value"),
        ((*PLAN[1:], "--plan", "fsdp=64,fsdp=32"), "--plan gives fsdp twice"),
        ((*PLAN[1:], "--plan", "fsdp=many"), "--plan fsdp=many is no whole number; write it like fsdp=4"),
        ((*PLAN[1:], "--plan", "fsdp=64,flash=perhaps"), "--plan flash=perhaps is neither yes nor no"),
        ((*PLAN[1:], "--plan", "fsdp=64,offload=weights"), "offload holds 'weights'; give some of 'optimizer', 'activations'"),
        ((*PLAN[1:], "--plan", "data=64,fsdp=2,zero=0"), "zero=0 shares nothing out, but fsdp=2; call these ways data=128"),
        ((*PLAN[1:], "--batch"), "Option '--batch' requires an argument."),
        ((*PLAN[1:], "--batches", "4"), "No such option"),
        ((), "Missing argument"),
        ((*PLAN[1:], "more"), "unexpected extra argument"),
    ],
)  # fmt: skip
def test_bad_input_is_a_line_or_two_and_status_two(arguments, words):
    status, out, err = run("plan", *arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert err.startswith("scaling-lib: ")
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "is no JSON"),
        (b"\x93NUMPY\x01\x00", "is no JSON"),
        (b"\xff\xfe{}", "is no JSON"),
        (b"[1, 2]", "is not a dictionary"),
        (b"7", "is not a dictionary"),
        (b"{}", "config has no 'model_type'"),
        (b'{"model_type": "bert"}', "model_type='bert', whose layers are not known here"),
        (json.dumps(CONFIG | {"num_hidden_layers": None}).encode(), "config has no 'num_hidden_layers', which llama needs"),
        (json.dumps(CONFIG | {"num_hidden_layers": 0}).encode(), "n_layers=0"),
        (json.dumps(CONFIG | {"hidden_size": "wide"}).encode(), "'wide'"),
        (json.dumps(CONFIG | {"num_key_value_heads": 5}).encode(), "5"),
    ],
)
def test_an_unreadable_configuration_is_one_line(written, words, tmp_path):
    path = tmp_path / "config.json"
    if written is not None:
        path.write_bytes(written)
    for command in (
        ["plan", str(path), *PLAN[2:]],
        ["count", str(path)],
        ["compile", str(path), "v5e:2x2", "--plan", "fsdp=4", "--batch", "4"],
    ):
        status, out, err = run(*command)
        assert (status, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1


def test_a_folder_and_a_file_without_rights_are_one_line(tmp_path):
    (tmp_path / "config.json").mkdir()
    assert "cannot be read: Is a directory" in run("plan", str(tmp_path / "config.json"), *PLAN[2:])[2]
    assert "is unknown" in run("plan", str(tmp_path), *PLAN[2:])[2]


# --- No input ends in a stack trace. ---

WORDS = [
    "-1",
    "0",
    "1",
    "2",
    "3",
    "4",
    "8",
    "1,2",
    "1e9",
    "4M",
    "nan",
    "inf",
    "full",
    "none",
    "=",
    "a=b",
    "\\",
    "/",
    ".",
    "/dev/null",
    "fsdp=4",
    "fsdp=2,tensor=2",
    "pipeline=4,microbatches=4",
    "tensor=1_0",
    "bf16",
    "fp8",
    "²",
    "0x4",
    "1/3",
    "🤖",
]
PRINTABLE = st.text(max_size=12).filter(lambda text: "\0" not in text and text.isprintable())
JUNK = st.one_of(PRINTABLE, st.sampled_from(["", "9" * 400, *WORDS]))
OPTIONS = [
    "--batch",
    "--batch-tokens",
    "--length",
    "--keep",
    "--plan",
    "--place",
    "--data",
    "--fsdp",
    "--tensor",
    "--context",
    "--pipeline",
    "--expert",
    "--microbatches",
    "--zero",
    "--virtual-stages",
    "--schedule",
    "--remat",
    "--set",
    "--math",
    "--overlap",
    "--efficiency",
    "--tokens",
    "--price",
    "--slices",
    "--json",
]


@settings(max_examples=200, deadline=None)
@given(
    model=st.one_of(st.sampled_from(["llama-3.2-1b", "mixtral-8x7b", "gpt2-small"]), JUNK),
    where=st.one_of(st.sampled_from(["v5e:2x2", "v5p:2x2x1", "h100:2x2"]), JUNK),
    batch=st.sampled_from([("--batch", "4"), ("--batch-tokens", "32Ki"), ()]),
    options=st.lists(st.tuples(st.sampled_from(OPTIONS), JUNK), max_size=4),
)
def test_junk_never_ends_in_a_stack_trace(model, where, batch, options):
    rest = [part for name, value in options for part in ([name] if name == "--json" else [name, value])]
    status, out, err = run("plan", model, where, *batch, *rest)
    assert status in (0, 2, 3)
    assert "Traceback" not in out + err
    assert len(err.splitlines()) <= 2
    assert bool(err) is (status == 2)


def test_the_readmes_model_of_ones_own_is_read_as_it_says(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    config = re.search(r"echo '(\{.*?\})' > config\.json", readme, flags=re.S)[1]
    (tmp_path / "config.json").write_text(config)
    total = facts("count", str(tmp_path))["parameters"]["total"]
    assert f"has {total / 1e9:.1f} billion parameters" in readme
    shown = run("count", "--help")[1]
    assert json.loads(" ".join(re.search(r"\{\"model.*?\}", shown, flags=re.S)[0].split())) == json.loads(config)


def test_the_program_runs_as_a_module_too():
    asked = [sys.executable, "-m", "scaling_lib.cli", "--version"]
    assert subprocess.run(asked, capture_output=True, text=True, check=True).stdout == run("--version")[1]
