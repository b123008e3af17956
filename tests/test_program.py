"""Recorded pieces of compiler text against sizes worked out by hand, and live programs on simulated devices."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib.xla.program import Buffer, Code, Collective, Matmul, Memory, Program, memory

HLO = Path(__file__).parent / "data" / "hlo"
BOTH = ("0.10", "0.12")


def text_of(name):
    return (HLO / f"{name}.txt").read_text()


def read(text, **changed):
    mesh = re.findall(r"(\w+)=(\d+)", text.splitlines()[1].partition(";")[0])
    given = {
        "name": "piece", "target": "v5e:4x4", "axes": {axis: int(size) for axis, size in mesh}, "memory": Memory(3 * 2**30),
        "versions": {"jax": "0.10.2"}, "date": "2026-11-29",
    }  # fmt: skip
    return Program.read(text, **{**given, **changed})


# kind, axes, devices in a group, elements, times, over, asynchronous, form
COLLECTIVES = {
    "all-gather": [("all-gather", ("Y",), 4, 768 // 4 * 640, 1, "ici", False, "plain")],
    "all-reduce-tuple": [("all-reduce", ("Y",), 4, 24 * 640 + 3 * 640, 1, "ici", False, "plain")],
    "all-reduce-sliced": [("all-reduce", ("X",), 16, 768 * 896, 1, "ici", False, "plain")],
    "reduce-scatter": [("reduce-scatter", ("X",), 4, 768 * 640, 1, "ici", False, "plain")],
    "reduce-scatter-fused": [("reduce-scatter", ("X",), 8, 768 * 896, 1, "ici", False, "fused")],
    "sparse-core": [("reduce-scatter", ("X",), 4, 3072 * 640, 1, "ici", True, "plain")],
    "all-to-all": [("all-to-all", ("X",), 4, 96 * 640, 1, "ici", False, "plain")],
    "all-to-all-cpu": [("all-to-all", ("X",), 3, 5 * 21, 1, "ici", False, "plain")],
    "permute": [("collective-permute", ("Y",), 4 * 3, 96 * 640, 1, "ici", True, "plain")],
    "ragged": [("ragged-all-to-all", ("X",), 16, 96 * 256, 1, "ici", False, "plain")],
    "async-fusion": [
        ("all-gather", ("X",), 16, 2048 * 6144, 1, "ici", False, "plain"),
        ("all-gather", ("X",), 16, 6144 * 2560, 1, "ici", False, "plain"),
        ("all-gather", ("X",), 16, 2560 * 2048, 1, "ici", True, "fused"),
    ],
    "collective-matmul": [
        ("collective-permute", ("X",), 8, 5120 // 8 * 14336, times, "ici", True, "collective matmul") for times in (1, 2, 2, 2, 2)
    ],
    "collective-matmul-unrolled": [
        ("collective-permute", ("Y",), 16, 12288 // 4 * 5120 // 4, 1, "ici", True, "collective matmul") for _ in range(3)
    ],
    "scan": [("all-gather", ("X",), 16, 512 * 512, 7, "ici", False, "plain")],
    "scan-cpu": [
        ("all-gather", ("X",), 3, 42 * 42 // 2, 7, "ici", False, "plain"),
        ("all-gather", ("Y",), 2, 15 // 3 * 42, 7, "ici", False, "plain"),
    ],
    "nested-loops": [("all-reduce", ("X",), 16, 96 * 128, 35, "ici", False, "plain")],
    "loop-down": [("all-reduce", ("X",), 16, 96 * 128, 7, "ici", False, "plain")],
    "loop-until": [("all-reduce", ("X",), 16, 96 * 128, 1, "ici", False, "plain")],
    "conditional": [("all-reduce", ("X",), 16, 256 * 256, 1, "ici", False, "plain")],
    "slices-all-reduce": [
        ("reduce-scatter", ("X",), 16, 768 * 640, 1, "ici", False, "plain"),
        ("all-reduce", ("D",), 2, 768 * 640 // 16, 1, "dcn", True, "plain"),
        ("all-gather", ("X",), 16, 768 * 640, 1, "ici", False, "plain"),
    ],
    "slices-all-gather": [
        ("all-gather", ("D",), 2, 2 * 64 * 640, 1, "dcn", True, "plain"),
        ("all-gather", ("X",), 16, 32 * 64 * 640, 1, "ici", False, "plain"),
    ],
    "slices-permute": [("collective-permute", ("D",), 2, 64 * 640, 1, "dcn", True, "plain")],
    "slices-all-to-all": [("all-to-all", ("D",), 2, 64 * 640, 1, "dcn", True, "plain")],
    "part-of-an-axis": [
        ("all-to-all", (), 4, 640 * 1536 // 16, 1, "ici", False, "plain"),
        ("collective-permute", ("X",), 8, 640 * 1536 // 16, 1, "ici", True, "plain"),
        ("all-gather", (), 4, 640 * 1536 // 4, 1, "ici", False, "plain"),
    ],
}  # fmt: skip

# flops of one run, times
MATMULS = {
    "all-gather": [(2 * 768 * 640 * 896 // 16, 1)],
    "reduce-scatter-fused": [(2 * 768 * 640 * 896 // 8, 1)],
    "async-fusion": [(2 * 256 * 2048 * 6144, 1), (2 * 256 * 6144 * 2560, 1), (2 * 256 * 2560 * 2048, 1)],
    "collective-matmul": [(2 * 12288 * 5120 * 14336 // 8 // 4, 2)] * 2,
    "collective-matmul-unrolled": [(2 * 12288 * 5120 * 14336 // 16 // 2, 1)] * 2,
    "scan": [(2 * 768 // 16 * 512 * 512, 7)],
    "scan-cpu": [(2 * 15 // 3 * 42 * 42 // 2, 7)],
    "batched": [(2 * 3 * 2 * 5 * 256 * 128, 1)] * 3,
    "precision": [(2 * 384 * 640 * 896, 1)] * 3,
    "conditional": [(2 * 256**3, 1)],
    "pallas": [],
}


def pieces(expected):
    return [
        (path.stem, expected[name]) for path in sorted(HLO.glob("*.txt")) if (name := path.stem.rpartition("-")[0]) in expected
    ]


def test_every_recorded_piece_is_tested_and_both_ends_of_jax_are_there():
    names = {path.stem.rpartition("-")[0] for path in HLO.glob("*.txt")}
    assert names == set(COLLECTIVES) | set(MATMULS)
    for end in BOTH:
        assert len(list(HLO.glob(f"*-{end}.txt"))) >= 15


@pytest.mark.parametrize(("name", "expected"), pieces(COLLECTIVES))
def test_collectives_are_counted_once_with_their_axes_and_sizes(name, expected):
    found = read(text_of(name)).collectives
    assert [(c.kind, c.axes, c.group, c.elements, c.times, c.over, c.asynchronous, c.form) for c in found] == expected
    size, dtype = (4, "f32") if "cpu" in name else (2, "bf16")
    assert all(c.dtype == dtype and c.array_bytes == size * c.elements for c in found)


@pytest.mark.parametrize(("name", "expected"), pieces(MATMULS))
def test_flops_of_matmuls_are_twice_the_product_of_their_dimensions(name, expected):
    program = read(text_of(name))
    assert [(matmul.flops, matmul.times) for matmul in program.matmuls] == expected
    assert program.flops == sum(flops * times for flops, times in expected)


@pytest.mark.parametrize("end", BOTH)
def test_an_asynchronous_collective_written_three_times_is_sent_once(end):
    text = text_of(f"async-fusion-{end}")
    assert len(re.findall(r" all-gather\(", text)) == 5
    program = read(text)
    weights = 2 * (2048 * 6144 + 6144 * 2560 + 2560 * 2048)
    assert program.sent_bytes() == weights * 15 / 16
    unmarked = re.sub(r'frontend_attributes=\{chain_id="0"\}, ', "", text)
    assert read(unmarked).collectives == program.collectives
    assert read(text.replace("async_collective_fusion", "some_fusion")).collectives == program.collectives
    renamed = unmarked.replace("async_collective_fusion", "some_fusion").replace('"AsyncCollective', '"Other')
    assert len(read(renamed).collectives) == 5  # it is these marks that the count rests on


@pytest.mark.parametrize("end", BOTH)
def test_a_second_start_with_the_same_channel_counts(end):
    text = text_of(f"sparse-core-{end}")
    start = re.search(r"^.* call-start\(.*$", text, re.MULTILINE)[0]
    twice = text.replace(start, start + "\n" + start.replace("call-start = ", "call-start.2 = "))
    assert len(read(twice).collectives) == 2 * len(read(text).collectives) == 2


@pytest.mark.parametrize("end", BOTH)
def test_only_a_slice_in_the_same_fusion_makes_an_all_reduce_a_reduce_scatter(end):
    fused = text_of(f"reduce-scatter-fused-{end}")
    (scatter,) = read(fused).collectives
    (plain,) = read(re.sub(r"ROOT (.*) dynamic-slice\(", r"ROOT \1 custom-slice(", fused)).collectives
    assert (scatter.kind, plain.kind) == ("reduce-scatter", "all-reduce")
    assert plain.sent_bytes == 2 * scatter.sent_bytes == 2 * (2 * 768 * 896) * 7 / 8


@pytest.mark.parametrize("end", BOTH)
def test_a_collective_matmul_sends_more_pieces_than_the_gather_that_it_replaces(end):
    program = read(text_of(f"collective-matmul-{end}"))
    gathered = 2 * 5120 * 14336
    assert program.sent_bytes() == gathered * 9 / 8  # 1 piece before its loop, 2 passes of 4; a gather needs 7 of 8


def test_permutes_belong_to_a_collective_matmul_by_their_loop_or_as_rings_for_a_dot():
    text = text_of("collective-matmul-0.10")
    anonymous = read(re.sub(r', metadata=\{op_name="[^"]*"\}', "", text)).collectives
    assert [one.form for one in anonymous] == ["plain"] + ["collective matmul"] * 4
    unrolled = text_of("collective-matmul-unrolled-0.10")
    resharding = read(unrolled.replace("source_target_pairs={{0,1},", "source_target_pairs={{0,0},")).collectives
    assert [one.form for one in resharding].count("plain") == unrolled.count("source_target_pairs={{0,1},") == 2


@pytest.mark.parametrize("end", BOTH)
def test_what_crosses_slices_is_kept_apart(end):
    program = read(text_of(f"slices-all-reduce-{end}"))
    x_bytes = 2 * 768 * 640
    assert program.devices == 32
    assert program.sent_bytes() == 2 * x_bytes * 15 / 16
    assert program.sent_bytes("dcn") == x_bytes / 16  # 2 · V · (2 − 1) / 2 of the shard V that the first step leaves
    with pytest.raises(ValueError, match=r"over='pcie' is no network; give 'ici' or 'dcn'"):
        program.sent_bytes("pcie")


def test_slices_that_cut_through_an_axis_leave_no_axes():
    gather = read(text_of("slices-all-gather-0.10"), axes={"A": 8, "B": 4}).collectives[1]
    assert (gather.group, gather.axes) == (16, ())


def test_cycles_are_those_of_the_fusion_and_counted_once_for_two_matmuls_in_it():
    program = read(text_of("async-fusion-0.10"))
    cycles = [matmul.cycles for matmul in program.matmuls]
    assert cycles[1] is None  # in the fusion of the first one
    assert program.cycles == cycles[0] + cycles[2]
    assert all(f'"estimated_cycles":"{cycles[i]}"' in program.text for i in (0, 2))
    scan = read(text_of("scan-0.12"))
    assert scan.cycles == 7 * scan.matmuls[0].cycles
    assert read(text_of("scan-cpu-0.12")).cycles is None


def test_a_float32_product_counts_once_and_says_its_precision():
    matmuls = read(text_of("precision-0.10")).matmuls
    assert {matmul.precision: matmul.flops for matmul in matmuls} == dict.fromkeys(
        ("default", "high", "highest"), 2 * 384 * 640 * 896
    )
    cycles = {matmul.precision: matmul.cycles for matmul in matmuls}
    assert cycles["default"] < cycles["high"] < cycles["highest"]
    assert {matmul.dtype for matmul in matmuls} == {"f32"}


def test_pallas_kernels_are_counted_by_name_and_are_no_matmuls():
    program = read(text_of("pallas-0.10"))
    assert program.code.kernels == {"jit(<lambda>)/while/body/closed_call/my_matmul/pallas_call": 5}
    assert program.flops == 0
    assert "5 × kernel" in str(program)


def test_a_loop_of_unknown_length_is_named():
    program = read(text_of("loop-until-0.10"))
    assert program.code.endless == ("while.10",)
    assert "loop while.10: length not known, counted once" in str(program)
    assert read(text_of("loop-down-0.10")).code.endless == ()


STARTS = [
    ("(f32[3,5], f32[12,5]) all-gather-start(%p), replica_groups={{0,1,2,3}}, dimensions={0}", "all-gather", 60),
    ("((f32[3,5], f32[7]), (f32[12,5], f32[28])) all-gather-start(%p, %q), replica_groups=[1,4]<=[4]", "all-gather", 88),
    ("f32[3,5] all-reduce-start(%p), replica_groups={}, to_apply=%add", "all-reduce", 15),
    ("(f32[3,5], f32[7]) all-reduce-start(%p, %q), replica_groups={}, to_apply=%add", "all-reduce", 22),
    (
        "(f32[3,5], f32[3,5], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1},{1,0}}",
        "collective-permute",
        15,
    ),
    ("((f32[3,5]), f32[12,5], u32[]) async-start(%p), calls=%wrapped", "all-gather", 60),
]


@pytest.mark.parametrize(("line", "kind", "elements"), STARTS)
def test_a_start_with_its_end_is_one_asynchronous_collective(line, kind, elements):
    done = re.search(r"([\w-]+)-start\(", line)[1]
    text = f"""HloModule m, num_partitions=4
// one collective, X=4
%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %ab = f32[] add(%a, %b)
}}
%wrapped (w: f32[3,5]) -> f32[12,5] {{
  %w = f32[3,5] parameter(0)
  ROOT %g = f32[12,5] all-gather(%w), replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
}}
ENTRY %main (p: f32[3,5], q: f32[7]) -> f32[12,5] {{
  %p = f32[3,5]{{1,0}} parameter(0)
  %q = f32[7]{{0}} parameter(1)
  %s = {line}
  ROOT %d = f32[12,5]{{1,0}} {done}-done(%s), calls=%wrapped
}}
"""
    (one,) = read(text, axes={"X": 4}).collectives
    assert (one.kind, one.axes, one.elements, one.asynchronous) == (kind, ("X",), elements, True)


def convolution(out, window, size, stride, low, spread, step):
    line = f"size={window} stride={stride} pad={low}_0 lhs_dilate={spread} rhs_dilate={step}"
    return f"""HloModule m
//
ENTRY %main (a: bf16[7,{size},3], b: bf16[{window},3,5]) -> bf16[7,{out},5] {{
  %a = bf16[7,{size},3]{{2,1,0}} parameter(0)
  %b = bf16[{window},3,5]{{2,1,0}} parameter(1)
  ROOT %c = bf16[7,{out},5]{{2,1,0}} convolution(%a, %b), window={{{line}}}, dim_labels=b0f_0io->b0f
}}
"""


SMALL = st.integers(1, 9)


@given(SMALL, SMALL, SMALL, SMALL, st.integers(-5, 9), SMALL, SMALL)
def test_only_products_of_elements_count_in_a_convolution(out, window, size, stride, low, spread, step):
    met = 0
    for o in range(out):
        for w in range(window):
            place = o * stride + w * step - low
            met += place % spread == 0 and 0 <= place // spread < size
    (matmul,) = read(convolution(out, window, size, stride, low, spread, step), axes={"X": 1}).matmuls
    assert matmul.flops == 2 * 7 * 5 * 3 * met


def test_a_batched_product_written_as_a_dilated_convolution_with_a_large_batch_is_quick():
    text = convolution(8192, 8192, 8192, 8191, 0, 8192, 1)
    (matmul,) = read(text, axes={"X": 1}).matmuls
    assert matmul.flops == 2 * 7 * 5 * 3 * 8192


def test_axes_that_do_not_fit_the_text_are_refused():
    with pytest.raises(ValueError, match=r"axes=\{'X': 3\} multiply to 3, but the text is for 16 partitions"):
        read(text_of("scan-0.10"), axes={"X": 3})


@pytest.mark.parametrize(
    ("kind", "over", "sent"),
    [
        ("all-gather", "ici", 4), ("reduce-scatter", "ici", 4), ("all-to-all", "ici", 4), ("all-reduce", "ici", 8),
        ("collective-permute", "ici", 5), ("collective-broadcast", "ici", 5), ("all-reduce", "dcn", 8), ("all-gather", "dcn", 4),
    ],
)  # fmt: skip
def test_sent_bytes_are_the_least_that_any_algorithm_sends(kind, over, sent):
    assert Collective(kind, ("X",), 5, "int8", 5, 5.0, over=over).sent_bytes == sent


@given(st.integers(2, 64), st.floats(1, 1e12))
def test_an_all_reduce_sends_what_its_reduce_scatter_and_all_gather_send(group, array_bytes):
    def sent(kind):
        return Collective(kind, ("X",), group, "f32", 1, array_bytes).sent_bytes

    assert sent("all-reduce") == pytest.approx(sent("reduce-scatter") + sent("all-gather"))


@pytest.mark.parametrize(
    ("hlo", "name", "size"),
    [
        ("f8e4m3fn", "fp8", 1), ("f8e5m2", "fp8", 1), ("f4e2m1fn", "fp4", 0.5), ("f16", "f16", 2), ("f32", "f32", 4),
        ("s4", "int4", 0.5), ("s8", "int8", 1), ("s32", "int32", 4), ("u8", "u8", 1), ("u32", "u32", 4), ("c64", "c64", 8),
        ("pred", "pred", 1),
    ],
)  # fmt: skip
def test_dtypes_have_the_librarys_names_and_their_sizes(hlo, name, size):
    text = text_of("all-gather-0.10").replace("bf16[", f"{hlo}[")
    (gather,) = read(text).collectives
    assert (gather.dtype, gather.array_bytes) == (name, size * gather.elements)


STATS = {
    "argument": 700, "output": 500, "alias": 300, "temp": 1100, "generated_code": 13,
    "host_argument": 17, "host_output": 19, "host_alias": 5, "host_temp": 23,
}  # fmt: skip


def stats(**more):
    return SimpleNamespace(**{f"{part}_size_in_bytes": size for part, size in STATS.items()}, **more)


def test_memory_of_a_tpu_has_the_compilers_peak():
    found = memory(stats(peak_memory_in_bytes=1600), available_bytes=1600, largest=(Buffer(900, "bf16[450]"),))
    assert found == Memory(1600, 700, 500, 300, 1100, 13, 17 + 19 - 5 + 23, 1600, (Buffer(900, "bf16[450]"),))
    assert found.fits
    assert not dataclasses.replace(found, peak_bytes=1601).fits


def test_memory_of_a_simulated_device_holds_its_temporaries():
    found = memory(stats(peak_memory_in_bytes=950))
    assert found.peak_bytes == 700 + 500 - 300 + 1100
    assert found.fits


def test_a_backend_without_memory_analysis_is_refused():
    with pytest.raises(ValueError, match="stats is None"):
        memory(None)


@pytest.mark.parametrize("path", sorted(HLO.glob("*.txt")), ids=lambda path: path.stem)
def test_json_keeps_everything_but_the_text(path):
    largest = (Buffer(5.0, "f32[3,5]", "a"), Buffer(3.0, "f32[3]"))
    program = read(path.read_text(), memory=Memory(7.0, 1.0, available_bytes=9.0, largest=largest))
    back = Program.from_json(json.loads(json.dumps(program.to_json())))
    assert back == dataclasses.replace(program, code=dataclasses.replace(program.code, text=""), recorded=True)
    assert (back.flops, back.cycles, back.sent_bytes()) == (program.flops, program.cycles, program.sent_bytes())
    assert str(back) == str(program)
    with pytest.raises(ValueError, match=r"'piece' was read from a record, which holds no text; compile it"):
        _ = back.text


def test_a_program_that_does_not_fit_says_what_it_needs_and_has():
    needs = Memory(18.5 * 2**30, available_bytes=15.75 * 2**30, largest=(Buffer(2.0**30, "f32[2,128,1048576]", "w"),))
    program = Program("step", "v5e:4x4", 16, {"X": 16}, needs, None, {"jax": "0.10.2"}, "2026-11-29")
    assert not program.fits
    for part in ("collectives", "matmuls", "text", "flops", "cycles"):
        with pytest.raises(ValueError, match=r"'step' does not fit v5e:4x4: a device would need 18\.5 GiB and has 15\.8 GiB"):
            getattr(program, part)
    assert "does not fit" in str(program)
    assert Program.from_json(json.loads(json.dumps(program.to_json()))) == dataclasses.replace(program, recorded=True)


def test_a_program_prints_as_a_summary():
    lines = str(read(text_of("slices-all-reduce-0.12"))).splitlines()
    assert lines == [
        "piece for v5e:4x4, D=2, X=16; compiled 2026-11-29 by jax 0.10.2",
        "memory: peak 3 GiB",
        "matmuls: 0, 0 FLOPs",
        "1 × reduce-scatter, along X: 922 kB sent",
        "1 × all-reduce, along D, dcn, asynchronous: 61.4 kB sent",
        "1 × all-gather, along X: 922 kB sent",
    ]


def test_programs_of_the_same_numbers_are_equal():
    matmul = Matmul(30, 2, 5)
    one, other = (
        Program("p", "cpu:1", 1, {}, Memory(3), Code(matmuls=(matmul,)), {"jax": "0.10.2"}, "2026-11-29") for _ in range(2)
    )
    assert one == other
    assert (one.flops, one.cycles) == (60, 10)


LIVE = """
import json, math, sys
import jax, jax.numpy as jnp
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 6)
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from scaling_lib.xla.program import Program, memory

mesh = Mesh(np.array(jax.devices()).reshape(3, 2), ("X", "Y"))

def spec(shape, *axes):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*axes)))

def compiled(fn, *specs, out=None):
    done = jax.jit(fn, out_shardings=out).lower(*specs).compile()
    told = memory(done.memory_analysis())
    about = {"name": "f", "target": "cpu:6", "axes": {"X": 3, "Y": 2}, "versions": {}, "date": "2026-11-29"}
    return done, Program.read(done.as_text(), memory=told, **about)

"""


def live(code):
    done = subprocess.run([sys.executable, "-c", LIVE + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_einsums_on_simulated_devices_take_the_flops_of_arithmetic():
    sums = [
        ("ij,jk->ik", {"i": 33, "j": 50, "k": 70}), ("ji,jk->ki", {"i": 33, "j": 50, "k": 70}),
        ("bij,bjk->ibk", {"b": 7, "i": 30, "j": 50, "k": 20}), ("bsnh,nhd->bsd", {"b": 3, "s": 20, "n": 5, "h": 7, "d": 11}),
        ("bkgh,btkh->bkgt", {"b": 3, "k": 2, "g": 5, "h": 16, "t": 30}), ("ijk,kjl->il", {"i": 10, "j": 7, "k": 20, "l": 30}),
    ]  # fmt: skip
    out = live(f"""
for notation, sizes in {sums!r}:
    given, result = notation.split("->")
    specs = [spec(tuple(sizes[c] for c in part)) for part in (*given.split(","), result)]
    f = lambda a, b, c: (lambda y, back: (y, back(c)))(*jax.vjp(lambda a, b: jnp.einsum(notation, a, b), a, b))
    done, program = compiled(f, *specs)
    print(program.flops, 3 * 2 * math.prod(sizes.values()))
""")
    rows = [line.split() for line in out.splitlines()]
    assert len(rows) == len(sums)
    assert all(found == expected for found, expected in rows)


def test_a_loop_counts_its_passes_where_the_compilers_own_analysis_counts_one():
    out = live("""
f = lambda x, w: jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]
done, program = compiled(f, spec((15, 42), "X"), spec((7, 42, 42), None, "X", "Y"))
once, one_layer = compiled(f, spec((15, 42), "X"), spec((1, 42, 42), None, "X", "Y"))
print(json.dumps([program.flops, one_layer.flops, program.to_json(), program.memory.arguments_bytes, program.fits]))
""")
    flops, one_layer, data, arguments, fits = json.loads(out)
    assert flops == 7 * one_layer == 7 * 2 * 15 // 3 * 42 * 42 // 2
    assert arguments == 4 * (15 // 3 * 42 + 7 * 14 * 21)
    assert fits
    recorded = Program.from_json(data)
    assert {(c.kind, c.times) for c in recorded.collectives} == {("all-gather", 7)}
    assert recorded.sent_bytes() == 4 * 7 * (42 * 21 * 2 / 3 + 5 * 42 / 2)


def test_collectives_written_by_hand_are_found_on_simulated_devices():
    out = live("""
def both(fn, out=P("X", "Y")):
    return jax.shard_map(fn, mesh=mesh, in_specs=P("X", "Y"), out_specs=out, check_vma=False)

cases = {
    "all-gather": both(lambda x: jax.lax.all_gather(x, "X", axis=0, tiled=True)),
    "all-reduce": both(lambda x: jax.lax.psum(x, ("X", "Y"))),
    "reduce-scatter": both(lambda x: jax.lax.psum_scatter(x, "X", scatter_dimension=1, tiled=True)),
    "all-to-all": both(lambda x: jax.lax.all_to_all(x, "X", 1, 0, tiled=True)),
    "collective-permute": both(lambda x: jax.lax.ppermute(x, "Y", [(0, 1)])),
}
for kind, fn in cases.items():
    done, program = compiled(fn, spec((15, 42), "X", "Y"))
    (one,) = program.collectives
    print(kind, one.kind, ",".join(one.axes), one.group, one.elements, one.dtype, one.sent_bytes)
""")
    each = 5 * 21
    assert [line.split() for line in out.splitlines()] == [
        ["all-gather", "all-gather", "X", "3", str(3 * each), "f32", str(4.0 * 2 * each)],
        ["all-reduce", "all-reduce", "X,Y", "6", str(each), "f32", str(2 * 4.0 * each * 5 / 6)],
        ["reduce-scatter", "reduce-scatter", "X", "3", str(each), "f32", str(4.0 * each * 2 / 3)],
        ["all-to-all", "all-to-all", "X", "3", str(each), "f32", str(4.0 * each * 2 / 3)],
        ["collective-permute", "collective-permute", "Y", "3", str(each), "f32", str(4.0 * each)],
    ]


def test_two_runs_read_the_same_numbers():
    code = """
done, program = compiled(lambda a, b: a @ b, spec((33, 30), "X", "Y"), spec((30, 14), "Y", None))
print(json.dumps(program.to_json(), sort_keys=True))
"""
    first = live(code)
    assert first == live(code)
    assert math.isclose(json.loads(first)["memory"]["arguments_bytes"], 4 * (11 * 15 + 15 * 14))
