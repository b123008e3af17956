"""A timeline: what a compiled program does when, as spans on resources; totals, records, and traces for Perfetto. No JAX."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TextIO

from scaling_lib import units

COMMUNICATION = ("ici", "dcn")
_ROWS = {"compute": "compute", "ici": "ICI", "dcn": "DCN", "hbm": "HBM", "host": "host"}  # of a trace, in order
_NS = 1e-9  # resolution of a record


@dataclass(frozen=True)
class Span:
    """One operation of a device's program.

    Args:
        name: the instruction's name.
        start_s: of its first run, in seconds from the start of the program.
        duration_s: of one run, in seconds.
        resource: "compute" (matrix and vector units), "ici", "dcn" (collectives), "hbm" (copies in memory) or "host".
        kind: "matmul", "vector", "copy", or the kind of a collective.
        op_name: the operation of the source program that it serves, where the compiler says.
        times: how often it runs, the passes of all loops around it multiplied.
        loop: name of the innermost loop around it, or "".
        asynchronous: whether other work can go on meanwhile.
        exposed_s: seconds of one run during which the compute units stand idle for it; zero for compute.
    """

    name: str
    start_s: float
    duration_s: float
    resource: str
    kind: str
    op_name: str = ""
    times: int = 1
    loop: str = ""
    asynchronous: bool = False
    exposed_s: float = 0


@dataclass(frozen=True)
class Loop:
    """A loop of the program: all passes take `pass_s`, the first starts at `start_s`, and `loop` names the one around it."""

    name: str
    start_s: float
    pass_s: float
    passes: int
    op_name: str = ""
    loop: str = ""


@dataclass(frozen=True)
class Timeline:
    """The schedule of one device's program. Estimates of the compiler, never validated on hardware: no measurement.

    Args:
        spans: in the order of their starts; what stands in a loop is there once, at the time of its first pass.
        loops: the loops, outer ones first.
        total_s: length of the program, all passes of all loops included.
        how: where the durations come from: "cycles and link rates" or "the compiler's scheduler".
        target: the slice, like "v5e:4x4".

    Busy compute and exposed communication and copies add up to `total_s`, apart from a few cycles an instruction.
    """

    spans: tuple[Span, ...]
    loops: tuple[Loop, ...]
    total_s: float
    how: str
    target: str

    @property
    def compute_s(self) -> float:
        """Seconds in which the compute units are busy."""
        return sum(span.duration_s * span.times for span in self.spans if span.resource == "compute")

    @property
    def communication_s(self) -> float:
        """Seconds of all collectives added up, over ICI and DCN; those that run at the same time count twice."""
        return sum(span.duration_s * span.times for span in self._collectives())

    @property
    def exposed_s(self) -> float:
        """Seconds in which the compute units wait for collectives."""
        return sum(span.exposed_s * span.times for span in self._collectives())

    @property
    def hidden_s(self) -> float:
        """Seconds of collectives that the program does not wait for: `communication_s` less `exposed_s`."""
        return max(0.0, self.communication_s - self.exposed_s)

    def one_pass(self, loop: str) -> Timeline:
        """The timeline of one pass of a loop, such as one layer of a model.

        Raises:
            ValueError: for a name that no loop has.
        """
        around = {one.name: one for one in self.loops}
        if loop not in around:
            raise ValueError(f"loop={loop!r} is no loop of this timeline; {units.near(loop, around)}")
        whole = around[loop]
        runs = whole.passes
        while whole.loop:  # passes of the loops outside
            whole = around[whole.loop]
            runs *= whole.passes
        start, inside = around[loop].start_s, {loop}
        for one in self.loops:  # outer ones come first
            if one.loop in inside:
                inside.add(one.name)

        def outside(name: str) -> str:
            return "" if name == loop else name

        spans = tuple(
            replace(span, start_s=span.start_s - start, times=span.times // max(runs, 1), loop=outside(span.loop))
            for span in self.spans
            if span.loop in inside
        )
        loops = tuple(
            replace(one, start_s=one.start_s - start, loop=outside(one.loop)) for one in self.loops if one.loop in inside
        )
        return replace(self, spans=spans, loops=loops, total_s=around[loop].pass_s)

    def _collectives(self) -> Iterator[Span]:
        return (span for span in self.spans if span.resource in COMMUNICATION)

    def to_json(self) -> dict[str, Any]:
        """The timeline as plain data for a record, in whole nanoseconds, column by column; `from_json` reads it back."""
        return {
            "spans": _columns(self.spans, Span),
            "loops": _columns(self.loops, Loop),
            "total_ns": round(self.total_s / _NS),
            "how": self.how,
            "target": self.target,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        """The timeline that `to_json` wrote, rounded to nanoseconds.

        Raises:
            ValueError: for data of another form.
        """
        try:
            spans = tuple(Span(**row) for row in _read_columns(data["spans"]))
            loops = tuple(Loop(**row) for row in _read_columns(data["loops"]))
            return cls(spans, loops, data["total_ns"] * _NS, data["how"], data["target"])
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"data is no timeline: {error!r}; give what Timeline.to_json returned") from error

    def to_trace(self, file: str | Path | TextIO, *, passes: int | None = None) -> None:
        """Write a trace that ui.perfetto.dev and chrome://tracing open: one row a resource, loops in a row of their own.

        Args:
            file: a path, or a file open for writing text.
            passes: show at most so many passes of each loop, at their true times; all if not given.

        NB: all passes of a training step of 32 layers are some 30 thousand events and 7 MB.
        """
        events = sorted(self._events(passes), key=lambda event: (event["ts"], -event["dur"]))
        rows = _rows(events)
        named: list[tuple[str, int, dict[str, Any]]] = [("process_name", 0, {"name": f"one device of {self.target}"})]
        for i, row in enumerate(rows):
            named += [("thread_name", i, {"name": row}), ("thread_sort_index", i, {"sort_index": i})]
        heads = [{"ph": "M", "name": name, "pid": 0, "tid": i, "ts": 0, "args": given} for name, i, given in named]
        notes = {"estimated by": self.how, "validated on hardware": "no"}
        text = json.dumps({"traceEvents": heads + events, "displayTimeUnit": "ms", "otherData": notes})
        if isinstance(file, str | Path):
            Path(file).write_text(text, encoding="utf-8")
        else:
            file.write(text)

    def _events(self, passes: int | None, inside: str = "", later_s: float = 0, depth: int = 0) -> Iterator[dict[str, Any]]:
        """Events of what stands directly in a loop, and of the passes of the loops in it, `later_s` after their first run."""
        for span in self.spans:
            if span.loop == inside:
                notes = {"instruction": span.name, "kind": span.kind, "exposed_us": span.exposed_s * 1e6}
                title = "/".join(span.op_name.split("/")[-2:]) or span.name
                yield _event(
                    title, _ROWS[span.resource], span.start_s + later_s, span.duration_s, {**notes, "op_name": span.op_name}
                )
        for loop in self.loops:
            if loop.loop == inside:
                title = f"{loop.passes} × {loop.op_name or loop.name}"
                row = f"loops, depth {depth}" if depth else "loops"
                yield _event(title, row, loop.start_s + later_s, loop.pass_s * loop.passes, {})
                for i in range(loop.passes if passes is None else min(passes, loop.passes)):
                    yield from self._events(passes, loop.name, later_s + i * loop.pass_s, depth + 1)


def _event(name: str, row: str, start_s: float, duration_s: float, notes: Mapping[str, Any]) -> dict[str, Any]:
    start, end = round(start_s / _NS), round((start_s + duration_s) / _NS)
    return {"ph": "X", "name": name, "cat": row, "ts": start, "dur": end - start, "pid": 0, "tid": -1, "args": notes}


def _rows(events: list[dict[str, Any]]) -> list[str]:
    """Give every event a thread on which it overlaps no other, and return their names in order: "ICI", "ICI 2"."""
    free_at: dict[str, list[int]] = {}
    for event in events:
        lanes = free_at.setdefault(event["cat"], [])
        lane = next((i for i, free in enumerate(lanes) if free <= event["ts"] + 1), len(lanes))
        if lane < len(lanes) and lanes[lane] > event["ts"]:  # a nanosecond of rounding between neighbors
            event["ts"], event["dur"] = event["ts"] + 1, max(event["dur"] - 1, 0)
        lanes[lane : lane + 1] = [event["ts"] + event["dur"]]
        event["tid"] = f"{event['cat']} {lane + 1}" if lane else event["cat"]
    order = list(_ROWS.values())
    rows = sorted(free_at, key=lambda row: (order.index(row) if row in order else -1, row))
    names = [f"{row} {i + 1}" if i else row for row in rows for i in range(len(free_at[row]))]
    for event in events:
        event["tid"] = names.index(event["tid"])
        event["ts"], event["dur"] = event["ts"] / 1e3, event["dur"] / 1e3  # the format counts microseconds
    return names


def _columns(rows: Sequence[Span | Loop], of: type[Span | Loop]) -> dict[str, Any]:
    """Values of each field; seconds in nanoseconds, texts as places in a list of those that occur."""
    columns: dict[str, Any] = {}
    for part in fields(of):
        values = [getattr(row, part.name) for row in rows]
        if part.name.endswith("_s"):
            columns[part.name.removesuffix("_s") + "_ns"] = [round(value / _NS) for value in values]
        elif part.name != "name" and part.type == "str":
            texts = sorted(set(values))
            columns[part.name] = {"texts": texts, "places": [texts.index(value) for value in values]}
        else:
            columns[part.name] = [int(value) if isinstance(value, bool) else value for value in values]
    return columns


def _read_columns(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    read: dict[str, list[Any]] = {}
    for name, column in columns.items():
        if name.endswith("_ns"):
            read[name.removesuffix("_ns") + "_s"] = [value * _NS for value in column]
        elif isinstance(column, Mapping):
            read[name] = [column["texts"][place] for place in column["places"]]
        else:
            read[name] = [bool(value) for value in column] if name == "asynchronous" else column
    return [dict(zip(read, row, strict=True)) for row in zip(*read.values(), strict=True)]
