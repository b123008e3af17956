"""Training: the field's worked problems, published memory figures, and bug reports about what is shared out, recomputed."""

import csv
from pathlib import Path

import pytest

from scaling_lib import transformer as tf
from scaling_lib import units
from scaling_lib.hardware import chip, slice_of
from scaling_lib.training import Plan, bounds, estimate
from scaling_lib.training.facts import Facts

DATA = Path(__file__).parent / "data"


def rows(file):
    return list(csv.DictReader((DATA / file).read_text(encoding="utf-8").splitlines()))


# --- Worked problems of chapters 5 and 6; those about days and dollars are in test_goodput. ---

V5P, V4 = chip("v5p"), chip("v4")
POD = 8960
HBM = 96e9  # as the problems state it
LLAMA_13B, LLAMA_70B, LLAMA_405B = (tf.model(name) for name in ("Llama-2 13B", "Llama-3 70B", "Llama-3.1 405B"))
FOUR_MI = 4 * 2**20


def both(d_ff, overlap):
    """FSDP over two axes and tensor parallelism over the third: least tokens a chip."""
    return bounds.mixed_tokens(V5P, d_ff, fsdp_axes=2, tensor_axes=1, overlap=overlap)


def adam(parameters):
    """Weights in bf16 and two moments in float32."""
    state = tf.state_bytes(parameters, master=None)
    return state.weights + state.moments


def checkpoints(model, names, tokens):
    """Kept tensors of all layers; the input of each is always kept."""
    return tf.activation_bytes(model, T=1000, B=tokens // 1000, remat=names, flash=True).layers_bytes


def backward_units(*, again):
    """Bytes of tensor parallelism in the backward pass of one block, in units of B D."""
    facts = Facts.of(LLAMA_70B, Plan(tensor=8), T=1000, causal=True)
    blocks = 2 * LLAMA_70B.L
    arrays = facts.gathers / blocks / 2 * 2 + (facts.again_gathers / blocks if again else 0)  # half are backward; pairs are two
    return arrays * units.itemsize("bf16")


def moved_bytes(plan):
    """Bytes of layers' collectives of a step, an all-reduce being a reduce-scatter and an all-gather."""
    priced = estimate(LLAMA_13B, "v5p:4x4x4", plan, 64, T=1000)
    return sum(r.total_bytes * (2 if r.kind == "all-reduce" else 1) for r in priced.collectives if r.what.startswith("layers"))


TR = {
    "TR-01": lambda: bounds.intensity(V5P),
    "TR-02": lambda: bounds.data_tokens(V5P, axes=3),
    "TR-03": lambda: bounds.data_tokens(V5P, axes=3) * slice_of("v5p:16x20x28").chips,
    "TR-04": lambda: HBM / adam(1),
    "TR-05": lambda: 40e6 / bounds.data_tokens(V5P, axes=3),
    "TR-06": lambda: 40e6 / bounds.data_tokens(V5P, axes=3) / POD,
    "TR-07": lambda: 6 * 70e9 * 15e12,
    "TR-08": lambda: 16e6 / bounds.data_tokens(V5P, axes=3),
    "TR-10": lambda: 8 / bounds.tensor_ways(V5P, 1),
    "TR-11": lambda: 8 / bounds.tensor_ways(V4, 1),
    "TR-12": lambda: bounds.tensor_ways(V5P, 50_000),
    "TR-15": lambda: both(32768, "none"),
    "TR-16": lambda: both(32768, "full"),
    "TR-17": lambda: bounds.data_tokens(V5P, axes=3) / both(32768, "full"),
    "TR-18": lambda: 4096 * both(32768, "none"),
    "TR-19": lambda: 4096 * both(32768, "full"),
    "TR-20": lambda: 4096 * bounds.data_tokens(V5P, axes=2) / 8,  # each of 8 tensor ways holds an eighth of the weights
    "TR-21": lambda: bounds.tensor_ways(V5P, 30_000),
    "TR-22": lambda: 2e6 / bounds.data_tokens(V5P, axes=3),
    "TR-23": lambda: both(30_000, "none"),
    "TR-24": lambda: 2e6 / 432,
    "TR-25": lambda: POD * both(30_000, "none"),
    "TR-27": lambda: both(30_000, "full"),
    "TR-31": lambda: POD * V5P.flops_per_s(),
    "TR-32": lambda: bounds.slice_tokens(V5P),
    "TR-34": lambda: bounds.slice_tokens(V5P),
    "TR-37": lambda: tf.parameters(LLAMA_13B).mlp,
    "TR-39": lambda: tf.parameters(LLAMA_13B).embedding + tf.parameters(LLAMA_13B).head,
    "TR-40": lambda: tf.parameters(LLAMA_13B).total,
    "TR-41": lambda: adam(13e9),
    "TR-42": lambda: checkpoints(LLAMA_13B, ("mlp.gate", "mlp.up"), 16_000_000),
    "TR-43": lambda: 3 * 2**20 / 32768,
    "TR-44": lambda: 4096 * HBM,
    "TR-45": lambda: checkpoints(LLAMA_13B, ("mlp.gate", "mlp.up"), 3_000_000),
    "TR-47": lambda: 4096 * bounds.data_tokens(V5P, axes=3),
    "TR-48": lambda: both(13824, "none"),
    "TR-49": lambda: both(13824, "full"),
    "TR-50": lambda: bounds.best_fsdp(3e6, 4096, 13824, fsdp_axes=2, tensor_axes=1),
    "TR-51": lambda: 1e3 * 6 * 3e6 * 13e9 / (4096 * 4.6e14 * 0.4),
    "TR-52": lambda: 8e12 / 4096,
    "TR-54": lambda: 10e6 / 4096,
    "TR-55": lambda: 2e6 / (2 * POD),
    "TR-56": lambda: backward_units(again=False),
    "TR-57": lambda: backward_units(again=False),
    "TR-58": lambda: moved_bytes(Plan(fsdp=64)) / moved_bytes(Plan(data=64, zero=0)),
    "AT-01": lambda: tf.parameters(LLAMA_70B).mlp,
    "AT-03": lambda: tf.parameters(LLAMA_70B).attention,
    "AT-04": lambda: tf.parameters(LLAMA_70B).total,
    "AT-05": lambda: 6 * 70e9,
    "AT-11": lambda: tf.state_bytes(70e9).weights,
    "AT-12": lambda: tf.state_bytes(70e9).moments,
    "AT-15": lambda: 21.6e12 / HBM,
    "AT-19": lambda: 21.6e12 / POD,
    "AT-21": lambda: FOUR_MI / 4096,
    "AT-22": lambda: FOUR_MI / POD,
    "AT-23": lambda: both(LLAMA_70B.F, "none"),
    "AT-24": lambda: bounds.best_fsdp(4.19e6, POD, LLAMA_70B.F, fsdp_axes=2, tensor_axes=1),
    "AT-27": lambda: checkpoints(LLAMA_70B, ("attention.out",), 4_000_000),
    "AT-29": lambda: 11.2e12 / HBM,
    "AT-33": lambda: FOUR_MI / (4 * POD),
    "AT-34": lambda: tf.parameters(LLAMA_405B).total,
    "AT-36": lambda: 6 * 405e9 * 15e12,
}
WORKED = rows("training_problems.csv")


@pytest.mark.parametrize("row", WORKED, ids=lambda row: row["id"])
def test_worked_problems_of_the_field(row):
    agrees = row["checked"] == "yes"
    expected = float(row["expected_value"] if agrees else row["computed_value"])
    assert TR[row["id"]]() == pytest.approx(expected, rel=max(float(row["tolerance"]), 1e-3) if agrees else 1e-3)


def test_every_problem_has_a_row():
    assert {row["id"] for row in WORKED} == set(TR)


def test_inputs_gathered_again_make_the_backward_pass_six_units():
    """TR-56 keeps gathered inputs. With sequence parallelism they are kept in parts, and gathered twice."""
    assert backward_units(again=True) == 6


# --- Published memory, whole table by whole table. ---

MEMORY = {row["id"]: row for row in rows("training_memory.csv")}
MEGATRON = {  # model, sequences of 2048 in a micro-batch, stages, virtual stages; 8 tensor ways
    "M24": ("Megatron 22B", 4, 1, 1), "M25": ("Megatron 22B", 4, 1, 1),
    "M27": ("GPT-3 175B", 1, 8, 3), "M28": ("GPT-3 175B", 1, 8, 3),
    "M30": ("MT-NLG 530B", 1, 35, 3), "M31": ("MT-NLG 530B", 1, 35, 3),
    "M33": ("Megatron 1T", 1, 64, 1), "M34": ("Megatron 1T", 1, 64, 1),
}  # fmt: skip


def published(id):
    return float(MEMORY[id]["published_value"])


@pytest.mark.parametrize(("id", "zero"), [("M01", 0), ("M02", 1), ("M03", 2), ("M04", 3)])
def test_zero_paper(id, zero):
    """7.5 billion parameters on 64 GPUs, 16 bytes each under Adam."""
    plan = Plan(data=64, zero=0) if zero == 0 else Plan(fsdp=64, zero=zero)
    memory = estimate(LLAMA_13B, "h100:8x8", plan, 64, T=64).memory
    state = memory.weights + memory.gradients + memory.optimizer
    assert state / tf.parameters(LLAMA_13B).total * 7.5e9 / 1e9 == pytest.approx(published(id), rel=0.014)  # printed in 2 digits


@pytest.mark.parametrize("id", MEGATRON)
def test_activations_of_korthikanti(id):
    name, sequences, stages, virtual = MEGATRON[id]
    selective = "selective" in MEMORY[id]["setting"]
    plan = Plan(
        tensor=8, pipeline=stages, schedule="interleaved" if virtual > 1 else "1f1b", virtual_stages=virtual,
        microbatches=2 * stages if stages > 1 else 1, flash=False, dropout=True,
        remat="selective" if selective else "none", sequence_parallel=selective,
    )  # fmt: skip
    priced = estimate(name, f"a100-80gb:8x{stages}", plan, sequences * plan.microbatches, T=2048)
    activations = priced.step.first.activations
    head = priced.facts.head_bytes if stages == 1 else 0
    assert (activations - head * sequences) / units.GIB == pytest.approx(published(id), rel=1e-6)


@pytest.mark.parametrize(("id", "name", "stages"), [("M23", "Megatron 22B", 1), ("M32", "Megatron 1T", 64)])
def test_states_of_korthikanti(id, name, stages):
    """18 bytes a parameter: float32 gradients. The source counts layers alone, so the first stage's table comes off."""
    plan = Plan(tensor=8, pipeline=stages, microbatches=stages, gradients="f32", zero=0)
    priced = estimate(name, f"a100-80gb:8x{stages}", plan, stages, T=2048)
    memory, facts = priced.step.first, priced.facts
    tables = facts.first_weights + (facts.last_weights if stages == 1 else 0)
    states = memory.weights + memory.gradients + memory.optimizer - 18 * tables
    assert states / units.GIB == pytest.approx(published(id), rel=1e-3)


@pytest.mark.parametrize("id", ["M53", "M55"])
def test_states_that_maxtext_reports(id):
    """Float32 weights that Adam updates themselves, over four chips. It counts 1.4 % more parameters than the model has."""
    priced = estimate("DeepSeek-V2-Lite", "v5p:2x2x1", Plan(fsdp=4, weights="f32", master=None), 4, T=2048)
    assert (priced.memory.weights + priced.memory.optimizer) / units.GIB == pytest.approx(published(id), rel=0.02)


def test_more_gpus_share_the_state():
    """M76, M77: from 8 to 128 GPUs a peak of 82.4 GiB became 67.0. States alone explain all but a tenth of it."""

    def states(nodes):
        plan = Plan(fsdp=8 * nodes, weights="f32", gradients="f32", master=None, remat="selective")
        memory = estimate("Llama-3.1 8B", f"h100:8x{nodes}", plan, 16 * nodes, T=8192).memory
        return (memory.weights + memory.gradients + memory.optimizer) / units.GIB

    assert states(1) - states(16) == pytest.approx(published("M76") - published("M77"), rel=0.1)


# --- Bug reports. ---


def test_experts_are_shared_out_over_expert_ways_and_not_over_tensor_ways_they_do_not_have():
    """M18, Megatron-Bridge#3744: the divisor of experts is expert · tensor ways of the experts themselves."""
    mixtral = tf.model("Mixtral 8x7B")
    facts = Facts.of(mixtral, Plan(expert=2), T=1024, causal=True)
    assert facts.expert_weights == tf.parameters(mixtral).experts / 2 == 22_548_578_304


def test_all_to_alls_of_experts():
    """C12, aicb#36 and lm-sys#394 (C13): four a layer, two of them forward; 7/8 of tokens · k · D · 2 bytes each."""
    mixtral = tf.model("Mixtral 8x7B").but(d_model=8192, head_dim=128)
    priced = estimate(mixtral, "h100:8x1", Plan(expert=8, zero=0), 8, T=8192)
    (row,) = [r for r in priced.collectives if r.kind == "all-to-all"]
    assert row.count == 4 * mixtral.L
    assert row.sent_bytes / mixtral.L == pytest.approx(0.939524e9, rel=1e-6)
