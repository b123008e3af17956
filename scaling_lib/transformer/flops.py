"""FLOPs of a forward pass and of a training step: every matmul by name, and the parts they add up to.

Only matmuls count, at 2 FLOPs a multiply-add; norms, softmax and activation functions are left out (a few thousandths at
widths of real models). Derived in chapters/04-transformers.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from scaling_lib import units
from scaling_lib.hardware import Chip
from scaling_lib.roofline import FLOPS_PER_MAC
from scaling_lib.transformer.architecture import LAYER_KINDS, LayerKind, Transformer
from scaling_lib.transformer.params import Weight, weights

Head = Literal["all", "last", "none"]


@dataclass(frozen=True, kw_only=True)
class Matmul:
    """One kind of matmul of a forward pass: `flops` over all layers, experts, sequences and tokens."""

    name: str
    flops: int

    @property
    def part(self) -> str:
        """The field of `Flops` it belongs to."""
        if self.name in ("attention.scores", "attention.context"):
            return self.name.removeprefix("attention.")
        part = self.name.partition(".")[0]
        return "projections" if part == "attention" else part


@dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPs by part. They add, and scale by a whole number.

    `projections` are the matrices of attention; `scores` is queries times keys, `context` is probabilities times values:
    both grow with the length squared, and with the query heads, however few key heads there are.
    """

    embedding: int = 0
    projections: int = 0
    scores: int = 0
    context: int = 0
    mlp: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(getattr(self, f.name) for f in fields(self))

    def __add__(self, other: Flops) -> Flops:
        return Flops(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __mul__(self, times: int) -> Flops:
        return Flops(**{f.name: getattr(self, f.name) * times for f in fields(self)})

    __rmul__ = __mul__


def forward_flops(
    model: Transformer,
    *,
    T: int,
    causal: bool,
    B: int = 1,
    S: int | None = None,
    head: Head = "all",
    embedding: Literal["lookup", "matmul"] = "lookup",
    absorbed: bool = False,
) -> Flops:
    """FLOPs of one forward pass, by part.

    Args:
        model: a mixture of experts does `top_k` experts' work a token, with no capacity padding and no dropped tokens.
        T: new tokens of a sequence: all of them in training and prefill, 1 in decode.
        causal: there is no default, as publications differ by up to 2 times on long sequences. True counts the pairs of
            query and key that the mask lets through, T(T + 1)/2 or fewer with a window: useful work, and what a kernel that
            skips masked blocks approaches. False counts all T * S, which a plain einsum with a mask computes, window or not.
        B: sequences.
        S: tokens of a sequence on the key side, new ones included: T if not given. More in decode and chunked prefill.
        head: logits of "all" new tokens (training), the "last" of each sequence (prefill), or "none".
        embedding: "lookup" costs nothing; "matmul" counts the input table as a product with one-hot vectors, as 6N does.
        absorbed: for latent attention only: score against the cached latents, as an engine that never expands them does in
            decode. Otherwise keys and values of earlier tokens are taken to be there already.

    Raises:
        ValueError: for sizes out of range, S below T, and unknown conventions.
    """
    return add_up(matmuls(model, T=T, causal=causal, B=B, S=S, head=head, embedding=embedding, absorbed=absorbed))


def matmuls(
    model: Transformer,
    *,
    T: int,
    causal: bool,
    B: int = 1,
    S: int | None = None,
    head: Head = "all",
    embedding: Literal["lookup", "matmul"] = "lookup",
    absorbed: bool = False,
) -> tuple[Matmul, ...]:
    """Every kind of matmul of one forward pass, in order; arguments as of `forward_flops`. Named like the weight it uses."""
    T, B = units.size("T", T), units.size("B", B)
    S = T if S is None else units.size("S", S)
    _check_pairs(T, S, causal)
    if head not in ("all", "last", "none"):
        raise ValueError(f"head={head!r} is unknown; give 'all', 'last' or 'none'")
    if embedding not in ("lookup", "matmul"):
        raise ValueError(f"embedding={embedding!r} is unknown; give 'lookup' or 'matmul'")
    if absorbed and not model.latent:
        raise ValueError(f"absorbed=True, but {model} has no latent attention")
    rows = [Matmul(name=w.name, flops=_weight_flops(w, B, T, S, head, embedding)) for w in weights(model)]
    rows = [row for row in rows if row.flops]
    at = 1 + max(i for i, row in enumerate(rows) if row.name in ("attention.key", "attention.value"))
    return (*rows[:at], *_pair_matmuls(model, B, T, S, causal, absorbed), *rows[at:])


def add_up(rows: tuple[Matmul, ...]) -> Flops:
    """The parts that some matmuls add up to."""
    parts = dict.fromkeys((f.name for f in fields(Flops)), 0)
    for row in rows:
        parts[row.part] += row.flops
    return Flops(**parts)


def attention_pairs(kind: LayerKind, *, T: int, S: int, causal: bool, window: int | None = None) -> int:
    """Pairs of query and key that one head scores in one sequence; the queries are the last T of S tokens.

    Args:
        kind: "global", "local" (the last `window` tokens) or "chunked" (tokens of the same block of `window`).
        T: queries.
        S: keys.
        causal: False counts all T * S, whatever the kind; see `forward_flops`.
        window: for the kinds that have one.

    Raises:
        ValueError: for sizes out of range, S below T, an unknown kind, and a kind without the window that it needs.
    """
    T, S = units.size("T", T), units.size("S", S)
    _check_pairs(T, S, causal)
    if kind not in LAYER_KINDS:
        raise ValueError(f"kind={kind!r} is unknown; give {', '.join(map(repr, LAYER_KINDS))}")
    if kind != "global":
        window = units.size("window", window)
    if not causal:
        return T * S
    before = S - T
    if kind == "global" or not window:
        return T * before + T * (T + 1) // 2
    if kind == "chunked":
        return _chunk_pairs(S, window) - _chunk_pairs(before, window)
    full = min(max(window - before, 0), T)  # queries that see all before them
    return full * before + full * (full + 1) // 2 + (T - full) * window


def _check_pairs(T: int, S: int, causal: bool) -> None:
    if S < T:
        raise ValueError(f"S={S} is below T={T}; S counts all tokens of a sequence, new ones included")
    if causal not in (True, False):
        raise ValueError(f"causal={causal!r} is neither True nor False")


def _chunk_pairs(tokens: int, window: int) -> int:
    """Pairs among the first tokens of a sequence, where each sees its own chunk up to itself."""
    whole, rest = divmod(tokens, window)
    return whole * (window * (window + 1) // 2) + rest * (rest + 1) // 2


def _weight_flops(weight: Weight, B: int, T: int, S: int, head: Head, embedding: str) -> int:
    if weight.role not in ("matmul", "lookup") or weight.part == "positions":
        return 0
    tokens = B * T
    if weight.role == "lookup":
        tokens = B * T if embedding == "matmul" else 0
    elif weight.part == "head":
        tokens = {"all": B * T, "last": B, "none": 0}[head]
    elif weight.name == "attention.relative":
        tokens = S  # distances, the same for every sequence
    return FLOPS_PER_MAC * tokens * weight.passed


def _pair_matmuls(model: Transformer, B: int, T: int, S: int, causal: bool, absorbed: bool) -> tuple[Matmul, Matmul]:
    kinds = model.layer_kinds
    pairs = sum(kinds.count(kind) * attention_pairs(kind, T=T, S=S, causal=causal, window=model.window) for kind in set(kinds))
    key_width, value_width = model.H * (2 if model.relative_positions else 1), model.v_dim  # queries meet positions as well
    if absorbed and model.latent:
        key_width, value_width = model.latent.kv_rank + model.latent.rope_dim, model.latent.kv_rank
    each = FLOPS_PER_MAC * B * model.N * pairs
    return Matmul(name="attention.scores", flops=each * key_width), Matmul(name="attention.context", flops=each * value_width)


def utilization(flops: float, *, seconds: float, chips: int, chip: Chip, dtype: str = "bf16") -> float:
    """The part of the chips' peak that some FLOPs in some time come to.

    Args:
        flops: of all chips together. `TrainFlops.model_flops` gives MFU, model FLOPs utilization;
            `TrainFlops.hardware_flops` gives HFU, which counts recomputation as work.
        seconds: for them.
        chips: chips that shared the work.
        chip: whose dense peak counts.
        dtype: that the matmuls ran in. The peak must be that of the same dtype.

    Raises:
        ValueError: for figures that are not positive.
    """
    for name, value in (("flops", flops), ("seconds", seconds)):
        if units.number(name, value) <= 0:
            raise ValueError(f"{name}={value!r} must be positive")
    return flops / (seconds * units.size("chips", chips) * chip.flops_per_s(dtype))
