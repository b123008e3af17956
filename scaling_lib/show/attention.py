"""What of a model's FLOPs attention's scores are, by the length of the sequence; and softmax computed chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, PercentFormatter

from scaling_lib import transformer, units
from scaling_lib.show.palette import MODELS
from scaling_lib.show.tables import Table
from scaling_lib.transformer import Transformer


def shares(
    models: Sequence[Transformer], *, causal: bool, lengths: tuple[float, float] = (1e3, 1e6), ax: Axes | None = None
) -> Axes:
    """The part of a forward pass's FLOPs that grows with the length squared: scores, and probabilities times values.

    Args:
        models: a line each, up to six.
        causal: as of `transformer.forward_flops`. False draws dashes, so that a second call can add them to the first's axes.
        lengths: tokens, from and to.
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes: tokens logarithmic, shares from 0 to 100 %.

    Raises:
        ValueError: for no models or more than there are colors, and for lengths out of order.

    Derived in chapters/04-transformers.md.
    """
    low, high = (units.size("lengths", length) for length in lengths)
    if not low < high:
        raise ValueError(f"lengths={lengths}: give a shorter and a longer one")
    if not 1 <= len(models) <= len(MODELS):
        raise ValueError(f"models has {len(models)} of them; give 1 to {len(MODELS)}")
    if ax is None:
        _, ax = plt.subplots(layout="constrained", figsize=(7, 6))
    ax.set(xscale="log", xlabel="tokens in a sequence", ylim=(0, 1), ylabel="scores and context (% of FLOPs)")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.yaxis.set_major_formatter(PercentFormatter(1, symbol=""))
    steps = [round(low * (high / low) ** (i / 60)) for i in range(61)]
    for color, model in zip(MODELS, models, strict=False):
        ys = [share(model, T=T, causal=causal) for T in steps]
        label = str(model) if causal else f"{model}, no mask"
        ax.plot(steps, ys, "-" if causal else "--", color=color, label=label)
    ax.set_xlim(low, high)
    ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.16), ncols=2)
    return ax


def share(model: Transformer, *, T: int, causal: bool) -> float:
    """The part of the FLOPs of a forward pass over T tokens that are scores and probabilities times values."""
    flops = transformer.forward_flops(model, T=T, causal=causal)
    return (flops.scores + flops.context) / flops.total


def online_softmax(scores: Sequence[float], values: Sequence[float], *, chunk: int) -> Table:
    """One row of attention, softmax(scores) · values, with `chunk` scores seen at a time, and all at once below it.

    A chunk may raise the maximum m; what was summed before is then scaled by exp(m before - m). So no chunk is needed twice.

    Args:
        scores: of one query with each key.
        values: one number a key.
        chunk: scores a step.

    Returns:
        A row for each chunk: the maximum so far, the factor for what came before, the sum of exponentials, the weighted sum
        of values, and their ratio, which is the output so far. The last row has the output of plain softmax.

    Raises:
        ValueError: for no scores, numbers that are not finite, or as many values as there are not scores.

    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867). Derived in chapters/04-transformers.md.
    """
    size = units.size("chunk", chunk)
    scores = [units.number("scores", each) for each in scores]
    values = [units.number("values", each) for each in values]
    if not scores or len(scores) != len(values):
        raise ValueError(f"{len(scores)} scores and {len(values)} values; give one value a score, at least one")
    rows = []
    highest, total, weighted = -math.inf, 0.0, 0.0
    for start in range(0, len(scores), size):
        seen = scores[start : start + size]
        before, highest = highest, max(highest, *seen)
        factor = math.exp(before - highest)  # 0 for the first chunk, before which there is nothing
        exponentials = [math.exp(score - highest) for score in seen]
        total = factor * total + sum(exponentials)
        weighted = factor * weighted + sum(e * v for e, v in zip(exponentials, values[start:], strict=False))
        rows.append(_row(", ".join(f"{score:g}" for score in seen), highest, f"{factor:.4f}", total, weighted))
    top = max(scores)
    exponentials = [math.exp(score - top) for score in scores]
    weighted = sum(e * v for e, v in zip(exponentials, values, strict=True))
    rows.append(_row("all at once", top, "", sum(exponentials), weighted))
    return Table(rows)


def _row(seen: str, highest: float, factor: str, total: float, weighted: float) -> dict[str, object]:
    return {
        "scores": seen, "maximum": f"{highest:g}", "factor": factor, "sum": f"{total:.4f}",
        "sum of values": f"{weighted:.4f}", "output": f"{weighted / total:.4f}",
    }  # fmt: skip
