"""Programs with collectives written by hand: the numbers of one device, and what each compiles to."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from scaling_lib.transformer import Transformer
from scaling_lib.xla import arrays, llama, simulate, tpu
from scaling_lib.xla.manual import dispatch, layers
from scaling_lib.xla.manual.collective_matmul import gather_matmul, matmul_scatter
from scaling_lib.xla.manual.ring_attention import ring_attention

MODEL = Transformer(n_layers=1, d_model=35, n_heads=12, n_kv_heads=3, head_dim=6, d_ff=21, vocab_size=5)
WAYS = [layers.automatic, layers.explicit, layers.manual]


def values(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def mapped(fn, n, ins, out):
    return jax.jit(jax.shard_map(fn, mesh=simulate.mesh(X=n), in_specs=ins, out_specs=out, check_vma=False))


def kinds(program):
    return sorted((one.kind, one.axes, one.times) for one in program.collectives)


# One layer, three ways


def mesh_of(way, mesh):
    return layers.in_types(mesh) if way is layers.explicit else mesh


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_is_the_same_in_every_way_of_sharding(way):
    weights = jax.tree.map(lambda stacked: stacked[0], llama.init(MODEL, jax.random.key(0))["layers"])
    x = values(1, 4, 5, MODEL.D)
    mesh = mesh_of(way, simulate.mesh(X=2, Y=3))
    shapes = layers.specs(mesh, MODEL, B=4, T=5)
    placed = jax.device_put((weights, x), jax.tree.map(lambda one: one.sharding, shapes))
    found = way(mesh)(*placed)
    assert found.sharding.spec == P("X", None, None)
    np.testing.assert_allclose(found, layers.blocks.layer(weights, x), atol=2e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_layer_has_two_all_reduces_in_every_way_of_sharding(way):
    mesh = mesh_of(way, simulate.mesh(X=2, Y=3))
    program = simulate.compile(way(mesh), *layers.specs(mesh, MODEL, B=4, T=5))
    assert kinds(program) == 2 * [("all-reduce", ("Y",), 1)]
    assert {one.array_bytes for one in program.collectives} == {4 / 2 * 5 * MODEL.D * 4}


def test_an_explicit_layer_has_its_sharding_in_its_type_and_an_automatic_one_has_not():
    mesh = arrays.mesh(X=2, Y=3)
    for way, seen in ((layers.explicit, P("X", None, None)), (layers.automatic, P(None, None, None))):
        on = mesh_of(way, mesh)
        assert jax.eval_shape(way(on), *layers.specs(on, MODEL, B=4, T=5)).sharding.spec == seen


# Collective matmuls


@pytest.mark.parametrize("n", [1, 3, 4, 5])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_gathering_matmul_is_the_matmul(n, ways):
    a, b = values(0, n * 3, 5), values(1, 5, n * 7)
    run = mapped(partial(gather_matmul, axis="X", ways=ways), n, (P("X"), P(None, "X")), P(None, "X"))
    np.testing.assert_allclose(run(a, b), a @ b, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 4, 5])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_scattering_matmul_is_the_matmul(n, ways):
    a, b = values(0, n * 3, n * 5), values(1, n * 5, 7)
    run = mapped(partial(matmul_scatter, axis="X", ways=ways), n, (P(None, "X"), P("X")), P("X"))
    np.testing.assert_allclose(run(a, b), a @ b, atol=1e-5)


@pytest.mark.parametrize("fn", [gather_matmul, matmul_scatter])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_collective_matmul_sends_what_the_collective_would_and_both_ways_no_more(fn, ways):
    a, b = ((P("X"), P(None, "X")), P(None, "X")), ((P(None, "X"), P("X")), P("X"))
    ins, out = a if fn is gather_matmul else b
    program = simulate.compile(mapped(partial(fn, axis="X", ways=ways), 4, ins, out), values(0, 12, 20), values(1, 20, 28))
    assert kinds(program) == 3 * [("collective-permute", ("X",), 1)]
    block = 3 * 20 if fn is gather_matmul else 3 * 28
    assert program.sent_bytes() == 3 * block * 4
    assert program.flops == 2 * 12 * 20 * 28 / 4


@pytest.mark.parametrize("fn", [gather_matmul, matmul_scatter])
def test_a_collective_matmul_has_gradients(fn):
    a, b = values(0, 9, 15), values(1, 15, 21)
    ins, out = ((P("X"), P(None, "X")), P(None, "X")) if fn is gather_matmul else ((P(None, "X"), P("X")), P("X"))
    run = mapped(partial(fn, axis="X", ways=2), 3, ins, out)
    found = jax.grad(lambda a, b: jnp.sin(run(a, b)).sum(), (0, 1))(a, b)
    wanted = jax.grad(lambda a, b: jnp.sin(a @ b).sum(), (0, 1))(a, b)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("ways", [1, 2])
def test_on_a_tpu_a_collective_matmul_sends_while_it_multiplies(ways):
    mesh = arrays.mesh(X=4)
    run = jax.shard_map(
        partial(gather_matmul, axis="X", ways=ways), in_specs=(P("X"), P(None, "X")), out_specs=P(None, "X"), check_vma=False
    )
    a, b = arrays.spec(mesh, "A[I_X, J]", I=3 * 1024, J=5 * 256), arrays.spec(mesh, "B[J, K_X]", J=5 * 256, K=7 * 512)
    program = tpu.compile(run, a, b, slice="v5e:4x1")
    assert kinds(program) == 3 * [("collective-permute", ("X",), 1)]
    assert all(one.asynchronous for one in program.collectives)
    assert program.sent_bytes() == 3 * a.size / 4 * 2


def test_other_ways_and_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="ways=3 is no way"):
        mapped(partial(gather_matmul, axis="X", ways=3), 3, (P("X"), P()), P())(values(0, 3, 5), values(1, 5, 7))
    with pytest.raises(ValueError, match="7 rows, which 3 devices cannot share"):
        mapped(partial(matmul_scatter, axis="X"), 3, (P(None, "X"), P("X")), P("X"))(values(0, 7, 3), values(1, 3, 5))


# Ring attention


@pytest.mark.parametrize("n", [1, 3, 5])
def test_ring_attention_is_attention(n):
    query, key, value = values(0, 2, n * 7, 6, 5), values(1, 2, n * 7, 3, 5), values(2, 2, n * 7, 3, 5)
    run = mapped(partial(ring_attention, axis="X"), n, P(None, "X"), P(None, "X"))
    wanted = llama.dense_attention(query, key, value, jnp.arange(n * 7)[None])
    np.testing.assert_allclose(run(query, key, value), wanted, atol=1e-5)


def test_ring_attention_without_a_mask_sees_all_keys():
    query, key, value = values(0, 2, 9, 6, 5), values(1, 2, 9, 3, 5), values(2, 2, 9, 3, 5)
    run = mapped(partial(ring_attention, axis="X", causal=False), 3, P(None, "X"), P(None, "X"))
    wanted = llama.dense_attention(query, key, value, jnp.full((1, 9), 9))
    np.testing.assert_allclose(run(query, key, value), wanted, atol=1e-5)


def test_ring_attention_has_the_gradients_of_attention_without_nan_from_masked_blocks():
    arrays = query, key, value = values(0, 1, 9, 2, 5), values(1, 1, 9, 1, 5), values(2, 1, 9, 1, 5)
    run = mapped(partial(ring_attention, axis="X"), 3, P(None, "X"), P(None, "X"))
    found = jax.grad(lambda *all: jnp.sin(run(*all)).sum(), (0, 1, 2))(query, key, value)
    positions = jnp.arange(9)[None]
    wanted = jax.grad(lambda *all: jnp.sin(llama.dense_attention(*all, positions)).sum(), (0, 1, 2))(*arrays)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_ring_attention_sends_keys_and_values_to_each_other_device():
    query, key = values(0, 2, 15, 6, 5), values(1, 2, 15, 3, 5)
    program = simulate.compile(mapped(partial(ring_attention, axis="X"), 5, P(None, "X"), P(None, "X")), query, key, key)
    assert {one.kind for one in program.collectives} == {"collective-permute"}
    assert program.sent_bytes() == 4 * 2 * key.size / 5 * 4


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
    np.testing.assert_allclose(run(tokens, chosen, weights), jnp.einsum("ND,NDE->NE", tokens, weights[chosen]), atol=1e-5)


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


@pytest.mark.parametrize("ragged", [True, False])
def test_a_tpu_has_ragged_all_to_alls_and_the_dense_way_sends_padding(ragged):
    mesh = arrays.mesh(X=4)
    run = jax.shard_map(with_experts(4, 8, ragged), in_specs=(P("X"), P("X"), P("X")), out_specs=P("X"), check_vma=False)
    specs = (
        arrays.spec(mesh, "A[N_X, D]", N=4 * 24, D=128),
        arrays.spec(mesh, "A[N_X]", "s32", N=4 * 24),
        arrays.spec(mesh, "A[E_X, D, F]", E=8, D=128, F=128),
    )
    program = tpu.compile(run, *specs, slice="v5e:2x2")
    kind = "ragged-all-to-all" if ragged else "all-to-all"
    assert [one.kind for one in program.collectives].count(kind) == 2
    if not ragged:
        assert {one.elements for one in program.collectives if one.kind == kind} == {4 * 24 * 128}


def test_a_cpu_has_no_ragged_all_to_all():
    run = mapped(with_experts(3, 6, ragged=True), 3, (P("X"), P("X"), P("X")), P("X"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ragged-all-to-all"):
        run(values(0, 21, 5), jnp.zeros(21, jnp.int32), values(1, 6, 5, 5))


def test_experts_that_the_devices_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="n_experts=7 cannot be cut over the 3 devices"):
        mapped(with_experts(3, 7, ragged=False), 3, (P("X"), P("X"), P()), P("X"))(
            values(0, 21, 5), jnp.zeros(21, jnp.int32), values(1, 7, 5, 5)
        )
