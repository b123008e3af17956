"""Bug reports about devices, collectives, profiles and JAX's changing interface: where each is handled, and tests of the rest.

Rows about notebooks and the book are in the tests of notebooks, labs and pages. What kills a process runs in one of its own.
"""

import ast
import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from scaling_lib import units
from scaling_lib.xla import arrays, simulate

ROOT = Path(__file__).parents[1]
ROWS = list(csv.DictReader((ROOT / "tests/data/practice_tooling.csv").read_text(encoding="utf-8").splitlines()))

HANDLED = {
    "TD01": "test_simulate::test_jax_started_with_too_few_devices_is_one_clear_message",
    "TD02": "test_simulate::test_a_smaller_mesh_after_a_larger_one_is_fine",
    "TD03": "test_tooling_cases::test_a_count_in_the_environment_does_not_win_over_the_mesh",
    "TD04": "test_tooling_cases::test_a_flag_that_xla_does_not_know_ends_the_process_and_none_is_written_with_a_dash",
    "TD05": "test_tooling_cases::test_every_test_of_this_process_finds_sixteen_devices",
    "TD07": "test_simulate::test_versions_print_as_one_line",
    "TD10": "test_hosts::test_a_run_that_takes_too_long_is_named",  # the driver's own time limit: that of gloo cannot be set
    "TX01": "test_tooling_cases::test_a_device_that_the_others_wait_for_too_long_ends_the_process",
    "TX02": "test_tooling_cases::test_more_devices_than_cores_are_slow_and_no_deadlock",
    "TX04": "test_labs::test_a_hanging_cell_is_ended",
    "TA01": "test_simulate::test_a_mesh_has_its_axes_and_a_sharded_sum_is_right",
    "TA02": "test_tooling_cases::test_an_explicit_mesh_refuses_what_ours_cuts_by_itself",
    "TA03": "test_prose::test_old_jax_idioms_do_not_come_back",
    "TA04": "test_tooling_cases::test_a_gathered_array_is_whole_though_jax_cannot_prove_it",
    "TA05": "test_tooling_cases::test_a_mesh_is_no_surrounding_any_more",
    "TA06": "test_tooling_cases::test_a_mesh_is_no_surrounding_any_more",
    "TA07": "test_measure::test_stream_reads_and_writes_its_buffer_in_place",
    "TA08": "test_arrays::test_bad_notation_says_what_is_wrong",
    "TA11": "test_tooling_cases::test_an_int4_array_takes_a_byte_an_element_here_and_half_of_one_in_the_model",
    "TA12": "test_tooling_cases::test_the_memory_of_a_pretend_device_is_known_of_its_program_alone",
    "TA13": "test_measure::test_the_compiling_call_is_dropped_and_the_median_taken",
    "TR01": "test_profile::test_the_folder_holds_both_files",
    "TR02": "test_profile::test_the_folder_holds_both_files",
    "TR03": "test_profile::test_a_folder_takes_one_trace",
    "TR04": "test_profile::test_two_at_a_time_are_refused_and_the_first_goes_on",
}
SOURCES = [
    path
    for pattern in ("chapters/*.md", "labs/*.md", "deploy/**/*", "scaling_lib/**/*.py")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
]


def test_every_row_is_handled_in_a_test_that_exists():
    assert {row["id"] for row in ROWS} == set(HANDLED)
    for place in HANDLED.values():
        file, name = place.split("::")
        tree = ast.parse((ROOT / f"tests/{file}.py").read_text(encoding="utf-8"))
        assert name in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, place


def run(code, **environment):
    """A process of its own with JAX on the CPU, that ends within a minute."""
    given = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, env=given)


# Devices


def test_a_count_in_the_environment_does_not_win_over_the_mesh():
    code = "from scaling_lib.xla import simulate; print(simulate.mesh(X=8).size)"
    done = run(code, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert (done.returncode, done.stdout) == (0, "8\n")


def test_a_flag_that_xla_does_not_know_ends_the_process_and_none_is_written_with_a_dash():
    done = run("import jax; jax.devices()", XLA_FLAGS="--xla_force_host_platform_device_cout=4")
    assert done.returncode
    assert "Unknown flag in XLA_FLAGS" in done.stderr
    assert "Traceback" not in done.stderr  # nothing that Python could catch: a notebook's kernel dies
    assert SOURCES
    for path in SOURCES:
        assert not re.search(r"[\u2010-\u2015\u2212]-?xla_", path.read_text(encoding="utf-8")), path


def test_every_test_of_this_process_finds_sixteen_devices():
    """Whichever comes first: the tests' configuration asks for them before any."""
    assert len(jax.devices("cpu")) >= 16


UNEVEN = """
from scaling_lib.xla import simulate
mesh = simulate.mesh(X=4)
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
def local(x):
    passes = jnp.where(jax.lax.axis_index("X") == 0, 10**9, 1)
    return jax.lax.psum(jax.lax.fori_loop(0, passes, lambda i, y: jnp.sin(y) + i, x[0]), "X")
jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("X"), out_specs=P()))(jnp.ones(4)).block_until_ready()
"""


def test_a_device_that_the_others_wait_for_too_long_ends_the_process():
    """After a minute; here after a second. No exception can be caught: work of pretend devices must be even and short."""
    limit = "--xla_cpu_collective_call_{}_timeout_seconds=1"
    done = run(UNEVEN, XLA_FLAGS=f"{limit.format('warn_stuck')} {limit.format('terminate')}")
    assert done.returncode < 0
    assert "Termination timeout" in done.stderr


def test_more_devices_than_cores_are_slow_and_no_deadlock():
    code = UNEVEN.replace("X=4", "X=64").replace("10**9", "2").replace("jnp.ones(4)", "jnp.ones(64)")
    assert run(code).returncode == 0


# JAX's interface


def copies(x, mesh, **options):
    gathered = jax.shard_map(
        lambda x: jax.lax.all_gather(x, "X", tiled=True), mesh=mesh, in_specs=P("X"), out_specs=P(), **options
    )
    return gathered(x)


def test_an_explicit_mesh_refuses_what_ours_cuts_by_itself():
    x, ours = jnp.arange(24.0).reshape(8, 3), simulate.mesh(X=4)
    theirs = jax.make_mesh((4,), ("X",), devices=ours.devices.ravel())
    assert theirs.axis_types != ours.axis_types

    def twice(mesh):
        return jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("X"), out_specs=P("X"))

    with pytest.raises(ValueError, match="in_specs passed to shard_map"):
        twice(theirs)(x)
    assert (twice(ours)(x) == 2 * x).all()
    assert (twice(theirs)(jax.device_put(x, NamedSharding(theirs, P("X")))) == 2 * x).all()


def test_a_gathered_array_is_whole_though_jax_cannot_prove_it():
    x, mesh = jnp.arange(12.0), simulate.mesh(X=4)
    with pytest.raises(ValueError, match="replication which can't be statically inferred"):
        copies(x, mesh)
    assert copies(x, mesh, check_vma=False).tolist() == x.tolist()


def test_a_mesh_is_no_surrounding_any_more():
    """`with mesh:` gives bare partition specs no mesh; and what needs a library that JAX does not bring is not used."""
    gone = re.compile(r"^\s*with mesh:|sharding\.use_mesh|jax\.xla_computation|visualize_array_sharding\(", re.MULTILINE)
    for path in SOURCES:
        if path.name != "10-jax.md":  # it shows what became of each
            assert not gone.search(path.read_text(encoding="utf-8")), path
    mesh = simulate.mesh(X=4)
    with pytest.warns(DeprecationWarning, match="with mesh"), mesh, pytest.raises(RuntimeError, match="non-empty mesh"):
        jax.jit(lambda x: x, in_shardings=P("X"))(jnp.ones(8))
    assert jax.jit(lambda x: x, in_shardings=arrays.sharding(mesh, "A[I_X]"))(jnp.ones(8)).sharding.spec == P("X")


def test_an_int4_array_takes_a_byte_an_element_here_and_half_of_one_in_the_model():
    assert jnp.ones(8, jnp.int4).nbytes == 8
    assert 8 * units.itemsize("int4") == 4


def test_the_memory_of_a_pretend_device_is_known_of_its_program_alone():
    mesh = simulate.mesh(X=4)
    assert mesh.devices[0].memory_stats() is None
    spec = arrays.spec(mesh, "A[I_X, J]", "f32", I=28, J=5)
    program = simulate.compile(jnp.tanh, spec, out=arrays.sharding(mesh, "A[I_X, J]"))
    assert program.memory.peak_bytes == 2 * 28 // 4 * 5 * units.itemsize("f32")
