"""The compiler of real TPUs, without one. Compiles share this process; what concerns loading has a process of its own."""

import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from scaling_lib import hardware, units
from scaling_lib.hardware import chip
from scaling_lib.xla import libtpu, simulate, tpu
from scaling_lib.xla.tpu import oom, topology

GENERATIONS = ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"]


FOUR = "v5e:2x2"


def array(mesh, layout, *shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(mesh, layout))


def matmul(x, w):
    return x @ w


def gathered(mesh):
    return array(mesh, P("X", None), 4 * 256, 768), array(mesh, P("Y", None), 768, 1280)


# What a program is


def test_a_matmul_is_compiled_for_the_slice_with_exact_arguments():
    mesh = tpu.mesh("v5e:4x4", X=2, Y=8)
    program = tpu.compile(matmul, array(mesh, P("X", "Y"), 512, 2048), array(mesh, P("Y", None), 2048, 384), slice="v5e:4x4")
    assert (program.name, program.target, program.devices, program.axes) == ("matmul", "v5e:4x4", 16, {"X": 2, "Y": 8})
    assert program.memory.arguments_bytes == 2 * (512 * 2048 // 16 + 2048 * 384 // 8)
    assert program.memory.available_bytes == chip("v5e").usable_hbm_bytes
    assert program.versions == {"jax": jax.__version__, "libtpu": libtpu.version()}
    assert program.fits
    assert {one.axes for one in program.collectives} == {("Y",)}


def test_a_device_of_tpu7x_has_half_of_its_chips_memory():
    small = jax.ShapeDtypeStruct((256, 384), jnp.bfloat16)
    memory = tpu.compile(jnp.sin, small, slice="tpu7x:2x2x1").memory
    assert memory.available_bytes == chip("tpu7x").usable_hbm_bytes / 2


@pytest.mark.parametrize("name", GENERATIONS)
def test_every_generation_compiles_and_has_the_memory_that_the_catalog_says(name):
    target = hardware.slice_of(name)
    program = tpu.compile(matmul, *2 * [jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)], slice=target)
    assert program.devices == target.devices
    assert program.memory.arguments_bytes == 2 * 2 * 1024**2
    huge = tpu.compile(partial(jnp.multiply, 2), jax.ShapeDtypeStruct((2**19, 2**19), jnp.bfloat16), slice=target)
    assert not huge.fits
    assert huge.memory.available_bytes == target.chip.usable_hbm_bytes / target.chip.devices


@pytest.mark.parametrize("name", ["v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1"])
def test_a_single_chip_needs_no_axes(name):
    mesh = tpu.mesh(name)
    assert (mesh.size, mesh.axis_names) == (1, ())
    assert tpu.compile(matmul, array(mesh, P(), 128, 256), array(mesh, P(), 256, 384), slice=name).collectives == ()


def test_a_pod_of_8960_chips_compiles():
    mesh = tpu.mesh("v5p:16x20x28", X=64, Y=140)
    x, w = array(mesh, P("X", "Y"), 6400, 140 * 256), array(mesh, P("Y", None), 140 * 256, 512)
    assert tpu.compile(matmul, x, w, slice="v5p:16x20x28").devices == 8960


def test_a_cube_has_rings_and_gathers_over_them():
    """Where the compiler is not told that a cube wraps, it gathers over three axes by an all-reduce, twice the bytes."""
    mesh = tpu.mesh("v5p:4x4x4", X=64)
    program = tpu.compile(lambda w: w * 2, array(mesh, P("X"), 64 * 512, 1024), slice="v5p:4x4x4", out=P())
    assert [one.kind for one in program.collectives] == ["all-gather"]


def test_the_first_axes_go_over_dcn():
    slices = hardware.slice_of("v5e:4x4", count=2)
    mesh = tpu.mesh(slices, data=2, X=16)
    assert [{d.slice_index for d in row} for row in mesh.devices] == [{0}, {1}]
    split = tpu.mesh(slices, X=8, Y=4)
    assert [{d.slice_index for d in row.flat} for row in (split.devices[:4], split.devices[4:])] == [{0}, {1}]
    program = tpu.compile(
        lambda x, y: x.T @ y, array(mesh, P("data"), 512, 768), array(mesh, P("data"), 512, 256), slice=slices, out=P()
    )
    assert program.target == "2 × v5e:4x4"
    assert program.sent_bytes("dcn") > 0


def test_shardings_over_any_mesh_of_the_same_axes_are_the_same_program():
    abstract = jax.sharding.AbstractMesh((4, 4), ("X", "Y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    one, two = (
        tpu.compile(matmul, *gathered(mesh), slice="v5e:4x4", out=P("X")) for mesh in (tpu.mesh("v5e:4x4", X=4, Y=4), abstract)
    )
    assert one.to_json() == two.to_json()
    assert one.text == two.text
    assert one.collectives


def test_axes_of_kind_explicit_stay_so():
    explicit = jax.sharding.AbstractMesh((4, 2), ("X", "Y"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)

    def product(x, w):
        assert jax.typeof(x).sharding.spec == P("X", "Y")
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("X", None))

    program = tpu.compile(
        product, array(explicit, P("X", "Y"), 512, 384), array(explicit, P("Y", None), 384, 640), slice="v5e:2x4"
    )
    assert [(one.kind, one.axes) for one in program.collectives] == [("all-reduce", ("Y",))]


def test_an_ambiguous_layout_of_explicit_axes_is_one_clear_message():
    explicit = jax.sharding.AbstractMesh((4,), ("X",), axis_types=(jax.sharding.AxisType.Explicit,))
    with pytest.raises(ValueError, match=r"cannot be traced with these specs: Contracting dimensions are sharded"):
        tpu.compile(matmul, array(explicit, P(None, "X"), 512, 384), array(explicit, P("X", None), 384, 640), slice="v5e:2x2")


def test_errors_of_the_function_itself_are_left_alone():
    with pytest.raises(FileNotFoundError):
        tpu.compile(lambda x: x + len(Path("/no/such/file").read_text()), jax.ShapeDtypeStruct((8,), "float32"), slice="v5e:1x1")


def test_a_mesh_in_an_order_of_ones_own_is_kept():
    mesh = tpu.mesh("v5e:2x2", X=4)
    turned = jax.sharding.Mesh(mesh.devices[::-1], ("X",), axis_types=mesh.axis_types)
    shift = jax.shard_map(
        lambda x: jax.lax.ppermute(x, "X", [(i, (i + 1) % 4) for i in range(4)]), mesh=turned, in_specs=P("X"), out_specs=P("X")
    )
    program = tpu.compile(shift, array(turned, P("X"), 512, 256), slice="v5e:2x2")
    assert [one.kind for one in program.collectives] == ["collective-permute"]


@pytest.mark.parametrize("wrap", [jax.jit, lambda fn: fn], ids=["jitted", "plain"])
def test_donated_arguments_are_taken_over_and_results_laid_out(wrap):
    mesh = tpu.mesh("v5e:2x2", X=4)
    program = tpu.compile(
        wrap(lambda x: x + 1),
        array(mesh, P("X"), 512, 256),
        slice="v5e:2x2",
        donate=(0,),
        out=NamedSharding(mesh, P("X")),
        name="add",
    )
    assert program.name == "add"
    assert program.memory.aliased_bytes == program.memory.outputs_bytes == 512 * 256 * 2 // 4


def test_a_function_may_name_axes_without_a_mesh():
    mesh = tpu.mesh("v5e:2x2", X=4)

    def total(x):
        return jax.shard_map(lambda part: jax.lax.psum(part, "X"), in_specs=P("X"), out_specs=P())(x)

    program = tpu.compile(total, array(mesh, P("X"), 512, 256, dtype="float32"), slice="v5e:2x2")
    assert [(one.kind, one.array_bytes) for one in program.collectives] == [("all-reduce", 128 * 256 * 4)]


def test_the_timetable_is_kept_when_asked_for():
    mesh = tpu.mesh("v5e:4x4", X=16)
    specs = array(mesh, P("X"), 1024, 1280), array(mesh, P("X"), 1280, 768)
    assert "computation_schedules" in tpu.compile(matmul, *specs, slice="v5e:4x4", schedule=True).code.schedule
    assert tpu.compile(matmul, *specs, slice="v5e:4x4").code.schedule == ""


def test_two_compiles_give_equal_numbers():
    mesh = tpu.mesh("v5e:4x4", X=4, Y=4)
    one, two = (tpu.compile(matmul, *gathered(mesh), slice="v5e:4x4") for _ in range(2))
    assert one == two


# Out of memory


def test_what_does_not_fit_says_what_it_needs_and_which_buffers_are_large():
    spec = jax.ShapeDtypeStruct((65536, 65536), jnp.bfloat16)
    program = tpu.compile(lambda p: p["w"] @ p["v"], {"w": spec, "v": spec}, slice="v5e:1x1")
    assert (program.fits, program.code) == (False, None)
    assert program.memory.peak_bytes == 3 * 2 * 65536**2
    assert program.memory.available_bytes == chip("v5e").usable_hbm_bytes
    assert sorted((b.bytes, b.shape, b.name) for b in program.memory.largest) == [
        (2 * 65536**2, "bf16[65536,65536]", "jit(<lambda>)/dot_general"),
        (2 * 65536**2, "bf16[65536,65536]", "p['v']"),
        (2 * 65536**2, "bf16[65536,65536]", "p['w']"),
    ]
    with pytest.raises(ValueError, match=r"does not fit v5e:1x1: a device would need 24 GiB and has 15\.[78]"):
        _ = program.text


def test_buffers_are_per_device_and_intermediate_ones_have_their_operation():
    mesh = tpu.mesh("v5e:2x2", X=4)
    x, w = array(mesh, P("X"), 5 * 2**17, 256), array(mesh, P(), 256, 7 * 2**13)
    program = tpu.compile(lambda x, w: (jnp.sin(x @ w) @ w.T).sum() + (x @ w).sum(), x, w, slice="v5e:2x2")
    largest = program.memory.largest[0]
    assert (largest.bytes, largest.shape) == (2 * 163840 * 57344, "bf16[163840,57344]")
    assert largest.name == "jit(<lambda>)/dot_general"
    assert 0.99 * program.memory.peak_bytes < sum(b.bytes for b in program.memory.largest) <= program.memory.peak_bytes


def test_a_smaller_memory_can_be_asked_for():
    spec = jax.ShapeDtypeStruct((16384, 16384), jnp.bfloat16)
    limit = {"xla_tpu_max_hbm_size_mib": 1000}
    program = tpu.compile(matmul, spec, spec, slice="v5e:1x1", options=limit)
    assert not program.fits
    assert program.memory.available_bytes == 1000 * units.MIB
    small = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    assert tpu.compile(matmul, small, small, slice="v5e:1x1", options=limit).memory.available_bytes == 1000 * units.MIB


@pytest.mark.parametrize(
    ("message", "needed", "available"),
    [
        (
            "Ran out of memory on HBM, the total memory required for HLO temporaries (24.00G) exceeds available HBM (15.75G).",
            24 * units.GIB,
            15.75 * units.GIB,
        ),
        (
            "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries "
            "(980.50M) exceeds available HBM (512.00M). HLO module: jit_f.",
            980.5 * units.MIB,
            512 * units.MIB,
        ),
        (
            "Ran out of memory in memory space hbm. Used 17.32G of 15.75G hbm. Exceeded hbm capacity by 1.57G.",
            17.32 * units.GIB,
            15.75 * units.GIB,
        ),
    ],
)
def test_forms_of_the_refusal(message, needed, available):
    assert oom.refusal(message) == (needed, available)


def test_too_much_vmem_in_a_kernel_is_one_readable_line():
    from jax.experimental import pallas as pl

    def double(x_ref, y_ref):
        y_ref[...] = x_ref[...] * 2

    spec = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    with pytest.raises(ValueError, match=r"(?i)the TPU compiler refuses double: .*vmem") as caught:
        tpu.compile(lambda x: pl.pallas_call(double, out_shape=spec)(x), spec, slice="v5e:1x1", name="double")
    assert len(str(caught.value).splitlines()) == 1


# What is refused


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5e:32x32", r"shape='32x32' cannot be built from v5e: a pod has 256 chips; nearest: v5e:16x16"),
        ("v5p:3x3x3", r"every axis is a multiple of 4; nearest"),
        ("v7:2x2", r"shape='2x2' cannot be built from tpu7x: its torus has 3 axes"),
        ("v9:2x2", r"chip='v9' is unknown"),
        ("v5p-128", r"write 'v5p:4x4x4'"),
        ("v5p:4x4x512", r"an axis of 512 chips; the TPU compiler takes at most 256"),
        ("h100:8x4", r"is not of TPUs"),
        ("here", r"does not read as chip:shape"),
    ],
)
def test_a_slice_that_the_compiler_would_die_of_is_refused(name, words):
    for use in (tpu.mesh, partial(tpu.compile, matmul, slice=name)):
        with pytest.raises(ValueError, match=words):
            use(name) if use is tpu.mesh else use()


@pytest.mark.parametrize(
    ("name", "axes", "words"),
    [
        ("v5e:4x4", {"X": 3, "Y": 5}, r"X=3 × Y=5 is 15 devices, but v5e:4x4 has 16; give axes of, for example, 4 × 4 or 2 × 8"),
        ("v5e:4x4", {}, r"a mesh without axes is one device, but v5e:4x4 has 16; give axes of, for example, 16"),
        ("tpu7x:2x2x1", {"X": 4}, r"X=4 is 4 devices, but tpu7x:2x2x1 has 8"),
        ("v5e:4x4", {"X": 2.5}, r"X=2\.5 is not a size"),
        ("v5p:16x20x28", dict.fromkeys("ABCDEFGHIJKL", 2), r"L=2 is 4096 devices, but v5p:16x20x28 has 8960$"),
    ],
)
def test_axes_that_do_not_make_the_slice_are_refused(name, axes, words):
    with pytest.raises(ValueError, match=words):
        tpu.mesh(name, **axes)


def test_axes_that_jax_cannot_lay_along_the_torus_are_one_clear_message():
    axes = {"A": 7, "B": 5, "C": 256}
    if jax.__version_info__ < (0, 11):
        with pytest.raises(ValueError, match=r"cannot lay axes of 7 × 5 × 256 along the torus"):
            tpu.mesh("v5p:16x20x28", **axes)
    else:
        assert tpu.mesh("v5p:16x20x28", **axes).size == 8960


def test_axes_that_do_not_split_over_the_slices_are_refused():
    eight = hardware.slice_of("v5e:2x4", count=3)
    with pytest.raises(ValueError, match=r"first axis a multiple of 3|24"):
        tpu.mesh(eight, X=8)
    assert tpu.mesh(eight, X=2, Y=12).size == 24


compiled = partial(tpu.compile, slice=FOUR)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: compiled("f"), r"fn='f' is not a function"),
        (lambda m: compiled(matmul, array(m, P("X"), 510, 256)),
         r"specs\[0\] has the shape \(510, 256\): its dimension 0, of size 510, does not divide over X=4; 508 or 512 would do"),
        (lambda m: compiled(matmul, {"w": array(m, P("X"), 3, 256)}), r"specs\[0\]\['w'\] has .*; 4 would do"),
        (lambda m: compiled(matmul, array(m, P("X"), 512, 256), slice="v5e:4x4"), r"X=4 is 4 devices, but v5e:4x4 has 16"),
        (lambda m: compiled(matmul, array(m, P("X"), 512, 256), array(tpu.mesh("v5e:2x2", Y=4), P(), 256, 8)),
         r"over two meshes, \{'X': 4\} and \{'Y': 4\}"),
        (lambda m: compiled(matmul, 3, donate=(2,)), r"donate=2 is no position of an argument; they are 0 to 0"),
        (lambda m: compiled(np.linalg.norm, array(m, P("X"), 512)), r"fn=norm is not a JAX function"),
        (lambda m: compiled(lambda x: x * 2, 3), r"specs\[0\]=3 is no array"),
        (lambda m: compiled(lambda x: x * 2, array(m, P("X"), 512), out=P("Z")), r"axis 'Z'; the mesh .* has: X"),
        (lambda m: compiled(lambda x: x * 2, array(m, P("X"), 512), out="X"), r"out='X' is no PartitionSpec"),
        (lambda m: compiled(lambda x: x[:510], array(m, P("X"), 512), out=P("X")),
         r"out=P\('X',?\) cuts dimension 0 of the result, of size 510, into 4"),
        (lambda m: compiled(lambda x: float(x.sum()), array(m, P("X"), 512)), r"fn=<lambda> is not a JAX function"),
        (lambda m: compiled(lambda x: "text", array(m, P("X"), 512)), r"is not a JAX function: .*'str'"),
        (lambda m: compiled(matmul, array(m, P("X"), 512)), r"fn=matmul cannot be traced .* missing 1 required"),
        (lambda m: compiled(matmul, array(m, P("X"), 512, 256), array(m, P(), 255, 8)),
         r"fn=matmul cannot be traced .* contracting .*\(line \d+ of matmul\)"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), options={"fast": 1}), r"options\['fast'\]=1 is refused"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), options={"xla_tpu_hbm_bw": "wide"}),
         r"options\['xla_tpu_hbm_bw'\]='wide' is refused"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), options={"optimization_level": [3]}),
         r"options\['optimization_level'\]=\[3\]: an option has"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), options="fast"), r"options='fast' is no mapping"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), options={3: True}), r"options\[3\]=True: an option has a name"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), options={"xla_tpu_max_hbm_size_mib": 0}),
         r"options\['xla_tpu_max_hbm_size_mib'\]=0 is not a size"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), donate=0.0), r"donate=0\.0 is no position"),
        (lambda m: compiled(lambda x: x, array(m, P("X"), 512), out=(P("X"), None)), r"out is no tree like the result"),
        (lambda m: compiled(lambda x: (yield x), array(m, P("X"), 512)), r"fn=<lambda> is not a JAX function: .* generator"),
        (lambda m: compiled(jnp.linalg.eig, jax.ShapeDtypeStruct((128, 128), jnp.float32)),
         r"fn=eig cannot be traced .* not found for platform tpu"),
    ],
)  # fmt: skip
def test_what_does_not_do_is_one_clear_message(call, words):
    with pytest.raises(ValueError, match=words) as caught:
        call(tpu.mesh(FOUR, X=4))
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_function_bound_to_a_simulated_mesh_is_refused_with_the_way_out():
    pretend = simulate.mesh(X=1)
    total = jax.shard_map(lambda part: jax.lax.psum(part, "X"), mesh=pretend, in_specs=P("X"), out_specs=P())
    with pytest.raises(ValueError, match=r"holds a mesh of its own: leave it out of shard_map"):
        tpu.compile(total, array(tpu.mesh("v5e:2x2", X=4), P("X"), 512), slice="v5e:2x2")


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (lambda one: jax.jit(jnp.sin, in_shardings=one, out_shardings=one), [jax.ShapeDtypeStruct((512,), jnp.float32)]),
        (lambda one: jax.jit(lambda: jnp.arange(512), out_shardings=one), []),
        (lambda one: lambda: jnp.arange(512), []),  # nothing says where
    ],
)
def test_a_function_that_jit_took_for_other_devices_is_refused_with_the_way_out(fn, specs):
    one = jax.NamedSharding(simulate.mesh(X=1), P("X"))
    with pytest.raises(ValueError, match=r"fn=f is for devices of its own.*not for v5e:1x1: leave in_shardings.* needs `out`"):
        tpu.compile(fn(one), *specs, slice="v5e:1x1", name="f")


def test_a_function_without_arguments_compiles_where_out_says():
    mesh = tpu.mesh("v5e:2x2", X=4)
    program = tpu.compile(lambda: jnp.arange(512), slice="v5e:2x2", out=jax.NamedSharding(mesh, P("X")))
    assert (program.devices, program.memory.outputs_bytes) == (4, 512)


def test_every_slice_that_can_be_built_is_taken_or_refused_by_name():
    for kind in ("v4", "v5e", "v5p", "v6e", "tpu7x"):
        for shape in hardware.tpu_shapes(chip(kind)):
            found = hardware.Slice(chip(kind), shape)
            if max(shape) <= topology.MOST_CHIPS_AN_AXIS:
                assert topology.resolve(found) == found
            else:
                with pytest.raises(ValueError, match="at most 256"):
                    topology.resolve(found)


# Loading: each in a process of its own

SETUP = """
import jax, jax.numpy as jnp
from scaling_lib.xla import simulate, tpu
def compiled(slice="v5e:1x1"):
    return tpu.compile(lambda a: a @ a, jax.ShapeDtypeStruct((256, 256), jnp.bfloat16), slice=slice)
"""


def start(code: str, **environment: str) -> subprocess.Popen:
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("TPU_", "ALLOW_MULTIPLE", "JAX_"))}
    return subprocess.Popen(
        [sys.executable, "-c", SETUP + textwrap.dedent(code)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**settings, **environment},
    )  # fmt: skip


def finish(process: subprocess.Popen) -> tuple[str, str]:
    """Standard output and error of a process that must end well."""
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out.strip(), err


def test_compiling_beside_a_simulated_mesh_is_silent_and_leaves_no_files(tmp_path):
    code = """
        mesh = simulate.mesh(X=2, Y=4)
        spec = jax.ShapeDtypeStruct((512, 256), jnp.bfloat16, sharding=jax.NamedSharding(mesh, jax.P("X", "Y")))
        program = tpu.compile(lambda a: a @ a.T, spec, slice="v5e:2x4")
        values = jax.device_put(jnp.arange(512.0 * 256).reshape(512, 256), spec.sharding)
        big = jax.ShapeDtypeStruct((2**17, 2**17), jnp.bfloat16)
        print(program.axes, float(jnp.sum(values[:2, :3])), tpu.compile(jnp.sin, big, slice="v5e:1x1").fits, len(jax.devices()))
    """
    assert finish(start(code, TMPDIR=str(tmp_path))) == ("{'X': 2, 'Y': 4} 774.0 False 8", "")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_plain_jax_is_silent_with_libtpu_installed_and_hides_nothing():
    assert finish(start("print(jax.devices()[0].platform, jax.config.jax_platforms)")) == ("cpu None", "")
    assert finish(start("print(jax.config.jax_platforms)", JAX_PLATFORMS="cpu")) == ("cpu", "")


def test_two_processes_and_four_threads_compile_at_once():
    code = """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(4) as pool:
            print(*pool.map(lambda name: compiled(name).devices, ["v5e:1x1", "v6e:2x2", "v5p:1x1x1", "v5e:2x2"]))
    """
    both = [start(code), start(code)]
    assert [finish(process) for process in both] == [("1 4 1 4", "")] * 2


def test_a_process_forked_after_loading_is_told_so_and_one_forked_before_compiles():
    code = """
        import os, warnings
        warnings.simplefilter("ignore")
        def child():
            if pid := os.fork():
                return os.waitpid(pid, 0)
            try:
                print(compiled().fits, flush=True)
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        child()
        compiled()
        child()
    """
    out, _ = finish(start(code))
    before, after = out.splitlines()
    assert before == "True"
    assert "forked after the TPU compiler was loaded, where it would wait forever; start processes with multiprocessing" in after


def test_libtpu_held_by_another_process_is_a_clear_message():
    holder = start("compiled(); print('holding', flush=True); input()", ALLOW_MULTIPLE_LIBTPU_LOAD="0")
    try:
        assert holder.stdout.readline() == "holding\n"
        code = "try: compiled()\nexcept tpu.TPUCompilerUnavailable as error: print(error)"
        out, _ = finish(start(code, ALLOW_MULTIPLE_LIBTPU_LOAD="0"))
    finally:
        holder.kill()
        holder.communicate()
    assert out.startswith("another process on this machine holds the TPU compiler: set ALLOW_MULTIPLE_LIBTPU_LOAD=1")


@pytest.mark.parametrize("state", ["missing", "empty", "cut", "noise"])
def test_a_half_installed_libtpu_is_a_clear_message_and_jax_lives(tmp_path, state):
    package = tmp_path / "libtpu"
    package.mkdir()
    (package / "__init__.py").write_text("def get_library_path(): return __file__.replace('__init__.py', 'libtpu.so')")
    whole = libtpu.library()
    if state != "missing":
        with whole.open("rb") as file:
            content = {"empty": b"", "cut": file.read(2**20), "noise": bytes(range(256)) * 64}[state]
        (package / "libtpu.so").write_bytes(content)
    code = "try: compiled()\nexcept tpu.TPUCompilerUnavailable as error: print(error)\nprint(jax.devices()[0].platform)"
    out, err = finish(start(code, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path])))
    message, platform = out.splitlines()
    assert message.startswith(f"{package / 'libtpu.so'} is missing or damaged: pip install --force-reinstall --no-deps libtpu==")
    assert (platform, err) == ("cpu", "")


def test_without_libtpu_the_message_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(libtpu, "library", lambda: None)
    with pytest.raises(
        tpu.TPUCompilerUnavailable, match=rf'not installed: pip install "jax\[tpu\]=={jax.__version__}" \(Linux on x86-64'
    ):
        tpu.mesh("v5e:1x1")


@pytest.mark.parametrize("node", ["accel0", "vfio/0"])
def test_on_a_machine_with_a_tpu_nothing_is_set(tmp_path, monkeypatch, node):
    for name in ("TPU_SKIP_MDS_QUERY", "TPU_ACCELERATOR_TYPE", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    (tmp_path / node).parent.mkdir(exist_ok=True)
    (tmp_path / node).touch()
    libtpu.prepare(tmp_path)
    assert dict(os.environ) == before


def test_elsewhere_what_the_user_set_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5p-128")
    monkeypatch.delenv("TPU_MIN_LOG_LEVEL", raising=False)
    (tmp_path / "vfio").mkdir()
    (tmp_path / "vfio" / "vfio").touch()  # there without any device
    libtpu.prepare(tmp_path)
    assert (os.environ["TPU_ACCELERATOR_TYPE"], os.environ["TPU_MIN_LOG_LEVEL"]) == ("v5p-128", "3")
