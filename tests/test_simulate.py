"""Each test that needs a device count runs in a process of its own: JAX fixes the count at its first use."""

import subprocess
import sys

import pytest

from scaling_lib.xla import simulate

SETUP = "import warnings; warnings.simplefilter('error')\nimport jax\nfrom scaling_lib.xla import simulate\n"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", SETUP + code], capture_output=True, text=True, timeout=120)
    return done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def test_a_mesh_has_its_axes_and_a_sharded_sum_is_right():
    out = run(
        "import jax.numpy as jnp\nfrom jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = simulate.mesh(X=3, Y=2)\n"
        "x = jax.device_put(jnp.arange(30.0).reshape(6, 5), NamedSharding(mesh, P('X')))\n"
        "print(dict(mesh.shape), len(x.sharding.device_set), float(jax.jit(jnp.sum)(x)), [t.name for t in mesh.axis_types])"
    )
    assert out.strip() == "{'X': 3, 'Y': 2} 6 435.0 ['Auto', 'Auto']"


def test_a_smaller_mesh_after_a_larger_one_is_fine():
    assert run("simulate.mesh(X=8); print(simulate.mesh(Y=3).size)").strip() == "3"


def test_jax_started_with_too_few_devices_is_one_clear_message():
    assert run("jax.devices(); simulate.mesh(X=8)") == (
        "RuntimeError: 8 pretend devices are needed, but JAX has already started with 1: "
        "restart the kernel and make the largest mesh before any other use of JAX"
    )


@pytest.mark.parametrize(("axes", "words"), [({}, "axes is empty"), ({"X": 0}, "X=0"), ({"X": 2.5}, "X=2.5")])
def test_bad_axes_are_refused(axes, words):
    with pytest.raises(ValueError, match=words):
        simulate.mesh(**axes)


def test_versions_print_as_one_line():
    line = str(simulate.versions())
    assert "JAX" in line
    assert "cpu" in line


def test_an_old_jax_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr("jax.__version__", "0.4.35")
    with pytest.raises(RuntimeError, match=r"JAX 0\.4\.35 is too old; this course runs on 0\.10 to 0\.12: pip install"):
        simulate.versions()


def test_a_newer_jax_warns(monkeypatch):
    monkeypatch.setattr("jax.__version__", "0.13.0")
    with pytest.warns(UserWarning, match=r"newer than the tested range"):
        simulate.versions()


def test_the_newest_tested_jax_does_not_warn(monkeypatch):
    import warnings

    monkeypatch.setattr("jax.__version__", ".".join(map(str, simulate.NEWEST_JAX)) + ".1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate.versions()


def test_a_mesh_takes_only_the_devices_it_needs():
    assert run("simulate.mesh(X=8); print(len(simulate.mesh(Y=3, Z=2).devices.ravel()))").strip() == "6"


@pytest.mark.parametrize("axes", [{"X": 10**5}, {"X": 10**12, "Y": 10**12}])
def test_a_huge_mesh_is_refused_and_does_not_hang(axes):
    with pytest.raises(ValueError, match="pretend devices is too large"):
        simulate.mesh(**axes)


def test_only_cpu_devices_are_asked_for(monkeypatch):
    asked = []
    devices = simulate.jax.devices
    monkeypatch.setattr(simulate.jax, "devices", lambda kind=None: asked.append(kind) or devices(kind))
    simulate.mesh(X=1)
    assert asked == ["cpu"]


def test_jax_told_to_leave_the_cpu_out_is_one_clear_message():
    done = run("import jax\njax.devices = lambda kind=None: (_ for _ in ()).throw(RuntimeError('no cpu'))\nsimulate.mesh(X=2)")
    assert done.startswith("RuntimeError: JAX was told to leave the CPU out")
    assert "JAX_PLATFORMS=tpu,cpu" in done


def test_a_count_set_before_is_not_lowered():
    assert run("jax.config.update('jax_num_cpu_devices', 8); simulate.mesh(X=4); print(len(jax.devices('cpu')))").strip() == "8"


COMPILE = """
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from scaling_lib.xla import arrays
def compiled(mesh, out):
    a, b = arrays.spec(mesh, "A[I_X, J_Y]", "f32", I=12, J=10), arrays.spec(mesh, "B[J_Y, K]", "f32", J=10, K=7)
    return simulate.compile(jnp.matmul, a, b, out=out)
"""


def test_a_program_for_pretend_devices_has_its_collectives_and_flops():
    out = run(
        COMPILE + "mesh = simulate.mesh(X=4, Y=2)\np = compiled(mesh, arrays.sharding(mesh, 'C[I_X, K]'))\n"
        "print(p.target, p.flops, [(c.kind, c.axes, c.sent_bytes) for c in p.collectives], p.memory.arguments_bytes)"
    )
    # a device multiplies [3, 5] by [5, 7] and adds up 21 numbers of 4 bytes with one other
    assert out.strip() == f"cpu:8 {2 * 3 * 5 * 7} [('all-reduce', ('Y',), 84.0)] {4 * (3 * 5 + 5 * 7)}.0"


def test_axes_without_devices_compile_for_pretend_ones_and_a_layout_may_be_a_partition_spec():
    out = run(COMPILE + "p = compiled(arrays.mesh(X=4, Y=2), P('X'))\nprint(p.target, p.axes, p.memory.outputs_bytes)")
    assert out.strip() == f"cpu:8 {{'X': 4, 'Y': 2}} {4 * 3 * 7}.0"


def test_without_shardings_a_program_is_for_one_pretend_device():
    out = run(COMPILE + "print(simulate.compile(jnp.matmul, jnp.ones((3, 5)), jnp.ones((5, 7))).target)")
    assert out.strip() == "cpu:1"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("simulate.compile(3)", "fn=3 is not a function"),
        ("simulate.compile(jnp.sin, 'x')", "specs[0]='x' is no array"),
        ("simulate.compile(jnp.sin, jnp.ones(3), donate=1)", "donate=1 is no position"),
        ("jax.devices(); compiled(arrays.mesh(X=4, Y=2), None)", "RuntimeError: 8 pretend devices are needed"),
    ],
)
def test_what_cannot_be_compiled_is_one_clear_message(call, words):
    assert words in run(COMPILE + call)
