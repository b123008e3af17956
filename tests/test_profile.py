"""Profiles: a trace recorded on the spot, made-up ones that count by hand, the compiler's timelines, and every bad folder."""

import gzip
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from scaling_lib.hardware import Chip
from scaling_lib.xla import measure, profile, simulate, timeline, tpu
from scaling_lib.xla.measure import Machine
from scaling_lib.xla.profile import kinds
from scaling_lib.xla.profile.operations import Op, covered, nested
from scaling_lib.xla.program import Memory, Program, hlo

DATA = Path(__file__).parent / "data" / "schedule"
WAYS, PASSES, CALLS = 4, 3, 2
SLEEP_S = 0.3


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder and HLO of a recorded program: a gathered matrix multiplied in a loop, called twice with a pause between."""
    mesh = simulate.mesh(X=WAYS)
    rows = NamedSharding(mesh, P("X", None))
    x, w = (jax.device_put(jnp.ones(shape), rows) for shape in ((320, 448), (448, 448)))

    def chain(x, w):
        return jax.lax.scan(lambda y, _: (layer(y, w), None), x, None, length=PASSES)[0]

    def layer(y, w):
        with jax.named_scope("product"):
            z = y @ w
        with jax.named_scope("rest"):
            return jnp.tanh(z)

    program = jax.jit(chain, out_shardings=rows)
    text = program.lower(x, w).compile().as_text()
    program(x, w).block_until_ready()
    with profile.record(tmp_path_factory.mktemp("trace")) as folder:
        for _ in range(CALLS):
            program(x, w).block_until_ready()
            with jax.profiler.TraceAnnotation("the pause"):
                time.sleep(SLEEP_S)
    return folder, text


@pytest.fixture(scope="module")
def measured(run):
    folder, text = run
    return profile.read(folder, text)


UNEQUAL = (320, 512, 1536, 96)  # two products, the first with 5.3 times the FLOPs of the second, with a tanh between


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Folder and HLO of a program on one device, with a loop, called often enough for steady averages."""
    m, k, n, last = UNEQUAL
    given = [jnp.full(shape, 1 / 7) for shape in ((m, k), (k, n), (n, last))]

    def loss(x, w, v):
        y = jnp.tanh(x @ w) @ v
        return jax.lax.fori_loop(0, PASSES, lambda _, z: jnp.sort(z, axis=0) + 1, y)

    program = jax.jit(loss)
    text = program.lower(*given).compile().as_text()
    program(*given).block_until_ready()
    with profile.record(tmp_path_factory.mktemp("alone")) as folder:
        for _ in range(20):
            program(*given).block_until_ready()
    return folder, text


def trace_file(folder):
    return next(folder.rglob("*.xplane.pb"))


@pytest.mark.parametrize("which", ["run", "alone"])
def test_time_by_operation_adds_up_to_the_time_in_the_other_file_of_the_trace(which, request):
    folder, text = request.getfixturevalue(which)
    measured = profile.read(folder, text)
    packed = next(folder.rglob("*.trace.json.gz"))
    events = json.loads(gzip.decompress(packed.read_bytes()))["traceEvents"]
    ends: dict[tuple[int, int], float] = {}
    total_us = 0.0
    ops = [event for event in events if "hlo_op" in event.get("args", {})]
    for event in sorted(ops, key=lambda event: event["ts"]):
        thread = event["pid"], event["tid"]
        end = event["ts"] + event["dur"]
        total_us += max(0.0, end - max(event["ts"], ends.get(thread, 0.0)))
        ends[thread] = max(end, ends.get(thread, 0.0))
    assert measured.total_s == pytest.approx(total_us * 1e-6, rel=0.02)
    for table in (measured.by_op(), measured.by_kind()):
        assert sum(line.seconds for line in table) == pytest.approx(measured.total_s, rel=1e-6)
        assert sum(line.fraction for line in table) == pytest.approx(1)


def test_each_operation_ran_as_often_as_the_program_says(measured):
    runs = {line.name: line.runs for line in measured.by_kind()}
    assert runs["matmul"] == WAYS * PASSES * CALLS
    assert runs["collective"] % (WAYS * CALLS) == 0
    assert measured.devices == tuple(range(WAYS))


def test_time_by_scope_adds_up_and_tells_the_product_from_the_rest(run, measured):
    lines = {line.name: line for line in measured.by_scope("rest", "product")}
    assert sum(line.seconds for line in lines.values()) == pytest.approx(measured.total_s)
    for scope, name in (("product", "dot_general"), ("rest", "tanh")):
        inside = [op for op in measured.ops if op.op_name.endswith(f"{scope}/{name}") and op.kind != "collective"]
        assert lines[scope].runs >= len(inside) == WAYS * PASSES * CALLS
        assert lines[scope].seconds * (1 + 1e-9) >= sum(op.self_s for op in inside) > 0
    with pytest.raises(ValueError, match=r"scope 'produce' holds no operation.*the program's text"):
        measured.by_scope("product", "produce")
    with pytest.raises(ValueError, match="scope 'rest' holds no operation"):
        profile.read(run[0]).by_scope("rest")
    with pytest.raises(ValueError, match="scopes is empty"):
        measured.by_scope()


def test_an_operation_counts_in_the_innermost_scope_forward_and_backward():
    paths = ["jit(f)/up/mul", "jit(f)/while/body/layer/up/dot", "jit(f)/transpose(jvp(layer))/dot", "jit(f)/uplayer/add", "up"]
    ops = [Op(str(i), "other", float(i), 1.0, 1.0, 0, op_name=path) for i, path in enumerate(paths)]
    found = profile.Profile(tuple(ops), (), (), 5.0, "made up")
    assert {line.name: line.runs for line in found.by_scope("layer", "up")} == {"up": 2, "layer": 1, "": 2}


def test_without_the_program_no_name_tells_that_a_fusion_multiplies(run, measured):
    bare = profile.read(run[0])
    (product,) = {op.name for op in measured.ops if op.kind == "matmul"}
    assert {op.kind for op in bare.ops if op.name == product} == {kinds.of_name(product)}
    assert bare.total_s == measured.total_s


def test_the_pause_is_the_longest_gap_and_the_host_says_what_it_did(measured):
    for device in measured.devices:
        longest = measured.gaps(device)[0]
        assert SLEEP_S <= longest.duration_s < 3 * SLEEP_S
        assert longest.host == "the pause"
        assert measured.gaps(device, at_least_s=SLEEP_S) == (longest,)
    assert sum(op.name == "the pause" for op in measured.host) == CALLS


def test_times_of_a_device_add_up(measured):
    for device in measured.devices:
        assert sum(gap.duration_s for gap in measured.gaps(device)) == pytest.approx(measured.idle_s(device))
        assert 0 < measured.communication_s(device) < measured.window_s(device)
        hidden, exposed = measured.hidden_s(device), measured.exposed_s(device)
        assert hidden + exposed == pytest.approx(measured.communication_s(device))
        spans = measured.spans(device)
        assert spans[0].start_s == 0
        assert spans[-1].start_s < measured.window_s(device)


def test_measured_spans_can_be_drawn(measured):
    import matplotlib as mpl

    mpl.use("agg")
    from scaling_lib.show import timelines

    axes = timelines.timeline(measured.spans(0))
    assert [label.get_text() for label in axes.get_yticklabels()]
    mpl.pyplot.close(axes.figure)


def test_it_prints_its_tables(measured):
    shown = str(measured)
    assert f"{WAYS} devices, measured" in shown
    assert "by kind: " in shown
    assert f"device {WAYS - 1}: idle" in shown


# Made-up traces


def made(folder, text):
    path = folder / "plugins" / "profile" / "then" / "vm.xplane.pb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace(text))
    return folder


def accelerator(*ops, line="XLA Ops", device=0):
    """A trace of a TPU whose operations are (HLO text, start, end) in microseconds."""
    names = {text: i for i, (text, *_) in enumerate(ops, 1)}
    events = "".join(
        f"events {{ metadata_id: {names[text]} offset_ps: {start * 10**6} duration_ps: {(end - start) * 10**6} }} "
        for text, start, end in ops
    )
    known = "".join(f"event_metadata {{ key: {i} value {{ id: {i} name: {json.dumps(text)} }} }} " for text, i in names.items())
    steps = 'lines { id: 9 name: "Steps" timestamp_ns: 1000 events { metadata_id: 1 offset_ps: 0 duration_ps: 99000000 } }'
    lines = f'lines {{ id: 1 name: "{line}" timestamp_ns: 1000 {events} }} {steps}'
    return f'planes {{ name: "/device:TPU:{device}" {lines} {known} }}'


LOOP = "%while.1 = (f32[3]) while(%t), condition=%c, body=%b"
START = "%all-gather-start.5 = (f32[3]{0}, f32[21]{0}) all-gather-start(%p), dimensions={0}"
DONE = "%all-gather-done.5 = f32[21]{0} all-gather-done(%all-gather-start.5)"
PRODUCT = "%convolution.7 = bf16[3,7]{1,0:T(8,128)(2,1)} convolution(%a, %b), dim_labels=bf_io->bf"
FUSED = "%fusion.3 = f32[3,5]{1,0} fusion(%a), kind=kLoop, calls=%f"
MOVED = "%copy.2 = f32[3]{0} copy(%a)"
SPELLED = ((LOOP, 0, 30), (START, 1, 2), (PRODUCT, 2, 12), (DONE, 12, 17), (FUSED, 20, 27), (MOVED, 35, 38))


def test_a_trace_of_an_accelerator_counts_by_hand(tmp_path):
    found = profile.read(made(tmp_path, accelerator(*SPELLED, device=3)))
    assert found.devices == (3,)
    assert found.total_s == pytest.approx(33e-6)  # the loop, and the copy after it
    seconds = {line.name: round(line.seconds * 1e6) for line in found.by_kind()}
    assert seconds == {"control": 7, "collective": 6, "matmul": 10, "fusion": 7, "copy": 3}
    assert found.communication_s(3) == pytest.approx(16e-6)  # from the start to the end of the done
    assert found.hidden_s(3) == pytest.approx(10e-6)
    assert found.exposed_s(3) == pytest.approx(6e-6)
    assert found.window_s(3) == pytest.approx(37e-6)
    gaps = [(gap.before, gap.after, round(gap.duration_s * 1e6)) for gap in found.gaps(3)]
    assert gaps == [("fusion.3", "copy.2", 8), ("all-gather-done.5", "fusion.3", 3)]
    assert [span.name for span in found.spans(3)] == ["all-gather-start.5", "convolution.7", "fusion.3", "copy.2"]
    assert [round(span.exposed_s * 1e6) for span in found.spans(3)] == [6, 0, 0, 3]


HELD = """HloModule jit_f
%held (p: f32[3,5], q: f32[5,7]) -> f32[3,7] {
  %p = f32[3,5]{1,0} parameter(0)
  %q = f32[5,7]{1,0} parameter(1)
  ROOT %dot.1 = f32[3,7]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY %main (a: f32[3,5], b: f32[5,7]) -> f32[3,7] {
  %a = f32[3,5]{1,0} parameter(0)
  %b = f32[5,7]{1,0} parameter(1)
  ROOT %fusion.3 = f32[3,7]{1,0} fusion(%a, %b), kind=kOutput, calls=%held
}
"""


def test_the_one_program_given_is_that_of_events_without_a_name(tmp_path):
    folder = made(tmp_path, accelerator((FUSED, 20, 27)))
    assert [line.name for line in profile.read(folder).by_kind()] == ["fusion"]
    found = profile.read(folder, HELD)
    assert [line.name for line in found.by_kind()] == ["matmul"]
    (row,) = profile.compare(found, HELD, MACHINE)
    assert row.cost.flops == {"f32": 2 * 3 * 5 * 7}
    assert row.cost.hbm_bytes == 4 * (3 * 5 + 5 * 7 + 3 * 7)
    assert row.predicted_s == pytest.approx(4 * (3 * 5 + 5 * 7 + 3 * 7) / 1e9)
    assert row.ratio == pytest.approx(7e-6 / row.predicted_s)


def test_transfers_on_a_line_of_their_own_add_no_time_and_cores_for_embeddings_are_left_out(tmp_path):
    both = accelerator((PRODUCT, 2, 12)) + accelerator((START, 1, 17), line="Async XLA Ops")
    both += accelerator((FUSED, 20, 27), device="0 SparseCore 1")
    found = profile.read(made(tmp_path, both))
    assert found.total_s == pytest.approx(10e-6)
    assert found.communication_s(0) == pytest.approx(16e-6)
    assert found.hidden_s(0) == pytest.approx(10e-6)


def test_a_trace_of_a_gpu_is_read_by_its_streams(tmp_path):
    """Operations lie on streams, an event a kernel; the lines derived from them are the same time again."""
    known = ["void cutlass::Kernel2<x>(int)", "ncclDevKernel_AllGather_RING_LL(x)", "loop_add_fusion", "MemcpyH2D", "fusion.1"]
    names = "".join(
        f"event_metadata {{ key: {i} value {{ id: {i} name: {json.dumps(one)} }} }} " for i, one in enumerate(known, 1)
    )
    notes = "".join(
        f'stat_metadata {{ key: {i} value {{ id: {i} name: "{one}" }} }} ' for i, one in enumerate(("hlo_op", "hlo_module"), 1)
    )

    def event(kernel, start_us, end_us, op=""):
        stats = f'stats {{ metadata_id: 1 str_value: "{op}" }} stats {{ metadata_id: 2 str_value: "jit_f" }}' if op else ""
        return f"events {{ metadata_id: {kernel} offset_ps: {start_us}000000 duration_ps: {end_us - start_us}000000 {stats} }} "

    lines = {
        "Stream #14(Compute)": event(1, 2, 12, "custom-call.4") + event(3, 20, 27, "loop_add_fusion"),
        "Stream #16(MemcpyH2D)": event(4, 0, 2),
        "Stream #17(Compute)": event(2, 4, 17, "all-gather-start.5"),
        "XLA Ops": event(5, 2, 12) + event(5, 20, 27),
        "XLA Modules": event(5, 0, 30),
    }
    text = "".join(f'lines {{ id: {i} name: "{name}" timestamp_ns: 7 {some} }} ' for i, (name, some) in enumerate(lines.items()))
    found = profile.read(made(tmp_path, f'planes {{ name: "/device:GPU:1" {text} {names} {notes} }}'))
    assert found.devices == (1,)
    assert {line.name: round(line.seconds * 1e6) for line in found.by_op()} == {
        "all-gather-start.5": 13, "custom-call.4": 10, "loop_add_fusion": 7, "MemcpyH2D": 2,
    }  # fmt: skip
    assert {line.name: round(line.seconds * 1e6) for line in found.by_kind()} == {
        "collective": 13, "matmul": 10, "fusion": 7, "host": 2,
    }  # fmt: skip
    assert found.total_s == pytest.approx(32e-6)  # of three streams
    assert found.communication_s(1) == pytest.approx(13e-6)
    assert found.hidden_s(1) == pytest.approx(8e-6)
    assert found.idle_s(1) == pytest.approx(3e-6)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("dot.3", "matmul"), ("dot_general.12", "matmul"), ("all-reduce-start.4", "collective"), ("psum.7", "collective"),
        ("all_gather.1", "collective"), ("copy-done", "copy"), ("wrapped_tanh", "fusion"), ("loop_fusion.3.clone", "fusion"),
        ("ampere_sgemm_128x64_tn", "matmul"), ("MemcpyD2D", "copy"), ("MemcpyD2H", "host"),
        ("infeed.1", "host"), ("xla_ffi_python_cpu_callback.2", "host"), ("while.14", "control"), ("rng-bit-generator", "other"),
    ],
)  # fmt: skip
def test_kinds_by_name(name, kind):
    assert kinds.of_name(name) == kind


def test_kinds_by_what_a_fusion_holds():
    module = hlo.parse((DATA / "fsdp-chain-jax-0.10.hlo.txt").read_text())
    ones = [one for part in module.computations.values() for one in part.instructions.values()]
    found = {kinds.of_instruction(one, module) for one in ones if one.opcode == "fusion"}
    assert "matmul" in found
    assert found <= set(kinds.KINDS)


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.sampled_from("ab")), min_size=1, max_size=12)


@given(INTERVALS)
def test_own_times_add_up_to_what_is_covered_however_events_overlap(rows):
    ops = [Op("x", "other", float(start), float(long), float(long), 0, thread) for start, long, thread in rows]
    found = nested(ops)
    assert sum(op.self_s for op in found) == pytest.approx(covered(ops))
    assert len(found) == len(ops)


# Timelines


def planned(name, way):
    text, dump = ((DATA / f"{name}.{kind}.txt").read_text() for kind in ("hlo", "schedule"))
    program = Program.read(
        text, name=name, target="v5e:4x4", axes={"X": 16}, versions={}, date="2026-11-29",
        memory=Memory(peak_bytes=1, available_bytes=2),
    )  # fmt: skip
    return getattr(timeline, way)(replace(program, code=replace(program.code, schedule=dump)))


@pytest.mark.parametrize("way", ["of", "scheduled"])
@pytest.mark.parametrize("name", ["collective-matmul", "fsdp-chain-jax-0.10", "fsdp-chain-jax-0.12"])
def test_a_compiled_timeline_gives_the_same_tables(name, way):
    estimate = planned(name, way)
    found = profile.from_timeline(estimate)
    assert sum(line.seconds for line in found.by_op()) == pytest.approx(estimate.total_s, rel=0.02)
    seconds = {line.name: line.seconds for line in found.by_kind()}
    matmuls = sum(span.duration_s * span.times for span in estimate.spans if span.kind == "matmul")
    assert seconds["matmul"] == pytest.approx(matmuls)
    assert found.exposed_s(0) + found.hidden_s(0) == pytest.approx(found.communication_s(0))
    assert found.hidden_s(0) <= estimate.hidden_s * (1 + 1e-9) + 1e-12
    assert found.how.startswith("estimated")


def test_a_shipped_timeline_gives_its_tables(from_records):
    estimate = timeline.of(tpu.record("lab02-schedule").program)
    found = profile.from_timeline(estimate)
    assert sum(line.seconds for line in found.by_op()) == pytest.approx(estimate.total_s, rel=0.02)
    assert {line.name for line in found.by_kind()} >= {"matmul", "collective"}


# Measured against predicted

MACHINE = Machine(Chip("test", {"f32": 2e9}, {"hbm_bytes_per_s": 1e9}), start_s=1.0)


def test_a_matmul_is_predicted_by_its_flops_and_bytes(run, measured):
    rows = profile.compare(measured, run[1], MACHINE)
    (product,) = (row for row in rows if row.kind == "matmul")
    assert product.cost.flops == {"f32": 2 * 320 // WAYS * 448 * 448}
    assert product.cost.hbm_bytes == 4 * (2 * 320 // WAYS * 448 + 448 * 448)
    assert product.predicted_s == pytest.approx(320 // WAYS * 448 * 448 * 2 / 2e9)
    assert product.runs == WAYS * PASSES * CALLS
    assert product.ratio == pytest.approx(product.measured_s / product.predicted_s)
    of_matmuls = sum(op.self_s for op in measured.ops if op.kind == "matmul")
    assert product.measured_s * product.runs == pytest.approx(of_matmuls)


def test_rows_are_those_that_ran_and_collectives_have_no_prediction(run, measured):
    rows = profile.compare(measured, run[1], MACHINE)
    assert {row.name for row in rows} == {op.name for op in measured.ops if op.kind != "control"}
    assert all((row.predicted_s is None) == (row.kind == "collective") for row in rows)
    whole = [row.measured_s * row.runs for row in rows]
    assert whole == sorted(whole, reverse=True)


def test_a_machine_fitted_on_the_spot_predicts_each_product(alone):
    """Under the load of other processes both slow down: bounds are wide, and more work still takes longer."""
    m, k, n, last = UNEQUAL
    shapes = [(m, k, n), (m, n, last), (64, 256, 512), (512, 512, 512)]
    calls = {shape: measure.matmul(*shape) for shape in shapes} | {"stream": measure.stream(1 << 25)}
    took = measure.interleaved(calls, rounds=5, budget_s=2)
    machine = measure.fit({shape: took[shape] for shape in shapes}, 2 * (1 << 25) / took["stream"])
    folder, text = alone
    rows = {
        row.cost.total_flops: row for row in profile.compare(profile.read(folder, text), text, machine) if row.kind == "matmul"
    }
    large, small = rows[2 * m * k * n], rows[2 * m * n * last]
    assert large.runs == small.runs == 20
    for row in (large, small):
        assert 1 / 16 < row.ratio < 16
    assert large.measured_s > small.measured_s


def test_another_program_did_not_run(measured):
    other = jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile().as_text()
    with pytest.raises(ValueError, match="did not run in this profile; programs that did: jit_chain"):
        profile.compare(measured, other, MACHINE)


def test_a_machine_without_the_dtype_is_refused(run, measured):
    machine = Machine(Chip("test", {"bf16": 1e9}, {"hbm_bytes_per_s": 1e9}), start_s=0)
    with pytest.raises(ValueError, match="multiplies f32, and machine has peaks for bf16"):
        profile.compare(measured, run[1], machine)


# Recording


def test_the_folder_holds_both_files(run):  # TR01, TR02
    assert trace_file(run[0]).relative_to(run[0]).parts[:2] == ("plugins", "profile")
    assert next(run[0].rglob("*.trace.json.gz")).parent == trace_file(run[0]).parent


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_ends_the_trace_and_keeps_it(tmp_path, error):  # TR04
    folder = tmp_path / "first"

    def run_and_fail():
        with profile.record(folder):
            (jnp.ones((3, 5)) + 1).block_until_ready()
            raise error

    with pytest.raises(error):
        run_and_fail()
    assert trace_file(folder).stat().st_size
    with profile.record(tmp_path / "second") as after:
        (jnp.ones((3, 5)) + 1).block_until_ready()
    assert profile.read(folder).total_s > 0
    assert profile.read(after).total_s > 0


def test_two_at_a_time_are_refused_and_the_first_goes_on(tmp_path):  # TR04
    with profile.record(tmp_path) as folder:
        with pytest.raises(RuntimeError, match=r"recorded already.*stop_trace"), profile.record():
            pytest.fail("recording twice")
        (jnp.ones((3, 5)) + 1).block_until_ready()
    assert profile.read(folder).ops


def test_a_folder_takes_one_trace(run, tmp_path):  # TR03
    with pytest.raises(ValueError, match=r"holds a trace already.*fresh folder"), profile.record(run[0]):
        pytest.fail("recorded over a trace")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"), profile.record(tmp_path / "file"):
        pytest.fail("recorded into a file")


# Folders that hold no good trace


def test_no_folder_and_no_trace(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        profile.read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"holds no trace.*record one"):
        profile.read(tmp_path)


def test_a_recording_that_was_killed_leaves_nothing_and_says_so(tmp_path):
    died = (
        "import os, signal, sys\nfrom scaling_lib.xla import profile\nwith profile.record(sys.argv[1]): os.kill(os.getpid(), 9)"
    )
    folder = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", died, folder], timeout=120, cwd=Path(__file__).parents[1], check=False)
    assert done.returncode == -9
    with pytest.raises(ValueError, match=r"is no folder.*a recording that was killed leaves none"):
        profile.read(folder)


def test_two_traces_are_named_and_each_can_be_read(tmp_path):
    for name in ("a", "b"):
        made(tmp_path / name, accelerator(*SPELLED))
    with pytest.raises(ValueError, match=r"holds 2 traces: a.*, b.*path of one"):
        profile.read(tmp_path)
    assert profile.read(trace_file(tmp_path / "b")) == profile.read(tmp_path / "b")


def test_an_interrupted_trace(run, tmp_path):
    (tmp_path / "plugins" / "profile" / "then").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"interrupted: its \.xplane\.pb was never written"):
        profile.read(tmp_path)
    whole = trace_file(run[0]).read_bytes()
    cut = tmp_path / "plugins" / "profile" / "then" / "vm.xplane.pb"
    for size in (1000, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="cut off: its recording was interrupted"):
            profile.read(tmp_path)
    cut.write_bytes(b"")
    with pytest.raises(ValueError, match="empty: its recording was interrupted"):
        profile.read(tmp_path)


def test_a_trace_of_the_host_alone(tmp_path):
    with profile.record(tmp_path) as folder, jax.profiler.TraceAnnotation("nothing"):
        pass
    with pytest.raises(ValueError, match=r"no device ran anything.*block"):
        profile.read(folder)


def test_text_that_is_no_program(run):
    with pytest.raises(ValueError, match="no HLO module"):
        profile.read(run[0], "ENTRY")


def test_a_device_that_ran_nothing(measured):
    for ask in (measured.gaps, measured.idle_s, measured.window_s, measured.communication_s, measured.exposed_s, measured.spans):
        with pytest.raises(ValueError, match=rf"device={WAYS} ran nothing.*one of 0, 1, 2, 3"):
            ask(WAYS)
    with pytest.raises(ValueError, match="at_least_s"):
        measured.gaps(0, at_least_s=-1)
