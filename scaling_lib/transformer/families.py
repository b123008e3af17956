"""How each family of models writes its Hugging Face configuration: one function a family.

What a file leaves out has the default of the family's configuration class in the `transformers` package (compared with 5.24).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaling_lib import units
from scaling_lib.transformer.architecture import MAX_LAYERS, LayerKind, Transformer
from scaling_lib.transformer.blocks import Experts, Latent, count

_KINDS: Mapping[str, LayerKind] = {
    "full_attention": "global",
    "sliding_attention": "local",
    "chunked_attention": "chunked",
}


class Config:
    """A `config.json`: keys are read through it, so that one that is missing or contradictory is named."""

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        self.config, self.family = config, family

    def __call__(self, *names: str) -> Any:
        """The value of a key that must be there; other names are older spellings of it."""
        given = {name: self.config[name] for name in names if self.config.get(name) is not None}
        if not given:
            raise ValueError(f"config has no {names[0]!r}, which {self.family} needs")
        if len(set(map(repr, given.values()))) > 1:
            raise ValueError(f"config contradicts itself: {', '.join(f'{name}={value!r}' for name, value in given.items())}")
        return next(iter(given.values()))

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key that may be left out."""
        value = self.config.get(name)
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        """A setting that is true or false, and may be left out."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"config has {name}={value!r}; give true or false")
        return value

    @property
    def n_layers(self) -> int:
        """Layers, checked before a pattern of as many is written out."""
        layers = units.size("num_hidden_layers", self("num_hidden_layers"))
        if layers > MAX_LAYERS:
            raise ValueError(f"num_hidden_layers={layers} is more than {MAX_LAYERS:,}; was a width meant?")
        return layers

    def refuse(self, name: str, *allowed: Any) -> None:
        """Stop at a setting that would change a count in a way that no formula here knows."""
        if self.get(name) not in (None, *allowed):
            raise ValueError(f"config has {name}={self.config[name]!r}, which is not counted here; only {allowed or 'none'} is")


def _sizes(c: Config, tied: bool = False) -> dict[str, Any]:
    """What nearly every family writes under the same names; `tied` is its default for `tie_word_embeddings`."""
    return {
        "name": c.get("_name_or_path", ""),
        "n_layers": c("num_hidden_layers"),
        "d_model": c("hidden_size"),
        "n_heads": c("num_attention_heads"),
        "vocab_size": c("vocab_size"),
        "tied_embeddings": c.flag("tie_word_embeddings", tied),
    }


def _attention(c: Config, head_dim: int | None = None) -> dict[str, Any]:
    """Key heads and their width; only families whose first models were multi-head leave `num_key_value_heads` out."""
    multi_head = c.family in ("llama", "olmo", "olmo2")
    key_heads = c.get("num_key_value_heads") if multi_head else c("num_key_value_heads")
    return {"n_kv_heads": key_heads, "head_dim": c.get("head_dim", head_dim)}


def _layers(c: Config, default: tuple[LayerKind, ...] = ("global",)) -> dict[str, Any]:
    """Kinds of attention: from `layer_types` where the file has it, else the family's own pattern."""
    pattern, window = default, c.get("sliding_window")
    if types := c.get("layer_types"):
        if len(types) != c.n_layers:
            raise ValueError(f"config contradicts itself: {len(types)} layer_types, num_hidden_layers={c.n_layers}")
        if strange := [name for name in types if name not in _KINDS]:
            raise ValueError(
                f"config has layer_types with {strange[0]!r}, which is not counted here; {units.near(strange[0], _KINDS)}"
            )
        pattern = tuple(_KINDS[name] for name in types)
    if set(pattern) == {"global"}:
        return {"layer_pattern": ("global",), "window": None}
    return {"layer_pattern": pattern[: c.n_layers], "window": c("sliding_window") if window is None else window}


def _llama(c: Config) -> Transformer:
    bias = c.flag("attention_bias", False)
    return Transformer(
        **_sizes(c),
        **_attention(c),
        d_ff=c("intermediate_size"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=c.flag("mlp_bias", False),
    )


def _mistral(c: Config) -> Transformer:
    if "sliding_window" not in c.config:  # null switches windows off; left out, they are as in the first Mistral
        c = Config({**c.config, "sliding_window": 4096}, c.family)
    local: tuple[LayerKind, ...] = ("local",) if c.get("sliding_window") else ("global",)
    return Transformer(**_sizes(c), **_attention(c), **_layers(c, local), d_ff=c("intermediate_size"))


def _mixtral(c: Config) -> Transformer:
    local: tuple[LayerKind, ...] = ("local",) if c.get("sliding_window") else ("global",)
    experts = Experts(n_experts=c("num_local_experts"), top_k=c("num_experts_per_tok"), d_ff=c("intermediate_size"))
    return Transformer(**_sizes(c), **_attention(c), **_layers(c, local), experts=experts)


def _qwen2(c: Config) -> Transformer:
    return Transformer(**_sizes(c), **_attention(c), **_qwen_layers(c), d_ff=c("intermediate_size"), qkv_bias=True)


def _qwen3(c: Config) -> Transformer:
    bias = c.flag("attention_bias", False)
    layout = _sizes(c) | _attention(c, 128) | _qwen_layers(c)
    return Transformer(**layout, d_ff=c("intermediate_size"), qk_norm="head", qkv_bias=bias, output_bias=bias)


def _qwen_layers(c: Config) -> dict[str, Any]:
    """Windows only where they are switched on, from layer `max_window_layers` upwards."""
    if not c.flag("use_sliding_window", False):
        return {"layer_pattern": ("global",), "window": None}
    first, L = count("max_window_layers", c("max_window_layers")), c.n_layers
    return _layers(c, tuple("local" if i >= first else "global" for i in range(L)))


def _qwen_moe(c: Config) -> dict[str, Any]:
    c.refuse("mlp_only_layers", [])
    shared = c.get("shared_expert_intermediate_size", 0)
    experts = Experts(
        n_experts=c("num_experts", "num_local_experts"),
        top_k=c("num_experts_per_tok"),
        d_ff=c("moe_intermediate_size"),
        every=c.get("decoder_sparse_step", 1),
        n_shared=int(shared > 0),
        shared_d_ff=shared,
        shared_gate=shared > 0,
    )
    d_ff = c("intermediate_size") if experts.every > 1 else 0
    return _sizes(c) | _attention(c) | _qwen_layers(c) | {"experts": experts, "d_ff": d_ff}


def _qwen2_moe(c: Config) -> Transformer:
    return Transformer(**_qwen_moe(c), qkv_bias=True)


def _qwen3_moe(c: Config) -> Transformer:
    bias = c.flag("attention_bias", False)
    return Transformer(**_qwen_moe(c), qk_norm="head", qkv_bias=bias, output_bias=bias)


def _gemma(c: Config) -> Transformer:
    c.refuse("attention_bias", False)
    return Transformer(**_sizes(c, tied=True), **_attention(c, 256), d_ff=c("intermediate_size"))


def _gemma2(c: Config) -> Transformer:
    c.refuse("attention_bias", False)
    layers = _layers(c, ("local", "global"))
    return Transformer(**_sizes(c, tied=True), **_attention(c, 256), **layers, d_ff=c("intermediate_size"), norms="both")


def _gemma3(c: Config) -> Transformer:
    # Its files leave out what is as in the smallest multimodal model.
    absent = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208}
    c = Config(absent | {name: value for name, value in c.config.items() if value is not None}, c.family)
    c.refuse("attention_bias", False)
    period = min(units.size("sliding_window_pattern", c.get("sliding_window_pattern", 6)), c.n_layers + 1)
    pattern: tuple[LayerKind, ...] = tuple("local" if i < period - 1 else "global" for i in range(period))
    layout = _sizes(c, tied=True) | _attention(c, 256) | _layers(c, pattern)
    return Transformer(**layout, d_ff=c("intermediate_size"), norms="both", qk_norm="head")


def _deepseek(c: Config) -> Transformer:
    """DeepSeek V2 and V3 and models built like them; heads for multi-token prediction are left out, as in published totals."""
    c.refuse("moe_layer_freq", 1)
    c.refuse("attention_bias", False)
    latent = Latent(
        kv_rank=c("kv_lora_rank"),
        q_rank=c.get("q_lora_rank", 0),
        nope_dim=c("qk_nope_head_dim"),
        rope_dim=c("qk_rope_head_dim"),
        v_dim=c("v_head_dim"),
    )
    experts = Experts(
        n_experts=c("n_routed_experts"),
        top_k=c("num_experts_per_tok"),
        d_ff=c("moe_intermediate_size"),
        n_shared=c.get("n_shared_experts", 0),
        first_dense=c.get("first_k_dense_replace", 0),
        router_bias=c.family != "deepseek_v2" and c.get("topk_method", "noaux_tc") == "noaux_tc",
    )
    layout = _sizes(c) | {"n_kv_heads": c.get("num_key_value_heads"), "d_ff": c("intermediate_size")}
    return Transformer(**layout, latent=latent, experts=experts)


def _gpt2(c: Config) -> Transformer:
    D = c("n_embd", "hidden_size")
    return Transformer(
        name=c.get("_name_or_path", ""),
        n_layers=c("n_layer", "num_hidden_layers"),
        d_model=D,
        n_heads=c("n_head", "num_attention_heads"),
        vocab_size=c("vocab_size"),
        d_ff=c.get("n_inner", 4 * D),
        learned_positions=c("n_positions", "max_position_embeddings"),
        tied_embeddings=c.flag("tie_word_embeddings", True),
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
    )


def _falcon(c: Config) -> Transformer:
    """Falcon; its files leave out the key heads of the first models, and a width that is always 4 D."""
    D, N, new = c("hidden_size", "n_embed"), c("num_attention_heads", "n_head"), c.flag("new_decoder_architecture", False)
    key_heads = c("num_kv_heads", "n_head_kv") if new else 1 if c.get("multi_query", True) else N
    parallel, bias = c.flag("parallel_attn", True) or new, c.flag("bias", False)
    two_norms = (c.get("num_ln_in_parallel_attn", 2) == 2) if new else not parallel
    return Transformer(
        name=c.get("_name_or_path", ""),
        n_layers=c("num_hidden_layers", "n_layer"),
        d_model=D,
        n_heads=N,
        n_kv_heads=key_heads,
        vocab_size=c("vocab_size"),
        d_ff=c.get("ffn_hidden_size", 4 * D),
        tied_embeddings=c.flag("tie_word_embeddings", True),
        gated_mlp=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        parallel=parallel,
        norms="pre" if two_norms else "shared",
        norm_bias=True,
    )


def _olmo(c: Config) -> Transformer:
    bias = c.flag("attention_bias", False)
    layout = _sizes(c) | _attention(c)
    return Transformer(**layout, d_ff=c("intermediate_size"), norm_weights=False, qkv_bias=bias, output_bias=bias)


def _olmo2(c: Config) -> Transformer:
    bias = c.flag("attention_bias", False)
    layout = _sizes(c) | _attention(c)
    return Transformer(**layout, d_ff=c("intermediate_size"), norms="post", qk_norm="width", qkv_bias=bias, output_bias=bias)


def _gpt_oss(c: Config) -> Transformer:
    bias = c.flag("attention_bias", True)
    experts = Experts(
        n_experts=c("num_local_experts"),
        top_k=c("num_experts_per_tok", "experts_per_token"),
        d_ff=c("intermediate_size"),
        router_bias=True,
    )
    layout = _sizes(c) | _attention(c, 64) | _layers(c, ("local", "global"))
    return Transformer(**layout, experts=experts, qkv_bias=bias, output_bias=bias, mlp_bias=True, sinks=True)


FAMILIES: Mapping[str, Callable[[Config], Transformer]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt2": _gpt2,
    "falcon": _falcon,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "gpt_oss": _gpt_oss,
}
"""How to read each `model_type`."""
