"""The parts of a Transformer that not every model has: experts, and latent attention.

Derived in chapters/04-transformers.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from scaling_lib import units


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of a mixture-of-experts layer: `top_k` of `n_experts` see each token, and shared ones see all.

    Args:
        n_experts: E, experts that a router chooses among.
        top_k: experts that one token goes through.
        d_ff: hidden width of one expert.
        n_shared: experts that every token goes through, beside the chosen ones.
        shared_d_ff: hidden width of the shared experts together; `n_shared * d_ff` if not given.
        every: layers whose number, counted from 1, is a multiple of this have experts; the others have a dense block.
        first_dense: so many layers at the start have a dense block all the same.
        router_bias: whether the router has one number an expert beside its matrix: a bias, or a balancing correction.
        shared_gate: whether a vector of width D weighs the shared experts' result, as in Qwen2-MoE.

    Raises:
        ValueError: for counts out of range, and for `top_k` above `n_experts`.
    """

    n_experts: int
    top_k: int
    d_ff: int
    n_shared: int = 0
    shared_d_ff: int | None = None
    every: int = 1
    first_dense: int = 0
    router_bias: bool = False
    shared_gate: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "n_experts", "top_k", "d_ff", "every")
        check_counts(self, "n_shared", "first_dense")
        check_flags(self)
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k={self.top_k} is more than n_experts={self.n_experts}; a token cannot visit one twice")
        if self.shared_d_ff is None:
            object.__setattr__(self, "shared_d_ff", self.n_shared * self.d_ff)
        check_counts(self, "shared_d_ff")
        if (self.n_shared > 0) != (self.shared_width > 0):
            raise ValueError(f"n_shared={self.n_shared} contradicts shared_d_ff={self.shared_d_ff}; give both or none")
        if self.shared_gate and not self.n_shared:
            raise ValueError("shared_gate=True, but there are no shared experts (n_shared=0)")

    @property
    def shared_width(self) -> int:
        """Hidden width of the shared experts together, 0 where there are none."""
        return self.shared_d_ff or 0


@dataclass(frozen=True, kw_only=True)
class Latent:
    """Multi-head latent attention (MLA): keys and values of all heads are made from one short vector a token, which is cached.

    Args:
        kv_rank: width of that vector.
        nope_dim: width of a head's query and key without position.
        rope_dim: width of the rotary part of a head's query; the rotary key is one for all heads, and is cached too.
        v_dim: width of a head's value.
        q_rank: width through which queries are made; 0 where they come from the model's width directly.

    Raises:
        ValueError: for widths out of range.
    """

    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    q_rank: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "kv_rank", "nope_dim", "rope_dim", "v_dim")
        check_counts(self, "q_rank")


def check_sizes(what: object, *names: str) -> None:
    """Check fields of a frozen dataclass that are whole numbers of at least 1."""
    for name in names:
        object.__setattr__(what, name, units.size(name, getattr(what, name)))


def check_counts(what: object, *names: str) -> None:
    """Check fields of a frozen dataclass that are whole numbers and may be zero."""
    for name in names:
        object.__setattr__(what, name, count(name, getattr(what, name)))


def count(name: str, value: object) -> int:
    """`value` as a whole number that may be zero.

    Raises:
        ValueError: for anything else; names the argument.
    """
    return 0 if value == 0 and not isinstance(value, bool) else units.size(name, value)


def texts(name: str, value: object) -> tuple[str, ...]:
    """`value` as a tuple of texts; a text is not a collection of its letters.

    Raises:
        ValueError: for anything else; names the argument.
    """
    if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name}={value!r} is no collection of names")
    return tuple(value)


def check_flags(what: Any) -> None:
    """Check the fields of a dataclass that are True or False by default: "false" is a text, and would count as True."""
    for field in fields(what):
        if isinstance(field.default, bool) and not isinstance(value := getattr(what, field.name), bool):
            raise ValueError(f"{field.name}={value!r} is neither True nor False")
