"""Models and what they store: parameters, weight bytes, KV caches. FLOPs and activations: test_transformer_flops.py."""

import csv
import dataclasses
import json
import math
import timeit
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling_lib import catalog, units
from scaling_lib import transformer as tf
from scaling_lib.transformer import Experts, Latent, Quantization, Transformer

DATA = Path(__file__).parent / "data"
ROWS = list(csv.DictReader((DATA / "models.csv").read_text(encoding="utf-8").splitlines()))
DECODERS = [row for row in ROWS if row["family"] != "T5"]
CONFIGS = json.loads((DATA / "hf_configs.json").read_text(encoding="utf-8"))

TINY = Transformer(n_layers=3, d_model=21, n_heads=6, n_kv_heads=2, head_dim=5, d_ff=35, vocab_size=77)
MOE = Experts(n_experts=7, top_k=3, d_ff=11)
MLA = Latent(kv_rank=9, nope_dim=4, rope_dim=2, v_dim=5, q_rank=8)

# What transformers and accelerate count on a meta device.
EXACT = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "qwen3-32b": 32_762_123_264,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize(("name", "count"), EXACT.items())
def test_parameters_are_exactly_what_the_frameworks_count(name, count):
    assert tf.parameters(tf.model(name)).total == count


@pytest.mark.parametrize("row", DECODERS, ids=lambda row: row["model"])
def test_parameters_of_every_decoder(row):
    assert tf.parameters(tf.model(row["model"])).total == pytest.approx(int(row["computed_total"]), rel=1e-3)


def test_all_but_two_models_agree_to_the_last_parameter():
    """The other two have biases that the independent count leaves out: of GPT-J's head, of Nemotron's norms."""
    off = {row["model"] for row in DECODERS if tf.parameters(tf.model(row["model"])).total != int(row["computed_total"])}
    assert off == {"GPT-J 6B", "Nemotron-4 340B"}
    assert len(DECODERS) == 90


@pytest.mark.parametrize("row", [row for row in DECODERS if row["computed_active"]], ids=lambda row: row["model"])
def test_active_parameters_of_every_mixture(row):
    assert tf.active_parameters(tf.model(row["model"]), "all") == int(row["computed_active"])


@pytest.mark.parametrize("row", DECODERS, ids=lambda row: row["model"])
def test_kv_bytes_a_token_are_exact(row):
    assert tf.kv_cache_bytes(tf.model(row["model"]), S=1) == int(row["kv_bytes_per_token_bf16"])


@pytest.mark.parametrize("entry", [e for e in catalog.models() if e.published_total], ids=lambda entry: entry.name)
def test_published_totals_are_near(entry):
    """Publishers round, and count an image encoder or leave the embedding out; 2 % covers all of them."""
    assert tf.parameters(tf.model(entry.name)).total == pytest.approx(entry.published_total, rel=0.02)


@pytest.mark.parametrize("entry", [e for e in catalog.models() if e.published_active], ids=lambda entry: entry.name)
def test_published_active_counts_come_out_under_the_convention_of_the_catalog(entry):
    counted = {name: tf.active_parameters(tf.model(entry.name), name) for name in tf.COUNTINGS}
    assert counted[entry.published_counting] == pytest.approx(entry.published_active, rel=0.025)


def test_published_active_counts_of_gpt_oss_and_deepseek_v2_lite_do_not_fit_the_other_convention():
    for name, published in (("gpt-oss-20b", 3.6e9), ("DeepSeek-V2-Lite", 2.4e9)):
        assert tf.active_parameters(tf.model(name), "all") > 1.1 * published


def test_encoder_decoders_are_refused_with_a_reason():
    for row in ROWS:
        if row["family"] == "T5":
            with pytest.raises(ValueError, match=r"encoder-decoder.*cross attention"):
                tf.model(row["model"])


# --- Conventions of counting. ---


def test_the_parts_add_up_and_are_the_weights():
    for model in tf.MODELS.values():
        counted = tf.parameters(model)
        assert counted.total == sum(weight.stored for weight in tf.weights(model))
        assert counted.total == sum(dataclasses.asdict(counted).values())


def test_parameters_of_a_small_model_by_hand():
    D, N, K, H, F, V, L = 21, 6, 2, 5, 35, 77, 3
    assert tf.parameters(TINY) == tf.Parameters(
        embedding=V * D,
        attention=L * (D * N * H + 2 * D * K * H + N * H * D),
        mlp=L * 3 * D * F,
        norms=(2 * L + 1) * D,
        head=D * V,
    )


def test_parameters_of_small_experts_by_hand():
    model = TINY.but(
        experts=dataclasses.replace(MOE, n_shared=2, first_dense=1, router_bias=True, shared_gate=True, shared_d_ff=None)
    )
    counted = tf.parameters(model)
    assert counted.mlp == 3 * 21 * 35
    assert counted.experts == 2 * 7 * 3 * 21 * 11
    assert counted.shared_experts == 2 * 3 * 21 * 22
    assert counted.router == 2 * (21 * 7 + 7 + 21)


def test_parameters_of_small_latent_attention_by_hand():
    model = TINY.but(latent=MLA, n_kv_heads=6, head_dim=None)
    down, query, latent, up = 21 * 8, 8 * 6 * (4 + 2), 21 * (9 + 2), 9 * 6 * (4 + 5)
    assert tf.parameters(model).attention == 3 * (down + query + latent + up + 6 * 5 * 21)
    assert tf.parameters(model).norms == 3 * (2 * 21 + 8 + 9) + 21


def test_a_tied_table_is_stored_once_and_is_still_a_matmul():
    tied, untied = TINY.but(tied_embeddings=True), TINY
    assert tf.parameters(untied).total - tf.parameters(tied).total == 77 * 21
    assert tf.active_parameters(tied, "matmul") == tf.active_parameters(untied, "matmul")
    assert tf.active_parameters(tied, "without_lookup") == tf.active_parameters(tied, "all")
    assert tf.active_parameters(untied, "without_lookup") == tf.active_parameters(untied, "all") - 77 * 21


def test_conventions_differ_by_what_they_leave_out():
    model = tf.model("DeepSeek-V3")
    counted = {name: tf.active_parameters(model, name) for name in tf.COUNTINGS}
    parts = tf.parameters(model)
    assert counted["all"] - counted["without_lookup"] == parts.embedding
    assert counted["all"] - counted["without_embeddings"] == parts.embedding + parts.head
    biases = 58 * 256
    assert counted["without_lookup"] - counted["matmul"] == parts.norms + biases


def test_a_padded_vocabulary_has_more_rows():
    padded = tf.model("GPT-2 small").but(vocab_multiple=128)
    assert padded.V == 50304
    assert tf.parameters(padded).total - tf.parameters(tf.model("GPT-2 small")).total == (50304 - 50257) * 768


def test_biases_positions_sinks_and_norms_add_what_they_are():
    base = tf.parameters(TINY).total
    added = {
        "qkv_bias": 3 * (6 + 2 * 2) * 5,
        "output_bias": 3 * 21,
        "mlp_bias": 3 * (2 * 35 + 21),
        "head_bias": 77,
        "sinks": 3 * 6,
        "relative_positions": 3 * 21 * 6 * 5,
        "norm_bias": (2 * 3 + 1) * 21,
        "embedding_norm": 21,
    }
    for name, count in added.items():
        assert tf.parameters(TINY.but(**{name: True})).total - base == count, name
    assert tf.parameters(TINY.but(norms="both")).total - base == 2 * 3 * 21
    assert tf.parameters(TINY.but(norms="shared", parallel=True)).total - base == -3 * 21
    assert tf.parameters(TINY.but(norm_weights=False)).norms == 0
    assert tf.parameters(TINY.but(qk_norm="head")).total - base == 3 * 2 * 5
    assert tf.parameters(TINY.but(qk_norm="width")).total - base == 3 * (6 + 2) * 5
    assert tf.parameters(TINY.but(learned_positions=13)).positions == 13 * 21


def test_letters_are_the_sizes():
    assert (TINY.L, TINY.D, TINY.F, TINY.N, TINY.K, TINY.G, TINY.H, TINY.V, TINY.E) == (3, 21, 35, 6, 2, 3, 5, 77, 0)
    assert TINY.but(experts=MOE).E == 7


def test_llama_4_alternates_dense_and_expert_layers_and_deepseek_begins_dense():
    assert tf.model("Llama-4 Maverick").expert_layers == tuple(range(1, 48, 2))
    assert tf.model("DeepSeek-V3").dense_layers == (0, 1, 2)


def test_patterns_repeat_over_the_layers():
    kinds = tf.model("Gemma-3 1B").layer_kinds
    assert len(kinds) == 26
    assert [i for i, kind in enumerate(kinds) if kind == "global"] == [5, 11, 17, 23]


def test_a_count_of_any_model_takes_less_than_a_millisecond():
    def count(model):
        tf.parameters(model)
        tf.active_parameters(model, "all")
        tf.forward_flops(model, T=4096, causal=True)
        tf.kv_cache_bytes(model, S=4096)

    def seconds(model):
        """The best of some, each of a model that was not counted before."""
        return min(timeit.timeit(partial(count, model.but(vocab_size=model.vocab_size + i)), number=1) for i in range(9))

    assert max(map(seconds, tf.MODELS.values())) < 1e-3


def test_a_model_of_as_many_layers_as_are_allowed_counts_at_once():
    model = TINY.but(n_layers=10_000, experts=MOE)
    assert timeit.timeit(lambda: tf.parameters(model), number=1) < 0.5


# --- The catalog. ---


def test_every_model_has_a_source_a_date_and_a_way_of_knowing_it():
    for entry in catalog.models():
        assert entry.source
        assert entry.known in {"seen", "secondary", "derived"}
        assert entry.date == "2026-11"
        assert "memory" not in entry.source + entry.note
        assert (entry.published_active is None) == (entry.published_counting == "")


def test_names_forgive_capitals_spaces_and_hyphens():
    assert tf.model("LLAMA-3-8B") == tf.model("Llama-3 8B") == tf.model("llama3 8b")
    assert len({name.lower().replace("-", "").replace(" ", "") for name in tf.MODELS}) == len(tf.MODELS)


def test_an_unknown_name_offers_near_ones():
    with pytest.raises(ValueError, match=r"model='lama-3 8B' is unknown; did you mean 'Llama-3 8B'"):
        tf.model("lama-3 8B")


# --- Hugging Face configurations. ---


@pytest.mark.parametrize("row", [row for row in CONFIGS if row["model"]], ids=lambda row: row["model"])
def test_a_configuration_reads_as_the_model_of_the_catalog(row):
    read, known = Transformer.from_hf_config(row["config"]), tf.model(row["model"])
    if row["model"].startswith("Gemma-2"):  # whose catalog row has the padded table
        known = known.but(vocab_size=256_000)
    assert read.layer_kinds == known.layer_kinds
    assert read.but(name="", layer_pattern=known.layer_pattern) == known.but(name="")


# Counted on a meta device, or the catalog's count less what the class ties or leaves out.
DEFAULTS = {
    "gemma": 8_538_074_112 - 128 * 3072,
    "falcon": 7_217_189_760 - 65_024 * 4544,
    "olmo": 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 50_304 * 4096,
    "olmo2": 7_298_617_344 - 2 * (100_352 - 50_304) * 4096,
    "qwen2_moe": 2 * 151_936 * 2048 + 2048 + 24 * (
        4 * 2048**2 + 3 * 2048 + 2 * 2048 + 60 * 2048 + 60 * 3 * 2048 * 1408 + 3 * 2048 * 5632 + 2048
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFAULTS)
def test_a_configuration_of_a_family_outside_the_catalog_counts(kind):
    config = next(row["config"] for row in CONFIGS if row["config"]["model_type"] == kind)
    assert tf.parameters(Transformer.from_hf_config(config)).total == DEFAULTS[kind]


LLAMA = next(row["config"] for row in CONFIGS if row["model"] == "Llama-3.1 8B")
QWEN = next(row["config"] for row in CONFIGS if row["model"] == "Qwen3 30B-A3B")
OSS = next(row["config"] for row in CONFIGS if row["model"] == "gpt-oss-20b")
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 7, "hidden_size": 64, "intermediate_size": 96, "sliding_window": 5}
QWEN_LOCAL = {
    "model_type": "qwen2", "num_hidden_layers": 7, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 77, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 3,
}  # fmt: skip
DEEPSEEK = next(row["config"] for row in CONFIGS if row["model"] == "DeepSeek-V3")


def test_widths_and_periods_that_a_file_gives_are_those_of_the_model():
    gpt = {"model_type": "gpt2", "n_embd": 12, "n_layer": 2, "n_head": 3, "vocab_size": 7, "n_positions": 5}
    assert [Transformer.from_hf_config(gpt | {"n_inner": width}).d_ff for width in (None, 20)] == [48, 20]
    sparse = Transformer.from_hf_config(QWEN | {"decoder_sparse_step": 3, "num_hidden_layers": 7, "intermediate_size": 11})
    assert (sparse.expert_layers, sparse.d_ff) == ((2, 5), 11)
    falcon = {"model_type": "falcon", "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 6, "vocab_size": 7}
    new = Transformer.from_hf_config(falcon | {"new_decoder_architecture": True, "parallel_attn": False, "num_kv_heads": 2})
    assert (new.parallel, new.norms, new.K) == (True, "pre", 2)
    old = Transformer.from_hf_config(falcon | {"parallel_attn": False, "multi_query": False, "bias": True})
    assert (old.parallel, old.norms, old.K, old.mlp_bias) == (False, "pre", 6, True)


def test_what_a_file_leaves_out_is_as_in_its_family():
    gemma = Transformer.from_hf_config(GEMMA)
    assert (gemma.N, gemma.K, gemma.H, gemma.V, gemma.tied_embeddings) == (8, 4, 256, 262_208, True)
    assert Transformer.from_hf_config({k: v for k, v in OSS.items() if k != "head_dim"}).H == 64
    bare = {k: v for k, v in DEEPSEEK.items() if k not in ("topk_method", "architectures")}
    for family, has_bias in (("deepseek_v2", False), ("deepseek_v3", True)):
        assert Transformer.from_hf_config(bare | {"model_type": family}).experts.router_bias == has_bias


def test_windows_begin_where_the_file_says():
    assert Transformer.from_hf_config(QWEN_LOCAL).layer_kinds == ("global",) * 3 + ("local",) * 4
    kinds = Transformer.from_hf_config(GEMMA | {"sliding_window_pattern": 3}).layer_kinds
    assert kinds == ("local", "local", "global") * 2 + ("local",)
    assert Transformer.from_hf_config(GEMMA).layer_kinds == ("local",) * 5 + ("global", "local")
    assert Transformer.from_hf_config(GEMMA | {"sliding_window_pattern": 10**15}).layer_kinds == ("local",) * 7


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], "is not a dictionary"),
        ({}, "has no 'model_type'"),
        ({"model_type": "lama"}, "model_type='lama'.*did you mean.*'llama'"),
        ({"model_type": "rwkv"}, "model_type='rwkv'.*not known here"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, "no 'hidden_size', which llama needs"),
        ({k: v for k, v in QWEN.items() if k != "num_experts"}, "no 'num_experts', which qwen3_moe needs"),
        ({k: v for k, v in QWEN.items() if k != "num_key_value_heads"}, "no 'num_key_value_heads'"),
        (LLAMA | {"architectures": ["MistralForCausalLM"]}, "architectures has 'MistralForCausalLM', model_type='llama'"),
        (LLAMA | {"num_key_value_heads": 5}, "n_kv_heads=5 does not divide n_heads=32"),
        (LLAMA | {"head_dim": None, "num_attention_heads": 24}, "n_heads=24 does not divide d_model=4096"),
        (LLAMA | {"num_hidden_layers": 0}, "n_layers=0"),
        (LLAMA | {"vocab_size": "many"}, "vocab_size='many'"),
        (QWEN | {"num_experts_per_tok": 129}, "top_k=129 is more than n_experts=128"),
        (QWEN | {"num_local_experts": 64}, "contradicts itself: num_experts=128, num_local_experts=64"),
        (QWEN | {"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\]"),
        (OSS | {"layer_types": ["full_attention"]}, "1 layer_types, num_hidden_layers=24"),
        (OSS | {"layer_types": ["linear_attention"] * 24}, "'linear_attention', which is not counted here"),
        (OSS | {"experts_per_token": 2}, "contradicts itself: num_experts_per_tok=4, experts_per_token=2"),
        ({"model_type": ["llama"]}, r"model_type=\['llama'\], whose layers are not known here"),
        ({**LLAMA, "architectures": 3}, "config has a value of a kind that llama does not have there: 'int' object"),
        ({**OSS, "layer_types": 7}, "config has a value of a kind that gpt_oss does not have there"),
        ({**LLAMA, "num_hidden_layers": 10**9}, "n_layers=1000000000 is more than 10,000; was a width meant?"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "no 'num_hidden_layers'"),
        ({"text_config": {"text_config": LLAMA}}, "no 'model_type'"),
        ({**LLAMA, "_name_or_path": 5}, "name=5 is not text"),
        ({**LLAMA, "tie_word_embeddings": "false"}, "tie_word_embeddings='false'; give true or false"),
        ({**LLAMA, "attention_bias": 1}, "attention_bias=1; give true or false"),
        ({**LLAMA, "hidden_size": math.nan}, "d_model=nan is not finite"),
        ({**LLAMA, "hidden_size": True}, "d_model=True"),
        ({**GEMMA, "sliding_window_pattern": -1}, "sliding_window_pattern=-1"),
        ({**GEMMA, "num_hidden_layers": 10**12}, "num_hidden_layers=1000000000000 is more than 10,000"),
        ({**QWEN_LOCAL, "max_window_layers": -1}, "max_window_layers=-1"),
        ({**QWEN_LOCAL, "num_hidden_layers": 10**12}, "num_hidden_layers=1000000000000 is more than 10,000"),
        ({**DEEPSEEK, "num_key_value_heads": 8}, "n_kv_heads=8 with latent attention"),
    ],
)
def test_a_bad_configuration_names_its_key(config, words):
    with pytest.raises(ValueError, match=words):
        Transformer.from_hf_config(config)


# --- Bad input. ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_layers": 0}, "n_layers=0"),
        ({"n_layers": -3}, "n_layers=-3"),
        ({"d_model": 2.5}, "d_model=2.5"),
        ({"d_model": True}, "d_model=True"),
        ({"n_kv_heads": 4}, "n_kv_heads=4 does not divide n_heads=6"),
        ({"n_kv_heads": 12}, "n_kv_heads=12 does not divide n_heads=6"),
        ({"head_dim": None}, "n_heads=6 does not divide d_model=21; give head_dim"),
        ({"d_ff": 0}, "d_ff=0, but 3 layers"),
        ({"learned_positions": -1}, "learned_positions=-1"),
        ({"layer_pattern": ("local",)}, "window=None contradicts layer_pattern"),
        ({"window": 8}, "window=8 contradicts layer_pattern"),
        ({"layer_pattern": ("sliding",)}, "layer_pattern=.*'local'"),
        ({"layer_pattern": ("global",) * 4}, "names 4 layers, but n_layers=3"),
        ({"norms": "middle"}, "norms='middle' is unknown"),
        ({"norms": "shared"}, "needs parallel=True"),
        ({"qk_norm": "yes"}, "qk_norm='yes' is unknown"),
        ({"layer_pattern": None}, "layer_pattern=None is no collection"),
        ({"layer_pattern": "local"}, "layer_pattern='local' is no collection"),
        ({"name": 3}, "name=3 is not text"),
        ({"tied_embeddings": "no"}, "tied_embeddings='no' is neither True nor False"),
        ({"experts": 8}, r"experts=8: give transformer.Experts\(...\), or None"),
        ({"latent": 512}, r"latent=512: give transformer.Latent\(...\), or None"),
        ({"latent": MLA}, "n_kv_heads=2 with latent attention"),
        ({"latent": MLA, "n_kv_heads": 6, "qkv_bias": True}, "latent attention has no qkv_bias"),
        ({"experts": Experts(n_experts=7, top_k=3, d_ff=11, first_dense=3)}, "first_dense=3 leaves no layer"),
        ({"experts": Experts(n_experts=7, top_k=3, d_ff=11, every=4)}, "every=4 leaves no layer"),
    ],
)
def test_a_model_that_cannot_be_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        TINY.but(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top_k": 8}, "top_k=8 is more than n_experts=7"),
        ({"top_k": 0}, "top_k=0"),
        ({"every": 0}, "every=0"),
        ({"n_shared": 1, "shared_d_ff": 0}, "n_shared=1 contradicts shared_d_ff=0"),
        ({"router_bias": "yes"}, "router_bias='yes' is neither True nor False"),
        ({"shared_gate": True}, "shared_gate=True, but there are no shared experts"),
    ],
)
def test_experts_that_cannot_be_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(MOE, **changes)


def test_latent_widths_must_be_positive():
    with pytest.raises(ValueError, match="rope_dim=0"):
        Latent(kv_rank=9, nope_dim=4, rope_dim=0, v_dim=5)


def test_an_unknown_counting_is_refused():
    with pytest.raises(ValueError, match="counting='active' is unknown; give one of 'all'"):
        tf.active_parameters(TINY, "active")


# --- KV caches. ---


def test_a_window_bounds_the_cache_of_local_layers_alone():
    model = TINY.but(layer_pattern=("local", "global"), window=10)
    a_token = 2 * 2 * 5 * 2
    assert tf.kv_cache_bytes(model, S=7) == 3 * 7 * a_token
    assert tf.kv_cache_bytes(model, S=70, B=11) == 11 * (2 * 10 + 70) * a_token


def test_latents_are_cached_once_and_expanded_caches_are_many_times_larger():
    model = tf.model("DeepSeek-V3")
    assert tf.kv_cache_bytes(model, S=1) == 61 * (512 + 64) * 2
    assert tf.kv_cache_bytes(model, S=1, expanded=True) == 61 * 128 * (128 + 64 + 128) * 2
    assert tf.kv_cache_bytes(model, S=1, tensor_parallel=8) == tf.kv_cache_bytes(model, S=1)


def test_more_devices_than_key_heads_each_keep_one():
    model = tf.model("Llama-3 70B")
    whole = tf.kv_cache_bytes(model, S=100)
    assert [whole / tf.kv_cache_bytes(model, S=100, tensor_parallel=n) for n in (1, 2, 8, 16, 64)] == [1, 2, 8, 8, 8]


@given(st.integers(1, 500), st.integers(1, 9))
def test_the_cache_is_the_sum_of_its_layers(S, B):
    model = tf.model("Gemma-3 1B")
    layers = [tf.kv_cache_bytes(model, S=S, B=B, layers=[i]) for i in range(model.L)]
    assert sum(layers) == tf.kv_cache_bytes(model, S=S, B=B)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"S": 0}, "S=0"),
        ({"S": -5}, "S=-5"),
        ({"S": 5, "B": 0}, "B=0"),
        ({"S": 5, "dtype": "bf17"}, "dtype='bf17' is unknown"),
        ({"S": 5, "tensor_parallel": 3}, "tensor_parallel=3 and n_kv_heads=2"),
        ({"S": 5, "expanded": True}, "expanded=True, but .* has no latent attention"),
        ({"S": 5, "layers": [3]}, r"layers=\[3\]: .* has layers 0 to 2"),
        ({"S": 5, "layers": 2}, "layers=2: .* has layers 0 to 2"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        tf.kv_cache_bytes(TINY, **arguments)


# --- Weights and states. ---


def test_bytes_without_quantization_are_parameters_times_the_width():
    for name, item in (("f32", 4), ("bf16", 2), ("int8", 1), ("int4", 0.5)):
        assert tf.weight_bytes(TINY, name).total == item * tf.parameters(TINY).total


def test_scales_and_zeros_are_counted_group_by_group():
    """Of D = 21 inputs, groups of 8 are three, the last not full; the output projection contracts N * H = 30, in four."""
    quantized = Quantization(bits=4, group=8, scale_dtype="f16", zero_dtype="int8", parts="attention")
    q, kv, out = 21 * 30, 2 * 21 * 10, 30 * 21
    groups = 3 * 30 + 2 * 3 * 10 + 4 * 21
    stored = tf.weight_bytes(TINY, "f32", quantized)
    assert stored.attention == 3 * ((q + kv + out) / 2 + groups * 3)
    assert stored.mlp == 4 * tf.parameters(TINY).mlp


def test_whole_columns_blocks_and_tables():
    per_output = Quantization(bits=8, group=None, scale_dtype="f32", parts=("mlp",))
    assert tf.weight_bytes(TINY, "bf16", per_output).mlp == 3 * (3 * 21 * 35 + 4 * (2 * 35 + 21))
    blocks = Quantization(bits=8, group=16, columns=16, scale_dtype="f32", parts=("mlp",))
    assert tf.weight_bytes(TINY, "bf16", blocks).mlp == 3 * (3 * 21 * 35 + 4 * 3 * 2 * 3)
    table = Quantization(bits=8, group=None, scale_dtype="f16", parts=("embedding",))
    assert tf.weight_bytes(TINY, "bf16", table).embedding == 77 * 21 + 2 * 77


def test_a_tied_table_is_quantized_once_whichever_part_names_it():
    tied = TINY.but(tied_embeddings=True)
    for parts in ("embedding", "head", ("embedding", "head")):
        stored = tf.weight_bytes(tied, "bf16", Quantization(bits=8, group=None, scale_dtype="f16", parts=parts))
        assert (stored.embedding, stored.head) == (77 * 21 + 2 * 77, 0)
    with pytest.raises(ValueError, match="quantization=8: give"):
        tf.weight_bytes(TINY, "bf16", 8)


def test_common_formats_have_their_known_widths():
    assert Quantization(bits=4, group=32, scale_dtype="int8").bits_per_weight == 4.25  # MXFP4
    assert Quantization(bits=2, group=64, scale_dtype="f16").bits_per_weight == 2.25
    double = Quantization(bits=4, group=64, scale_dtype="int8", scale_group=256)
    assert double.bits_per_weight == pytest.approx(4.127, abs=5e-4)  # nf4 with double quantization


def test_deepseeks_fp8_file_is_its_matrices_and_one_scale_a_block():
    blocks = Quantization(bits=8, group=128, columns=128, scale_dtype="f32")
    model = tf.model("DeepSeek-V3")
    stored = tf.weight_bytes(model, "bf16", blocks)
    counted = tf.parameters(model)
    assert stored.experts == pytest.approx(counted.experts * (1 + 4 / 128**2), rel=1e-12)
    assert stored.head == 2 * counted.head


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 0}, "bits=0"),
        ({"bits": 4, "group": 0}, "group=0"),
        ({"bits": 4, "scale_dtype": "f17"}, "dtype='f17'"),
        ({"bits": 4, "parts": ("router",)}, "parts holds 'router'"),
        ({"bits": 4, "parts": 7}, "parts=7 is no collection"),
    ],
)
def test_a_quantization_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Quantization(**arguments)


def test_bits_a_weight_need_a_group():
    with pytest.raises(ValueError, match="group=None"):
        _ = Quantization(bits=8, group=None).bits_per_weight


def test_states_are_sixteen_bytes_a_parameter_and_twenty_with_float32_gradients_beside():
    states = tf.state_bytes(1e9)
    assert (states.weights, states.gradients, states.master, states.moments) == (2e9, 2e9, 4e9, 8e9)
    assert states.optimizer == 12e9
    assert tf.state_bytes(1e9, moments="int8").moments == 2e9
    assert tf.state_bytes(1e9, gradients="f32").total == 18e9
    assert tf.state_bytes(1e9, weights="f32", gradients="f32", master=None).total == 16e9
    with pytest.raises(ValueError, match="parameters=-1"):
        tf.state_bytes(-1)


def test_bytes_print_as_vendors_print_them():
    assert units.human(tf.weight_bytes(tf.model("llama3-8b")).total, "B") == "16.1 GB"
    assert math.isclose(tf.weight_bytes(tf.model("llama3-8b")).total, 16.06e9, rel_tol=1e-3)
