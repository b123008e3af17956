"""The errata name tests that exist, and numbers that other tests do not hold are held here."""

import ast
import re
from pathlib import Path

import pytest

from scaling_lib import transformer as tf
from scaling_lib.collectives import rings
from scaling_lib.hardware import chip, slice_of
from scaling_lib.inference import inequalities
from scaling_lib.roofline import ridge
from scaling_lib.training import Plan, bounds, estimate
from scaling_lib.units import itemsize

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "chapters/errata.md").read_text(encoding="utf-8")
OURS, OTHERS = re.split(r"^## ", PAGE, flags=re.M)[1:3]
ENTRIES = re.split(r"\n\n(?=\*\*)", OURS.strip())[1:]
ROWS = [line for line in OTHERS.splitlines() if line.startswith("- ")]
NAMED = re.compile(r"`(tests/\w+\.py)::(test_\w+)`")


def claims_of(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_there_are_entries_and_rows_to_read():
    assert len(ENTRIES) >= 12
    assert len(ROWS) >= 8


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[2:].partition("**")[0])
def test_an_entry_says_where_what_was_wrong_what_is_right_since_when_and_names_its_test(entry):
    assert re.match(r"\*\*[^*]+\.\*\*\n", entry)
    assert re.search(r"^- Said: .+\.$", entry, re.M)
    assert re.search(r"^- Right: .+\.$", entry, re.M)
    assert re.search(r"^- Since \d{4}-\d\d; held by `tests/\w+\.py::test_\w+`\.$", entry, re.M)


@pytest.mark.parametrize("named", [*ENTRIES, *ROWS], ids=lambda named: named[2:40])
def test_the_test_that_is_named_exists(named):
    found = NAMED.findall(named)
    assert found
    assert all(test in claims_of(file) for file, test in found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[4:50])
def test_a_figure_of_another_text_stands_beside_ours(row):
    assert re.match(r"- \*\*Chapter \d+\.\*\* Printed: .+\. Here: .+\. Held by `tests/\w+\.py::test_\w+`\.$", row)


# Errors of this course


def test_a_message_of_an_all_to_all_crosses_fewer_links_than_the_array_is_large():
    assert rings.run("all-to-all", 4, 1e6).busiest_bytes == 500e3


def test_sixty_to_ninety_percent_of_a_dense_layer_are_feed_forward():
    def share(name):
        parts = tf.parameters(tf.model(name))
        return parts.mlp / (parts.mlp + parts.attention)

    shares = [share(name) for name in ("GPT-2 small", "Qwen3 0.6B", "Gemma-3 1B", "Llama-3 8B", "Llama-3.1 405B")]
    assert min(shares) == pytest.approx(0.60, abs=0.005)
    assert max(shares) == pytest.approx(0.89, abs=0.005)


def test_megatrons_model_of_1_7_billion_has_1_65():
    assert tf.parameters(tf.model("Megatron GPT 1.7B")).total == pytest.approx(1.65e9, rel=0.005)


def test_a_pod_of_v6e_holds_the_state_of_405b_with_one_sequence_a_chip():
    plan = Plan(fsdp=32, tensor=8, remat="full", loss_chunks=8, microbatches=4)
    step = estimate("Llama-3.1 405B", "v6e:16x16", plan, 128, T=8192)
    assert step.fits


@pytest.mark.parametrize("shape", ["v5e:2x4", "v5e:4x4"])
def test_eight_and_sixteen_v5e_have_no_ring_so_sixteen_ways_are_too_many_for_a_prefill(shape):
    assert not any(slice_of(shape).wraps)
    axes = 2
    on_rings = bounds.tensor_ways(chip("v5e"), tf.model("Llama-3 70B").F, axes=axes)
    assert on_rings / 2 < 16 < on_rings


def test_attention_to_a_latent_is_memory_bound_on_v6e_but_not_on_v5p():
    v3 = tf.model("DeepSeek-V3")
    width = v3.latent.kv_rank + v3.latent.rope_dim
    intensity = 2 * v3.N * (width + v3.latent.kv_rank) / (2 * width)
    assert intensity == pytest.approx(242, abs=0.5)
    assert ridge(chip("v5p")) < ridge(chip("v5e")) < intensity < ridge(chip("tpu7x")) < ridge(chip("v6e"))


def test_the_table_that_is_looked_up_multiplies_nothing():
    model = tf.model("Llama-3 8B")
    assert tf.active_parameters(model, "all") - tf.active_parameters(model, "matmul") >= model.V * model.D
    assert tf.active_parameters(model, "matmul") == pytest.approx(7.5e9, rel=0.001)


def test_sixteen_long_conversations_of_llama_2_13b_reach_four_fifths_of_the_most():
    model = tf.model("Llama-2 13B")
    caches = 16 * tf.kv_cache_bytes(model, S=8192)
    assert caches / (caches + tf.weight_bytes(model).total) == pytest.approx(0.8, abs=0.01)


# Figures of other texts


def test_the_example_with_eight_ways_and_20_000_columns_is_of_a_v5p():
    assert 8 / bounds.tensor_ways(chip("v5p"), 1) == pytest.approx(20_400)
    assert 8 / bounds.tensor_ways(chip("v4"), 1) == pytest.approx(24_444, abs=1)


def test_a_head_trains_with_six_flops_for_each_number_and_token():
    model = tf.model("Llama-3 8B")
    step = tf.train_flops(model, T=8192, causal=True)
    assert step.forward.head + step.backward.head == 6 * 8192 * model.D * model.V


def test_a_slice_of_v5p_needs_73_440_tokens_over_dcn():
    assert bounds.slice_tokens(chip("v5p")) == pytest.approx(73_440)


def test_4096_chips_are_bound_by_wires_below_some_million_tokens():
    both = [
        4096 * bounds.mixed_tokens(chip("v5p"), 32_768, fsdp_axes=2, tensor_axes=1, overlap=overlap)
        for overlap in ("full", "none")
    ]
    assert both[0] == pytest.approx(406_000, rel=0.01)
    assert both[1] == pytest.approx(4 * both[0])


def test_512_ways_of_fsdp_need_435_000_tokens_on_three_axes_and_half_as_many_again_on_two():
    three, two = (4096 * bounds.data_tokens(chip("v5p"), axes=axes) / 8 for axes in (3, 2))
    assert three == pytest.approx(435_200)
    assert two == pytest.approx(1.5 * three)


def test_fsdp_of_1024_takes_a_third_longer_than_math_on_a_million_tokens():
    assert bounds.intensity(chip("v5p")) / 2 * 1024 / 1e6 == pytest.approx(1.31, abs=0.01)


def test_beta_of_v5e_is_nine_so_49_ways_pay_at_a_batch_of_64():
    assert inequalities.hbm_over_ici(chip("v5e")) == pytest.approx(9.1)
    assert inequalities.decode_tensor_ways(chip("v5e"), 28_672, 64) == pytest.approx(49.2, abs=0.1)


def test_two_dimensions_win_from_72_chips():
    assert inequalities.two_d_chips(8192, 4 * 8192) == pytest.approx(72)


def test_70b_in_int4_take_2_19_chips_of_16_gb():
    assert 70e9 * itemsize("int4") / 16e9 == pytest.approx(2.19, abs=0.005)


def test_a_layer_of_two_matrices_has_537_million_and_is_read_in_328_microseconds():
    layer = tf.Transformer(n_layers=1, d_model=8192, d_ff=32_768, n_heads=64, vocab_size=1, gated_mlp=False)
    numbers = tf.parameters(layer).mlp
    assert numbers == pytest.approx(537e6, rel=1e-3)
    assert 2 * numbers / (4 * chip("v5e").hbm_bytes_per_s) == pytest.approx(328e-6, rel=0.01)
