"""Published training runs, and the rules by which each becomes a slice and a plan that can be priced.

A run states part of its plan. What it leaves out is filled in by the rules of this module, the same for all runs:

- Devices without a named use share out the weights (FSDP) where the code base does that, and replicate them elsewhere. Where
  the sequences do not suffice for them, they share the tokens of each sequence.
- A GPU node is the largest divisor of the GPUs that the chip's fabric joins.
- ZeRO-3 with FSDP, else ZeRO-1; none for Megatron on A100, whose optimizer was not distributed then.
- Micro-batches of one sequence in the Megatron family and in pipelines, else all of a device's sequences at once.
- Without a stated remat policy, JAX code bases keep each layer's input only and the others no scores.
- Megatron on A100 and PaLM are older than flash attention: they store scores, and compute those that the mask hides.
- Dropout in Megatron on A100; sequence parallelism except there with full remat, or where it does not divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scaling_lib import catalog, units
from scaling_lib.catalog import TrainingRun
from scaling_lib.hardware import CHIPS, Slice
from scaling_lib.training import Plan, why_not
from scaling_lib.transformer import MODELS, Transformer, names

JAX = frozenset({"MaxText", "MaxText MLPerf", "MaxText GPU", "PyTorch/XLA", "PaLM"})
MEGATRON = frozenset({"Megatron-LM", "Megatron-DeepSpeed", "Megatron-Bridge", "NeMo", "NeMo MLPerf", "Llama 3"})
SHARDED = JAX | {"torchtitan", "llm-foundry"}

_QKV = ("attention.query", "attention.key", "attention.value")
_DOTS = (*_QKV, "attention.out", "mlp.gate", "mlp.up", "mlp.down")
KEPT: Mapping[str, tuple[str, ...]] = {
    "minimal": _DOTS,
    "minimal_flash": (*_DOTS, "attention.context"),
    "qkv_proj_offloaded": _QKV,
    "offloads input": (),
    "offloads input qkv": _QKV,
    "offloads input qkv out": (*_QKV, "attention.out"),
    "save_dot_except_logits": (*_QKV, "attention.out", "mlp.up", "mlp.down"),
    "save_dot_except_logits_ffn1": (*_QKV, "attention.out", "mlp.down"),
    "save_dot_with_context_except_mlp": (*_QKV, "attention.context", "attention.out"),
}
"""What MaxText's remat policies keep beside a layer's input, in the names of `transformer.names`; offloading costs no FLOPs.

Source: google/maxtext MaxText/layers/models.py; for "minimal" that is `checkpoint_dots_with_no_batch_dims`.
"""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A run as the arguments of `training.estimate`.

    `bubble` is that of the pipeline where its virtual stages are known, else 0: then the efficiency has to absorb it.
    """

    run: TrainingRun
    model: Transformer
    slice: Slice
    plan: Plan
    batch: int
    T: int
    step_s: float
    causal: bool
    bubble: float

    @property
    def group(self) -> tuple[str, str, str]:
        """Chip, code base and precision, which share an efficiency."""
        return self.run.chip, self.run.code, self.run.precision


def published() -> tuple[TrainingRun, ...]:
    """Every published run of the catalog, usable or not."""
    return catalog.training_runs()


def why_unusable(run: TrainingRun) -> str | None:
    """Why no prediction can be held against a run; None where one can.

    Runs with experts are left out: what they drop and how well they balance is rarely published.
    """
    if run.step_s is None:
        return "no step time"
    if run.model not in MODELS:
        return "the model's shape is unknown"
    if MODELS[run.model].experts:
        return "experts"
    for name in ("batch", "T", "chips", "precision", "code"):
        if not getattr(run, name):
            return f"no {'sequence length' if name == 'T' else name}"
    return None if run.chip in CHIPS else "no figures of the chip"


def setup(run: TrainingRun, *, virtual_stages: int | None = None) -> Setup:
    """The arguments that price a run.

    Args:
        run: one that is usable.
        virtual_stages: assumed where the run does not state them.

    Raises:
        ValueError: where the run is not usable, or its plan cannot run.
    """
    if why := why_unusable(run):
        raise ValueError(f"run {run.id!r} cannot be priced: {why}")
    assert run.batch
    assert run.T
    assert run.step_s
    model, slice = MODELS[run.model], _slice(run)
    virtual = run.virtual_stages or virtual_stages
    ways = _ways(run, slice)
    old = run.code in ("Megatron-LM", "Megatron-DeepSpeed") and slice.chip.name.startswith("a100")
    stores_scores = old or run.code == "PaLM"
    microbatches = _microbatches(run, ways)
    remat = _remat(run, model)
    sharded = ways["fsdp"] > 1
    plan = Plan(
        zero=3 if sharded else 0 if old else 1,
        microbatches=microbatches,
        remat=remat,
        flash=not stores_scores,
        dropout=old,
        sequence_parallel=_sequence_parallel(run, ways, old and remat == "full"),
        uneven_stages=True,
        math={"mxfp8": "fp8", "f16": "bf16"}.get(run.precision, run.precision),
    ).but(**ways)
    if virtual and virtual > 1 and plan.pipeline > 1:
        interleaved = plan.but(schedule="interleaved", virtual_stages=virtual)
        if why_not(interleaved, model, slice, run.batch, run.T) is None:  # else the transfers of 1F1B, with the same bubble
            plan = interleaved
    if why := why_not(plan, model, slice, run.batch, run.T):
        raise ValueError(f"run {run.id!r}: {why}")
    bubble = (plan.pipeline - 1) / (microbatches * virtual) if virtual else 0.0
    return Setup(
        run=run, model=model, slice=slice, plan=plan, batch=run.batch, T=run.T, step_s=run.step_s,
        causal=not stores_scores, bubble=bubble,
    )  # fmt: skip


def _slice(run: TrainingRun) -> Slice:
    chip, chips = CHIPS[run.chip], units.size("chips", run.chips)
    if chip.kind == "tpu":
        return Slice(chip, tuple(map(int, run.shape.split("x"))), run.slices)
    node = next(n for n in range(chip.fabric_chips, 0, -1) if chips % n == 0)
    return Slice(chip, (node, chips // node))


def _ways(run: TrainingRun, slice: Slice) -> dict[str, int]:
    tensor, pipeline, context = run.tensor or 1, run.pipeline or 1, run.context or 1
    rest = slice.devices // (tensor * pipeline * context)
    data = rest
    if run.fsdp or run.code in SHARDED:
        data = run.data or (1 if run.fsdp else run.slices)
    fsdp = rest // data
    while units.size("batch", run.batch) % (data * fsdp):  # more devices than sequences
        context, data, fsdp = 2 * context, *((data // 2, fsdp) if data % 2 == 0 else (data, fsdp // 2))
    return {"data": data, "fsdp": fsdp, "tensor": tensor, "pipeline": pipeline, "context": context}


def _microbatches(run: TrainingRun, ways: Mapping[str, int]) -> int:
    sequences = units.size("batch", run.batch) // (ways["data"] * ways["fsdp"])
    one_by_one = run.code in MEGATRON or ways["pipeline"] > 1
    size = run.micro_batch or (1 if one_by_one else sequences)
    return next(m for m in range(max(1, sequences // size), 0, -1) if sequences % m == 0)


def _remat(run: TrainingRun, model: Transformer) -> str | tuple[str, ...]:
    policy = run.remat or ("full" if run.code in JAX else "selective")
    if policy == "full" and run.code in JAX:
        return ()  # JAX runs again only what the backward pass needs
    if policy in KEPT:
        return tuple(name for name in KEPT[policy] if name in names(model))
    return policy


def _sequence_parallel(run: TrainingRun, ways: Mapping[str, int], never: bool) -> bool:
    divides = units.size("T", run.T) % (ways["tensor"] * ways["context"]) == 0
    return divides and (not never if run.sequence_parallel is None else run.sequence_parallel)
