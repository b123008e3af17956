"""What others published or got wrong, recomputed through the library: bug reports, the field's worked problems, training runs."""

import csv
import math
from pathlib import Path

import pytest

from scaling_lib import roofline, units
from scaling_lib import transformer as tf
from scaling_lib.hardware import chip
from scaling_lib.transformer import Experts, Quantization, Transformer

DATA = Path(__file__).parent / "data"


def rows(file):
    return list(csv.DictReader((DATA / file).read_text(encoding="utf-8").splitlines()))


# --- Bug reports about parameters (P), FLOPs (F), utilization (U), memory (M) and KV caches (K). ---

MIXTRAL, LLAMA_8B, LLAMA_70B, QWEN3_4B = (tf.model(name) for name in ("Mixtral 8x7B", "Llama-3 8B", "Llama-3 70B", "Qwen3 4B"))
STEP = 12 * 2048  # tokens a device in the reports F06 to F09
GPT_7B = Transformer(n_layers=32, d_model=4096, n_heads=32, d_ff=16384, vocab_size=32000, gated_mlp=False)
GPT_774M = Transformer(n_layers=36, d_model=1280, n_heads=20, d_ff=3392, vocab_size=50304, tied_embeddings=True)
MOE_48 = Transformer(  # attention of K13, whose other sizes do not matter to a cache
    n_layers=48, d_model=2048, n_heads=32, n_kv_heads=4, head_dim=128, vocab_size=151_936, d_ff=6144
)
H100 = chip("h100")


def qwen_72b():
    return Transformer(n_layers=80, d_model=8192, n_heads=64, n_kv_heads=64, d_ff=24576, vocab_size=152_064, qkv_bias=True)


def per_step(name):
    """Model TFLOPs of STEP tokens in sequences of 2048, every pair of query and key counted."""
    return tf.train_flops(tf.model(name), T=2048, causal=False, B=12).model_flops / 1e12


def attention(model, T, **changes):
    """Training FLOPs of attention's pairs, a token."""
    forward = tf.forward_flops(model, T=T, causal=False, **changes)
    return 3 * (forward.scores + forward.context) / T


def prefix(flops_per_s):
    """What the prefix stands for with which a rate is printed."""
    return {"G": 1e9, "T": 1e12}[units.human(flops_per_s, "FLOP/s").split()[1][0]]


def coefficient(d_ff):
    """Forward FLOPs of a gated layer's matrices in units of B T D^2, with D = 4096."""
    model = Transformer(n_layers=1, d_model=4096, n_heads=32, d_ff=d_ff, vocab_size=1)
    flops = tf.forward_flops(model, T=1, causal=False, head="none")
    return (flops.projections + flops.mlp) / 4096**2


def hidden_pairs(N, d):
    """How much a counter that sees only linear layers misses of a GPT-like block."""
    model = Transformer(n_layers=1, d_model=d, n_heads=1, d_ff=4 * d, vocab_size=1, gated_mlp=False)
    flops = tf.forward_flops(model, T=N, causal=False, head="none")
    return flops.total / (flops.projections + flops.mlp)


def prefill_s(model, S, flops_per_s):
    """Seconds at peak of a causal prefill without the head, as the reports count."""
    return tf.forward_flops(model, T=S, causal=True, head="none").total / flops_per_s


def mfu_percent(published_percent, divided_by, chip_name, dtype="bf16"):
    """A published percentage, taken back to FLOP/s and divided by the right dense peak."""
    return 100 * tf.utilization(published_percent / 100 * divided_by, seconds=1, chips=1, chip=chip(chip_name), dtype=dtype)


def percent_without_the_lookup():
    """TinyLlama's MFU, once its input table no longer counts as a matmul."""
    tiny = Transformer(n_layers=22, d_model=2048, n_heads=32, n_kv_heads=4, d_ff=5632, vocab_size=32000)
    assert tf.parameters(tiny).total == 1_100_048_384  # as the report states it
    right, wrong = (tf.train_flops(tiny, T=2048, causal=False, embedding=how).model_flops for how in ("lookup", "matmul"))
    return 35 * right / wrong


def shared_expert_ratio():
    """FLOPs of a shared expert of the dense width, three times an expert's, over one of an expert's own width."""
    wide, narrow = (
        MIXTRAL.but(experts=Experts(n_experts=8, top_k=2, d_ff=14336, n_shared=1, shared_d_ff=width))
        for width in (3 * 14336, 14336)
    )
    counted = [tf.forward_flops(model, T=5, causal=True).shared_experts for model in (wide, narrow)]
    return counted[0] / counted[1]


CASES = {
    "P01": lambda: tf.parameters(qwen_72b()).total,
    "P02": lambda: tf.parameters(MIXTRAL).total,
    "P03": lambda: tf.parameters(MIXTRAL).total,
    "P06": lambda: tf.parameters(QWEN3_4B).total,
    "P07": lambda: tf.parameters(tf.model("Qwen2.5 72B")).total,
    "P09": lambda: tf.active_parameters(QWEN3_4B, "matmul") + tf.parameters(QWEN3_4B).norms,
    "P10": lambda: sum(w.stored for w in tf.weights(tf.model("Llama-2 7B")) if w.part == "norms" and w.layers is not None),
    "F01": lambda: attention(tf.model("GPT-2 small"), 1024),
    "F05": lambda: percent_without_the_lookup(),
    "F06": lambda: per_step("Llama-2 7B"),
    "F07": lambda: per_step("Llama-2 70B"),
    "F09": lambda: (
        # "All experts": a layer that computes every expert for every token, as that code did.
        tf.train_flops(MIXTRAL.but(experts=Experts(n_experts=8, top_k=8, d_ff=14336)), T=2048, causal=False, B=12).model_flops
        / 1e12
    ),
    "F10": lambda: tf.train_flops(MIXTRAL, T=1024, causal=False).model_flops / 1e12,
    "F11": lambda: tf.parameters(MIXTRAL).total / tf.active_parameters(MIXTRAL, "all"),
    "F12": lambda: attention(LLAMA_8B, 4096),
    "F18": lambda: coefficient(4 * 4096),
    "F19": lambda: coefficient(11008),
    "F21": lambda: shared_expert_ratio(),
    "F23": lambda: prefill_s(tf.model("Llama-3.1 405B"), 16000, 8 * 36e12),
    "F24": lambda: (
        tf.forward_flops(LLAMA_8B, T=8192, S=8192 + 131072, causal=True).scores
        / tf.forward_flops(LLAMA_8B, T=8192, causal=True).scores
    ),
    "F25": lambda: hidden_pairs(1024, 192),
    "F26": lambda: 10 * roofline.matmul(64, 64, 64).total_flops,
    "F30": lambda: hidden_pairs(197, 768),
    "U03": lambda: mfu_percent(104, 312e12, "h100"),
    "U05": lambda: H100.flops_per_s("bf16") / 494.5e12,
    "U06": lambda: 100 * tf.utilization(400e12, seconds=1, chips=1, chip=H100),
    "U12": lambda: prefill_s(LLAMA_8B, 50_000, 312e12),
    "U11": lambda: prefix(1e9) / prefix(1e12),
    "M02": lambda: tf.state_bytes(6.7e9).total / 1e9,
    "M03": lambda: tf.state_bytes(7e9, weights="f16", gradients="f16").total / 1e9,
    "M05": lambda: tf.logits_bytes(GPT_774M, T=1024, B=4) / units.MIB,
    "M06": lambda: (
        (
            tf.state_bytes(774e6, gradients="f32").total
            + 774e6 * 2  # fp16 weights and gradients, beside float32 ones
            + tf.activation_bytes(GPT_774M, T=1024, B=4, dropout=True).layers_bytes
        )
        / 1e9
    ),
    "M09": lambda: 83.81 / 4,
    "M11": lambda: tf.state_bytes(1).total,
    "M12": lambda: tf.activation_bytes(GPT_7B, T=4096, dropout=True).layers_bytes / 32,
    "M13": lambda: tf.activation_bytes(GPT_7B, T=4096, dropout=True, remat="selective").layers_bytes / 32,
    "M14": lambda: tf.logits_bytes(GPT_7B.but(vocab_size=131072), T=4096, dtype="bf16") / units.GIB,
    "M15": lambda: tf.logits_bytes(GPT_7B.but(vocab_size=248320), T=11_600) / 1e9,
    "M18": lambda: tf.parameters(MIXTRAL).experts / (1 * 2),
    "M19": lambda: tf.weight_bytes(tf.model("Llama-2 7B")).total / 1e9,
    "M20": lambda: open_llama_3b_bytes() / 1e9,
    "M24": lambda: Quantization(bits=4, group=128, scale_dtype="f16", zero_dtype="f16").bits_per_weight,
    "M28": lambda: tf.state_bytes(0.96e9).total / 1e9,
    "K01": lambda: kv_per_token(n_layers=32, n_heads=32, d_model=4096),
    "K02": lambda: tf.kv_cache_bytes(tf.model("Llama-2 7B"), S=32768) / units.GIB,
    "K03": lambda: tf.kv_cache_bytes(LLAMA_70B.but(n_kv_heads=64), S=32768) / 1e9,
    "K04": lambda: tf.kv_cache_bytes(QWEN3_4B, S=1),
    "K08": lambda: tf.kv_cache_bytes(tf.model("Llama-4 Scout"), S=1, tensor_parallel=8),
    "K10": lambda: tf.kv_cache_bytes(tf.model("Qwen3 1.7B"), S=1024) / units.MIB,
    "K13": lambda: 5.59 * units.GIB / tf.kv_cache_bytes(MOE_48, S=1, dtype="fp8"),
    "K17": lambda: tf.kv_cache_bytes(tf.model("gpt-oss-120b"), S=131072),
    "K18": lambda: tf.kv_cache_bytes(tf.model("Qwen3 32B"), S=1, tensor_parallel=4),
    "K22": lambda: tf.kv_cache_bytes(LLAMA_70B, S=20_000, tensor_parallel=2, dtype="f16") / 1e9,
    "K23": lambda: tf.kv_cache_bytes(LLAMA_70B, S=8192, B=32, dtype="int8"),
}

ELSEWHERE = {"M25", "M26", "M27"}
"""Padding of layouts on TPUs, which the compiler tells: test_problems."""


def kv_per_token(**shape):
    return tf.kv_cache_bytes(Transformer(d_ff=1, vocab_size=1, **shape), S=1)


def open_llama_3b_bytes():
    """Embedding and head in float32, matrices in nf4 with double quantization."""
    model = Transformer(n_layers=26, d_model=3200, n_heads=32, d_ff=8640, vocab_size=32000)
    nf4 = Quantization(bits=4, group=64, scale_dtype="int8", scale_group=256)
    stored = tf.weight_bytes(model, "f32", nf4)
    return stored.total - stored.norms


REPORTS = [row for row in rows("cases_numeric.csv") if row["id"][0] in "PFUMK"]


@pytest.mark.parametrize("row", [r for r in REPORTS if r["id"] not in ELSEWHERE], ids=lambda row: row["id"])
def test_the_right_value_of_a_bug_report(row):
    right = float(row["right_value"])
    whole = row["id"][0] in "PK" and right == int(right) and row["id"] not in ("K13",)
    assert CASES[row["id"]]() == pytest.approx(right, rel=0 if whole else 2e-4)


def test_every_report_is_a_test():
    assert {row["id"] for row in REPORTS} == {*CASES, *ELSEWHERE}
    assert not set(CASES) & ELSEWHERE


def test_the_reported_values_come_out_of_the_named_wrong_conventions():
    """F06 and F07: the old figures counted the input table as a matmul and half of attention; the library can say that too."""
    for name, reported in (("Llama-2 7B", 1033.2), ("Llama-2 70B", 10368.9)):
        old = tf.train_flops(tf.model(name), T=2048, causal=True, B=12, embedding="matmul").model_flops / 1e12
        assert old == pytest.approx(reported, rel=2e-4)


# --- The field's worked problems of chapter 4. ---

BLOCK = Transformer(n_layers=64, d_model=8192, n_heads=64, d_ff=4 * 8192, vocab_size=1)
V3 = tf.model("DeepSeek-V3")


def one_layer(D, d_ff=None, **changes):
    return Transformer(n_layers=1, d_model=D, n_heads=D // 128, d_ff=d_ff or 4 * D, vocab_size=1, **changes)


def pairs_over_matrices(D, T, parts=("projections", "mlp")):
    """FLOPs of scores and context over those of some matrices, every pair counted; the field's feed-forward has two of F = 4D."""
    flops = tf.forward_flops(one_layer(D, gated_mlp=True), T=T, causal=False, head="none")
    return (flops.scores + flops.context) / sum(getattr(flops, part) for part in parts)


def crossing(D, parts):
    """The length at which pairs cost as much as the matrices: both are linear in T beyond a common factor T."""
    return 1 / pairs_over_matrices(D, 1, parts)


def d_wide_bytes():
    """One tensor of width D a layer, of 4e6 tokens, in bf16: what a block that keeps its input alone keeps."""
    return tf.activation_bytes(BLOCK, T=4000, B=1000, remat="full").layers_bytes


def recomputed_pairs():
    """FLOPs computed again if the seven results of matrices are kept, in units of B T^2 N H."""
    seven = ("attention.query", "attention.key", "attention.value", "attention.out", "mlp.gate", "mlp.up", "mlp.down")
    again = tf.train_flops(one_layer(8192), T=1000, B=3, causal=False, remat=seven).recompute
    return again.total / (3 * 1000**2 * 8192)


def remat_flops_per_parameter():
    """FLOPs a parameter and token of a step that runs each layer twice, without attention's pairs."""
    step = tf.train_flops(BLOCK, T=1, causal=True, remat="full")
    matrices = step.hardware_flops - 4 * (step.forward.scores + step.forward.context) - 3 * step.forward.head
    return matrices / (tf.parameters(BLOCK).attention + tf.parameters(BLOCK).mlp)


def mlp_share(model):
    counted = tf.parameters(model)
    return counted.mlp / (counted.mlp + counted.attention)


def mixed_mesh_redundancy():
    """A[B_X, D_Y] · W[D_Y, F] on X=4, Y=8, Z=4: work of all devices over the FLOPs of the product."""
    B, D, F = 16, 64, 48
    per_device = roofline.matmul(B // 4, D // 8, F).total_flops
    return 4 * 8 * 4 * per_device / roofline.matmul(B, D, F).total_flops


def deepseek_critical_batch():
    """Tokens at which the experts' FLOPs take as long as reading all of their int8 weights, at 240 FLOP/s a byte/s."""
    expert = tf.weight_bytes(V3, "int8").experts
    flops = tf.forward_flops(V3, T=1, causal=True).experts
    return 240 * expert / flops


PROBLEMS = {
    "TF-02": lambda: pairs_over_matrices(4096, 8 * 4096),
    "TF-03": lambda: crossing(8192, ("projections", "mlp")),
    "TF-05": lambda: 20 * d_wide_bytes(),
    "TF-06": lambda: d_wide_bytes(),
    "TF-07": lambda: remat_flops_per_parameter(),
    "TF-08": lambda: 7 * d_wide_bytes(),
    "TF-09": lambda: tf.kv_cache_bytes(BLOCK, S=8192, dtype="int8") / units.GIB,
    "TF-11": lambda: 1 - mlp_share(one_layer(4096)),
    "TF-12": lambda: tf.kv_cache_bytes(BLOCK.but(d_model=4096, n_heads=32, n_kv_heads=32), S=1, dtype="int8") / units.KIB,
    "TF-13": lambda: mixed_mesh_redundancy(),
    "TF-15": lambda: crossing(4096, ("projections",)),
    "TF-16": lambda: 2.79e6 * 3600 * 1.513e15,
    "TF-19": lambda: recomputed_pairs(),
    "TF-20": lambda: deepseek_critical_batch(),
    "TF-22": lambda: mlp_share(one_layer(8192)),
}
WORKED = [row for row in rows("worked_problems.csv") if row["chapter"] == "4 transformers"]


@pytest.mark.parametrize("row", WORKED, ids=lambda row: row["id"])
def test_worked_problems_of_the_field(row):
    expected = float(row["expected_value"])
    assert PROBLEMS[row["id"]]() == pytest.approx(expected, rel=max(float(row["tolerance"]), 1e-9))


def test_every_problem_has_a_row():
    assert {row["id"] for row in WORKED} == set(PROBLEMS)


def test_seven_kept_results_are_thirteen_widths_where_the_field_counts_seven():
    """TF-08 counts tensors; in bytes the two hidden ones are four times as wide."""
    seven = ("attention.query", "attention.key", "attention.value", "attention.out", "mlp.gate", "mlp.up", "mlp.down")
    kept = tf.activation_bytes(one_layer(8192, n_kv_heads=64), T=3, remat=seven).kept
    widths = {tensor.name: tensor.bytes / (3 * 8192 * 2) for tensor in kept}
    assert widths == {
        "input": 1, "attention.query": 1, "attention.key": 1, "attention.value": 1, "attention.out": 1, "mlp.gate": 4, "mlp.up": 4
    }  # and the seventh, the block's own result, is kept as the next layer's input  # fmt: skip
    assert sum(widths.values()) == 13


# --- FLOPs a token of published training runs. ---

RUNS = rows("training_flops.csv")


def flops_per_token(row):
    model, T = tf.model(row["model"]), int(row["seq_len"])
    if row["check_convention"] == "none":  # attention's pairs left out
        return 6 * tf.active_parameters(model, "without_lookup")
    return tf.train_flops(model, T=T, causal=row["check_convention"] == "causal").model_flops / T


@pytest.mark.parametrize("convention", ["full", "causal", "none"])
def test_flops_a_token_of_published_training_runs(convention):
    off = {}
    for row in (row for row in RUNS if row["check_convention"] == convention):
        ratio = flops_per_token(row) / float(row["check_flops_per_token"])
        if not math.isclose(ratio, 1, rel_tol=0.01):
            off[row["id"]] = ratio
    assert off == {}


def test_every_published_run_names_a_model_of_the_catalog():
    assert len(RUNS) == 242
    assert {row["model"] for row in RUNS} <= set(tf.MODELS)
