"""Published results of serving, and the rules by which each becomes a server that can be priced.

A result states part of its setup. What it leaves out is filled in by the rules of this module, the same for all:

- A GPU node is as many of a replica's GPUs as the chip's fabric joins.
- Matmuls run in the weights' dtype where that is fp8 or fp4 and the chip has a peak for it, else in bf16.
- Prompts and answers of ShareGPT have 219 and 292 tokens: 218,743 and 291,740 in 1000 requests (JetStream's README).
- MLPerf's logs tell the mean answer alone; the mean prompt is taken to be as long.
- Where a cache is static, attention reads all of it.
- Prompts are read between decode steps, and where chunks are stated inside them, if chunks can bring in so many.
- PaLM's 48 heads are padded to 64, as Pope et al. say.
- Without a stated batch, as many sequences as fit, in blocks of 64 tokens. (TensorRT-LLM's blocks; others' hardly matter.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from scaling_lib.catalog.serving import InferenceRun
from scaling_lib.hardware import CHIPS, Slice
from scaling_lib.inference import Layout, ServingEstimate, Step, bound, decode_step, prefill, serve, why_not
from scaling_lib.transformer import MODELS, Transformer

Kind = Literal["decode", "prefill", "largest batch"]
SHAREGPT = 219, 292
BLOCK = 64
PADDED_HEADS = {"PaLM 540B": 64}


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What the code of serving reaches, the same for all results on chips of a kind.

    Args:
        efficiency: part of the dense peak that matmuls reach.
        hbm_efficiency: part of the memory's peak bandwidth.
        start_s: seconds that each collective takes before its bytes move, and whatever else comes with each block of layers.
    """

    efficiency: float = 1.0
    hbm_efficiency: float = 1.0
    start_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """One replica of a published result, priced at full efficiency.

    Args:
        run: the result.
        kind: "decode" where the batch is known, "largest batch" where it is not, "prefill" for prompts alone.
        measured_s: seconds of a decode step, prefill of others in between included; of the prefill; or, for the largest batch,
            that all chips take for one token.
        bound_s: seconds that no server can beat.
        priced: what the library says, None where it cannot: then `why` tells.
        why: why there is no estimate.
    """

    run: InferenceRun
    kind: Kind
    measured_s: float
    bound_s: float
    priced: Step | ServingEstimate | None
    why: str

    @property
    def chip_kind(self) -> str:
        """Kind of chip, "tpu" or "gpu"."""
        return CHIPS[self.run.chip].kind

    def seconds(self, constants: Constants) -> float:
        """Predicted seconds, for `measured_s`."""
        if isinstance(self.priced, Step):
            return _at(self.priced, constants).seconds
        assert self.priced
        one = self.priced
        prefill, decode = _at(one.prefill, constants), _at(one.decode, constants)
        served = replace(one, prefill=prefill, decode=decode, mixed=one.mixed and _at(one.mixed, constants))
        return served.tpot_s if self.kind == "decode" else 1 / (served.tokens_per_s * self.run.replicas)


def why_unusable(run: InferenceRun) -> str | None:
    """Why not even a bound can be held against a result; None where one can."""
    if run.metric == "other":
        return "no time"
    if run.model not in MODELS:
        return "the model's shape is unknown"
    return None if run.chip in CHIPS else "no figures of the chip"


def server(run: InferenceRun) -> Server:
    """The server of a result that is usable.

    Raises:
        ValueError: where it is not.
    """
    if why := why_unusable(run):
        raise ValueError(f"run {run.id!r} cannot be priced: {why}")
    model, slice = MODELS[run.model], _slice(run)
    if run.model in PADDED_HEADS:
        model = model.but(n_heads=PADDED_HEADS[run.model])
    layout = _layout(run, slice)
    kind: Kind = "prefill" if run.phase == "prefill" else "decode" if run.batch or run.phase == "decode" else "largest batch"
    measured_s = _measured_s(run, kind)
    bound_s = _bound_s(run, kind, slice, layout)
    why = _lacks(run) or why_not(layout, model, slice)
    priced: Step | ServingEstimate | None = None
    if not why:
        try:
            priced = _priced(run, model, slice, layout)
        except ValueError as wrong:
            why = str(wrong)
    return Server(run=run, kind=kind, measured_s=measured_s, bound_s=bound_s, priced=priced, why=why or "")


def _slice(run: InferenceRun) -> Slice:
    chip, chips = CHIPS[run.chip], run.chips // run.replicas
    if chip.kind == "tpu":
        return Slice(chip, tuple(map(int, run.shape.split("x"))))
    node = math.gcd(chips, chip.fabric_chips)
    return Slice(chip, (node, chips // node))


def _layout(run: InferenceRun, slice: Slice) -> Layout:
    dtype = run.weights if run.weights in ("fp8", "fp4") and run.weights in slice.chip.peak_flops_per_s else "bf16"
    ways: dict[str, Any] = {name: getattr(run, name) or 1 for name in ("tensor", "kv_batch", "width", "data", "expert")}
    return Layout(**ways, weights=run.weights, kv=run.kv or "bf16", math=dtype)


def _lengths(run: InferenceRun) -> tuple[int, int]:
    """Tokens of a prompt and of an answer; 0 where not known."""
    if run.code == "JetStream" and not run.input:
        return SHAREGPT
    answer = run.output or 0
    return run.input or (answer if run.code == "MLPerf" else 0), answer


def _measured_s(run: InferenceRun, kind: Kind) -> float:
    if run.metric in ("step_s", "prefill_s"):
        return run.value
    if run.metric == "input tokens/s":
        return (run.input or 1) / (run.value / run.replicas)
    return (run.batch or 1) / run.value if kind == "decode" else 1 / run.value


def _bound_s(run: InferenceRun, kind: Kind, slice: Slice, layout: Layout) -> float:
    """Of what the source states alone: a prompt that it leaves out has one token."""
    model = MODELS[run.model]
    batch = 1 if kind == "prefill" else run.batch and run.batch // run.replicas
    if kind == "decode" and batch is None:
        batch = 1
    found = bound(
        model, slice, input=run.input or 1, output=run.output or 1, batch=batch,
        weights=layout.weights, kv=layout.kv, math=layout.math,
    )  # fmt: skip
    if kind == "prefill":
        return found.prefill_s
    if run.phase == "decode":
        return found.decode_s
    served_s = found.request_s / found.output
    return served_s * found.batch if kind == "decode" else served_s / run.replicas


def _lacks(run: InferenceRun) -> str | None:
    if run.phase == "decode" and not run.batch:
        return "no batch"
    if not run.tensor:
        return "no ways"
    return None if all(_lengths(run)) or run.phase != "serving" else "no lengths"


def _priced(run: InferenceRun, model: Transformer, slice: Slice, layout: Layout) -> Step | ServingEstimate:
    prompt, answer = _lengths(run)
    batch = run.batch and run.batch // run.replicas
    if run.phase == "prefill":
        return prefill(model, slice, layout, prompt=prompt)
    if run.phase == "decode":
        assert batch
        return decode_step(model, slice, layout, batch, context=prompt + answer // 2)
    if batch is None:
        return serve(model, slice, layout, input=prompt, output=answer, block=BLOCK)
    chunk = run.chunk if run.chunk and run.chunk * answer >= batch * prompt else None
    static: dict[str, Any] = {"cache": run.cache, "reads": "all"} if run.cache else {}
    return serve(model, slice, layout, input=prompt, output=answer, batch=batch, chunk=chunk, **static)


def _at(step: Step, constants: Constants) -> Step:
    """A step priced at full efficiency, as `Speed` with these constants would have it."""
    passes = []
    for each in step.passes:
        exchange = dict(each.exchange_s)
        for row in each.traffic:
            exchange[row.part] = exchange[row.part] + row.count * constants.start_s
        passes.append(
            replace(
                each,
                weights_s=each.weights_s / constants.hbm_efficiency,
                cache_s=each.cache_s / constants.hbm_efficiency,
                elementwise_s=each.elementwise_s / constants.hbm_efficiency,
                math_s=each.math_s / constants.efficiency,
                attention_s=each.attention_s / constants.efficiency,
                exchange_s=exchange,
            )
        )
    return replace(step, passes=tuple(passes))
