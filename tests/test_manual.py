"""Programs with collectives written by hand: the numbers of one device, and what each compiles to."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from scaling_lib.transformer import Transformer
from scaling_lib.xla import arrays, llama, simulate
from scaling_lib.xla.manual import dispatch, layers
from scaling_lib.xla.manual.collective_matmul import gather_matmul, matmul_scatter
from scaling_lib.xla.manual.ring_attention import ring_attention
from scaling_lib.xla.training import blocks

pytestmark = pytest.mark.usefixtures("compiles_quickly")
MODEL = Transformer(n_layers=1, d_model=35, n_heads=12, n_kv_heads=3, head_dim=6, d_ff=21, vocab_size=5)
WAYS = [layers.automatic, layers.explicit, layers.manual]


def values(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def mapped(fn, n, ins, out):
    return jax.jit(jax.shard_map(fn, mesh=simulate.mesh(X=n), in_specs=ins, out_specs=out))


def gradients(run, *arrays):
    """Of a sum of sines, so that they differ from number to number."""
    return jax.jit(jax.grad(lambda *arrays: jnp.sin(run(*arrays)).sum(), tuple(range(len(arrays)))))(*arrays)


def sizes(array, **all):
    return {name: size for name, size in all.items() if name in array}


def kinds(program):
    return sorted((one.kind, one.axes, one.times) for one in program.collectives)


# One layer, three ways


def mesh_of(way, mesh):
    return layers.in_types(mesh) if way is layers.explicit else mesh


@cache
def layer_of_one_device():
    """Weights and x, the stream after the layer, and the gradients."""
    shapes = jax.tree.leaves_with_path(layers.specs(simulate.mesh(X=1, Y=1), MODEL, B=4, T=5)[0])
    weights = {name.key: values(i, *one.shape) / 6 for i, ((name,), one) in enumerate(shapes)}
    given = weights, values(99, 4, 5, MODEL.D)
    return given, jax.jit(blocks.layer)(*given), gradients(blocks.layer, *given)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_and_its_gradients_are_the_same_in_every_way_of_sharding(way):
    given, wanted, slopes = layer_of_one_device()
    mesh = mesh_of(way, simulate.mesh(X=2, Y=3))
    layout = jax.tree.map(lambda one: one.sharding, layers.specs(mesh, MODEL, B=4, T=5))
    placed = jax.device_put(given, layout)
    run = way(mesh)
    found = run(*placed)
    assert found.sharding.is_equivalent_to(layout[1], 3)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    with jax.set_mesh(mesh):
        sharded = gradients(run, *placed)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-4), sharded, slopes)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_has_two_all_reduces_in_every_way_of_sharding(way):
    mesh = mesh_of(way, simulate.mesh(X=2, Y=3))
    program = simulate.compile(way(mesh), *layers.specs(mesh, MODEL, B=4, T=5))
    assert kinds(program) == 2 * [("all-reduce", ("Y",), 1)]
    assert {one.array_bytes for one in program.collectives} == {4 / 2 * 5 * MODEL.D * 4}


def test_an_explicit_layer_has_its_sharding_in_its_type_and_an_automatic_one_has_not():
    mesh = arrays.mesh(X=2, Y=3)
    typed = {way: jax.eval_shape(way(on := mesh_of(way, mesh)), *layers.specs(on, MODEL, B=4, T=5)) for way in WAYS[:2]}
    assert typed[layers.explicit].sharding.spec == P("X", None, None)
    assert typed[layers.automatic].sharding is None


# Collective matmuls


@pytest.mark.parametrize("n", [1, 3, 4])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_gathering_matmul_is_the_matmul(n, ways):
    a, b = values(0, n * 3, 5), values(1, 5, n * 7)
    run = mapped(partial(gather_matmul, axis="X", ways=ways), n, (P("X"), P(None, "X")), P(None, "X"))
    np.testing.assert_allclose(run(a, b), a @ b, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 4])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_scattering_matmul_is_the_matmul(n, ways):
    a, b = values(0, n * 3, n * 5), values(1, n * 5, 7)
    run = mapped(partial(matmul_scatter, axis="X", ways=ways), n, (P(None, "X"), P("X")), P("X"))
    np.testing.assert_allclose(run(a, b), a @ b, atol=1e-5)


SPECS = {gather_matmul: ((P("X"), P(None, "X")), P(None, "X")), matmul_scatter: ((P(None, "X"), P("X")), P("X"))}
CUT = {gather_matmul: ("A[I_X, J]", "B[J, K_X]"), matmul_scatter: ("A[I, J_X]", "B[J_X, K]")}


@pytest.mark.parametrize("fn", SPECS)
@pytest.mark.parametrize("ways", [1, 2])
def test_a_collective_matmul_sends_what_the_collective_would_and_both_ways_no_more(fn, ways):
    run, mesh = mapped(partial(fn, axis="X", ways=ways), 4, *SPECS[fn]), simulate.mesh(X=4)
    given = (arrays.spec(mesh, array, "f32", **sizes(array, I=12, J=20, K=28)) for array in CUT[fn])
    program = simulate.compile(run, *given)
    assert kinds(program) == 3 * [("collective-permute", ("X",), 1)]
    block = 3 * 20 if fn is gather_matmul else 3 * 28
    assert program.sent_bytes() == 3 * block * 4
    assert program.flops == 2 * 12 * 20 * 28 / 4


def test_both_ways_round_send_to_both_neighbors():
    run, mesh = mapped(partial(gather_matmul, axis="X", ways=2), 5, *SPECS[gather_matmul]), simulate.mesh(X=5)
    given = (arrays.spec(mesh, array, "f32", **sizes(array, I=15, J=3, K=35)) for array in CUT[gather_matmul])
    pairs = re.findall(r"collective-permute\(.*source_target_pairs=\{\{0,(\d)\}", simulate.compile(run, *given).text)
    assert sorted(pairs) == ["1", "1", "4", "4"]


@pytest.mark.parametrize("fn", SPECS)
@pytest.mark.parametrize("ways", [1, 2])
def test_a_collective_matmul_has_gradients(fn, ways):
    a, b = values(0, 9, 15), values(1, 15, 21)
    run = mapped(partial(fn, axis="X", ways=ways), 3, *SPECS[fn])
    for one, other in zip(gradients(run, a, b), gradients(jnp.matmul, a, b), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_other_ways_and_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="ways=3 is no way"):
        mapped(partial(gather_matmul, axis="X", ways=3), 3, (P("X"), P()), P())(values(0, 3, 5), values(1, 5, 7))
    with pytest.raises(ValueError, match="7 rows, which 3 devices cannot share"):
        mapped(partial(matmul_scatter, axis="X"), 3, (P(None, "X"), P("X")), P("X"))(values(0, 7, 3), values(1, 3, 5))


# Ring attention


def ring(n, **how):
    return mapped(partial(ring_attention, axis="X", **how), n, P(None, "X"), P(None, "X"))


attention = jax.jit(llama.dense_attention)


def attended(B, T, N, K, H):
    return values(0, B, T, N, H), values(1, B, T, K, H), values(2, B, T, K, H)


@pytest.mark.parametrize(("n", "causal"), [(1, True), (4, True), (3, False)])
def test_ring_attention_is_attention(n, causal):
    given = attended(2, n * 7, 6, 3, 5)
    positions = np.arange(n * 7)[None] if causal else np.full((1, n * 7), n * 7)
    np.testing.assert_allclose(ring(n, causal=causal)(*given), attention(*given, positions), atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_ring_attention_has_the_gradients_of_attention_without_nan_from_masked_blocks(causal):
    given = attended(1, 9, 4, 2, 5)
    positions = np.arange(9)[None] if causal else np.full((1, 9), 9)
    found = gradients(ring(3, causal=causal), *given)
    wanted = gradients(lambda *all: llama.dense_attention(*all, positions), *given)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_ring_attention_of_bf16_is_bf16_and_sums_in_float32():
    given = [one.astype(jnp.bfloat16) for one in attended(1, 9, 4, 2, 5)]
    found = ring(3)(*given)
    assert found.dtype == jnp.bfloat16
    exact = attention(*(one.astype(jnp.float32) for one in given), np.arange(9)[None])
    np.testing.assert_allclose(found.astype(jnp.float32), exact, atol=2e-2)  # two roundings of 2**-9, of numbers up to 4


def test_ring_attention_sends_keys_and_values_to_each_other_device_and_holds_no_row_of_scores():
    mesh = simulate.mesh(X=5)
    query, key = (arrays.spec(mesh, "A[B, T_X, N, H]", "f32", B=2, T=15, N=heads, H=7) for heads in (6, 3))
    program = simulate.compile(ring(5), query, key, key)
    assert {one.kind for one in program.collectives} == {"collective-permute"}
    assert program.sent_bytes() == 4 * 2 * key.size / 5 * 4
    assert program.flops == 2 * 2 * 2 * 15 * 15 / 5 * 6 * 7


# Experts


def with_experts(n, n_experts, ragged):
    def run(tokens, chosen, weights):
        def experts(sorted_tokens, counts):
            return jax.lax.ragged_dot(sorted_tokens, weights, counts)

        return dispatch.dispatched(experts, tokens, chosen, n_experts, "X", ragged=ragged)

    return run


@pytest.mark.parametrize("routing", ["mixed", "all to one", "none to the first device"])
def test_every_token_meets_its_expert_and_comes_home(routing):
    n, own, N, D = 3, 2, 7, 5
    tokens, weights = values(0, n * N, D), values(1, n * own, D, D)
    low = {"mixed": 0, "all to one": 5, "none to the first device": 2}[routing]
    chosen = jnp.asarray(np.random.default_rng(2).integers(low, n * own, n * N))
    run = mapped(with_experts(n, n * own, ragged=False), n, (P("X"), P("X"), P("X")), P("X"))
    np.testing.assert_allclose(run(tokens, chosen, weights), jax.jit(dense)(tokens, chosen, weights), atol=1e-5)


def dense(tokens, chosen, weights):
    return jnp.einsum("ND,NDE->NE", tokens, weights[chosen])


def test_experts_and_their_tokens_have_gradients():
    tokens, weights = values(0, 3 * 7, 5), values(1, 6, 5, 5)
    chosen = jnp.asarray(np.random.default_rng(2).integers(0, 6, 3 * 7))
    run = mapped(with_experts(3, 6, ragged=False), 3, P("X"), P("X"))
    pairs = (gradients(lambda tokens, weights, fn=fn: fn(tokens, chosen, weights), tokens, weights) for fn in (run, dense))
    for one, other in zip(*pairs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def numpy_ragged(rows, counts, room):
    """What every device has after a ragged all-to-all, by the rule that XLA's documentation gives."""
    n = len(counts)
    out = np.zeros((n, room, rows.shape[-1]), np.float32)
    for to in range(n):
        at = 0
        for source in range(n):
            start, size = counts[source, :to].sum(), counts[source, to]
            out[to, at : at + size] = rows[source, start : start + size]
            at += size
    return out


def test_the_dense_exchange_does_what_a_ragged_one_is_defined_to():
    counts = np.array([[0, 4, 3], [7, 0, 0], [2, 2, 1]])
    rows = np.asarray(values(0, 3, 7, 5))
    run = mapped(lambda rows, counts: dispatch._dense(rows[0], counts, 15, "X")[None], 3, (P("X"), P()), P("X"))
    np.testing.assert_array_equal(run(rows, jnp.asarray(counts)), numpy_ragged(rows, counts, 15))


def test_the_dense_way_sends_as_many_rows_to_every_device_as_it_has_there_and_back():
    n, N, D, own = 3, 7, 5, 2
    mesh = simulate.mesh(X=n)
    program = simulate.compile(
        mapped(with_experts(n, n * own, ragged=False), n, P("X"), P("X")),
        arrays.spec(mesh, "A[N_X, D]", "f32", N=n * N, D=D),
        arrays.spec(mesh, "A[N_X]", "int32", N=n * N),
        arrays.spec(mesh, "A[E_X, D, F]", "f32", E=n * own, D=D, F=D),
    )
    assert kinds(program) == [("all-gather", ("X",), 1), ("all-to-all", ("X",), 1), ("all-to-all", ("X",), 1)]
    counts = (n - 1) * n * own * 4
    assert program.sent_bytes() == 2 * (n - 1) * N * D * 4 + counts


def test_a_cpu_has_no_ragged_all_to_all():
    run = mapped(with_experts(3, 6, ragged=True), 3, (P("X"), P("X"), P("X")), P("X"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ragged-all-to-all"):
        run(values(0, 21, 5), jnp.zeros(21, jnp.int32), values(1, 6, 5, 5))


def test_experts_that_the_devices_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="n_experts=7 cannot be cut over the 3 devices"):
        mapped(with_experts(3, 7, ragged=False), 3, (P("X"), P("X"), P()), P("X"))(
            values(0, 21, 5), jnp.zeros(21, jnp.int32), values(1, 7, 5, 5)
        )
