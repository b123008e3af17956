"""The fastest that serving can be: all chips as one, bytes over bandwidth and FLOPs over peak, no latency, no collective.

Nothing measured can be faster. `estimate` counts what this leaves out. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaling_lib import units
from scaling_lib.hardware import Slice, slice_of
from scaling_lib.transformer import Transformer, forward_flops, kv_cache_bytes, weight_bytes
from scaling_lib.transformer import model as model_of


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What no server of these chips can beat.

    Args:
        batch: sequences at a time: as given, or as many as the memory holds at their mean length.
        prefill_s: seconds to read one prompt.
        decode_s: seconds of a step that makes a token of each, at the mean length.
        request_s: seconds of all chips that a request takes, prefill and all its tokens, at this batch.
        input: tokens of a prompt.
        output: new tokens.
        chips: all of them.
    """

    batch: int
    prefill_s: float
    decode_s: float
    request_s: float
    input: int
    output: int
    chips: int

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all chips together, at most."""
        return self.output / self.request_s

    @property
    def tokens_per_s_per_chip(self) -> float:
        """New tokens of a chip, at most."""
        return self.tokens_per_s / self.chips


def bound(
    model: Transformer | str,
    slice: Slice | str,
    *,
    input: int,
    output: int = 1,
    batch: int | None = None,
    weights: str = "bf16",
    kv: str = "bf16",
    math: str = "bf16",
) -> Bound:
    """The bound of serving requests of `input` tokens, each followed by `output` new ones.

    Args:
        model: or its name in the catalog.
        slice: or its name.
        input: tokens of a prompt.
        output: new tokens.
        batch: sequences that are decoded together; as many as fit into memory at their mean length if not given.
        weights: dtype; every weight once, wherever it lies.
        kv: dtype of the cache, each of it once; requests at any stage, so that the mean is half of the output long.
        math: dtype of all matmuls, attention's too.

    Raises:
        ValueError: for sizes out of range, and where memory does not hold the weights and one sequence. A batch that is given
            may be beyond the memory.

    NB: attention is causal. Of experts, those that a batch goes through if chosen evenly: popular ones are fewer to read.
    """
    model = model_of(model) if isinstance(model, str) else model
    slice = slice_of(slice) if isinstance(slice, str) else slice
    input, output = units.size("input", input), units.size("output", output)
    chip, chips = slice.chip, slice.chips
    bandwidth, peak = chips * chip.hbm_bytes_per_s, chips * chip.flops_per_s(math)
    middle = input + output // 2
    each, held = kv_cache_bytes(model, S=middle, dtype=kv), weight_bytes(model, weights)
    if batch is None:
        batch = int((chips * chip.hbm_bytes - held.total) // each)
        if batch < 1:
            need, has = (units.human(size, "GiB") for size in (held.total + each, chips * chip.hbm_bytes))
            raise ValueError(f"{slice} has {has}, and the weights of {model} with one sequence of {middle} tokens take {need}")
    batch = units.size("batch", batch)
    table = 0.0 if model.tied_embeddings else held.embedding
    dense = held.total - held.experts - table
    idle = 1 - model.experts.top_k / model.experts.n_experts if model.experts else 0.0

    def read(tokens: int) -> float:
        return dense + held.experts * (1 - idle**tokens)

    once = forward_flops(model, T=input, causal=True, head="last").total
    token = forward_flops(model, T=1, S=middle, causal=True, absorbed=model.latent is not None).total
    prefill_s = max(once / peak, read(input) / bandwidth)
    decode_s = max(batch * token / peak, (read(batch) + batch * each) / bandwidth)
    flops_s = (once + output * token) / peak
    bytes_s = output * (read(batch) / batch + each) / bandwidth
    return Bound(
        batch=batch, prefill_s=prefill_s, decode_s=decode_s, request_s=max(flops_s, bytes_s), input=input, output=output,
        chips=chips,
    )  # fmt: skip
