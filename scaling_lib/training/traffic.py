"""Every collective of a training step: its kind, bytes, how often, and over which wires.

The formulas take numbers or arrays; see docs/adr/0012. Derived in chapters/05-training.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from scaling_lib.training.either import Number, maximum
from scaling_lib.training.facts import Facts
from scaling_lib.training.memory import How, Ways
from scaling_lib.training.wires import Wires

Kind = Literal["all-gather", "reduce-scatter", "all-reduce", "all-to-all", "permute"]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of collective of a step, as each device of the last stage takes part in it.

    Args:
        part: the technique that asks for it.
        what: what is moved, and when.
        kind: as in `scaling_lib.collectives`.
        group: the name of the mesh axes, of `wires.GROUPS`.
        array_bytes: the larger array that one device holds, as everywhere in `scaling_lib.collectives`.
        count: how often in a step.
        wires: what a byte costs.
    """

    part: str
    what: str
    kind: Kind
    group: str
    array_bytes: Number
    count: Number
    wires: Wires

    @property
    def total_bytes(self) -> Number:
        """Arrays of the whole step; 0 for a group of one device."""
        return self.array_bytes * self.count * (self.wires.ways > 1)

    @property
    def sent_bytes(self) -> Number:
        """What a device sends in a step when each byte goes one hop: an all-reduce sends its array nearly twice."""
        if self.kind == "permute":
            return self.total_bytes
        times = 2 if self.kind == "all-reduce" else 1
        return self.total_bytes * times * (self.wires.ways - 1) / self.wires.ways

    @property
    def near_s(self) -> Number:
        """Seconds of a step over ICI, or the fabric of a node, starts and latency included."""
        w, per_byte = self.wires, self._per_byte[0]
        if w.latency_s is None:
            return self._rounds * self.array_bytes * self.count * per_byte
        return self.count * (w.start_s + self._rounds * maximum(w.latency_s, self.array_bytes * per_byte))

    @property
    def far_s(self) -> Number:
        """Seconds of a step over DCN."""
        return self._rounds * self.array_bytes * self.count * self._per_byte[1]

    @property
    def _rounds(self) -> int:
        return 2 if self.kind == "all-reduce" else 1

    @property
    def _per_byte(self) -> tuple[Number, Number]:
        w = self.wires
        if self.kind == "all-to-all":
            return w.all_to_all_s, w.far_all_to_all_s
        return (w.permute_s, w.far_permute_s) if self.kind == "permute" else (w.gather_s, w.far_gather_s)


def seconds(traffic: Iterable[Traffic]) -> dict[tuple[str, str], tuple[Number, Number]]:
    """Seconds near and far of the collectives of a step, added up by part and group.

    Where no latency is given they are bytes times a price, so bytes are added up first: that is most of the work of a search.
    """
    found: dict[tuple[str, str], tuple[Number, Number]] = {}
    linear: dict[tuple[str, str, Kind], tuple[Traffic, Number]] = {}
    for row in traffic:
        key = row.part, row.group
        if row.wires.latency_s is not None:
            near_s, far_s = found.get(key, (0.0, 0.0))
            found[key] = near_s + row.near_s, far_s + row.far_s
            continue
        kind: Kind = row.kind if row.kind in ("all-to-all", "permute") else "all-gather"
        moved = row._rounds * row.array_bytes * row.count
        linear[*key, kind] = row, linear[*key, kind][1] + moved if (*key, kind) in linear else moved
    for (part, group, _), (row, moved) in linear.items():
        near_s, far_s = found.get((part, group), (0.0, 0.0))
        near, far = row._per_byte
        found[part, group] = near_s + moved * near, far_s + moved * far
    return found


def step_traffic(facts: Facts, ways: Ways, how: How, wires: Mapping[str, Wires]) -> tuple[Traffic, ...]:
    """All collectives of a step, those of groups of one device included, at no cost.

    ZeRO-3 gathers a layer's weights twice for each micro-batch; the second time serves what runs again for remat and the backward
    pass. The head's two passes follow one another, so it is gathered once. Of an embedding in shares each device looks up all
    tokens in the part it has, and an all-to-all brings tokens home, as XLA does it; PyTorch's FSDP gathers the table.
    Gradients are scattered for each micro-batch where they are kept in shares (ZeRO-2 and 3), else once a step, and the new
    weights are gathered then. Over the data ways each device reduces the share it has.
    """
    return (
        *_weights_and_gradients(facts, ways, how, wires),
        *_tensor(facts, ways, wires["tensor"]),
        *_context(facts, ways, how, wires["context"]),
        *(_experts(facts, ways, wires["expert"]) if how.experts else ()),
        *_stages(facts, ways, wires["pipeline"]),
    )


def _weights_and_gradients(facts: Facts, ways: Ways, how: How, wires: Mapping[str, Wires]) -> list[Traffic]:
    w = ways
    stage_layers = w.stage_layers
    embedding = (facts.first_weights - facts.tied_weights) * (w.pipeline == 1)  # a tied table is gathered with the head
    m, full, keeps_whole = w.microbatches, w.zero >= 3, w.zero < 2
    rounds = 1 + (m - 1) * (1 - keeps_whole)  # of gradients, in a step
    updated = how.reduced + (how.weights - how.reduced) * (w.zero > 0)  # ZeRO-0 gathers gradients instead of weights
    arrays = [
        ("layers", "shard", facts.layer_weights / facts.layers, stage_layers, (full, full, 1)),
        ("embedding", "shard", embedding, 1 * (embedding > 0), (0, 0, 1 - full)),
        ("head", "shard", facts.last_weights + facts.tied_weights, 1, (full, 0, 1)),
    ]
    if how.experts:
        of_stage = facts.expert_layers * (stage_layers / facts.layers)
        arrays.append(("experts", "expert_shard", facts.expert_weights / facts.expert_layers, of_stage, (full, full, 1)))
    tokens = facts.stream_bytes * w.sequences / _token_ways(w)
    rows = [
        Traffic(
            part="fsdp",
            what="embedding: tokens",
            kind="all-to-all",
            group="shard",
            array_bytes=tokens,
            count=2 * m * full * (w.pipeline == 1),
            wires=wires["shard"],
        )
    ]
    for name, group, numbers, count, (forward, backward, scattered) in arrays:
        shard = w.expert_shard if group == "expert_shard" else w.shard
        moves: tuple[tuple[str, Kind, Number, Number], ...] = (
            ("weights, forward", "all-gather", how.activations, count * m * forward),
            ("weights, backward", "all-gather", how.activations, count * m * backward),
            ("gradients", "reduce-scatter", how.reduced, count * rounds * scattered),
            ("after the update", "all-gather", updated, count * (1 - full)),
        )
        for what, kind, item, times in moves:
            rows.append(
                Traffic(
                    part="fsdp",
                    what=f"{name}: {what}",
                    kind=kind,
                    group=group,
                    array_bytes=numbers * item,
                    count=times,
                    wires=wires[group],
                )
            )
        rows.append(
            Traffic(
                part="data",
                what=f"{name}: gradients",
                kind="all-reduce",
                group="data",
                array_bytes=numbers / shard * how.reduced,
                count=count,
                wires=wires["data"],
            )
        )
    return rows


def _tensor(facts: Facts, ways: Ways, wires: Wires) -> list[Traffic]:
    w = ways
    share = w.stage_layers / facts.layers
    pairs = facts.gathers * share + 1 + (w.pipeline == 1)  # those of the head, and of the embedding
    again = facts.again_reduces * share
    split, stream = w.sequence_parallel, facts.stream_bytes * w.sequences / w.context
    moves: tuple[tuple[str, Kind, Number], ...] = (
        ("inputs", "all-gather", (pairs + facts.again_gathers * share + 1) * split),
        ("results", "reduce-scatter", (pairs + again) * split),
        ("results", "all-reduce", (pairs + again) * (1 - split)),
    )
    return [
        Traffic(
            part="tensor",
            what=f"activations: {what}",
            kind=kind,
            group="tensor",
            array_bytes=stream,
            count=times * w.microbatches,
            wires=wires,
        )
        for what, kind, times in moves
    ]


def _context(facts: Facts, ways: Ways, how: How, wires: Wires) -> list[Traffic]:
    w = ways
    times, keys = w.stage_layers * w.microbatches, facts.keys_bytes * w.sequences
    moves: tuple[tuple[str, Kind, Number, Number], ...]
    if how.context_by == "ring":
        moves = (("keys and values", "permute", keys / w.context, facts.context_passes * (w.context - 1)),)
    else:
        gathers = facts.context_passes - 1
        moves = (("keys and values", "all-gather", keys, gathers), ("their gradients", "reduce-scatter", keys, 1))
    return [
        Traffic(part="context", what=what, kind=kind, group="context", array_bytes=size, count=times * passes, wires=wires)
        for what, kind, size, passes in moves
    ]


def _experts(facts: Facts, ways: Ways, wires: Wires) -> list[Traffic]:
    w = ways
    layers = facts.expert_layers * (w.stage_layers / facts.layers)
    routed = facts.routed_bytes / facts.expert_layers * w.sequences / _token_ways(w)
    times = facts.expert_passes * layers * w.microbatches
    return [
        Traffic(part="expert", what="tokens", kind="all-to-all", group="expert", array_bytes=routed, count=times, wires=wires)
    ]


def _stages(facts: Facts, ways: Ways, wires: Wires) -> list[Traffic]:
    w = ways
    stream, times = facts.stream_bytes * w.sequences / _token_ways(w), 2 * w.microbatches * w.virtual_stages
    what = "activations and gradients"
    return [Traffic(part="pipeline", what=what, kind="permute", group="pipeline", array_bytes=stream, count=times, wires=wires)]


def _token_ways(ways: Ways) -> Number:
    """Devices that share the tokens of a sequence between layers."""
    return ways.context * (1 + (ways.tensor - 1) * ways.sequence_parallel)
