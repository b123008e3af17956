"""Timelines: what overlaps and what is exposed, on programs small enough to count by hand and on recorded ones."""

import io
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from scaling_lib import hardware
from scaling_lib.show import timelines
from scaling_lib.xla import timeline, tpu
from scaling_lib.xla.program import Memory, Program
from scaling_lib.xla.timeline.durations import collective_s

mpl.use("agg")

DATA = Path(__file__).parent / "data" / "schedule"
CHIP = hardware.chip("v5e")
LINK, HBM, PEAK = CHIP.ici_link_bytes_per_s, CHIP.hbm_bytes_per_s, CHIP.flops_per_s("bf16")
RECORDED = ["collective-matmul", "fsdp-chain-jax-0.10", "fsdp-chain-jax-0.12"]


def program(text, schedule="", target="v5e:4x4", **axes):
    memory, versions = Memory(peak_bytes=1, available_bytes=2), {"jax": "0", "libtpu": "0"}
    read = Program.read(
        text, name="test", target=target, axes=axes or {"X": 16}, memory=memory, versions=versions, date="2026-11-29"
    )
    return replace(read, code=replace(read.code, schedule=schedule))


def recorded(name):
    return program(*((DATA / f"{name}.{kind}.txt").read_text() for kind in ("hlo", "schedule")))


@pytest.fixture(params=list(itertools.product(RECORDED, ["of", "scheduled"])), ids="-".join)
def estimate(request):
    name, way = request.param
    return getattr(timeline, way)(recorded(name))


def entry(*lines, before=""):
    """A module for 16 devices whose entry computation has these lines."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule jit_f, is_scheduled=true, num_partitions=16\n{before}\nENTRY %main (p: f32[]) -> f32[] {{\n{body}\n}}\n"


GROUPS = "replica_groups=[1,16]<=[16]"
W = "%w = bf16[256,4096] parameter(0)"
X = "%x = bf16[2048,4096] parameter(1)"
START = f"%g = (bf16[256,4096], bf16[4096,4096]) all-gather-start(%w), channel_id=1, {GROUPS}, dimensions={{0}}"
DONE = "%d = bf16[4096,4096] all-gather-done(%g)"
DOT = "bf16[2048,4096] convolution(%x, %x), dim_labels=bf_oi->bf"
GATHER_S = 4096 * 4096 * 2 * 15 / 16 / (2 * LINK)  # two axes that do not wrap
DOT_S = 2 * 2048 * 4096 * 2048 / PEAK


def matmul(name):
    return f"%{name} = bf16[2048,2048] convolution(%x, %x), dim_labels=bf_oi->bf"


def totals(found):
    copies = sum(span.exposed_s * span.times for span in found.spans if span.resource in ("hbm", "host"))
    return found.compute_s + found.exposed_s + copies


# By hand


def test_a_collective_that_nothing_stands_beside_is_exposed():
    found = timeline.of(program(entry(W, X, START, DONE, matmul("m"))))
    assert [(span.name, span.kind, span.resource) for span in found.spans] == [
        ("g", "all-gather", "ici"),
        ("m", "matmul", "compute"),
    ]
    assert (found.exposed_s, found.hidden_s, found.compute_s) == pytest.approx((GATHER_S, 0, DOT_S))
    assert found.total_s == pytest.approx(GATHER_S + DOT_S)


def test_rounding_makes_nothing_less_than_hidden():
    gather = timeline.Span("gather", 0.0, 0.3, "ici", "all-gather", exposed_s=0.1 + 0.2)
    assert gather.exposed_s > gather.duration_s
    assert timeline.Timeline((gather,), (), 0.3, "cycles and link rates", "v5e:4x4").hidden_s == 0


def test_work_between_start_and_end_hides_as_much_as_it_lasts():
    found = timeline.of(program(entry(W, X, START, matmul("m"), DONE, matmul("n"))))
    assert DOT_S < GATHER_S
    assert (found.hidden_s, found.exposed_s) == pytest.approx((DOT_S, GATHER_S - DOT_S))
    assert found.total_s == pytest.approx(GATHER_S + DOT_S)
    longer = timeline.of(program(entry(W, X, START, *(matmul(f"m{i}") for i in range(7)), DONE)))
    assert (longer.hidden_s, longer.exposed_s, longer.total_s) == pytest.approx((GATHER_S, 0, 7 * DOT_S))


def test_collectives_on_one_axis_wait_for_each_other_and_on_two_they_do_not():
    def second(groups):
        return START.replace("%g", "%h").replace(GROUPS, groups)

    end = "%e = bf16[4096,4096] all-gather-done(%h)"
    row, column = "replica_groups=[4,4]<=[16]", "replica_groups=[4,4]<=[4,4]T(1,0)"
    first = START.replace(GROUPS, row)
    same = timeline.of(program(entry(W, first, second(row), end, DONE), X=4, Y=4))
    other = timeline.of(program(entry(W, first, second(column), end, DONE), X=4, Y=4))
    once = 4096 * 4096 * 2 * 3 / 4 / LINK  # one axis that does not wrap
    assert (same.total_s, other.total_s) == pytest.approx((2 * once, once))
    assert [span.exposed_s for span in same.spans] == pytest.approx([once, once])  # each for its own part of the wait
    assert other.communication_s == pytest.approx(2 * once)


def test_permutes_in_opposite_directions_share_the_time_and_in_the_same_one_they_do_not():
    def permute(name, way):
        pairs = ",".join(f"{{{i},{(i + way) % 16}}}" for i in range(16))
        given = f"collective-permute-start(%w), channel_id=1, source_target_pairs={{{pairs}}}"
        return (
            f"%{name} = (bf16[256,4096], bf16[256,4096]) {given}",
            f"%{name}d = bf16[256,4096] collective-permute-done(%{name})",
        )

    once = 256 * 4096 * 2 / LINK
    for ways, length in (((1, -1), once), ((1, 1), 2 * once), ((-1, -1), 2 * once)):
        (a, a_done), (b, b_done) = permute("a", ways[0]), permute("b", ways[1])
        assert timeline.of(program(entry(W, a, b, a_done, b_done))).total_s == pytest.approx(length)


def test_a_matmul_takes_its_cycles_but_never_less_than_its_flops():
    def cycles(n):
        return entry(X, matmul("m") + f', backend_config={{"estimated_cycles":"{n}"}}')

    slow = 3 * DOT_S * CHIP.clock_hz
    assert timeline.of(program(cycles(round(slow)))).compute_s == pytest.approx(3 * DOT_S, rel=1e-6)
    assert timeline.of(program(cycles(5))).compute_s == pytest.approx(DOT_S)


CACHE = "bf16[7,384,640]"
FUSED = f"""
%cut (a: {CACHE}, i: s32[]) -> bf16[1,384,640] {{
  %a = {CACHE} parameter(0)
  %i = s32[] parameter(1)
  ROOT %ds = bf16[1,384,640] dynamic-slice(%a, %i), dynamic_slice_sizes={{1,384,640}}
}}

%put (b: {CACHE}, u: bf16[1,384,640], j: s32[]) -> {CACHE} {{
  %b = {CACHE} parameter(0)
  %u = bf16[1,384,640] parameter(1)
  %j = s32[] parameter(2)
  ROOT %dus = {CACHE} dynamic-update-slice(%b, %u, %j)
}}
"""


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("%y = bf16[384,640] multiply(%p, %p)", 3 * 384 * 640 * 2),
        (f"%y = bf16[1,384,640] fusion(%c, %i), kind=kLoop, calls=%cut, note={CACHE!r}", 2 * 384 * 640 * 2 + 4),
        (f"%y = {CACHE} fusion(%c, %q, %i), kind=kLoop, calls=%put", 2 * 384 * 640 * 2 + 4),
        (f"%y = {CACHE} copy(%c)", 2 * 7 * 384 * 640 * 2),
        ("%y = s32[] add(%i, %i)", 0),
        (f"%y = ({CACHE}, {CACHE}, u32[]) copy-start(%c), cross_program_prefetch_index=0", 0),
    ],
)
def test_other_work_takes_the_bytes_that_it_moves(line, moved):
    given = [
        "%p = bf16[384,640] parameter(0)",
        "%q = bf16[1,384,640] parameter(1)",
        f"%c = {CACHE} parameter(2)",
        "%i = s32[] parameter(3)",
    ]
    assert timeline.of(program(entry(*given, line, before=FUSED))).total_s == pytest.approx(moved / HBM)


def counted(name, limit, *work):
    """A loop of `limit` passes over a counter, with some work."""
    body = "\n".join(f"  {line}" for line in work)
    return f"""
%{name}_body (t: (s32[], bf16[2048,4096])) -> (s32[], bf16[2048,4096]) {{
  %t = (s32[], bf16[2048,4096]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = bf16[2048,4096] get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
{body}
  ROOT %out = (s32[], bf16[2048,4096]) tuple(%next, %x)
}}

%{name}_condition (t: (s32[], bf16[2048,4096])) -> pred[] {{
  %t = (s32[], bf16[2048,4096]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %limit = s32[] constant({limit})
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}}
"""


def loop(name):
    return [
        f"%{name}_zero = s32[] constant(0)",
        f"%{name}_in = (s32[], bf16[2048,4096]) tuple(%{name}_zero, %x)",
        f"%{name} = (s32[], bf16[2048,4096]) while(%{name}_in), condition=%{name}_condition, body=%{name}_body",
    ]


def nested():
    inner = counted("inner", 5, matmul("n"))
    outer = counted("outer", 3, matmul("m"), *loop("inner"))
    return timeline.of(program(entry(X, *loop("outer"), matmul("last"), before=inner + outer)))


def test_loops_inside_loops_multiply_exactly():
    found = nested()
    assert {span.name: span.times for span in found.spans} == {"m": 3, "n": 15, "last": 1}
    assert [(one.name, one.passes, one.loop) for one in found.loops] == [("outer", 3, ""), ("inner", 5, "outer")]
    assert (found.compute_s, found.total_s) == pytest.approx((19 * DOT_S, 19 * DOT_S))
    assert [span.start_s / DOT_S for span in found.spans] == pytest.approx([0, 1, 18])


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (3, 0), (0, 5)])
def test_outer_loops_come_first_and_loops_may_never_run(outer, inner):
    before = counted("inner", inner, matmul("n")) + counted("outer", outer, *loop("inner"))
    found = timeline.of(program(entry(X, *loop("outer"), before=before)))
    assert [(one.name, one.passes) for one in found.loops] == [("outer", outer), ("inner", inner)]
    assert (found.total_s, found.compute_s) == pytest.approx((outer * inner * DOT_S, outer * inner * DOT_S))
    assert [span.times for span in found.one_pass("outer").spans] == [inner if outer else 0]


def test_one_pass_of_a_loop_is_a_timeline_of_its_own():
    found = nested()
    outer, inner = found.one_pass("outer"), found.one_pass("inner")
    assert {span.name: span.times for span in outer.spans} == {"m": 1, "n": 5}
    assert [(one.name, one.loop) for one in outer.loops] == [("inner", "")]
    assert (outer.total_s, outer.compute_s) == pytest.approx((6 * DOT_S, 6 * DOT_S))
    assert [(span.name, span.times, span.start_s, span.loop) for span in inner.spans] == [("n", 1, 0, "")]
    with pytest.raises(ValueError, match="loop='outre' is no loop of this timeline; did you mean 'outer'"):
        found.one_pass("outre")


@pytest.mark.parametrize(
    ("target", "kind", "group", "links"),
    [
        ("v5e:16x16", "all-gather", 16, 2),  # one axis, a ring
        ("v5e:4x4", "all-gather", 4, 1),  # one axis, a line
        ("v5e:4x4", "all-gather", 16, 2),  # two lines
        ("v5e:16x16", "all-gather", 256, 4),
        ("v5p:4x4x4", "all-gather", 64, 6),
        ("v5p:4x8x8", "all-reduce", 32, 4),
        ("v5e:16x16", "all-reduce", 16, 2),
        ("v5e:16x16", "all-gather", 128, 1),  # half an axis, which does not wrap
        ("v5e:16x16", "all-to-all", 16, 0.5),  # 16/4 times an all-gather of what one device holds
        ("v5e:4x4", "collective-permute", 16, 1),
    ],
)
def test_a_collective_uses_all_links_of_the_axes_that_its_group_spans(target, kind, group, links):
    place = hardware.slice_of(target)
    one = recorded("collective-matmul").collectives[0]
    one = replace(one, kind=kind, group=group, array_bytes=3e9)
    sent = {"all-reduce": 2 * 3e9 * (group - 1) / group, "collective-permute": 3e9}.get(kind, 3e9 * (group - 1) / group)
    assert collective_s(one, place) == pytest.approx(sent / (links * place.chip.ici_link_bytes_per_s))


def test_between_slices_a_collective_takes_its_share_of_the_network():
    one = replace(recorded("collective-matmul").collectives[0], kind="all-reduce", group=2, array_bytes=5e8, over="dcn")
    assert collective_s(one, hardware.slice_of("v5e:4x4", count=2)) == pytest.approx(5e8 / CHIP.dcn_bytes_per_s)


def test_a_transfer_between_slices_ends_when_its_result_is_received():
    text = (DATA / "two-slices.hlo.txt").read_text()
    beside = "  %mid = bf16[4096,4096] convolution(%param, %param), dim_labels=bf_io->bf\n  %recv-done ="
    work = 2 * 4096**3 / PEAK
    for variant, hidden in ((text, 0), (text.replace("  %recv-done =", beside), work)):
        found = timeline.of(program(variant, target="2 × v5e:4x4", slices=2, X=16))
        transfer = next(span for span in found.spans if span.resource == "dcn")
        assert (transfer.kind, transfer.duration_s) == ("all-reduce", pytest.approx(4096 * 4096 * 2 / CHIP.dcn_bytes_per_s))
        assert (found.hidden_s, found.exposed_s) == pytest.approx((hidden, transfer.duration_s - hidden))
        assert totals(found) == pytest.approx(found.total_s)


def test_copies_from_the_host_go_over_pcie():
    start = "%c = (bf16[256,4096]{1,0:T(8,128)}, bf16[256,4096]{1,0:T(8,128)S(5)}, u32[]) copy-start(%w)"
    found = timeline.of(program(entry(W, X, start, matmul("m"), "%e = bf16[256,4096] copy-done(%c)")))
    assert [(span.resource, span.kind) for span in found.spans] == [("host", "copy"), ("compute", "matmul")]
    assert found.spans[0].duration_s == pytest.approx(256 * 4096 * 2 / CHIP.pcie_bytes_per_s)
    assert found.total_s == pytest.approx(max(found.spans[0].duration_s, DOT_S))


# Recorded programs


def test_compute_and_what_is_exposed_add_up_to_the_whole(estimate):
    assert totals(estimate) == pytest.approx(estimate.total_s, rel=1e-3)
    assert 0 < estimate.exposed_s <= estimate.communication_s
    assert all(0 <= span.exposed_s <= span.duration_s * (1 + 1e-9) for span in estimate.spans)


@pytest.mark.parametrize("end", ["jax-0.10", "jax-0.12"])
def test_an_fsdp_chain_gathers_the_first_weights_in_plain_sight_and_the_others_behind_matmuls(end):
    found = timeline.of(recorded(f"fsdp-chain-{end}"))
    gathers = [span for span in found.spans if span.kind == "all-gather"]
    assert [span.exposed_s / GATHER_S for span in gathers] == pytest.approx([1, 0, 0, 0])
    assert [span.asynchronous for span in gathers] == [False, True, True, True]
    matmuls = [span.duration_s for span in found.spans if span.kind == "matmul"]
    assert matmuls == pytest.approx([2 * 2048 * 4096**2 / PEAK] * 4, rel=0.04)  # cycles, not quite the peak
    assert (found.total_s * 1e6, found.compute_s * 1e6) == pytest.approx((1817, 1432), rel=1e-3)


@pytest.mark.parametrize("end", ["jax-0.10", "jax-0.12"])
def test_the_scheduler_sees_the_same_order_and_slower_matmuls(end):
    chain = recorded(f"fsdp-chain-{end}")
    found = timeline.scheduled(chain)
    gathers = [span for span in found.spans if span.kind == "all-gather"]
    assert [span.exposed_s > 0 for span in gathers] == [True, False, False, False]
    link = 4096 * 4096 * 2 / (2 * gathers[0].exposed_s)  # its rule: array bytes ÷ (2 · link rate)
    assert link == pytest.approx(LINK, rel=0.05)
    assert [span.kind for span in found.spans if span.resource == "compute"] == ["matmul"] * 4
    apart = timeline.disagreement(timeline.of(chain), found)
    assert apart == pytest.approx({"total": 4.65, "compute": 5.66, "exposed": 1.03}, rel=0.01)


def test_a_collective_matmul_permutes_in_both_directions_beside_its_matmuls():
    found = timeline.of(recorded("collective-matmul"))
    assert [(one.passes, one.loop) for one in found.loops] == [(4, "")]
    permutes = [span for span in found.spans if span.kind == "collective-permute"]
    assert [span.times for span in permutes] == [1, 4, 4, 4, 4]
    assert {round(span.duration_s * LINK) for span in permutes} == {512 * 4096 * 2}
    one_pass = found.one_pass(found.loops[0].name)
    together = max(span.start_s + span.duration_s for span in one_pass.spans if span.resource == "ici")
    assert together < 2.5 * permutes[0].duration_s  # four permutes in the time of a bit more than two
    assert found.hidden_s > found.exposed_s


def test_the_scheduler_gives_loops_their_true_trip_count():
    found = timeline.scheduled(recorded("collective-matmul"))
    assert [(one.passes, round(one.pass_s * 1e6, 1)) for one in found.loops] == [(4, 179.8)]
    assert found.total_s == pytest.approx(found.loops[0].start_s + 4 * found.loops[0].pass_s, rel=1e-4)
    permutes = [span for span in found.spans if span.kind == "collective-permute"]
    assert {round(512 * 4096 * 2 / span.duration_s / 1e9, 1) for span in permutes} <= {46.6, 46.7}


def test_what_the_scheduler_left_alone_is_timed_as_in_the_text():
    chain = recorded("fsdp-chain-jax-0.10")
    alone = timeline.scheduled(replace(chain, code=replace(chain.code, schedule="hlo_module {\n}\n")))
    assert (alone.spans, alone.total_s) == (timeline.of(chain).spans, timeline.of(chain).total_s)


def test_a_loop_of_the_schedule_that_the_text_names_otherwise_takes_its_booked_time():
    renamed = (DATA / "collective-matmul.hlo.txt").read_text().replace("wide.windowed_dot_general_body_ag", "body")
    found = timeline.scheduled(program(renamed, (DATA / "collective-matmul.schedule.txt").read_text()))
    assert (found.loops, found.spans[-1].name) == ((), "while.1")
    assert found.total_s * 1e6 == pytest.approx(362.5, rel=1e-3)


def test_disagreement_of_a_timeline_with_itself_is_none():
    found = timeline.of(recorded("collective-matmul"))
    assert timeline.disagreement(found, found) == {"total": 1, "compute": 1, "exposed": 1}
    silent = timeline.of(program(entry(X, matmul("m"))))
    assert timeline.disagreement(silent, silent)["exposed"] == 1
    assert timeline.disagreement(silent, found)["exposed"] == math.inf


# Bad input


def test_a_program_without_text_schedule_or_tpu_is_refused():
    chain = recorded("fsdp-chain-jax-0.10")
    with pytest.raises(ValueError, match="read from a record"):
        timeline.of(Program.from_json(json.loads(json.dumps(chain.to_json()))))
    with pytest.raises(ValueError, match=r"carries no schedule: compile it with tpu.compile\(..., schedule=True\)"):
        timeline.scheduled(replace(chain, code=replace(chain.code, schedule="")))
    with pytest.raises(ValueError, match=r"program.target='cpu:16' is no TPU slice"):
        timeline.of(replace(chain, target="cpu:16"))
    with pytest.raises(ValueError, match="does not fit"):
        timeline.of(replace(chain, code=None))


# Records and traces


def test_a_record_keeps_everything_to_the_nanosecond(estimate):
    data = json.loads(json.dumps(estimate.to_json()))
    again = timeline.Timeline.from_json(data)
    assert again.to_json() == data
    assert (again.how, again.target, len(again.loops)) == (estimate.how, "v5e:4x4", len(estimate.loops))
    for ours, theirs in zip(estimate.spans, again.spans, strict=True):
        times = [field for field in vars(ours) if field.endswith("_s")]
        assert [getattr(theirs, f) for f in times] == pytest.approx([getattr(ours, f) for f in times], abs=1e-9)
        assert all(getattr(theirs, f) == getattr(ours, f) for f in vars(ours) if f not in times)


@pytest.mark.parametrize("broken", [{}, {"spans": 3}, {"spans": {}, "loops": {}}, {"spans": {"name": ["a"]}, "loops": {}}])
def test_data_that_is_no_timeline_is_refused(broken):
    with pytest.raises(ValueError, match="data is no timeline"):
        timeline.Timeline.from_json(broken)


def trace(found, **options):
    file = io.StringIO()
    found.to_trace(file, **options)
    events = json.loads(file.getvalue())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return [event for event in events if event["ph"] == "X"], names


def test_a_trace_is_one_that_perfetto_draws(estimate):
    events, names = trace(estimate)
    assert all(event.keys() >= {"name", "ph", "ts", "dur", "pid", "tid", "args"} for event in events)
    assert {event["tid"] for event in events} == set(names)
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(estimate.total_s * 1e6, rel=1e-3)  # microseconds
    for thread in names:
        on_it = [event for event in events if event["tid"] == thread]
        assert all(b["ts"] - a["ts"] - a["dur"] > -1e-6 for a, b in itertools.pairwise(on_it))  # a float's last digit at most


def test_a_trace_repeats_loops_at_their_true_times():
    found = nested()
    events, names = trace(found)
    assert list(names.values()) == ["loops", "loops, depth 1", "compute"]
    inner = [event for event in events if event["args"].get("instruction") == "n"]
    assert [round(event["ts"] / DOT_S / 1e6) for event in inner] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17]
    assert sum(event["dur"] for event in events if names[event["tid"]] == "compute") == pytest.approx(
        found.compute_s * 1e6, rel=1e-5
    )
    few, _ = trace(found, passes=2)
    assert [event["args"].get("instruction") for event in few].count("n") == 4


def test_transfers_at_the_same_time_get_threads_of_their_own(tmp_path):
    found = timeline.of(recorded("collective-matmul"))
    _, names = trace(found)
    assert list(names.values()) == ["loops", "compute", "ICI", "ICI 2", "HBM"]
    found.to_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["validated on hardware"] == "no"


# The figure


@pytest.fixture
def drawn():
    def draw(found):
        return timelines.timeline(found.spans, found.loops)

    yield draw
    plt.close("all")


def test_the_figure_has_a_lane_a_resource_and_one_pass_a_loop(drawn):
    found = timeline.of(recorded("collective-matmul"))
    ax = drawn(found)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["compute", "ICI", "copies"]
    assert [text.get_text() for text in ax.texts] == ["× 4"]
    shown = found.total_s - 3 * found.loops[0].pass_s
    assert ax.get_xlim() == pytest.approx((0, shown * 1e6))
    assert ax.get_xlabel() == "time (µs), each loop drawn once"


def test_the_figure_tells_hidden_from_exposed(drawn):
    found = timeline.of(program(entry(W, X, START, matmul("m"), DONE, matmul("n"))))
    ax = drawn(found)
    green = mpl.colors.to_rgba(timelines.COLORS["ici"])
    width = {
        bool(bar.get_hatch()): bar.get_width() * 1e-6 for bar in ax.patches if bar.get_facecolor() == green or bar.get_hatch()
    }
    assert width == pytest.approx({True: DOT_S, False: GATHER_S - DOT_S})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["matmul", "ICI, exposed", "ICI, hidden"]
    assert ax.get_xlabel() == "time (µs)"


def test_the_figure_of_nothing_is_refused():
    with pytest.raises(ValueError, match="spans is empty"):
        timelines.timeline([])
    odd = replace(nested().spans[0], resource="nvlink")
    with pytest.raises(ValueError, match="resource 'nvlink'; there are lanes for compute, ici, dcn, hbm, host"):
        timelines.timeline([odd])


# Live


def plain(layout, *shape, mesh):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, layout))


NO_COLLECTIVE_MATMUL = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}


def test_live_a_chain_gathers_weights_behind_matmuls():
    mesh = tpu.mesh("v5e:4x4", X=16)
    x, *weights = (plain(P("X", None), rows, 1536, mesh=mesh) for rows in (20480, 1536, 1536, 1536))

    def chain(x, *weights):
        for w in weights:
            x = jax.nn.relu(x @ w)
        return x

    out = NamedSharding(mesh, P("X", None))
    made = tpu.compile(chain, x, *weights, slice="v5e:4x4", out=out, options=NO_COLLECTIVE_MATMUL, schedule=True)
    found = timeline.of(made)
    gathers = [span for span in found.spans if span.kind == "all-gather"]
    assert [span.asynchronous for span in gathers] == [False, True, True]
    assert gathers[0].exposed_s == gathers[0].duration_s
    matmuls = [span.duration_s for span in found.spans if span.kind == "matmul"]
    waits = [max(0, gather.duration_s - matmul) for gather, matmul in zip(gathers[1:], matmuls, strict=False)]
    assert [span.exposed_s for span in gathers[1:]] == pytest.approx(waits, rel=0.1)
    assert totals(found) == pytest.approx(found.total_s)
    apart = timeline.disagreement(found, timeline.scheduled(made))
    assert 1 < apart["total"] < apart["compute"] < 6  # the scheduler charges matmuls too much


def test_live_the_gradients_of_a_deep_network_are_loops_inside_loops():
    mesh = tpu.mesh("v5e:4x4", X=16)
    weights, x = plain(P(None, "X", None), 4, 1536, 1536, mesh=mesh), plain(P("X", None), 20480, 1536, mesh=mesh)

    def loss(weights, x):
        x, _ = jax.lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), x, weights)
        return (x.astype(jnp.float32) ** 2).mean()

    out = NamedSharding(mesh, P(None, "X", None))
    made = tpu.compile(jax.grad(loss), weights, x, slice="v5e:4x4", out=out, schedule=True)
    for found in (timeline.of(made), timeline.scheduled(made)):
        assert [(one.passes, bool(one.loop)) for one in found.loops].count((4, False)) == 2  # layers forward, layers backward
        assert any(one.loop for one in found.loops)  # collective matmuls
        assert found.hidden_s > found.exposed_s
        assert totals(found) == pytest.approx(found.total_s, rel=5e-3)
    spent = sum(span.duration_s * span.times for span in timeline.of(made).spans if span.kind == "matmul")
    assert spent == pytest.approx(made.cycles / CHIP.clock_hz, rel=0.01)


@pytest.mark.parametrize(
    ("target", "axes", "kind"),
    [
        ("v4:4x4x4", {"X": 4, "Y": 4, "Z": 4}, "permute"),
        ("v5e:16x16", {"X": 16, "Y": 16}, "gather"),  # the v5e compiler leaves a lone permute unscheduled
        ("v5p:4x4x4", {"X": 4, "Y": 4, "Z": 4}, "permute"),
        ("v6e:16x16", {"X": 16, "Y": 16}, "permute"),
        ("tpu7x:4x4x4", {"X": 4, "Y": 4, "Z": 8}, "permute"),
    ],
)
def test_live_the_scheduler_gives_away_the_rate_of_a_link(target, axes, kind):
    mesh, nbytes = tpu.mesh(target, **axes), 2**26
    if kind == "gather":  # both links of an axis at work
        x, out = plain(P("X", None), nbytes // 2048, 1024, mesh=mesh), NamedSharding(mesh, P())
        made, links = tpu.compile(lambda x: x + 1, x, slice=target, out=out, schedule=True), 2
    else:
        cut = P(tuple(axes))
        ring = [(i, (i + 1) % axes["X"]) for i in range(axes["X"])]
        shift = jax.shard_map(lambda x: jax.lax.ppermute(x, "X", ring), mesh=mesh, in_specs=cut, out_specs=cut)
        x = plain(cut, nbytes // 2048 * mesh.size, 1024, mesh=mesh)
        made, links = tpu.compile(shift, x, slice=target, schedule=True), 1
    (span,) = (span for span in timeline.scheduled(made).spans if span.resource == "ici")
    rate = nbytes / span.duration_s / links
    assert rate == pytest.approx(hardware.chip(target.split(":")[0]).ici_link_bytes_per_s, rel=0.05)
