"""What programs with collectives written by hand compile to on TPUs, beside what the compiler makes by itself."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

from scaling_lib.transformer import Transformer
from scaling_lib.xla import arrays, timeline, tpu
from scaling_lib.xla.manual import dispatch, layers
from scaling_lib.xla.manual.collective_matmul import gather_matmul, matmul_scatter
from scaling_lib.xla.manual.ring_attention import ring_attention

pytestmark = pytest.mark.slow
MODEL = Transformer(n_layers=1, d_model=640, n_heads=12, n_kv_heads=4, head_dim=128, d_ff=3 * 512, vocab_size=5)
MESH = arrays.mesh(X=4)


def compiled(fn, ins, out, *specs, **how):
    return tpu.compile(jax.shard_map(fn, in_specs=ins, out_specs=out), *specs, slice="v5e:2x2", **how)


def kinds(program):
    return [(one.kind, one.axes, one.times) for one in program.collectives]


@pytest.mark.parametrize("way", [layers.automatic, layers.explicit, layers.manual])
def test_a_layer_has_two_all_reduces_on_a_tpu_in_every_way_of_sharding(way):
    mesh = arrays.mesh(X=2, Y=2)
    mesh = layers.in_types(mesh) if way is layers.explicit else mesh
    program = tpu.compile(way(mesh), *layers.specs(mesh, MODEL, B=6, T=384, dtype=jnp.bfloat16), slice="v5e:2x2")
    assert kinds(program) == 2 * [("all-reduce", ("Y",), 1)]
    assert {one.array_bytes for one in program.collectives} == {6 / 2 * 384 * 640 * 2}
    assert len(program.matmuls) == 7 + 2


def gather_then_multiply(a, b):
    return lax.all_gather(a, "X", tiled=True) @ b


def multiply_then_scatter(a, b):
    return lax.psum_scatter(a @ b, "X", tiled=True)


GATHER = (P("X"), P(None, "X")), P(None, "X"), ("A[I_X, J]", "B[J, K_X]"), {"I": 1024, "J": 4096, "K": 4 * 5120}
SCATTER = (P(None, "X"), P("X")), P("X"), ("A[I, J_X]", "B[J_X, K]"), {"I": 1024, "J": 4 * 5120, "K": 4096}
"""So many numbers of K, or of J, on each device that a block takes longer to multiply than to send: over peak ÷ link rate."""


def beside(fn, how):
    ins, out, names, sizes = how
    specs = [arrays.spec(MESH, name, **{dim: size for dim, size in sizes.items() if dim in name}) for name in names]
    return compiled(fn, ins, out, *specs, schedule=True)


@pytest.mark.parametrize(
    ("together", "blocking", "how"),
    [(gather_matmul, gather_then_multiply, GATHER), (matmul_scatter, multiply_then_scatter, SCATTER)],
)
def test_a_collective_matmul_sends_while_it_multiplies(together, blocking, how):
    plain = beside(blocking, how)
    before = timeline.of(plain)
    assert before.exposed_s == pytest.approx(before.communication_s)
    for ways in (1, 2):
        program = beside(partial(together, axis="X", ways=ways), how)
        assert kinds(program) == 3 * [("collective-permute", ("X",), 1)]
        assert all(one.asynchronous for one in program.collectives)
        block = 256 * 4096 * 2  # of the operand that is gathered, or of the result
        assert program.sent_bytes() == 3 * block
        assert plain.sent_bytes() == pytest.approx(3 * block, rel=0.07)  # the compiler pads a scattered array
        assert program.flops == plain.flops
        after = timeline.of(program)
        permutes = [span for span in after.spans if span.kind == "collective-permute"]
        assert after.exposed_s == pytest.approx(0, abs=1e-9)
        assert all(during(span, after) for span in permutes)
        assert after.total_s < before.total_s
        assert timeline.scheduled(program).exposed_s < timeline.scheduled(plain).exposed_s


def during(span, found):
    """Whether a matmul begins before a permute ends, and ends after it has begun."""
    end = span.start_s + span.duration_s
    return any(one.kind == "matmul" and one.start_s < end and one.start_s + one.duration_s > span.start_s for one in found.spans)


def test_ring_attention_sends_its_keys_beside_its_scores_and_holds_one_block_of_them():
    T, N, K, H = 1024, 6, 2, 128
    query, key = (arrays.spec(MESH, "A[B, T_X, N, H]", B=1, T=4 * T, N=heads, H=H) for heads in (N, K))
    program = compiled(partial(ring_attention, axis="X"), P(None, "X"), P(None, "X"), query, key, key)
    assert kinds(program) == 6 * [("collective-permute", ("X",), 1)]
    assert program.sent_bytes() == 3 * 2 * T * K * H * 2
    assert program.flops == 4 * 2 * 2 * T * T * N * H
    assert f"{T},{4 * T}]" not in program.text
    found = timeline.of(program)
    assert found.exposed_s < 0.25 * found.communication_s


@pytest.mark.parametrize("ragged", [True, False])
def test_a_ragged_all_to_all_sends_the_tokens_there_are_and_the_dense_way_as_many_to_each(ragged):
    n, N, D, E = 4, 24, 256, 8

    def run(tokens, chosen, weights):
        return dispatch.dispatched(partial(grouped, weights), tokens, chosen, E, "X", ragged=ragged)

    def grouped(weights, tokens, counts):
        return lax.ragged_dot(tokens, weights, counts)

    specs = (
        arrays.spec(MESH, "A[N_X, D]", N=n * N, D=D),
        arrays.spec(MESH, "A[N_X]", "int32", N=n * N),
        arrays.spec(MESH, "A[E_X, D, F]", E=E, D=D, F=D),
    )
    program = compiled(run, P("X"), P("X"), *specs)
    kind = "ragged-all-to-all" if ragged else "all-to-all"
    sent = [one.sent_bytes for one in program.collectives if one.kind == kind]
    assert sent == 2 * [(n - 1) / n * N * D * 2 * (1 if ragged else n)]
    assert {one.kind for one in program.collectives} == {kind, "all-reduce"}  # so the compiler gathers the few counts
    assert any(re.search("ragged_dot", kernel) for kernel in program.code.kernels)
