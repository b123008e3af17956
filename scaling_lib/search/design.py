"""A model of one's own for a budget: its sizes, its training and its serving, each judged against what was asked for.

A design is plain data, as JSON can hold it, so that a wrong one is refused with a reason and never raises. Training and serving
are also held against the best that the search finds for the same model. Needs simpy and NumPy. Played in labs/11-capstone.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import lru_cache
from types import EllipsisType
from typing import Any

from scaling_lib import units
from scaling_lib.hardware import slice_of
from scaling_lib.inference.layout import AXES as LAYOUT_AXES
from scaling_lib.search import serving_contest
from scaling_lib.search.best import best_training_plans
from scaling_lib.search.choices import Choices
from scaling_lib.search.commission import Commission, Verdict, unanswered
from scaling_lib.search.contest import MEDALS, RULES
from scaling_lib.search.fleet import Fleet
from scaling_lib.search.trial import Task, Trial
from scaling_lib.training import Plan, StepEstimate, estimate
from scaling_lib.transformer import Experts, Transformer, active_parameters, parameters, train_flops

MULTIPLE = 256
"""Of this are all widths: the side of the largest MXU, so that no tile is padded."""
HEAD_MULTIPLE = 128
"""Of this is the width of a head: the lanes of a vector register."""
MOST_RATIO = MEDALS["silver"]
"""Times the dollars of the search's best that a plan or a fleet may cost."""
CHOICES = Choices(remat=("none", ()), schedule="1f1b", zero=(1, 3))
"""What the search for the best training plan looks at on each slice."""
FLOOR, PER_PARAMETER, PER_TOKEN = 1.69, (406.4, 0.34), (410.7, 0.28)
"""Of `loss`: what no model gets below, and what too few parameters and too few tokens add, each as a factor and a power."""


def loss(parameters: float, tokens: float) -> float:
    """Loss in nats a token of a dense model, as it was fitted to over 400 runs of up to 16 billion parameters.

    Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, equation 10.
    NB: their data and their vocabulary. It says which of two designs is better, and not what another run will reach.
    """
    return FLOOR + _adds(parameters, PER_PARAMETER) + _adds(tokens, PER_TOKEN)


def least_parameters(tokens: float, reach: float) -> float:
    """Parameters of the smallest model that reaches a loss after so many tokens, by the fit of `loss`.

    Raises:
        ValueError: where no model does.
    """
    left = reach - FLOOR - _adds(tokens, PER_TOKEN)
    if left <= 0:
        raise ValueError(f"reach={reach:g} is out of reach with tokens={tokens:.3g}, however large the model; give more tokens")
    factor, power = PER_PARAMETER
    return float((factor / left) ** (1 / power))


def _adds(size: float, of: tuple[float, float]) -> float:
    return float(of[0] / size ** of[1])


def model(sizes: Mapping[str, Any] | EllipsisType, tokens: float | EllipsisType, on: Commission) -> Verdict:
    """Whether a model and its tokens are within the commission.

    Args:
        sizes: arguments of `transformer.Transformer`; `experts` as a dictionary of its own, or not at all.
        tokens: to train on.
        on: what is asked.
    """
    if isinstance(sizes, EllipsisType) or isinstance(tokens, EllipsisType):
        return unanswered("model")
    try:
        made = built(sizes)
        tokens = units.number("tokens", tokens)
    except (TypeError, ValueError) as why:
        return Verdict(part="model", why=(str(why),))
    active = active_parameters(made, "all")
    flops = train_flops(made, T=on.T, causal=True).model_flops
    found = {
        "parameters": parameters(made).total,
        "active parameters": active,
        "tokens": tokens,
        "tokens a parameter": tokens / active,
        "loss by the fit": loss(active, tokens),
        "FLOPs": flops * tokens / on.T,
    }
    return Verdict(part="model", why=tuple(_model(made, found, on)), found=found, of=made)


def built(sizes: Mapping[str, Any]) -> Transformer:
    """The model of a design.

    Raises:
        ValueError: as `Transformer`.
        TypeError: for a name that it does not have, or one that is missing.
    """
    experts = sizes.get("experts")
    return Transformer(**{**sizes, "experts": Experts(**experts) if isinstance(experts, Mapping) else experts})


def _model(made: Transformer, found: Mapping[str, float], on: Commission) -> Iterator[str]:
    widths = {"d_model": made.D, "d_ff": made.F, "vocab_size": made.V, "n_heads · head_dim": made.N * made.H}
    for name, width in widths.items():
        if width % MULTIPLE:
            up = -(-width // MULTIPLE) * MULTIPLE
            yield f"{name}={width} is no multiple of {MULTIPLE}: tiles of the MXU are padded; give {up - MULTIPLE} or {up}"
    if made.H % HEAD_MULTIPLE:
        yield f"head_dim={made.H} is no multiple of {HEAD_MULTIPLE}: lanes stay empty; give d_model / n_heads = {HEAD_MULTIPLE}"
    if made.vocab_size < on.vocabulary:
        yield f"vocab_size={made.vocab_size:,} has no room for the tokenizer's {on.vocabulary:,}"
    tokens = found["tokens"]
    if tokens > on.data_tokens:
        yield f"{tokens:.3g} tokens are {tokens / on.data_tokens:.2f} times the {on.data_tokens:.3g} that there are"
    if found["tokens a parameter"] < on.tokens_per_parameter:
        each = found["tokens a parameter"]
        yield f"under-trained: {each:.1f} tokens a parameter, and {on.tokens_per_parameter:g} are asked for at least"
    if found["loss by the fit"] > on.loss:
        reached = found["loss by the fit"]
        more = "parameters" if _adds(found["active parameters"], PER_PARAMETER) > _adds(tokens, PER_TOKEN) else "tokens"
        yield f"not good enough: loss {reached:.3f}, {reached - on.loss:.3f} over {on.loss:g}; more {more} would help most"
    if (over := found["FLOPs"] / on.flops) > 1:
        yield f"too large: {found['FLOPs']:.2e} FLOPs, {over:.2f} times what {on.usd:,.0f} USD buy at full peak"


def training(made: Transformer, tokens: float, how: Mapping[str, Any] | EllipsisType, on: Commission) -> Verdict:
    """Whether a training is within the commission, and how much dearer than the best that the search finds.

    Days and dollars are those where no communication hides; `found` also has those where all does.

    Args:
        made: the model.
        tokens: to train on.
        how: `slice`, `batch`, and arguments of `training.Plan` by which it differs from `on.base`.
        on: what is asked.
    """
    if isinstance(how, EllipsisType):
        return unanswered("training")
    try:
        rest = dict(how)
        name, batch = rest.pop("slice", None), units.size("batch", rest.pop("batch", 0))
        if name not in on.slices:
            raise ValueError(f"slice={name!r} cannot be rented; give one of {', '.join(map(repr, on.slices))}")
        if wrong := sorted(rest.keys() & {*RULES}):
            raise ValueError(f"{wrong[0]}={rest[wrong[0]]!r} is against the rules: all plans share it; leave it out")
        plan = on.base.but(**{key: tuple(value) if isinstance(value, list) else value for key, value in rest.items()})
        step = estimate(made, name, plan, batch, T=on.T, overlap="none", efficiency=on.efficiency)
    except (TypeError, ValueError) as why:
        return Verdict(part="training", why=(str(why),))
    useful = on.useful(step.slice)
    share = step.lower_s / step.upper_s
    found = {
        "chips": step.slice.chips,
        "tokens a step": batch * on.T,
        "GiB a device": float(step.memory.total) / units.GIB,
        "GiB there are": step.usable_bytes / units.GIB,
        "MFU": step.mfu,
        "goodput": useful,
        "days": step.days(tokens, useful),
        "days, all hidden": step.days(tokens, useful) * share,
        "USD": step.dollars(tokens, useful),
        "USD, all hidden": step.dollars(tokens, useful) * share,
    }
    best = cheapest_training(made, tokens, batch, on)
    if best is not None:
        found["times the best"] = found["USD"] / best.dollars(tokens, on.useful(best.slice))
    return Verdict(part="training", why=tuple(_training(step, found, on)), found=found, of=step)


def _training(step: StepEstimate, found: Mapping[str, float], on: Commission) -> Iterator[str]:
    if (size := found["tokens a step"]) > on.batch_tokens:
        most = on.batch_tokens // on.T
        yield f"batch={step.batch} is {size:,} tokens a step, over the critical batch of {on.batch_tokens:,}; give at most {most}"
    if not step.fits:
        parts = {name: float(getattr(step.memory, name)) for name in ("weights", "optimizer", "activations", "logits")}
        largest = max(parts, key=lambda name: parts[name])
        over = found["GiB a device"] - found["GiB there are"]
        yield f"does not fit: {over:.1f} GiB a device over {found['GiB there are']:.1f}; the largest part is {largest}"
    if found["days"] > on.days:
        yield f"too slow: {found['days']:.1f} days, {found['days'] - on.days:.1f} more than {on.days:g}"
    if found["USD"] > on.usd:
        yield f"over budget: {found['USD']:,.0f} USD, {found['USD'] - on.usd:,.0f} more than {on.usd:,.0f}"
    if found.get("times the best", 1) > MOST_RATIO:
        yield f"too dear: {found['times the best']:.2f} times the best that the search finds; at most {MOST_RATIO:g} is asked for"


@lru_cache(maxsize=64)
def _best_on(made: Transformer, name: str, batch: int, T: int, base: Plan, efficiency: float) -> StepEstimate | None:
    how: dict[str, Any] = {"T": T, "base": base, "efficiency": efficiency, "choices": CHOICES, "keep": 1, "overlap": "none"}
    best = best_training_plans(made, name, batch, **how).best
    return best[0] if best else None


def cheapest_training(made: Transformer, tokens: float, batch: int, on: Commission) -> StepEstimate | None:
    """The cheapest plan that the search finds for a model on any of the slices within the days; None where there is none."""
    steps = [_best_on(made, name, batch, on.T, on.base, on.efficiency) for name in on.slices]
    within = [step for step in steps if step and step.days(tokens, on.useful(step.slice)) <= on.days]
    return min(within, key=lambda step: step.dollars(tokens, on.useful(step.slice)), default=None)


def serving(made: Transformer, how: Mapping[str, Any] | EllipsisType, on: Commission) -> Verdict:
    """Whether a fleet keeps the promises for the price, and how much dearer than the best that the search finds.

    Args:
        made: the model.
        how: `slice`, `batch` and other arguments of `Fleet`, and mesh axes of `Layout` such as `tensor`.
        on: what is asked.
    """
    if isinstance(how, EllipsisType):
        return unanswered("serving")
    places = tuple(map(slice_of, on.servers))
    limits = {"ttft_s": on.ttft_s, "tpot_s": on.tpot_s}
    task = Task(model=made, slices=places, workload=on.workload, base=on.layout, **limits)
    try:
        layout = on.layout.but(**{name: value for name, value in how.items() if name in LAYOUT_AXES})
        own = {each.name for each in fields(Fleet)} - {"layout"}
        if wrong := sorted(how.keys() - own - {*LAYOUT_AXES}):
            raise ValueError(f"{wrong[0]}={how[wrong[0]]!r} is not to be chosen; give {', '.join(sorted(own))} and mesh axes")
        trial = task.play(Fleet(layout=layout, **{name: value for name, value in how.items() if name in own}))
    except (AttributeError, TypeError, ValueError) as why:
        return Verdict(part="serving", why=(str(why),))
    found = {"chips": trial.fleet.chips, "USD a million tokens": trial.usd_per_million}
    reasons = list(trial.why)
    if trial.report is not None and trial.report.load is not None and not trial.report.overloaded:
        found["load"] = trial.report.load
        found["USD, always full"] = trial.usd_per_million * trial.report.load
        found["first token p99, s"] = trial.report.ttft_s.p99.value
        if trial.report.tpot_s is not None:
            found["token p99, s"] = trial.report.tpot_s.p99.value
    if (over := trial.usd_per_million - on.usd_per_million) > 0:
        reasons.append(f"too dear: {over:.2f} USD a million tokens more than {on.usd_per_million:g}")
    best = cheapest_serving(made, on)
    if best is not None:
        found["times the best"] = ratio = trial.usd_per_million / best.usd_per_million
        if ratio > MOST_RATIO * (1 + 1e-9):
            reasons.append(f"too dear: {ratio:.2f} times the best that the search finds; at most {MOST_RATIO:g} is asked for")
    return Verdict(part="serving", why=tuple(reasons), found=found, of=trial)


@lru_cache(maxsize=64)
def cheapest_serving(made: Transformer, on: Commission) -> Trial | None:
    """The cheapest fleet that the search finds for a model; None where none keeps the promises for little money."""
    try:
        return serving_contest.contest(made, on.servers, on.workload, base=on.layout, ttft_s=on.ttft_s, tpot_s=on.tpot_s).best
    except ValueError:
        return None
