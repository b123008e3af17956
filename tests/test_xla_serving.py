"""Serving in JAX: caches against reading everything again, an engine, speculative decoding against the target's distribution."""

import itertools
from functools import cache as cache_of_calls
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scaling_lib import inference
from scaling_lib.inference import Layout
from scaling_lib.inference.paging import paged as blocks_of
from scaling_lib.transformer import Quantization, Transformer, kv_cache_bytes, parameters, weight_bytes
from scaling_lib.xla import llama, simulate
from scaling_lib.xla.serving import cache, compilations, distributions, engine, int8, judge, paged, sharding, speculate

pytestmark = pytest.mark.usefixtures("compiles_quickly")
MODEL = Transformer(n_layers=3, d_model=20, n_heads=6, n_kv_heads=2, head_dim=4, d_ff=28, vocab_size=44)
TIED = MODEL.but(tied_embeddings=True)
B, T, NEW = 3, 7, 5
S = T + NEW - 1  # the last token is never read


@pytest.fixture(scope="module")
def params():
    return made(MODEL, 0)


def made(model, seed):
    """Weights like those of `llama.init`; drawn by NumPy, which compiles nothing."""
    draw = np.random.default_rng(seed)

    def values(path, leaf):
        is_norm = "norm" in jax.tree_util.keystr(path)
        return jnp.asarray(np.ones(leaf.shape) if is_norm else model.D**-0.5 * draw.normal(size=leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(values, llama.shapes(model))


@pytest.fixture(scope="module")
def prompts():
    return np.random.default_rng(0).integers(0, MODEL.V, (B, T))


# Cache


def test_cached_decoding_is_naive_decoding(params, prompts):
    found, read = cache.generate(cache.steps(S), params, prompts, NEW), prompts
    for _ in range(NEW):
        logits = cache.reread(params, read, np.full(B, read.shape[1]))
        read = np.concatenate([read, np.asarray(cache.greedy(logits))[:, None]], axis=1)
    np.testing.assert_array_equal(found, read[:, T:])


def test_naive_decoding_reads_no_further_than_the_length(params, prompts):
    garbage = np.where(np.arange(T) < 4, prompts, 43)
    np.testing.assert_allclose(cache.reread(params, garbage, np.full(B, 4)), llama.forward(params, prompts)[:, 3], atol=1e-5)


def test_a_token_compiles_nothing_once_the_first_is_made(params, prompts):
    steps = cache.steps(S)
    with compilations.counted() as first:
        cache.generate(steps, params, prompts, 2)
    with compilations.counted() as later:
        cache.generate(steps, params, prompts, NEW)
    assert first.programs >= 2
    assert first.seconds > 0
    assert later.programs == 0


def test_the_count_sees_a_program_for_each_position(params, prompts):
    """What happens to those who bake the position into the program."""
    _, held = llama.prefill(params, prompts, jnp.full(B, T), S=S)
    baked = jax.jit(lambda params, held, at: llama.decode(params, held, prompts[:, :1], jnp.full(B, at)), static_argnums=2)
    with compilations.counted() as found:
        for position in (T, T + 1, T):
            baked(params, held, position)
    assert found.programs == 2


def test_a_decode_step_takes_over_the_memory_of_its_cache(params, prompts):
    steps = cache.steps(S)
    _, held = steps.prefill(params, prompts, np.full(B, T))
    steps.decode(params, held, prompts[:, 0], np.full(B, T))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(held))


def test_a_decode_step_writes_new_places_and_copies_no_cache():
    held = jax.eval_shape(partial(llama.empty_cache, MODEL, B, 4096))
    tokens, positions = jax.ShapeDtypeStruct((B, 1), jnp.int32), jax.ShapeDtypeStruct((B,), jnp.int32)
    program = simulate.compile(llama.decode, llama.shapes(MODEL), held, tokens, positions, donate=1)
    whole = kv_cache_bytes(MODEL, S=4096, B=B, dtype="f32")
    assert program.memory.aliased_bytes == whole
    assert program.memory.temporaries_bytes < whole / MODEL.L * 1.5  # scores, and one layer at work


@pytest.mark.parametrize(("T", "new", "words"), [(7, 6, "S=11; give S=12, or new=5"), (12, 1, "12 places, .* S=11; give S=12$")])
def test_a_context_beyond_the_cache_is_refused(params, T, new, words):
    with pytest.raises(ValueError, match=words):
        cache.generate(cache.steps(S), params, np.zeros((B, T), int), new)


def test_steps_refuse_what_they_lack():
    with pytest.raises(ValueError, match="kv='int4' is neither"):
        cache.steps(S, kv="int4")
    with pytest.raises(ValueError, match="S=0"):
        cache.steps(0)


# int8


def test_int8_is_off_by_half_a_step_at_most():
    x = np.random.default_rng(1).normal(size=(5, 3, 7)).astype(np.float32)
    x[2] = 0
    numbers, scale = int8.quantize(jnp.asarray(x), (0, 2))
    step = np.asarray(scale, np.float32)[None, :, None]
    assert numbers.dtype == jnp.int8
    assert scale.shape == (3,)
    assert np.abs(numbers).max() == 127
    error = np.abs(numbers * step - x)
    inside = np.abs(x) <= 127 * step
    assert error[inside].max() <= 0.5 * step.max() * 1.001
    assert error.max() <= 1.0 * step.max()  # the largest number may lie beyond, for scales are rounded


@pytest.mark.parametrize("model", [MODEL, TIED], ids=["", "tied"])
def test_weights_in_int8_take_the_bytes_of_the_formula_and_give_near_logits(model, prompts):
    params = made(model, 2)
    small = int8.weights(params)
    norms = 4 * parameters(model).norms
    parts = ("attention", "mlp", "embedding") + (() if model.tied_embeddings else ("head",))
    counted = weight_bytes(model, "f32", Quantization(bits=8, group=None, scale_dtype="bf16", parts=parts))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(small)) == counted.total
    assert counted.norms == norms
    whole, rough = llama.forward(params, prompts), llama.forward(small, prompts, dtype=jnp.float32)
    error = np.abs(rough - whole).max() / np.abs(whole).max()
    assert 1e-4 < error < 0.1
    assert np.mean(rough.argmax(-1) == whole.argmax(-1)) > 0.8


def test_weights_in_int8_are_their_numbers_times_their_scales(params, prompts):
    small = int8.weights(params)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32), small)
    for tree, name in [(wide, name) for name in ("embedding", "head")] + [
        (wide["layers"], name) for name in ("query", "out", "down")
    ]:
        axes, outputs = llama.WEIGHTS[name], llama.OUTPUTS[name]
        tree[name] = jnp.einsum(f"{axes},{outputs}->{axes}", tree[name], tree.pop(f"{name}_scale"))
    np.testing.assert_allclose(llama.forward(wide, prompts), llama.forward(small, prompts, dtype=jnp.float32), atol=1e-5)


def test_a_cache_in_int8_takes_the_bytes_of_the_formula_and_gives_near_logits(params, prompts):
    whole = llama.forward(params, prompts)
    steps = cache.steps(T, kv="int8")
    logits, held = steps.prefill(params, prompts[:, :4], np.full(B, 4))
    np.testing.assert_allclose(logits, whole[:, 3], atol=1e-5)
    counted = kv_cache_bytes(MODEL, S=T, B=B, dtype="int8")
    scales = 2 * MODEL.L * B * T * MODEL.K * 2
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(held)) == counted + scales
    for position in range(4, T):
        logits, held = steps.decode(params, held, prompts[:, position], np.full(B, position))
        error = np.abs(logits - whole[:, position]).max() / np.abs(whole).max()
        assert 1e-5 < error < 0.03


def test_a_token_is_quantized_alike_in_prefill_and_decode(params, prompts):
    read = llama.prefill(params, prompts, jnp.full(B, T), S=T, keep=int8.cache)[1]
    step = int8.cache(llama.empty_cache(MODEL, B, T))
    _, step = llama.decode(params, step, prompts[:, :1], jnp.zeros(B, int), memory=int8.memory)
    for name in ("keys", "values"):  # of the first layer, where both work on the same numbers
        np.testing.assert_array_equal(read[name][0, :, 0], step[name][0, :, 0])
        np.testing.assert_array_equal(read[f"{name}_scale"][0, :, :, 0], step[f"{name}_scale"][0, :, :, 0])


# Paged


def test_a_paged_cache_gives_the_logits_of_the_static_one(params, prompts):
    """Sequences of three lengths, whose blocks lie in any order; one ends, and another takes its blocks."""
    lengths, block = np.array([3, 7, 5]), 4
    owner = paged.Blocks(5, block)
    held = paged.empty_cache(MODEL, 5, block)
    decode = jax.jit(partial(llama.decode, memory=paged.memory), donate_argnums=1)
    static = llama.empty_cache(MODEL, B, 12)

    def both(tokens, positions):
        nonlocal held, static
        held["table"] = jnp.asarray(owner.table("abc", 3))
        logits, held = decode(params, held, tokens, positions)
        expected, static = llama.decode(params, static, tokens, positions)
        return logits, expected

    for at in range(T):  # those that have ended write nowhere, and are not looked at
        alive = at < lengths
        for name, is_alive in zip("abc", alive, strict=True):
            if is_alive:
                owner.reserve(name, at + 1)
        logits, expected = both(prompts[:, at : at + 1], jnp.full(B, at))
        np.testing.assert_allclose(logits[alive], expected[alive], atol=1e-5)
    assert owner.free == 0
    assert owner.room == blocks_of(lengths, block=block)
    assert owner.room.waste == pytest.approx(1 - 15 / 20)

    owner.release("a")
    owner.reserve("new", 4)
    held["table"] = jnp.asarray(owner.table(["new", "b", "c"], 3))
    logits, held = decode(params, held, prompts[[1, 1, 1], :4], jnp.array([0, 8, 8]))
    np.testing.assert_allclose(logits[0], llama.forward(params, prompts[1:2, :4])[0], atol=1e-5)
    logits, held = decode(params, held, prompts[:, :1], jnp.array([4, 7, 5]))
    expected, static = llama.decode(params, static, prompts[:, :1], jnp.array([4, 7, 5]))
    np.testing.assert_allclose(logits[1:], expected[1:], atol=1e-5)  # untouched by the newcomer


def test_blocks_refuse_what_they_lack():
    owner = paged.Blocks(3, 4)
    owner.reserve("a", 5)
    owner.reserve("a", 8)
    assert owner.free == 1
    with pytest.raises(ValueError, match=r"sequence 'b' needs 2 more blocks for tokens=5, and 1 of 3 are free; .* of 4 blocks"):
        owner.reserve("b", 5)
    assert owner.free == 1
    with pytest.raises(ValueError, match="'b' has no blocks; those that have are \\['a'\\]"):
        owner.release("b")
    with pytest.raises(ValueError, match="'a' has 2 blocks, and the table width=1"):
        owner.table("a", 1)
    np.testing.assert_array_equal(owner.table("ab", 3)[1], [3, 3, 3])


# Engine


def requests(*sizes):
    draw = np.random.default_rng(4)
    return [engine.Request(draw.integers(0, MODEL.V, prompt).tolist(), new, at) for prompt, new, at in sizes]


@pytest.fixture
def ticks():
    """A clock on which each look at it takes a hundredth of a second."""
    counter = itertools.count()
    return lambda: next(counter) / 100


@pytest.mark.parametrize("batching", ["continuous", "static"])
def test_requests_get_the_tokens_they_would_get_alone(params, batching, ticks):
    given = requests((3, 5, 0), (7, 2, 0), (5, 9, 0.05), (17, 1, 0.02), (4, 6, 1.5))
    served, steps = engine.Engine(params, 2, 20, clock=ticks).run(given, batching=batching), cache.steps(20)
    for one, request in zip(served, given, strict=True):
        alone = cache.generate(steps, params, np.array([request.prompt]), request.new)
        assert one.tokens == tuple(alone[0])
        assert one.request is request
        assert one.ttft_s > 0
        assert one.tpot_s is None if request.new == 1 else one.tpot_s > 0


def test_a_free_slot_goes_to_the_next_request_at_once(params, ticks):
    given = requests((3, 2, 0), (3, 30, 0), (3, 2, 0))
    continuous, static = (
        engine.Engine(params, 2, 40, clock=ticks).run(given, batching=batching) for batching in ("continuous", "static")
    )
    assert continuous[2].last_s < continuous[1].last_s
    assert static[2].first_s > static[1].last_s


def test_times_are_what_the_clock_says(params):
    now = [0.0]
    one = engine.Engine(params, 1, 20, clock=lambda: now[0])
    now[0] = 3.0
    slot = one.insert(engine.Request([1, 2, 3], 3, arrival_s=1.0))
    for _ in range(2):
        now[0] += 0.5
        one.step()
    served = one.finish(slot)
    assert (served.ttft_s, served.tpot_s) == (2.0, 0.5)
    assert one.free == 1


def test_serving_compiles_nothing(params):
    one = engine.Engine(params, 2, 40)
    given = requests((3, 5, 0), (20, 4, 0), (9, 7, 0))
    one.run(given)
    with compilations.counted() as found:
        one.run(given)
    assert found.programs == 0


def test_an_engine_with_weights_and_cache_in_int8_serves(params):
    (one,) = engine.Engine(int8.weights(params), 2, 20, kv="int8", dtype=jnp.float32).run(requests((3, 8, 0)))
    assert len(one.tokens) == 8


def test_the_engine_refuses_what_it_has_no_room_for(params):
    one = engine.Engine(params, 1, 8)
    with pytest.raises(ValueError, match="no slot has a token to make"):
        one.step()
    slot = one.insert(engine.Request([1, 2], 3))
    with pytest.raises(ValueError, match="no slot is free: all 1 are taken"):
        one.insert(engine.Request([1], 1))
    with pytest.raises(ValueError, match="slots \\[0\\] are taken"):
        one.run([engine.Request([1], 1)])
    one.finish(slot)
    with pytest.raises(ValueError, match="slot=0 is not taken"):
        one.finish(slot)
    with pytest.raises(ValueError, match="prompt of 6 tokens and new=4 need 9 places, and the cache has S=8"):
        one.run([engine.Request([1] * 6, 4)])
    with pytest.raises(ValueError, match="batching='both'"):
        one.run([], batching="both")
    with pytest.raises(ValueError, match="prompt is empty"):
        engine.Request([], 1)
    with pytest.raises(ValueError, match="new=0"):
        engine.Request([1], 0)


# Speculation

SAMPLES = 40_000
P = np.array(
    [[0.5, 0.2, 0.2, 0.05, 0.05], [0.1, 0.1, 0.6, 0.1, 0.1], [0.05, 0.05, 0.1, 0.4, 0.4], [0.2] * 5, [0.9, 0.1, 0, 0, 0]]
)
Q = np.array(
    [[0.2, 0.5, 0.1, 0.1, 0.1], [0.3, 0.1, 0.2, 0.2, 0.2], [0.05, 0.05, 0.1, 0.4, 0.4], [0.1, 0.3, 0.2, 0.1, 0.3], [0.2] * 5]
)
"""A toy pair: the next token depends on the last one. The draft is wrong everywhere but after token 2."""
START = 1


def threshold(p, q, uniform):
    """A wrong rule, which some engines have: a guess is kept where the target likes it well enough."""
    return p > 0.15


def always_draws_from_target(p, q, uniform):
    """Another one: kept with the target's probability."""
    return uniform < p


def pairs(keep):
    """Two tokens by speculative decoding with two guesses, of many samples: counts [V, V]."""
    p, q = jnp.log(P), jnp.log(Q)

    def one(key):
        keys = jax.random.split(key, 4)
        first = jax.random.categorical(keys[0], q[START])
        guesses = jnp.array([first, jax.random.categorical(keys[1], q[first])])
        rows = jnp.array([START, first, guesses[1]])
        count, token = speculate.verify(keys[2], guesses, jnp.asarray(Q)[rows[:2]], jnp.asarray(P)[rows], keep)
        made = jnp.where(count > 0, first, token)
        after = jnp.where(count > 1, guesses[1], jnp.where(count == 1, token, jax.random.categorical(keys[3], p[made])))
        return made * len(P) + after, count

    made, counts = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), SAMPLES))
    return np.bincount(made, minlength=P.size).reshape(P.shape), np.asarray(counts)


EXACT = P[START][:, None] * P


def test_what_comes_out_has_exactly_the_targets_distribution():
    counts, kept = pairs(speculate.exact)
    found = distributions.fit(counts, EXACT)
    assert found.p_value > 0.01
    assert found.distance < 0.01
    acceptance = inference.speculation.acceptance(P[START], Q[START])
    assert np.mean(kept > 0) == pytest.approx(acceptance, abs=4 * (acceptance * (1 - acceptance) / SAMPLES) ** 0.5)


@pytest.mark.parametrize("rule", [threshold, always_draws_from_target])
def test_a_wrong_rule_fails_the_same_test(rule):
    found = distributions.fit(pairs(rule)[0], EXACT)
    assert found.p_value < 1e-6
    assert found.distance > 0.03


TARGET = Transformer(n_layers=2, d_model=16, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=24, vocab_size=5)
DRAFT = TARGET.but(n_layers=1, d_model=8, n_heads=1, d_ff=12)


@pytest.fixture(scope="module")
def couple():
    """Two models of unlike minds."""
    return made(TARGET, 6), made(DRAFT, 7)


def joint(target, prompt, new, temperature):
    """Probability of each run of new tokens after a prompt, from the target alone: [V] * new."""
    runs = np.array(list(itertools.product(range(TARGET.V), repeat=new)))
    tokens = np.concatenate([np.tile(prompt, (len(runs), 1)), runs], axis=1)
    odds = np.asarray(jax.nn.log_softmax(llama.forward(target, tokens[:, :-1])[:, len(prompt) - 1 :] / temperature))
    return np.exp(np.take_along_axis(odds, runs[..., None], axis=2).sum((1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("guesses", [1, 3])
def test_real_models_write_what_the_target_alone_would(couple, guesses):
    target, draft = couple
    prompt, new = np.array([1, 4, 2]), 3
    expected = joint(target, prompt, new, 0.8)
    ways = {"guesses": guesses, "temperature": 0.8}

    def counts(**more):
        written = speculate.generate(jax.random.key(8), target, draft, np.tile(prompt, (SAMPLES, 1)), new, **ways, **more)
        return np.bincount(written.tokens @ [25, 5, 1], minlength=len(expected)), written

    seen, written = counts()
    assert distributions.fit(seen, expected).p_value > 0.01
    assert 0.05 < written.kept < 0.95 * guesses  # both ends of the rule were used
    assert distributions.fit(counts(keep=threshold)[0], expected).p_value < 1e-6


def test_at_temperature_0_the_tokens_are_the_targets(couple, prompts):
    target, draft = couple
    given = prompts % TARGET.V
    plain = cache.generate(cache.steps(T + 8), target, given, 9)
    found = speculate.generate(jax.random.key(0), target, draft, given, 9, guesses=2, temperature=0)
    np.testing.assert_array_equal(found.tokens, plain)
    assert 3 <= found.checks <= 8
    assert 0 <= found.kept <= 2
    assert inference.speculation.expected_tokens(found.acceptance, 2) == pytest.approx(found.kept + 1, abs=1e-6)


def test_a_draft_that_agrees_is_always_kept(couple, prompts):
    """A layer that adds nothing makes the target larger than its draft, and changes no token."""
    target, _ = couple
    idle = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros_like(x[:1])]), target["layers"])
    found = speculate.generate(
        jax.random.key(1), target | {"layers": idle}, target, prompts % TARGET.V, 13, guesses=3, temperature=1.0
    )
    assert (found.checks, found.kept) == (3, 3)
    assert found.acceptance == pytest.approx(1)


def test_speculation_refuses_a_draft_that_is_none(couple):
    target, draft = couple
    prompt = np.array([[1, 2]])
    with pytest.raises(ValueError, match=r"draft has .* parameters, and its target .*; give a smaller one"):
        speculate.generate(jax.random.key(0), draft, target, prompt, 3, guesses=2)
    other = made(DRAFT.but(vocab_size=7), 0)
    with pytest.raises(ValueError, match="draft has 7 tokens, and its target 5"):
        speculate.generate(jax.random.key(0), target, other, prompt, 3, guesses=2)
    with pytest.raises(ValueError, match="guesses=0"):
        speculate.generate(jax.random.key(0), target, draft, prompt, 3, guesses=0)
    with pytest.raises(ValueError, match="temperature"):
        speculate.generate(jax.random.key(0), target, draft, prompt, 3, guesses=2, temperature=-1)


def test_chi_square_is_that_of_the_tables():
    """A die thrown 60 times: 5 degrees of freedom, and 11.07 at the 5 percent point (NIST handbook, 1.3.6.7.4)."""
    found = distributions.fit([15, 15, 12, 8, 5, 5], np.full(6, 1 / 6))
    assert (found.samples, found.freedom) == (60, 5)
    assert found.statistic == pytest.approx((25 + 25 + 4 + 4 + 25 + 25) / 10)
    assert found.distance == pytest.approx(12 / 60)
    at_5_percent = distributions.fit(100 + np.array([1, -1, 0, 0, 0, 0]) * (11.0705 * 100 / 2) ** 0.5, np.full(6, 1 / 6))
    assert at_5_percent.p_value == pytest.approx(0.05, abs=1e-4)


def test_what_should_never_happen_counts():
    assert distributions.fit([500, 500, 0], [0.5, 0.5, 0]).p_value == 1
    assert distributions.fit([500, 499, 1], [0.5, 0.5, 0]).p_value == 0
    rare = [0.5, 0.499, 0.0005, 0.0005]
    assert distributions.fit([500, 499, 1, 0], rare).p_value > 0.9
    assert distributions.fit([500, 400, 50, 50], rare).p_value > 0.9  # together with the rarest of the others
    assert distributions.fit([500_000, 494_000, 3_000, 3_000], rare).p_value < 1e-6


@pytest.mark.parametrize(
    ("counts", "probabilities", "words"),
    [
        ([1, 2], [0.5, 0.25, 0.25], r"shape \(2,\), probabilities \(3,\)"),
        ([10, 20], [0.5, 0.6], "sum to 1.1"),
        ([10, -1], [0.5, 0.5], "counts has -1"),
        ([3, 4], [0.5, 0.5], "too few"),
    ],
)
def test_a_fit_refuses_what_is_none(counts, probabilities, words):
    with pytest.raises(ValueError, match=words):
        distributions.fit(counts, probabilities)


# On a mesh

WIDE = Transformer(n_layers=3, d_model=48, n_heads=8, n_kv_heads=4, head_dim=6, d_ff=80, vocab_size=96)
LAYOUTS = [
    Layout(tensor=4),
    Layout(tensor=8),
    Layout(tensor=2, kv_batch=2, sequence=2),
    Layout(tensor=4, sequence=2),
    Layout(tensor=2, data=4),
    Layout(tensor=2, data=2, kv_batch=2),
    Layout(tensor=4, width=2),
]


def test_the_cache_is_cut_over_heads_then_sequences_then_tokens():
    model = WIDE.but(n_heads=32, d_ff=192)
    how = sharding.cuts(Layout(tensor=8, kv_batch=2, sequence=2, data=3), model)
    held = jax.eval_shape(partial(llama.empty_cache, model, 12, 10))
    tree = how.specs(how.mesh, llama.shapes(model), held, {"tokens": jax.ShapeDtypeStruct((12, 1), jnp.int32)})
    params, held, given = jax.tree.map(lambda leaf: leaf.sharding.shard_shape(leaf.shape), tree)
    assert how.axes == {"tensor": 4, "copies": 2, "sequence": 2, "kv_batch": 2, "data": 3}
    assert held["keys"] == (3, 12 // (2 * 3), 10 // 2, 4 // 4, 6)
    assert params["layers"]["query"] == (3, 48, 32 // (8 * 2 * 2), 6)
    assert params["layers"]["key"] == (3, 48, 1, 6)
    assert params["layers"]["gate"] == (3, 48, 192 // (8 * 2 * 2 * 3))
    assert given["tokens"] == (4, 1)


@cache_of_calls
def on_one_device(quantized):
    """Weights, a cache of prompts of several lengths, a batch of new tokens, and what decoding makes of them."""
    params, memory = made(WIDE, 0), int8.memory if quantized else llama.static_memory
    tokens = np.random.default_rng(0).integers(0, WIDE.V, (8, 6))
    batch = {"tokens": jnp.asarray(tokens[:, 5:]), "positions": jnp.array([5, 1, 3, 2, 5, 4, 1, 2])}
    read = jax.jit(partial(llama.prefill, S=10, keep=int8.cache if quantized else dict))
    _, held = read(params, tokens[:, :5], batch["positions"])
    return memory, (params, held, batch), jax.jit(partial(decode, memory=memory))(params, held, batch)


def decode(params, held, batch, **how):
    return llama.decode(params, held, batch["tokens"], batch["positions"], **how)


@pytest.mark.parametrize(("layout", "quantized"), [*((layout, False) for layout in LAYOUTS), (LAYOUTS[2], True)], ids=str)
def test_decoding_on_a_mesh_is_that_of_one_device(layout, quantized):
    memory, given, (expected, after) = on_one_device(quantized)
    how = sharding.cuts(layout, WIDE)
    mesh = simulate.mesh(**how.axes)
    with jax.set_mesh(mesh):
        step = jax.jit(partial(decode, rules=how.rules, memory=how.memory(memory)))
        logits, found = step(*how.place(mesh, *given))
    np.testing.assert_allclose(logits, expected, atol=1e-2 if quantized else 2e-5)
    assert np.mean(np.abs(logits - expected)) < 1e-4
    if not quantized:
        jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), found, after)
    shard = kv_cache_bytes(WIDE, S=10, B=8, dtype="f32", tensor_parallel=layout.tensor)
    parts = layout.kv_batch * layout.sequence * layout.width * layout.data
    assert quantized or sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(found)) == shard / parts


def compiled(phase, layout, batch, context):
    """A step on simulated devices in float32, and the estimate of the same step in bf16, which has the same arrays."""
    priced = judge.estimate(phase, WIDE, "v5e:2x4", layout, batch, context=context)
    narrow = {name: "f32" for name in ("kv", "weights", "activations", "math")}
    function, specs, out = judge.step(phase, WIDE, layout.but(**narrow), batch, context=context)
    program = simulate.compile(function, *specs, out=out, donate=1 if phase == "decode" else (), name=phase)
    return {(row.axes, row.kind): row for row in judge.collectives(priced, program)}, program, priced


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("layout", [Layout(tensor=8), Layout(tensor=4, sequence=2), Layout(tensor=4, kv_batch=2)], ids=str)
def test_the_results_of_blocks_are_added_up_as_predicted(phase, layout):
    rows, program, priced = compiled(phase, layout, 16, 24)
    axes = tuple(program.axes)
    row = rows[axes, "all-reduce"]
    assert row.predicted_bytes == pytest.approx(row.compiled_bytes, rel=0.05)
    assert row.predicted_bytes == pytest.approx((2 * 3 + 1) * 2 * 7 / 8 * 16 * (24 if phase == "prefill" else 1) * 48 * 4)
    assert program.memory.arguments_bytes >= 2 * float(priced.memory.weights) * 0.99


def test_data_ways_gather_and_scatter_for_the_feed_forward_blocks():
    rows, _, _ = compiled("prefill", Layout(data=8), 16, 24)
    gathered, scattered, reduced = (rows[("data",), kind] for kind in ("all-gather", "reduce-scatter", "all-reduce"))
    assert gathered.predicted_bytes == gathered.compiled_bytes
    assert 2 * scattered.predicted_bytes == reduced.compiled_bytes  # XLA for CPUs scatters nothing
    assert scattered.compiled_bytes == reduced.predicted_bytes == 0


def test_parts_of_a_sequence_send_as_much_as_predicted_though_in_other_ways():
    rows, _, _ = compiled("decode", Layout(tensor=4, sequence=2), 16, 24)
    sent = [sum(getattr(row, name) for row in rows.values()) for name in ("predicted_bytes", "compiled_bytes")]
    assert sent[0] == pytest.approx(sent[1], rel=0.01)
    assert rows[("sequence",), "all-reduce"].compiled_bytes > 0  # in place of a reduce-scatter


def test_layouts_that_the_llama_lacks_are_refused():
    with pytest.raises(ValueError, match=r"expert=2 is not in xla\.llama"):
        sharding.cuts(Layout(expert=2, data=2), WIDE)
    with pytest.raises(ValueError, match="kv_batch = 32 does not divide the 8 heads"):
        sharding.cuts(Layout(tensor=8, kv_batch=4), WIDE)
    for changes, words in [
        ({"weights": "fp8"}, "weights='fp8'"),
        ({"kv": "int8"}, "kv_scale=None .*'bf16' with kv='int8'"),
        ({"kv_scale": "bf16"}, "kv_scale='bf16' .*None without"),
        ({"kv": "int8", "kv_scale": "f32"}, "kv_scale='f32' .*give 'bf16'"),
        ({"math": "int8"}, "math='int8'"),
        ({"activations": "fp8"}, "activations='fp8'"),
        ({"quantization": Quantization(bits=4)}, "quantization="),
    ]:
        with pytest.raises(ValueError, match=words):
            judge.step("decode", WIDE, Layout(**changes), 8, context=16)
    with pytest.raises(ValueError, match="phase='train'"):
        judge.estimate("train", WIDE, "v5e:1x1", Layout(), 8, context=16)
    with pytest.raises(ValueError, match="positions: B=6 is no multiple of data=4"):
        judge.step("decode", WIDE, Layout(data=4), 6, context=16)
