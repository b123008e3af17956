"""The parser on pieces of real compiler text (tests/data/hlo, both ends of JAX) and on loops and groups made up here."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scaling_lib.xla.program import groups, hlo

HLO = Path(__file__).parent / "data" / "hlo"
MESHES = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=4)


def visits(name, opcode):
    module = hlo.parse((HLO / f"{name}.txt").read_text())
    return module, [visit for visit in hlo.walk(module) if visit.instruction.opcode == opcode]


def instruction(attributes, opcode="all-gather"):
    line = f"  %a = f32[5]{{0}} {opcode}(%p), {attributes}"
    text = f"HloModule m, num_partitions=6\nENTRY %main (p: f32[5]) -> f32[5] {{\n{line}\n}}\n"
    return hlo.parse(text).computations["main"].instructions["a"]


def test_an_instruction_is_cut_into_its_parts():
    module, (gather, _) = visits("scan-cpu-0.10", "all-gather")
    assert module.partitions == 6
    assert gather.instruction.arrays == (hlo.Array("f32", (42, 21)),)
    assert gather.instruction.arrays[0].elements == 42 * 21
    (source,) = gather.instruction.operands
    assert gather.computation.instructions[source].arrays == (hlo.Array("f32", (14, 21)),)
    assert gather.instruction.attributes["dimensions"] == "{0}"
    assert gather.instruction.op_name.startswith("jit(<lambda>)/while/body")


def test_tuples_are_flattened_and_comments_in_them_skipped():
    _, (start, *_) = visits("collective-matmul-0.12", "while")
    kinds = [array.dtype for array in start.instruction.arrays]
    assert kinds[:4] == ["bf16"] * 4
    assert kinds[4:] == ["u32", "u32", "u32", "s32", "u32", "u32"]
    assert start.instruction.arrays[1].shape == (1, 640, 14336)


def test_commas_and_brackets_inside_strings_do_not_cut_attributes():
    one = instruction('channel_id=3, metadata={op_name="jit(f)/a,b={c}/d(\\"e\\")"}, dimensions={1}')
    assert one.attributes["channel_id"] == "3"
    assert one.attributes["dimensions"] == "{1}"


@pytest.mark.parametrize("text", ["", "not HLO", "HloModule m\n", "HloModule m\nENTRY %main (p: f32[]) -> f32[] {\n"])
def test_what_is_no_module_is_refused(text):
    with pytest.raises(ValueError, match=r"is no HLO module; give what compiled.as_text\(\) returns"):
        hlo.parse(text)


@pytest.mark.parametrize("line", ["  %a = f32[5]{0} add", "  %a = (f32[5], f32[5] add(%b)", "  %a = f32[5]"])
def test_a_line_that_is_no_instruction_is_refused_with_the_line(line):
    with pytest.raises(ValueError, match=r"f32|add"):
        hlo.parse(f"HloModule m\nENTRY %main (p: f32[5]) -> f32[5] {{\n{line}\n}}\n")


@pytest.mark.parametrize(
    ("name", "trips"),
    [
        ("scan-cpu-0.10", [7]),  # the CPU compiler says so
        ("scan-cpu-0.12", [7]),
        ("scan-0.10", [7]),  # the TPU compiler does not
        ("scan-0.12", [7]),
        ("nested-loops-0.10", [7, 5]),  # 3 … 9 around 0 … 4
        ("loop-down-0.10", [7]),  # 23, 20, … 5
        ("loop-until-0.10", [None]),  # decided by the data
        ("collective-matmul-0.10", [2]),  # 4 steps, unrolled twice
        ("collective-matmul-0.12", [2]),
    ],
)
def test_trip_counts_of_compiled_loops(name, trips):
    module, loops = visits(name, "while")
    assert [hlo.trip_count(loop, module) for loop in loops] == trips


def loop(start, steps, limit, direction, *, flipped, carried, fused):
    """A loop's text: the counter is element 1 of (x, counter, limit); with `carried`, the limit comes from there."""
    kind = "(f32[5], s32[], s32[])"
    sides = ["%i", "%carried" if carried else "%limit"]
    if flipped:
        sides, direction = sides[::-1], {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}[direction]
    adds, last = "", "%i"
    for number, step in enumerate(steps):
        adds += f"  %step{number} = s32[] constant({step})\n  %i{number} = s32[] add({last}, %step{number})\n"
        last = f"%i{number}"
    parts = "  %p = {kind} parameter(0)\n  %i = s32[] get-tuple-element(%p), index=1\n"
    parts += "  %carried = s32[] get-tuple-element(%p), index=2\n"
    compare = f"  %limit = s32[] constant({limit})\n  ROOT %c = pred[] compare({', '.join(sides)}), direction={direction}\n"
    if fused:
        compare = (
            f"  %limit = s32[] constant({limit})\n  ROOT %c = pred[] fusion({', '.join(sides)}), kind=kLoop, calls=%compared\n"
        )
    return f"""HloModule m
%compared (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %ab = pred[] compare(%a, %b), direction={direction}
}}
%cond (p: {kind}) -> pred[] {{
{parts.format(kind=kind)}{compare}}}
%body (p: {kind}) -> {kind} {{
{parts.format(kind=kind)}{adds}  %x = f32[5] get-tuple-element(%p), index=0
  %y = f32[5] negate(%x)
  ROOT %t = {kind} tuple(%y, {last}, %carried)
}}
ENTRY %main (q: f32[5]) -> f32[5] {{
  %q = f32[5] parameter(0)
  %start = s32[] constant({start})
  %copied = s32[] copy(%start)
  %end = s32[] constant({limit})
  %in = {kind} tuple(%q, %copied, %end)
  %w = {kind} while(%in), condition=%cond, body=%body
  ROOT %out = f32[5] get-tuple-element(%w), index=0
}}
"""


@given(
    st.integers(-20, 20), st.lists(st.integers(-7, 7), min_size=1, max_size=2), st.integers(-20, 20),
    st.sampled_from(["LT", "LE", "GT", "GE", "NE"]), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_counted_loop_runs_as_often_as_python_says(start, steps, limit, direction, flipped, carried, fused):
    passes = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__, "NE": int.__ne__}[direction]
    runs, counter = 0, start
    while passes(counter, limit) and runs < 1000:
        runs, counter = runs + 1, counter + sum(steps)
    assume(runs < 1000 and sum(steps) != 0)
    module = hlo.parse(loop(start, steps, limit, direction, flipped=flipped, carried=carried, fused=fused))
    found = {visit.instruction.name: visit for visit in hlo.walk(module)}
    assert hlo.trip_count(found["w"], module) == runs
    assert found["y"].times == runs


@pytest.mark.parametrize(("start", "steps", "limit", "direction"), [(0, [-1], 5, "LT"), (0, [2], 5, "NE"), (0, [0], 5, "LE")])
def test_a_loop_that_does_not_end_has_no_trip_count(start, steps, limit, direction):
    module = hlo.parse(loop(start, steps, limit, direction, flipped=False, carried=False, fused=False))
    found = {visit.instruction.name: visit for visit in hlo.walk(module)}
    assert hlo.trip_count(found["w"], module) is None
    assert found["y"].times == 1


def test_a_counter_that_jumps_has_no_trip_count():
    text = loop(0, [1], 5, "LT", flipped=False, carried=False, fused=False).replace("%i0 = s32[] add(", "%i0 = s32[] maximum(")
    module, times = hlo.parse(text), {}
    for visit in hlo.walk(module):
        times[visit.instruction.name] = visit.times
        if visit.instruction.opcode == "while":
            assert hlo.trip_count(visit, module) is None
    assert times["y"] == 1


def test_a_counter_taken_from_another_element_has_no_trip_count():
    text = loop(0, [1], 5, "LT", flipped=False, carried=False, fused=False)
    module = hlo.parse(text.replace("tuple(%y, %i0, %carried)", "tuple(%y, %carried, %i0)"))
    (found,) = (visit for visit in hlo.walk(module) if visit.instruction.opcode == "while")
    assert hlo.trip_count(found, module) is None


def test_a_trip_count_that_the_compiler_gives_is_taken():
    known = ', backend_config={"known_trip_count":{"n":"11"}}'
    text = (HLO / "loop-until-0.10.txt").read_text()
    module = hlo.parse(re.sub(r"( while\(.*)", rf"\1{known}", text))
    (found,) = (visit for visit in hlo.walk(module) if visit.instruction.opcode == "while")
    assert hlo.trip_count(found, module) == 11


def test_the_largest_number_is_no_estimate_of_cycles():
    config = 'channel_id=1, backend_config={{"window_config":{{"estimated_cycles":"{}"}}}}'
    assert instruction(config.format(2**63 - 1)).cycles is None
    assert instruction(config.format(137170)).cycles == 137170
    assert instruction("channel_id=1").cycles is None


def test_walking_multiplies_nested_loops_and_leaves_conditions_and_reducers_out():
    module, (reduced,) = visits("nested-loops-0.10", "all-reduce")
    assert reduced.times == 7 * 5
    assert [caller.opcode for caller in reduced.callers] == ["while", "while"]
    walked = {visit.computation.name for visit in hlo.walk(module)}
    assert reduced.instruction.attributes["to_apply"].lstrip("%") not in walked
    assert not any(caller.attributes["condition"].lstrip("%") in walked for caller in reduced.callers)


def test_every_branch_of_a_conditional_runs_once():
    module, (one,) = visits("conditional-0.10", "conditional")
    assert len(one.instruction.called) == 2
    walked = [visit.computation.name for visit in hlo.walk(module) if visit.instruction.root]
    assert [walked.count(branch) for branch in one.instruction.called] == [1, 1]


def test_a_loop_in_the_second_branch_has_its_trip_count():
    text = loop(3, [2], 13, "LT", flipped=False, carried=True, fused=False)
    text = text.replace("ENTRY %main (q", "%other (r: f32[5]) -> f32[5] {\n  ROOT %r = f32[5] parameter(0)\n}\n%second (q")
    text += "ENTRY %main (m: f32[5], n: s32[]) -> f32[5] {\n  %m = f32[5] parameter(0)\n  %n = s32[] parameter(1)\n"
    text += "  ROOT %k = f32[5] conditional(%n, %m, %m), branch_computations={%other, %second}\n}\n"
    module = hlo.parse(text)
    (found,) = (visit for visit in hlo.walk(module) if visit.instruction.opcode == "while")
    assert hlo.trip_count(found, module) == 5


@pytest.mark.parametrize("version", ["0.10", "0.12"])
def test_work_on_the_sparse_core_runs_once_and_its_caller_is_a_start(version):
    _, (scatter,) = visits(f"sparse-core-{version}", "reduce-scatter")
    assert scatter.times == 1
    assert [caller.opcode for caller in scatter.callers] == ["call-start"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{0,2,4},{1,3,5}}", [(0, 2, 4), (1, 3, 5)]),
        ("[2,3]<=[6]", [(0, 1, 2), (3, 4, 5)]),
        ("[2,3]<=[3,2]T(1,0)", [(0, 2, 4), (1, 3, 5)]),
        ("{}", [(0, 1, 2, 3, 4, 5)]),
        ("mesh['axis_0'=3,'axis_1'=2] {'axis_0'}", [(0, 2, 4), (1, 3, 5)]),
        ("mesh['x'=3,'y'=2] {'y'}", [(0, 1), (2, 3), (4, 5)]),
        ("mesh['x'=3,'y'=2] {'y','x'}", [(0, 2, 4, 1, 3, 5)]),
        ("mesh['x'=6] {'x':(1)2}", [(0, 3), (1, 4), (2, 5)]),
        ("mesh['x'=6] {'x':(2)3}", [(0, 1, 2), (3, 4, 5)]),
        ("mesh['x'=3,'y'=2], device_ids=([2,3]T(1,0)) {'y'}", [(0, 3), (1, 4), (2, 5)]),
        ("mesh['x'=3,'y'=2], device_ids=(5,4,3,2,1,0) {'x'}", [(5, 3, 1), (4, 2, 0)]),
    ],
)
def test_replica_groups_in_every_form(text, expected):
    one = instruction(f"channel_id=1, replica_groups={text}, dimensions={{0}}")
    assert groups.replica_groups(one, 6) == tuple(expected)


def test_an_unknown_form_of_groups_is_refused():
    with pytest.raises(ValueError, match=r"replica_groups='rings\(3\)' of 'a'"):
        groups.replica_groups(instruction("replica_groups=rings(3)"), 6)


@given(MESHES, st.data())
def test_all_forms_name_the_same_groups_and_the_axes_are_found_back(sizes, data):
    mesh = {f"axis_{i}": size for i, size in enumerate(sizes)}
    axes = data.draw(st.lists(st.sampled_from(sorted(mesh)), min_size=1, unique=True))
    chosen = [list(mesh).index(name) for name in axes]
    order = [i for i in range(len(sizes)) if i not in chosen] + chosen
    length = math.prod(mesh[name] for name in axes)
    rows = np.arange(math.prod(sizes)).reshape(sizes).transpose(order).reshape(-1, length).tolist()
    form = ",".join
    forms = [
        "{" + form("{" + form(map(str, row)) + "}" for row in rows) + "}",
        f"[{len(rows)},{length}]<=[{form(map(str, sizes))}]T({form(map(str, order))})",
        "mesh[" + form(f"'{name}'={size}" for name, size in mesh.items()) + "] {" + form(f"'{name}'" for name in axes) + "}",
    ]
    for text in forms:
        found = groups.replica_groups(instruction(f"replica_groups={text}"), math.prod(sizes))
        assert [list(group) for group in found] == rows
        assert groups.axes_of(found, mesh) == tuple(name for name in mesh if name in axes and mesh[name] > 1)


@given(st.sampled_from([(2, 3, 5), (5, 2, 3), (4, 3), (3, 4, 2)]), st.data())
def test_groups_of_no_whole_axes_have_no_axes(sizes, data):
    mesh = dict(zip("XYZ", sizes, strict=False))
    order = data.draw(st.permutations(range(math.prod(sizes))))
    length = data.draw(st.sampled_from([n for n in range(2, len(order)) if len(order) % n == 0]))
    found = tuple(tuple(order[i : i + length]) for i in range(0, len(order), length))
    places = {place: number for number, place in enumerate(itertools.product(*map(range, sizes)))}
    whole = set()
    for r in range(1, len(sizes) + 1):
        for axes in itertools.combinations(range(len(sizes)), r):
            parts: dict[tuple[int, ...], set[int]] = {}
            for place, number in places.items():
                parts.setdefault(tuple(c for i, c in enumerate(place) if i not in axes), set()).add(number)
            whole.add(frozenset(map(frozenset, parts.values())))
    assert bool(groups.axes_of(found, mesh)) == (frozenset(map(frozenset, found)) in whole)


def test_half_an_axis_and_two_exchanged_axes_have_no_axes():
    assert groups.axes_of(((0, 1), (2, 3)), {"X": 4}) == ()
    assert groups.axes_of(((0, 1, 2), (3, 4, 5)), {"X": 3, "Y": 2}) == ()
    assert groups.axes_of(((0, 2, 4), (1, 3, 5)), {"X": 3, "Y": 2}) == ("X",)


def test_a_permute_moves_along_the_axes_in_which_its_ends_differ():
    one = instruction("source_target_pairs={{0,0},{1,3},{3,5},{5,1}}", "collective-permute")
    assert groups.pairs(one) == ((1, 3), (3, 5), (5, 1))
    assert groups.moving(groups.pairs(one), {"X": 3, "Y": 2}) == ("X",)
    assert groups.moving(((0, 3),), {"X": 3, "Y": 2}) == ("X", "Y")


def test_the_recorded_texts_stay_small():
    assert sum(len(path.read_bytes()) for path in HLO.glob("*.txt")) < 150_000
    for path in HLO.glob("*.txt"):
        assert re.match(r"// .*\n// .*, mesh .*; jax 0\.1[02].*; trimmed\n", path.read_text()), path.name


def test_metadata_of_a_kernel_that_breaks_lines_ends_no_computation():
    text = """HloModule m, num_partitions=2

ENTRY %main (x: f32[3]) -> f32[3] {
  %x = f32[3]{0} parameter(0)
  %k = f32[3]{0} custom-call(%x), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block\\": 512}"
}}, metadata={op_name="jit(f)/kernel"}
  ROOT %y = f32[3]{0} add(%k, %x)
}
"""
    (computation,) = hlo.parse(text).computations.values()
    assert computation.root.name == "y"
    assert 'op_name="jit(f)/kernel"' in computation.instructions["k"].after
