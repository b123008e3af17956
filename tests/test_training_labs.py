"""Labs 5a to 5e: their rules broken on purpose, their exercises answered wrongly, their cells run twice and out of order.

A lab's cells run here in one namespace, with few steps and without figures.
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from scaling_lib.training import pipeline as pipelines
from scaling_lib.transformer import Transformer
from scaling_lib.xla import llama, simulate
from scaling_lib.xla.training import account, blocks, by_hand, checkpoint, experts, pipeline, text, train
from tests.cells import NAMED, assert_checks_a_number, at, changed, code_cells, how_many_lack, run

ROOT = Path(__file__).parents[1]
LABS = {path.stem[:3]: path for path in sorted((ROOT / "labs").glob("05*.md"))}
STEPS = {"05c": 10}  # GPipe runs for a fifth of them, and moves from the second on
LEFT_OUT = re.compile(r"new_axes|drops\(|for name, share")  # figures, and what takes more steps to learn
QUICK = {
    "jax_disable_most_optimizations": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    """A cell that runs again, or a lab's step that another lab has too, is not compiled again."""
    settings = QUICK | {"jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled"))}
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")  # the TPU compiler cannot read that cache
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    monkeypatch.undo()


def in_turn(lab, *more):
    """Parameters of a test; all tests of one lab go to one process, which plays the lab once."""
    return pytest.param(lab, *more, marks=pytest.mark.xdist_group(lab))


def sources_of(lab):
    """The sources of a lab's code cells, but for figures and drops, with fewer steps; the first has the mesh too."""
    sources = code_cells(LABS[lab], LEFT_OUT)
    assert sum("STEPS = " in source for source in sources) == 1
    return [re.sub(r"(STEPS = (?:\d+, \d+, )?)\d+", rf"\g<1>{STEPS.get(lab, 6)}", source) for source in sources]


@cache
def played(lab):
    """What all cells of a lab define."""
    return run(sources_of(lab))


def play_broken(lab, old, new):
    """A lab from the one cell that has `old` on, with `new` in its place."""
    sources = sources_of(lab)
    run(changed(sources, {old: new})[at(sources, old) :], played(lab))


# Each lab's rules: where one is broken, the assert that compares with one device fires.

RULES = {
    "05a": [
        ("return lax.pmean((loss, gradients), \"X\")", "return lax.pmean(loss, \"X\"), gradients"),
        ("total = lax.psum_scatter(gradients, \"X\", tiled=True)", "total = lax.psum_scatter(8 * gradients, \"X\", tiled=True)"),
        ("norm = jnp.sqrt(lax.psum(train.squares(mine), \"X\"))", "norm = jnp.sqrt(train.squares(mine))"),
        ("gradients = jax.tree.map(lambda g: g / n, total)", "gradients = total"),
    ],
    "05b": [
        ("return (nothing, summed), (summed, nothing)", "return (nothing, nothing), (summed, nothing)"),
        ("return (nothing, summed), (summed, nothing)", "return (nothing, summed), (nothing, nothing)"),
        ('name: lax.psum(g, "Y") if "norm" in name else g', "name: g"),
        ('squares = lax.psum(train.squares(parts), "Y")', "squares = train.squares(parts)"),
    ],
    "05c": [
        ("outside = lax.psum(outside, \"Z\")", "pass"),
        ("return lax.pmean({**gradients, **outside}, \"X\")", "return {**gradients, **outside}"),
        ("return [(i, i + by) for i in places if i + by in places]", "return [(i, i + 1) for i in places if i + 1 in places]"),
        ("inside = lax.psum(train.squares(gradients[\"layers\"]), \"Z\")", "inside = train.squares(gradients[\"layers\"])"),
    ],
    "05d": [
        ("return g / 8 if is_expert(path) else lax.pmean(g, \"X\")", "return lax.pmean(g, \"X\")"),
        ("return g / 8 if is_expert(path) else lax.pmean(g, \"X\")", "return g / 8 if is_expert(path) else g"),
        ("return lax.all_to_all(x, \"X\", 1, 0, tiled=True)", "return lax.all_to_all(x[:, ::-1], \"X\", 1, 0, tiled=True)"),
        ("loss_of(params, batch, *ways(), mean_of_all)", "loss_of(params, batch, *ways(), lambda x: x)"),
    ],
    "05e": [
        ("return lax.pmean(mean, \"X\")", "return mean"),
        ("mean = jax.tree.map(lambda x: x / 4, total)", "mean = total"),
        ("return lax.pmean(mine, \"X\")", "return lax.pmean(mine[0], \"X\"), mine[1]"),
    ],
}  # fmt: skip


@pytest.mark.weekly
@pytest.mark.parametrize(("lab", "broken"), [in_turn(lab, i) for lab, rules in RULES.items() for i in range(len(rules))])
def test_a_broken_rule_turns_the_comparison_with_one_device_red(lab, broken):
    with pytest.raises(AssertionError, match=r"DIFFER|Not yet: the (loss|gradient norm) of step"):
        play_broken(lab, *RULES[lab][broken])


@pytest.mark.weekly
@pytest.mark.parametrize("lab", [in_turn(lab) for lab in LABS])
def test_every_cell_may_run_twice(lab):
    assert "one" in run(source for source in sources_of(lab) for _ in range(2))
    assert len(sources_of(lab)) > 10


@pytest.mark.weekly
@pytest.mark.parametrize("lab", [in_turn(lab) for lab in LABS])
def test_a_cell_out_of_order_names_what_it_lacks(lab):
    """Every cell that needs an earlier one says which name it misses, and leaves the first cells as they were."""
    assert how_many_lack(sources_of(lab), (NameError, ValueError), rf"{NAMED}|run the .*cell") > 5


# The exercises check themselves


@pytest.mark.slow
@pytest.mark.parametrize("lab", [in_turn(lab) for lab in LABS])
def test_a_number_is_checked_and_each_wrong_one_that_a_hint_is_for_gets_it(lab):
    checks = [source for source in sources_of(lab) if "check.answer(" in source]
    assert len(checks) >= 2
    for source in checks:
        assert_checks_a_number(source, played(lab))


ANSWERS = {
    "your_agreement": ("agreement", "lambda loss, gradients: (loss, gradients)"),
    "your_scatter": ("scatter", "lambda g, w: scatter(8 * g, w)"),
    "your_fetch": ("fetch", "lambda weights: fetch({n: 2 * w for n, w in weights.items()})"),
    "your_rules": ("the_rules", "lambda: ((nothing, nothing), (summed, nothing))"),
    "your_finish": ("finish", "lambda gradients: gradients"),
    "your_sums": ("sums", "lambda gradients: gradients"),
    "your_gather": ("gather", "lambda *parts: jax.tree.map(jnp.add, gather(*parts), gather(*parts))"),
}
"""The reader's function: the name of the solution, and an answer that is wrong."""

PARTS = {
    "pairs": "lambda by: [(i, i + 1) for i in range(STAGES - 1)]",
    "ways": "lambda: ways()[::-1]",
}
"""Of two parts of an exercise, the one that the check takes from the notebook, and an answer that is wrong."""


@pytest.mark.slow
@pytest.mark.parametrize("lab", [in_turn(lab) for lab in LABS])
def test_a_function_is_checked_the_solution_right_another_wrong(lab):
    checks = [source for source in sources_of(lab) if "by_hand.check(your_" in source]
    assert checks
    for source in checks:
        name, training = re.search(r"by_hand\.check\((\w+), (\w+), one\)", source).groups()
        namespace = run([source], played(lab))
        assert "Not answered yet" in str(by_hand.check(namespace[name], namespace[training], namespace["one"]))
        parts = [part for part in PARTS if part in namespace and f"your_{part}" in namespace]
        for part in parts:
            namespace[f"your_{part}"] = namespace[part]
        solution, wrong = (eval(words, namespace) for words in ANSWERS[name])
        right = by_hand.check(solution, namespace[training], namespace["one"])
        assert right.ok, right
        refused = by_hand.check(wrong, namespace[training], namespace["one"])
        assert re.match("Not yet: the (loss|gradient norm) of step", str(refused)), refused
        for part in parts:
            namespace[f"your_{part}"] = eval(PARTS[part], namespace)
            refused = by_hand.check(solution, namespace[training], namespace["one"])
            assert re.match("Not yet[:,] (the (loss|gradient norm) of step|it does not run)", str(refused)), refused


# Training


def runs(steps=3, interrupt=None):
    """A tiny run that adds the step's number to one weight."""

    def step(params, state, batch):
        if interrupt and interrupt.pop(batch, False):
            raise KeyboardInterrupt
        return params + batch, state, jnp.float32(5 - batch), jnp.float32(1)

    return train.Training(step, jnp.zeros(()), None, lambda i: i, "tiny").run(steps)


def test_an_interrupted_run_says_so_and_goes_on_where_it_was(capsys):
    run = runs(6, interrupt={3: True})
    assert run.done == 3
    assert "tiny: stopped after 3 of 6 steps; run this cell again to go on" in capsys.readouterr().out
    assert run.run(6).done == 6
    assert float(run.params) == sum(range(6))
    assert run.losses.tolist() == [5 - i for i in range(6)]


def test_a_run_that_is_done_does_nothing():
    run = runs(3)
    before = run.log
    assert run.run(3).log is before
    assert run.run(2).done == 3


def test_runs_of_different_length_are_not_compared():
    with pytest.raises(ValueError, match=r"'tiny' is at step 2 from 0.*run the training cell of 'tiny' first"):
        train.compare(runs(2), runs(3), jnp.zeros(()))
    with pytest.raises(ValueError, match="run its training cell first"):
        by_hand.check(lambda: None, lambda answer: runs(1), runs(3), steps=5)


def test_a_difference_in_loss_norm_or_weights_shows():
    one = runs(3)
    assert train.compare(runs(3), one, jnp.ones(())).ok
    for change in ("loss", "norm", "weights"):
        other = runs(3)
        if change == "weights":
            other.params = other.params + 1
        else:
            wrong = (9.0, 1.0) if change == "loss" else (4.0, 2.0)
            other.log = (other.log[0], wrong, other.log[2])
        assert not train.compare(other, one, jnp.ones(())).ok
    nan = runs(3)
    nan.params = nan.params * np.nan
    assert not train.compare(nan, one, jnp.ones(())).ok


def test_a_clipped_part_is_scaled_by_the_norm_of_all():
    gradients = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    norm = jnp.sqrt(train.squares(gradients))
    assert float(norm) == 5
    np.testing.assert_allclose(train.clip(gradients, norm)["b"], [0.8], rtol=1e-6)
    np.testing.assert_array_equal(train.clip(gradients, norm, most=7.0)["a"], [3.0, 0.0])


# The text


def test_the_text_is_the_whole_book_in_ascii():
    words = text.alice().tobytes().decode("ascii")
    assert "ALICE'S ADVENTURES IN WONDERLAND" in words[:99]
    assert words.rstrip().endswith("THE END")
    assert len(words) > 148_000


def test_a_batch_depends_on_its_step_alone():
    draw = text.batches(text.alice(), 3, 7)
    again = text.batches(text.alice(), 3, 7)
    draw(0)
    np.testing.assert_array_equal(draw(5)["tokens"], again(5)["tokens"])
    assert (draw(5)["tokens"] != draw(6)["tokens"]).any()
    np.testing.assert_array_equal(draw(5)["tokens"][:, 1:], draw(5)["targets"][:, :-1])
    with pytest.raises(ValueError, match="T=9 tokens"):
        text.batches(np.zeros(9, np.uint8), 3, 9)


# The blocks


def test_the_blocks_put_together_are_the_llama():
    model = Transformer(n_layers=3, d_model=20, n_heads=6, n_kv_heads=2, head_dim=4, d_ff=28, vocab_size=256)
    params, batch = llama.init(model, jax.random.key(0)), text.batches(text.alice(), 3, 7)(0)
    params["norm"] += 0.3 * jax.random.normal(jax.random.key(1), params["norm"].shape)

    def loss(params, **how):
        x = blocks.layers(params["layers"], params["embedding"][batch["tokens"]], **how)
        return blocks.cross_entropy(blocks.logits(params, x), batch["targets"])

    expected = jax.value_and_grad(llama.loss)(params, batch)
    for how in ({}, {"remat": True}):
        found = jax.value_and_grad(lambda w, how=how: loss(w, **how))(params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, expected)


# The pipeline


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (3, 5), (4, 4), (5, 2), (4, 11)])
def test_a_timetable_has_the_bubble_and_the_room_of_the_formulas(schedule, stages, microbatches):
    table = pipeline.timetable(schedule, stages, microbatches)
    assert table.bubble == pytest.approx(pipelines.bubble(schedule, stages, microbatches))
    assert table.ticks == 2 * (microbatches + stages - 1)
    assert pipelines.in_flight(schedule, 0, stages, microbatches) <= table.slots <= microbatches
    for kind in (pipeline.FORWARD, pipeline.BACKWARD):
        for stage in range(stages):
            done = table.microbatches[table.jobs[:, stage] == kind, stage]
            assert sorted(done) == list(range(microbatches))


def test_a_timetable_reads_as_a_line_for_each_stage():
    assert str(pipeline.timetable("1f1b", 2, 2)).splitlines() == ["F0 F1 .  B0 .  B1", ".  F0 B0 F1 B1 . "]
    with pytest.raises(ValueError, match="schedule='zero-bubble' is not played here"):
        pipeline.timetable("zero-bubble", 2, 2)


# Experts


def test_a_token_goes_to_its_two_best_experts_and_none_is_dropped_where_there_is_room():
    logits = jax.random.normal(jax.random.key(0), (7, 5))
    routed = experts.route(logits, 2, 7)
    odds = np.asarray(jax.nn.softmax(logits))
    given = np.asarray(routed.give.sum(-1))
    for token in range(7):
        best = np.argsort(odds[token])[-2:]
        want = np.zeros(5)
        want[best] = odds[token][best] / odds[token][best].sum()
        np.testing.assert_allclose(given[token], want, rtol=1e-5)
    assert float(routed.dropped) == 0
    assert np.asarray(routed.take.sum(0)).max() == 1  # one token a place
    assert float(experts.balance(jnp.full(5, 0.2), jnp.full(5, 0.2))) == pytest.approx(1)


def test_what_finds_no_place_is_dropped_first_choices_last():
    logits = jnp.array([[9.0, 5.0, 0.0], [9.0, 5.0, 0.0], [0.0, 9.0, 5.0]])
    routed = experts.route(logits, 2, 1)
    assert routed.take.sum(-1).tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert float(routed.dropped) == 3


def test_capacity_is_an_even_share_times_the_factor():
    assert experts.capacity(120, 8, 2, 1.0) == 30
    assert experts.capacity(7, 5, 2, 1.25) == 4  # 3.5, rounded up
    assert experts.capacity(7, 5, 2, 99.0) == 7
    with pytest.raises(ValueError, match="factor=0 leaves no place"):
        experts.capacity(7, 5, 2, 0)


# Checkpoints


def test_a_checkpoint_is_restored_onto_another_mesh(tmp_path):
    row, square = simulate.mesh(X=8), simulate.mesh(X=2, Y=2)
    model = Transformer(n_layers=3, d_model=16, n_heads=6, n_kv_heads=2, head_dim=4, d_ff=28, vocab_size=44)
    params = llama.init(model, jax.random.key(0))
    tree = {"params": jax.device_put(params, llama.shardings(row, params, {"D": "X"}))}
    assert checkpoint.save(tmp_path / "a", tree) == checkpoint.save(tmp_path / "a", tree)  # the cell may run twice
    like = llama.specs(square, tree)
    found = checkpoint.restore(tmp_path / "a", like)
    jax.tree.map(np.testing.assert_array_equal, found, tree)
    assert found["params"]["head"].sharding == like["params"]["head"].sharding


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint; run the cell that saves it first"):
        checkpoint.restore(tmp_path / "none", {})


def test_without_orbax_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax", None)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ImportError, match="pip install orbax-checkpoint, then run this cell again"):
        checkpoint.save(tmp_path / "a", {})


def test_what_a_device_sends_counts_each_pass_of_a_loop_and_no_single_number():
    ring = simulate.mesh(X=8)

    def body(x):
        def turn(x, _):
            return jax.lax.psum(x, "X") / 8, None

        x, _ = jax.lax.scan(turn, x, None, 5)
        return x, jax.lax.pmean(x[0, 0], "X")

    run = jax.shard_map(body, mesh=ring, in_specs=P("X"), out_specs=(P("X"), P()), check_vma=False)
    program = simulate.compile(run, jax.ShapeDtypeStruct((24, 7), "float32", sharding=NamedSharding(ring, P("X"))))
    assert account.sent(program) == {"all-reduce": pytest.approx(5 * 2 * 7 / 8 * 4 * 3 * 7)}  # 3 x 7 numbers of 4 bytes


def test_with_too_few_devices_the_first_cell_says_what_to_do():
    code = "import jax; jax.config.update('jax_num_cpu_devices', 2); jax.devices()\n"
    code += "from scaling_lib.xla import simulate; simulate.mesh(X=8)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert "8 pretend devices are needed, but JAX has already started with 2: restart the kernel" in done.stderr
