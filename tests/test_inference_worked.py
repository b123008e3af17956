"""Serving: the field's worked problems, bug reports and published cache sizes, recomputed."""

import csv
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from scaling_lib import transformer as tf
from scaling_lib import units
from scaling_lib.hardware import Slice, chip
from scaling_lib.inference import Layout, Speed, critical_batch, decode_step, inequalities, max_batch
from scaling_lib.inference.disaggregation import servers
from scaling_lib.inference.facts import Facts
from scaling_lib.inference.forward import price
from scaling_lib.inference.layout import GROUPS
from scaling_lib.inference.speculation import expected_tokens
from scaling_lib.inference.speed import HOP_S
from scaling_lib.training import bounds
from scaling_lib.training.step import Rates
from scaling_lib.training.wires import Wires
from scaling_lib.transformer import Experts, Transformer
from tests import test_goodput

DATA = Path(__file__).parent / "data"
CHAPTERS = {"7 inference": 51, "8 applied-inference": 41}


def rows(file):
    return list(csv.DictReader((DATA / file).read_text(encoding="utf-8").splitlines()))


# --- Worked problems of chapters 7 and 8; those about dollars alone are in test_goodput. ---

V5E, V5P = chip("v5e"), chip("v5p")
OLD_V5E = V5E.but(hbm_bytes_per_s=8.1e11)  # as many problems state it
CHIP = 16e9  # bytes of a v5e chip, as they state it
LLAMA_13B, LLAMA_70B, LLAMA_8B, LLAMA_405B, PALM = (
    tf.model(name) for name in ("Llama-2 13B", "Llama-3 70B", "Llama-3 8B", "Llama-3.1 405B", "PaLM 540B")
)
MODEL = Transformer(
    n_layers=64, d_model=4096, d_ff=16384, n_heads=32, n_kv_heads=8, head_dim=256, vocab_size=32128, tied_embeddings=True
)
MIXTURE = MODEL.but(d_ff=0, experts=Experts(n_experts=16, top_k=2, d_ff=16384))
ROUND = Transformer(n_layers=50, d_model=1000, n_heads=10, head_dim=100, d_ff=4000, vocab_size=1000)  # 100 kB a token in int8


def priced(weights, kv, batch, chips, *, parameters=0.0, hbm=8.2e11, peak=1.97e14):
    """A decode step with sizes as a problem rounds them: bytes of all weights, and of the cache of one sequence."""
    nothing = dict.fromkeys(("head_flops", "attention_flops", "working_bytes", "logits_bytes"), 0.0)
    facts = replace(
        Facts.of(LLAMA_13B, Layout(), T=1, S=8192, cache=8192),
        weights_bytes=weights / chips, read_bytes=weights / chips, kv_bytes=kv / chips, kv_read_bytes=kv / chips,
        math_flops=2 * parameters / chips, **nothing,
    )  # fmt: skip
    rate = Rates(math_flops_per_s=peak, attention_flops_per_s=peak, hbm_bytes_per_s=hbm, host_bytes_per_s=1.0, usable_bytes=CHIP)
    return price(facts, Layout(), dict.fromkeys(GROUPS, Wires()), rate, Speed(), batch)


def ms(*sizes, **how):
    return 1e3 * priced(*sizes, **how).seconds(Speed())


def gigabytes(weights, kv, batch):
    return priced(weights, kv, batch, 8).memory.total * 8 / 1e9


def table(kind, batch, what):
    """Of Llama-2 13B on 8 v5e with 8192 tokens a sequence, as the book rounds it; GQA with a fifth of the cache."""
    kv = 6.7e9 if kind == "MHA" else 1.34e9
    seconds = priced(26e9, kv, batch, 8, parameters=13e9).seconds(Speed())
    return {"mem": lambda: gigabytes(26e9, kv, batch), "ms": lambda: 1e3 * seconds, "tps": lambda: batch / seconds}[what]()


def kv(model, S=1, **how):
    return tf.kv_cache_bytes(model, S=S, dtype="int8", **how)


def power_of_2(size):
    return 2 ** math.ceil(math.log2(size / CHIP))


def weights_ms(model, layout, shape):
    return 1e3 * decode_step(model, Slice(OLD_V5E, shape), layout, 1, context=1).parts_s["weights"]


def per_s(batch, *, step_s=0.019, output=512):
    """Requests a server finishes in a second."""
    return servers(prefill_s=1, step_s=step_s, batch=batch, output=output)


def fraction(dtype):
    """v5e chips that the weights of Llama-3 70B fill, as the book rounds both."""
    return 70e9 * units.itemsize(dtype) / CHIP


def free(dtype, chips):
    return (chips - fraction(dtype)) * CHIP / 1e9


KV_8K = 160e3 * 8192  # of Llama-3 70B in int8, rounded
PROBLEMS = {
    "IN-01": lambda: critical_batch(V5E, Layout()),
    "IN-03": lambda: critical_batch(V5E, Layout(weights="int8", math="int8")),
    "IN-04": lambda: 480 * critical_batch(V5E, Layout()) / inequalities.attention_intensity(480, 480),
    "IN-05": lambda: inequalities.attention_intensity(1, 8192),
    "IN-06": lambda: kv(ROUND, 8192),
    "IN-07": lambda: ms(30e9, kv(ROUND, 8192), 4, 16, hbm=8.1e11),
    "IN-09": lambda: tf.weight_bytes(LLAMA_13B).total,
    "IN-10": lambda: Facts.of(LLAMA_13B, Layout(), T=8192, S=8192, cache=8192, decode=False).stream_bytes / units.MIB,
    "IN-12": lambda: max_batch(LLAMA_13B, "v5e:2x4", Layout(tensor=8), context=8192),
    "IN-13": lambda: inequalities.hbm_over_ici(OLD_V5E),
    "IN-15": lambda: tf.parameters(MODEL).total,
    "IN-16": lambda: kv(MODEL),
    "IN-19": lambda: max_batch(
        MODEL.but(n_kv_heads=1), Slice(V5E.but(usable_hbm_bytes=CHIP), (4, 4)),
        Layout(sequence=16, weights="int8", kv="int8"), context=128_000,
    ),
    "IN-20": lambda: weights_ms(MODEL, Layout(tensor=8, width=2, weights="int8"), (4, 4)),
    "IN-21": lambda: tf.parameters(MIXTURE).total,
    "IN-22": lambda: tf.active_parameters(MIXTURE, "all"),
    "IN-24": lambda: 2 * tf.active_parameters(MIXTURE, "all"),
    "IN-26": lambda: weights_ms(MODEL, Layout(tensor=8), (2, 4)),
    "IN-27": lambda: power_of_2(tf.weight_bytes(MIXTURE, "int8").total),
    "IN-29": lambda: inequalities.two_d_chips(8192, 32768),
    "IN-31": lambda: 1e3 * ms(2 * 2 * 8192 * 32768, 0, 1, 4),
    "IN-32": lambda: 8 * V5E.ici_link_bytes_per_s * HOP_S,
    "IN-33": lambda: 16 * Facts.of(LLAMA_70B, Layout(activations="int8"), T=1, S=1, cache=1).stream_bytes,
    "IN-34": lambda: bounds.intensity(V5E),
    "IN-35": lambda: expected_tokens(0.8, 4),
    "AI-02": lambda: V5P.flops_per_s() / V5P.usd_per_hour,
    "AI-07": lambda: kv(LLAMA_70B) / units.KIB,
    "AI-08": lambda: kv(LLAMA_70B, 32768) * 162e3 / kv(LLAMA_70B),
    "AI-09": lambda: kv(LLAMA_70B, 32768, B=240) * 162e3 / kv(LLAMA_70B),
    "AI-12": lambda: 1e9 * gigabytes(70e9, KV_8K, 32),
    "AI-13": lambda: round(1e9 * gigabytes(70e9, KV_8K, 32) / CHIP, 1),
    "AI-14": lambda: ms(70e9, KV_8K, 32, 8, hbm=8.1e11),
    "AI-15": lambda: 32 / 0.017,
    "AI-18": lambda: bounds.tensor_ways(V5E, LLAMA_70B.F, axes=2),
    "AI-19": lambda: ms(70e9, KV_8K, 32, 16, hbm=8.1e11),
    "AI-20": lambda: fraction("bf16"),
    "AI-21": lambda: fraction("int8"),
    "AI-23": lambda: fraction("int4") * CHIP,
    "AI-24": lambda: free("bf16", 16),
    "AI-25": lambda: free("int8", 8),
    "AI-26": lambda: free("int4", 4),
    "AI-29": lambda: 1e9 * free("int4", 4) // (81e3 * 8192),
    "AI-30": lambda: ms(CHIP, 0, 1, 1),
    "AI-31": lambda: 512 * 0.019,
    "AI-32": lambda: ms(fraction("int4") * CHIP, 0, 1, 4),
    "AI-33": lambda: per_s(43),
    "AI-34": lambda: per_s(43) / 16,
    "AI-35": lambda: per_s(43) / 8,
    "AI-39": lambda: per_s(140),
    "AI-40": lambda: per_s(140) / 32,
    "AI-42c": lambda: per_s(140) / 8,
    "AI-43": lambda: inequalities.decode_tensor_ways(V5E.but(hbm_bytes_per_s=8 * 9e10), LLAMA_70B.F, 64),
    "AI-45": lambda: 1e6 * priced(2 * 8192 * 28672, 0, 64, 32, hbm=8.1e11).weights_s,
    "AI-46": lambda: 1e6 * priced(0, 0, 64, 32, parameters=8192 * 28672).math_s,
    "AI-47": lambda: priced(0, 0, 8192, 16, parameters=70e9, peak=0.4 * 1.97e14).math_s,
    "AI-48": lambda: per_s(32, step_s=1, output=4096),
    "AI-49": lambda: per_s(32, step_s=1, output=4096) * (8192 + 4096),
    "AI-50": lambda: servers(prefill_s=0.91, step_s=0.019, batch=32, output=512),
    "AI-51": lambda: servers(prefill_s=0.91, step_s=0.019, batch=43, output=512),
    "AI-52": lambda: ms(70e9, 0, 1, 16),
    "AI-53": lambda: 120 / ms(70e9, kv(LLAMA_70B, 2048), 120, 16) / 16,
    "AI-59": lambda: kv(LLAMA_8B, 8192, B=240),
    "AI-60": lambda: power_of_2(tf.weight_bytes(LLAMA_8B, "int8").total + kv(LLAMA_8B, 8192, B=240)),
    "AI-61": lambda: kv(LLAMA_405B),
}  # fmt: skip
for _row in rows("inference_problems.csv"):
    if _row["id"].startswith(("IN-MHA", "IN-GQA")):
        _kind, _batch, _what = _row["id"].split("-")[1:]
        PROBLEMS[_row["id"]] = lambda k=_kind, b=int(_batch), w=_what: table(k, b, w)
WORKED = rows("inference_problems.csv")


@pytest.mark.parametrize("row", WORKED, ids=lambda row: row["id"])
def test_worked_problems_of_the_field(row):
    """Where the book rounds or errs, the value that its own inputs give."""
    agrees = row["checked"] == "yes"
    expected = float(row["expected_value"] if agrees else row["computed_value"])
    tolerance = max(float(row["tolerance"]), 1e-3) if agrees else 1e-3
    assert PROBLEMS[row["id"]]() == pytest.approx(expected, rel=tolerance)


def test_every_problem_of_the_chapters_on_inference_is_computed():
    own = [row for row in [*WORKED, *rows("cost_problems.csv")] if row["chapter"] in CHAPTERS]
    assert Counter(row["chapter"] for row in own) == CHAPTERS
    tests = [*PROBLEMS, *test_goodput.PROBLEMS]
    assert {row["id"] for row in own} <= set(tests)
    assert set(PROBLEMS) == {row["id"] for row in WORKED}


# --- Bug reports about serving (S); those about caches (K) are in test_transformer_cases. ---

CASES = {
    "S02": lambda: 1e9 * free("int4", 4) // (81e3 * 8192),
    "S03": lambda: per_s(43) / 4,
    "S07": lambda: 4e3 / ms(tf.weight_bytes(LLAMA_70B, "int4").total, 0, 4, 1, hbm=864e9),
    "S08": lambda: critical_batch(V5E.but(hbm_bytes_per_s=8.2e11), Layout()),
}


@pytest.mark.parametrize("row", rows("inference_cases.csv"), ids=lambda row: row["id"])
def test_bug_reports_about_serving(row):
    assert CASES[row["id"]]() == pytest.approx(float(row["right_value"]), rel=1e-4)


def test_every_bug_report_about_serving_has_a_row():
    assert [row["id"] for row in rows("inference_cases.csv")] == list(CASES)


# --- Published cache sizes and the contexts that memory allows. ---


def per_token(name, unit):
    return lambda: tf.kv_cache_bytes(tf.model(name), S=1) / unit


def longest(layout, batch, **heads):
    """Tokens for which 30 % of 64 TPU v4 hold the cache of PaLM's attention, as Pope et al. count it."""
    model = PALM.but(**heads)
    facts = Facts.of(model, layout, T=1, S=1, cache=1)
    return 0.3 * 32 * units.GIB / (facts.kv_bytes * -(-batch // layout.kv_batch))


MEMORY = {
    "M58": per_token("DeepSeek-V3", 1000),
    "M59": per_token("Qwen2.5 72B", 1000),
    "M60": per_token("Llama-3.1 405B", 1000),
    "M61": per_token("GPT-2 XL", units.KIB),
    "M62": per_token("Llama-3 8B", units.KIB),
    "M63": per_token("DeepSeek-V3", units.KIB),
    "M64": per_token("Llama-3.1 70B", units.KIB),
    "M67": per_token("Qwen3 235B-A22B", 1000),
    "M69": lambda: longest(Layout(tensor=64), 128, n_heads=64, n_kv_heads=64, head_dim=128),
    "M72": lambda: longest(Layout(tensor=64), 512, n_heads=64, n_kv_heads=1, head_dim=256),
    "M74": lambda: longest(Layout(kv_batch=64), 512),
    "M75": lambda: tf.kv_cache_bytes(PALM.but(n_kv_heads=48, head_dim=128), S=2048, B=512) / 1e12,
}


@pytest.mark.parametrize("row", rows("inference_memory.csv"), ids=lambda row: row["id"])
def test_published_caches(row):
    digits = 0.04 if row["id"] == "M75" else 0.01  # printed as 3 TB
    assert MEMORY[row["id"]]() == pytest.approx(float(row["published_value"]), rel=digits)


def test_every_published_cache_has_a_row():
    assert [row["id"] for row in rows("inference_memory.csv")] == list(MEMORY)
