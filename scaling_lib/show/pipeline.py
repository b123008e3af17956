"""A pipeline schedule over time as a drawing: a row a stage, a box a job, and gray where a stage stands idle."""

from __future__ import annotations

from collections.abc import Iterator

from scaling_lib import units
from scaling_lib.show.svg import FONT, WIDTH, Drawing, Label, figure
from scaling_lib.training.pipeline import Job, Run

MOST = 16
"""Stages of the largest run that is drawn."""

# Paul Tol's "high-contrast": passes stay apart in print and for color-blind readers, and none is the color of a resource.
_COLORS = {"forward": "#004488", "backward": "#BB5566", "weight": "#DDAA33"}
_LEFT, _RIGHT, _TOP, _ROW, _GAP, _BOTTOM = 44, 358, 44, 26, 3, 46
_IDLE = 'fill="currentColor" fill-opacity="0.13"'
_PALEST = 0.35  # opacity of a stage's last chunk


def schedule(run: Run) -> Drawing:
    """Every job of a run: stages downward, time to the right.

    Blue is forward, red backward, yellow the weight gradients where they are jobs of their own; the number in a box is its
    microbatch, left out where it does not fit. Where a stage has several chunks of layers, later ones are fainter. At the right
    stands how many microbatches' activations the stage keeps at its peak.

    Args:
        run: what `pipeline.simulate` returned, of at most 16 stages. Up to about 40 forward passes of time are readable.

    Raises:
        ValueError: for more stages.

    Derived in chapters/05-training.md.
    """
    if run.stages > MOST:
        raise ValueError(f"run has {run.stages} stages; up to {MOST} can be drawn")
    per_s = (_RIGHT - _LEFT) / run.makespan_s
    end = _TOP + run.stages * _ROW
    parts = [
        str(Label(f"{run.schedule}: idle {_percent(run.idle)} of {units.human(run.makespan_s, 's')}", _LEFT, 15)),
        str(Label("stage", 2, _TOP - 8)),
        str(Label("keeps", WIDTH - 2, _TOP - 8, "end")),
    ]
    for stage, (jobs, kept) in enumerate(zip(run.jobs, run.in_flight, strict=True)):
        top = _TOP + stage * _ROW
        parts.append(_box("idle", _LEFT, top, _RIGHT - _LEFT, _IDLE))
        parts += [part for job in jobs for part in _job(run, job, per_s, top)]
        middle = top + (_ROW - _GAP) / 2 + 4.5
        parts += [str(Label(str(stage), _LEFT - 8, middle, "end")), str(Label(f"{kept:.3g}", WIDTH - 2, middle, "end"))]
    parts += [
        str(Label("0", _LEFT, end + 14)),
        str(Label("time", (_LEFT + _RIGHT) / 2, end + 14, "middle")),
        str(Label(units.human(run.makespan_s, "s"), _RIGHT, end + 14, "end")),
        *_legend(run, end + 26),
    ]
    return Drawing(figure(parts, _words(run), end + _BOTTOM + 18 * len(_notes(run))), _words(run))


def _job(run: Run, job: Job, per_s: float, top: float) -> Iterator[str]:
    left, width = _LEFT + job.start_s * per_s, (job.end_s - job.start_s) * per_s
    level = job.chunk // run.stages
    opacity = 1 - (1 - _PALEST) * level / (run.virtual - 1) if run.virtual > 1 else 1.0
    style = f'fill="{_COLORS[job.kind]}" fill-opacity="{opacity:.2f}"'
    if width > 3:  # an edge would swallow what is narrow
        style += ' stroke="currentColor" stroke-opacity="0.55" stroke-width="0.6"'
    yield _box(job.kind, left, top, width, style)
    text = Label(str(job.microbatch), left + width / 2, top + (_ROW - _GAP) / 2 + 4.5, "middle")
    if text.width < width:
        dark = job.kind == "weight"
        color = "currentColor" if opacity < 0.7 else "black" if dark else "white"
        yield f'<g fill="{color}">{text}</g>'


def _box(kind: str, left: float, top: float, width: float, style: str) -> str:
    return f'<rect class="{kind}" x="{left:.2f}" y="{top:.1f}" width="{width:.2f}" height="{_ROW - _GAP}" {style}/>'


def _legend(run: Run, top: float) -> Iterator[str]:
    split = run.schedule == "zero-bubble"
    entries = {"forward": "forward", "backward": "backward, inputs" if split else "backward"}
    if split:
        entries["weight"] = "weights"
    x = 2.0
    for kind, text in [*entries.items(), ("idle", "idle")]:
        style = _IDLE if kind == "idle" else f'fill="{_COLORS[kind]}"'
        yield f'<rect x="{x:.1f}" y="{top + 2:.1f}" width="{FONT}" height="{FONT}" {style}/>'
        label = Label(text, x + FONT + 5, top + FONT)
        yield str(label)
        x = label.x + label.width + 10
    for line, text in enumerate(_notes(run)):
        yield str(Label(text, 2, top + FONT + 20 + line * 18))


def _notes(run: Run) -> list[str]:
    notes = [f"numbers: microbatches, of {run.microbatches}", "keeps: how many the stage holds at its peak"]
    return notes if run.virtual == 1 else [*notes, f"fainter: the later of a stage's {run.virtual} chunks"]


def _words(run: Run) -> str:
    kept = ", ".join(f"{each:.3g}" for each in run.in_flight)
    chunks = f" with {run.virtual} chunks of layers each" if run.virtual > 1 else ""
    return (
        f"Pipeline schedule {run.schedule} of {run.stages} stages{chunks} and {run.microbatches} microbatches over "
        f"{units.human(run.makespan_s, 's')}: stages stand idle {_percent(run.idle)} of the time, "
        f"and keep the activations of {kept} microbatches, from the first stage to the last."
    )


def _percent(share: float) -> str:
    return f"{units.human(100 * share, digits=2)} %"
