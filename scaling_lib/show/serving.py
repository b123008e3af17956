"""A simulated server: how long requests take as more of them come, and a few of them from arrival to last token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from matplotlib.axes import Axes

from scaling_lib import units
from scaling_lib.serving import Report
from scaling_lib.serving.report import Requests
from scaling_lib.show.palette import COLORS, MODELS, NEUTRAL
from scaling_lib.show.plots import new_axes
from scaling_lib.show.svg import FONT, WIDTH, Drawing, Label, figure

MOST = 24
"""Requests of the longest timeline that is drawn."""

_TIMES = {
    "ttft_s": "time to the first token (s)",
    "tpot_s": "time per output token (s)",
    "latency_s": "time to the last token (s)",
}
_LEFT, _TOP, _ROW, _GAP = 58, 30, 20, 4
_FILLS = {
    "waits": 'fill="currentColor" fill-opacity="0.18"',
    "prefill": f'fill="{COLORS["mxu"]}"',
    "moves": f'fill="{COLORS["dcn"]}"',
    "decode": f'fill="{COLORS["hbm"]}"',
}


def percentiles(
    reports: Mapping[str, Sequence[Report]],
    what: Literal["ttft_s", "tpot_s", "latency_s"] = "ttft_s",
    *,
    limit_s: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Times against the arrivals a second: half of the requests take no longer than the solid line, 99 % than the dashed one.

    Args:
        reports: of one engine each, by its label, in order of rate. A line ends where the engine is overloaded: beyond, times
            depend on how long one looks.
        what: which time.
        limit_s: drawn across.
        ax: axes to draw into; new ones if not given.

    Returns:
        The axes, times logarithmic. The band around a dashed line is its 95 % confidence interval.

    Raises:
        ValueError: for another time, no reports, one without that time or without a rate, and an engine overloaded in all.

    Derived in chapters/07-inference.md.
    """
    if what not in _TIMES:
        raise ValueError(f"what={what!r} is unknown; {units.near(str(what), _TIMES)}")
    if not 1 <= len(reports) <= len(MODELS):
        raise ValueError(f"reports has {len(reports)} lines; give 1 to {len(MODELS)}")
    ax = ax or new_axes("requests a second", _TIMES[what])
    for color, (label, runs) in zip(MODELS, reports.items(), strict=False):
        steady = [run for run in runs if not run.overloaded]
        if not steady:
            raise ValueError(f"reports[{label!r}] has no run with a steady state; give one with a lower rate")
        rates, spreads = [], []
        for run in steady:
            rate, spread = run.workload.arrivals.rate_per_s, getattr(run, what)
            if rate is None or spread is None:
                raise ValueError(f"reports[{label!r}] has a run without a rate, or without {what}: give longer ones")
            rates.append(rate)
            spreads.append(spread)
        ax.plot(rates, [each.p50.value for each in spreads], "-", color=color, label=label)
        p99 = [each.p99 for each in spreads]
        ax.plot(rates, [each.value for each in p99], "--", color=color)
        low, high = ([each.value + sign * (each.half or 0.0) for each in p99] for sign in (-1, 1))
        ax.fill_between(rates, low, high, color=color, alpha=0.2, linewidth=0)
    for dash, share in (("-", "50 %"), ("--", "99 %")):
        ax.plot([], [], dash, color=NEUTRAL, label=f"{share} of requests")
    if limit_s is not None:
        ax.axhline(units.number("limit_s", limit_s), color=NEUTRAL, linewidth=1.2, linestyle=":")
    ax.set_xscale("linear")
    ax.legend(loc="best")
    return ax


def words(reports: Mapping[str, Sequence[Report]], what: Literal["ttft_s", "tpot_s", "latency_s"] = "ttft_s") -> str:
    """What `percentiles` shows, for readers who cannot see it."""
    lines = []
    for label, runs in reports.items():
        steady = [run for run in runs if not run.overloaded]
        ends = dict.fromkeys(_said(run, what) for run in (steady[0], steady[-1]))
        lines.append(f"{label}: {', '.join(ends)}")
    return f"{_TIMES[what].removesuffix(' (s)').capitalize()} against requests a second. " + "; ".join(lines) + "."


def _said(run: Report, what: str) -> str:
    p50, p99 = (units.human(getattr(getattr(run, what), name).value, "s") for name in ("p50", "p99"))
    return f"at {units.human(run.workload.arrivals.rate_per_s or 0.0)} a second p50 {p50} and p99 {p99}"


def timeline(report: Report, *, first: int = 0, count: int = 12) -> Drawing:
    """Some requests from arrival to last token: a row each, time to the right.

    Gray is waiting, blue the prefill, red decoding; pink is from the first token to a place in the batch of another server. At
    the right stand the tokens of prompt and answer.

    Args:
        report: what `simulate_serving` returned.
        first: number of the first request, by arrival.
        count: how many, up to 24.

    Raises:
        ValueError: for more, and for requests that the report has not.

    Derived in chapters/07-inference.md.
    """
    requests = report.requests
    if units.size("count", count) > MOST:
        raise ValueError(f"count={count} rows are too many to draw; give up to {MOST}")
    if not 0 <= first <= len(requests.output) - count:
        raise ValueError(f"first={first}, count={count}: the report has requests 0 to {len(requests.output) - 1}")
    shown = range(first, first + count)
    began_s = float(requests.arrival_s[first])
    ended_s = max(float(requests.finish_s[request]) for request in shown)
    tokens = [Label(f"{requests.prompt[request]}+{requests.output[request]}", WIDTH - 2, 0, "end") for request in shown]
    right = WIDTH - 10 - max(label.width for label in tokens)
    per_s = (right - _LEFT) / (ended_s - began_s)
    bottom = _TOP + count * _ROW
    parts = [str(Label("tokens", WIDTH - 2, _TOP - 10, "end")), str(Label("request", 2, _TOP - 10))]
    for row, request in enumerate(shown):
        top = _TOP + row * _ROW
        base = top + (_ROW - _GAP) / 2 + 4.5
        parts += [
            f'<rect class="{name}" x="{_LEFT + (start_s - began_s) * per_s:.2f}" y="{top}" '
            f'width="{(end_s - start_s) * per_s:.2f}" height="{_ROW - _GAP}" {_FILLS[name]}/>'
            for name, start_s, end_s in _phases(requests, request)
        ]
        parts += [str(Label(str(request), _LEFT - 8, base, "end")), str(replace(tokens[row], y=base))]
    span = units.human(ended_s - began_s, "s")
    parts += [str(Label("0", _LEFT, bottom + 14)), str(Label(span, right, bottom + 14, "end")), *_legend(bottom + 26)]
    description = f"Requests {first} to {shown[-1]} of {report.engine}, over {span}: " + "; ".join(
        f"{request} "
        + ", ".join(f"{name} {units.human(end_s - start_s, 's')}" for name, start_s, end_s in _phases(requests, request))
        for request in shown
    )
    return Drawing(figure(parts, f"{description}.", bottom + 46), f"{description}.")


def _phases(requests: Requests, request: int) -> Iterator[tuple[str, float, float]]:
    """What a request goes through, from when to when; what takes no time is left out."""
    columns = (requests.arrival_s, requests.start_s, requests.first_s, requests.decode_s, requests.finish_s)
    times = [float(column[request]) for column in columns]
    for name, start_s, end_s in zip(_FILLS, times, times[1:], strict=False):
        if end_s > start_s:
            yield name, start_s, end_s


def _legend(top: float) -> Iterator[str]:
    x = 2.0
    for name, fill in _FILLS.items():
        yield f'<rect x="{x:.1f}" y="{top:.1f}" width="{FONT}" height="{FONT}" {fill}/>'
        label = Label(name, x + FONT + 5, top + FONT - 2)
        yield str(label)
        x = label.x + label.width + 14
