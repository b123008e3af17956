"""Pipeline schedules: closed forms held to runs played job by job, published bubbles, bug reports, and the drawing."""

import csv
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib.show.pipeline import MOST
from scaling_lib.show.pipeline import schedule as draw
from scaling_lib.training import pipeline
from scaling_lib.training.pipeline import MOST_JOBS, SCHEDULES, bubble, in_flight, simulate

SIZES = [
    (schedule, p, m, v)
    for schedule in SCHEDULES
    for p in (1, 2, 3, 5, 7)
    for v in ((2, 3, 4) if schedule == "interleaved" else (1,))
    for m in ((p, 2 * p, 5 * p) if schedule == "interleaved" else (1, 2, 3, 5, 7, 8, 19))
    if schedule != "zero-bubble" or m >= p
]
DURATIONS = [(1, 1, 1), (3, 5, 4), (5, 3, 4), (2, 3, 7), (7, 2, 3), (3, 2, 9)]  # forward, input gradients, weight gradients
SECONDS = st.floats(0.1, 9)


@st.composite
def pipelines(draw):
    schedule, p = draw(st.sampled_from(SCHEDULES)), draw(st.integers(1, 6))
    if schedule == "interleaved":
        return schedule, p, p * draw(st.integers(1, 3)), draw(st.integers(2, 3))
    return schedule, p, draw(st.integers(p if schedule == "zero-bubble" else 1, 12)), 1


# Closed forms.


@pytest.mark.parametrize(("forward", "inputs", "weights"), DURATIONS)
def test_the_bubble_is_that_of_the_run(forward, inputs, weights):
    durations = {"forward_s": forward, "backward_s": inputs + weights, "weight_s": weights}
    for size in SIZES:
        assert simulate(*size, **durations).bubble == pytest.approx(bubble(*size, **durations), rel=1e-9, abs=1e-12), size


def test_the_microbatches_kept_are_those_of_the_run():
    for schedule, p, m, v in SIZES:
        kept = tuple(in_flight(schedule, stage, p, m, v) for stage in range(p))
        assert simulate(schedule, p, m, v).in_flight == kept, (schedule, p, m, v)


@given(pipelines(), st.lists(SECONDS, min_size=6, max_size=6), st.floats(0, 2))
def test_uneven_stages_and_transfers_only_lengthen_a_step(size, seconds, p2p_s):
    p = size[1]
    forward = seconds[:p]
    run = simulate(*size, forward_s=forward, backward_s=[2 * each for each in forward], p2p_s=p2p_s)
    even = simulate(*size, forward_s=min(forward), backward_s=2 * min(forward))
    assert run.makespan_s >= even.makespan_s * (1 - 1e-12)
    assert run.makespan_s >= size[2] * 3 * max(forward) * (1 - 1e-12)


def test_transfers_delay_gpipe_twice_a_boundary_and_1f1b_with_every_round():
    # the closed forms leave transfers out: a warmed-up 1F1B waits for the round trip between neighbors again and again
    p, m, transfer = 5, 20, 0.125
    assert simulate("gpipe", p, m, p2p_s=transfer).makespan_s == (m + p - 1) * 3 + 2 * (p - 1) * transfer
    delay = simulate("1f1b", p, m, p2p_s=transfer).makespan_s - (m + p - 1) * 3
    assert delay > 3 * 2 * (p - 1) * transfer


def test_a_slow_last_stage_sets_the_pace():
    m = 30
    run = simulate("1f1b", 3, m, forward_s=[1, 1, 2], backward_s=[2, 2, 4])
    assert run.makespan_s == m * 6 + 2 * 3  # it works without a pause, and the others fill and drain
    assert run.busy_s == (m * 3, m * 3, m * 6)
    assert run.idle == pytest.approx(1 - (m * 12) / (3 * run.makespan_s))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_formulas_give_of_arrays_what_they_give_of_numbers(schedule):
    sizes = [size[1:] for size in SIZES if size[0] == schedule]
    p, m, v = (np.array(column) for column in zip(*sizes, strict=True))
    forward, backward, weight = np.linspace(1, 5, len(p)), np.linspace(4, 2, len(p)), np.linspace(0.5, 1.9, len(p))
    stage = p // 2
    bubbles = bubble(schedule, p, m, v, forward_s=forward, backward_s=backward, weight_s=weight)
    kept = in_flight(schedule, stage, p, m, v)
    for i, size in enumerate(sizes):
        durations = {"forward_s": forward[i], "backward_s": backward[i], "weight_s": weight[i]}
        assert bubbles[i] == bubble(schedule, *size, **durations)
        assert kept[i] == in_flight(schedule, int(stage[i]), *size)


# Runs.


@given(pipelines(), SECONDS, SECONDS, st.floats(0.1, 0.9), st.floats(0, 3))
def test_a_stage_does_every_job_once_and_one_at_a_time(size, forward_s, backward_s, share, p2p_s):
    schedule, p, m, v = size
    run = simulate(*size, forward_s=forward_s, backward_s=backward_s, weight_s=share * backward_s, p2p_s=p2p_s)
    kinds = ("forward", "backward", "weight") if schedule == "zero-bubble" else ("forward", "backward")
    for stage, jobs in enumerate(run.jobs):
        done = [(job.kind, job.chunk, job.microbatch) for job in jobs]
        assert sorted(done) == sorted((kind, c * p + stage, i) for kind in kinds for c in range(v) for i in range(m))
        assert all(job.stage == stage for job in jobs)
        assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(jobs))
    assert run.busy_s == pytest.approx([m * (forward_s + backward_s)] * p)


@given(pipelines(), st.floats(0, 3))
def test_no_job_starts_before_what_it_needs_has_arrived(size, p2p_s):
    _, p, _, v = size
    run = simulate(*size, p2p_s=p2p_s)
    jobs = {(job.kind, job.chunk, job.microbatch): job for done in run.jobs for job in done}
    for (kind, chunk, i), job in jobs.items():
        needed = {
            "forward": [("forward", chunk - 1)],
            "backward": [("backward", chunk + 1), ("forward", chunk)],
            "weight": [("backward", chunk)],
        }
        for what, where in needed[kind]:
            if 0 <= where < p * v:
                other = jobs[what, where, i]
                assert job.start_s >= other.end_s + (p2p_s if other.stage != job.stage else 0)


def test_one_run_in_full():
    """1F1B on two stages: the second goes forward and backward in turn, the first one microbatch ahead of it."""
    run = simulate("1f1b", 2, 3)
    played = [[(job.kind[0], job.microbatch, job.start_s, job.end_s) for job in jobs] for jobs in run.jobs]
    assert played == [
        [("f", 0, 0, 1), ("f", 1, 1, 2), ("b", 0, 4, 6), ("f", 2, 6, 7), ("b", 1, 7, 9), ("b", 2, 10, 12)],
        [("f", 0, 1, 2), ("b", 0, 2, 4), ("f", 1, 4, 5), ("b", 1, 5, 7), ("f", 2, 7, 8), ("b", 2, 8, 10)],
    ]
    assert (run.makespan_s, run.idle, run.bubble, run.in_flight) == (12, 0.25, pytest.approx(1 / 3), (2, 1))


def test_gpipe_turns_around_with_the_last_microbatch():
    # Huang et al. 2019, figure 2
    (jobs,) = simulate("gpipe", 1, 3).jobs
    assert [(job.kind, job.microbatch) for job in jobs] == [
        *(("forward", i) for i in (0, 1, 2)),
        *(("backward", i) for i in (2, 1, 0)),
    ]


def test_weight_gradients_come_late_by_the_stages_less_one():
    for jobs in simulate("zero-bubble", 3, 7).jobs:
        steps = [(job.kind, job.microbatch) for job in jobs]
        assert all(steps.index(("forward", i + 2)) < steps.index(("weight", i)) for i in range(5))
        assert all(steps.index(("weight", i)) < steps.index(("forward", i + 3)) for i in range(4))


def test_interleaving_halves_the_bubble_and_keeps_more():
    plain, interleaved = simulate("1f1b", 4, 8), simulate("interleaved", 4, 8, 2)
    assert interleaved.bubble == pytest.approx(plain.bubble / 2)
    assert interleaved.in_flight == (5.5, 4.5, 3.5, 2.5)
    assert max(interleaved.in_flight) > max(plain.in_flight) == 4


def test_zero_bubble_keeps_as_much_on_every_stage_as_1f1b_on_its_first():
    assert simulate("zero-bubble", 5, 9).in_flight == (5,) * 5
    assert simulate("1f1b", 5, 9).in_flight == (5, 4, 3, 2, 1)


# Published.


@pytest.mark.parametrize(("d", "ideal"), [(1, 31 / 32), (16, 0.5), (32, 0)])
def test_megatrons_bubble_against_data_parallelism(d, ideal):
    # Narayanan et al. 2021, section 3.3.1 and the curve n = 32, b' = 32 of figure 6: (n - d)/b'
    assert bubble("1f1b", 32 // d, 32 // d) == ideal


@pytest.mark.parametrize("v", [2, 3, 4])
def test_megatrons_interleaved_bubble(v):
    # section 2.2 there: (p - 1)/(v m)
    assert simulate("interleaved", 8, 24, v).bubble == pytest.approx(7 / 24 / v)


def test_megatrons_time_of_a_batch():
    # equation 1 there: (b'/b + p - 1)(t_f + t_b), with b'/b microbatches
    assert simulate("1f1b", 8, 16, forward_s=1.5, backward_s=2.75).makespan_s == (16 + 8 - 1) * (1.5 + 2.75)


@pytest.mark.parametrize(("schedule", "thirds"), [("1f1b", 3), ("zero-bubble", 1)])
def test_the_zero_bubble_repositorys_table(schedule, thirds):
    # sail-sg/zero-bubble-pipeline-parallelism, README, for equal F, B and W: (p - 1)/m and (p - 1)/(3m); activations alike
    run = simulate(schedule, 8, 24, forward_s=1, backward_s=2)
    assert run.bubble == pytest.approx(7 / 24 * thirds / 3)
    assert max(run.in_flight) == 8


@pytest.mark.parametrize(("forward", "backward", "weight"), [(1.0, 2.0, 1.0), (3.0, 7.0, 3.0), (4.0, 8.0, 3.5)])
def test_deepseeks_table_of_bubbles(forward, backward, weight):
    # deepseek-ai/DualPipe, README: (PP - 1)(F + B) for 1F1B and (PP - 1)(F + B - 2W) for ZB1P, B the whole backward pass
    durations = {"forward_s": forward, "backward_s": backward, "weight_s": weight}
    work = 20 * (forward + backward)
    assert work * bubble("1f1b", 8, 20) == pytest.approx(7 * (forward + backward))
    assert work * bubble("zero-bubble", 8, 20, **durations) == pytest.approx(7 * (forward + backward - 2 * weight))


def test_weight_gradients_fill_no_more_than_the_floor():
    # where they are long the published (p - 1)(F + B - W) would fall to zero; filling and draining the pipeline stay
    assert bubble("zero-bubble", 4, 8, forward_s=2, backward_s=10, weight_s=7) == 3 * 3 / (8 * 12)
    assert simulate("zero-bubble", 4, 8, forward_s=2, backward_s=10, weight_s=7).makespan_s == 8 * 12 + 3 * 3


REPORTS = {
    "B01": lambda: (
        2 * in_flight("interleaved", 0, 4, 16, 2) - 1
    ),  # chunks kept before the first backward pass, less the one under way
    "B02": lambda: 100 * simulate("1f1b", 8, 256 // (8 * 4)).idle,
    "B03": lambda: 100 * bubble("1f1b", 8, 32) / (1 + bubble("1f1b", 8, 32)),
}


def reports():
    rows = csv.DictReader((Path(__file__).parent / "data" / "pipeline_cases.csv").read_text(encoding="utf-8").splitlines())
    return {row["id"]: float(row["right_value"]) for row in rows if row["id"][0] == "B"}


@pytest.mark.parametrize("id", reports())
def test_bug_reports_about_bubbles(id):
    assert REPORTS[id]() == pytest.approx(reports()[id], rel=1e-5)


# Bad input.

BAD = {
    ("1f1", 4, 8, 1): "schedule='1f1' is unknown; did you mean '1f1b'",
    ("1f1b", 0, 8, 1): "stages=0 is not a size",
    ("1f1b", 4, 0, 1): "microbatches=0 is not a size",
    ("1f1b", 4, 2.5, 1): "microbatches=2.5 is not a size",
    ("1f1b", 4, 8, 2): "virtual=2: only schedule='interleaved'",
    ("interleaved", 4, 8, 1): "virtual=1: an interleaved schedule needs 2 or more",
    ("interleaved", 4, 10, 2): "microbatches=10 is no multiple of stages=4, which an interleaved schedule needs; give 8 or 12",
    ("interleaved", 4, 3, 2): "microbatches=3 is no multiple of stages=4, which an interleaved schedule needs; give 4",
    ("zero-bubble", 4, 3, 1): "microbatches=3 is below stages=4",
}


@pytest.mark.parametrize("size", BAD)
def test_a_pipeline_that_its_schedule_cannot_run(size):
    schedule, p, m, v = size
    for call in (pipeline.check, bubble, simulate, lambda *_: in_flight(schedule, 0, p, m, v)):
        with pytest.raises(ValueError, match=re.escape(BAD[size])):
            call(*size)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bubble("1f1", np.array([4, 8]), 8), "schedule='1f1' is unknown"),
        (lambda: in_flight("1f1", 0, np.array([4, 8]), 8), "schedule='1f1' is unknown"),
        (lambda: in_flight("1f1b", 4, 4, 8), "stage=4 is none of the 4 stages; give 0 to 3"),
        (lambda: in_flight("1f1b", -1, 4, 8), "stage=-1 is none"),
        (lambda: bubble("zero-bubble", 4, 8, forward_s=0), "forward_s=0 must be positive"),
        (lambda: bubble("zero-bubble", 4, 8, backward_s=2, weight_s=2), "weight_s=2 is a part of backward_s=2"),
        (lambda: simulate("1f1b", 4, 8, forward_s=[1, 2, 3]), "forward_s has 3 values for 4 stages"),
        (lambda: simulate("1f1b", 4, 8, backward_s="long"), "backward_s='long' is not a number"),
        (lambda: simulate("1f1b", 2, 8, weight_s=[1, -1]), "weight_s=-1.0 must be positive"),
        (lambda: simulate("1f1b", 2, 8, p2p_s=-1), "p2p_s=-1 is too small"),
        (lambda: simulate("1f1b", 64, 4096), f"keep 3 times their product below {MOST_JOBS:,}"),
        (lambda: draw(simulate("1f1b", MOST + 1, 2)), "run has 17 stages; up to 16"),
    ],
)
def test_other_bad_input(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


# The drawing.


def boxes(drawing, kind):
    found = re.findall(
        rf'<rect class="{kind}" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"[^>]*fill-opacity="([\d.]+)"', drawing.svg
    )
    return [tuple(map(float, box)) for box in found]


@given(pipelines(), st.floats(0, 2))
def test_boxes_are_as_long_as_their_jobs(size, p2p_s):
    run = simulate(*size, p2p_s=p2p_s)
    drawing = draw(run)
    rows = boxes(drawing, "idle")
    assert len(rows) == run.stages
    assert all(below[1] - above[1] > 20 for above, below in itertools.pairwise(rows))
    left, _, width, _ = rows[0]
    for kind in ("forward", "backward", "weight"):
        jobs = [job for done in run.jobs for job in done if job.kind == kind]
        for job, (x, y, wide, _) in zip(jobs, boxes(drawing, kind), strict=True):
            assert y == rows[job.stage][1]
            assert x - left == pytest.approx(job.start_s / run.makespan_s * width, abs=0.02)
            assert wide == pytest.approx((job.end_s - job.start_s) / run.makespan_s * width, abs=0.02)


def test_later_chunks_are_fainter():
    opacities = {box[3] for box in boxes(draw(simulate("interleaved", 2, 4, 3)), "forward")}
    assert len(opacities) == 3
    assert {box[3] for box in boxes(draw(simulate("1f1b", 2, 4)), "forward")} == {1.0}


def test_numbers_stand_where_they_fit():
    assert draw(simulate("gpipe", 2, 3)).svg.count('<g fill="white">') == 2 * 2 * 3
    assert '<g fill="white">' not in draw(simulate("gpipe", 2, 90)).svg
    assert draw(simulate("gpipe", 2, 14)).svg.count('<g fill="white">') == 2 * 10  # one digit, and backward alone


def test_the_right_column_says_what_stages_keep():
    column = re.findall(r'<text x="398.0" [^>]*>([\d.]+)</text>', draw(simulate("interleaved", 4, 8, 2)).svg)
    assert column == ["5.5", "4.5", "3.5", "2.5"]


@pytest.mark.parametrize(("schedule", "entries"), [("1f1b", 3), ("zero-bubble", 4)])
def test_the_legend_has_what_the_run_has(schedule, entries):
    svg = draw(simulate(schedule, 3, 4)).svg
    assert [word in svg for word in (">forward<", ">backward", ">idle<", ">weights<")].count(True) == entries


def test_the_drawing_says_in_words_what_it_shows():
    drawing = draw(simulate("interleaved", 4, 8, 2))
    assert repr(drawing) in drawing.svg
    assert "4 stages with 2 chunks of layers each and 8 microbatches over 28.5 s: stages stand idle 16 % of the time" in repr(
        drawing
    )
    assert "5.5, 4.5, 3.5, 2.5 microbatches" in repr(drawing)
