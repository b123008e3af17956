"""Every collective of a forward pass in serving.

The formulas take numbers or arrays for the batch; see docs/adr/0012. Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling_lib.inference.facts import Facts
from scaling_lib.inference.layout import Layout
from scaling_lib.training.either import Number
from scaling_lib.training.traffic import Kind, Traffic
from scaling_lib.training.wires import Wires


def pass_traffic(facts: Facts, layout: Layout, wires: Mapping[str, Wires], own: Number, cached: Number) -> tuple[Traffic, ...]:
    """Collectives of one pass, those of groups of one device left out.

    A block's partial results are added up over the tensor ways by an all-reduce. Where data ways share the feed-forward blocks,
    they are gathered before and scattered after. Experts shared with data ways get their tokens by all-to-all, else they find
    them there. Over the width, inputs are parts of D: what a first matrix makes is scattered and gathered again.

    Args:
        facts: of the pass.
        layout: how it is split.
        wires: what a byte costs each of `layout.GROUPS`.
        own: sequences of one data way.
        cached: sequences whose cache is on one device.
    """
    every = (
        *_results(facts, layout, wires, own),
        *_experts(facts, layout, wires, own),
        *_attention(facts, layout, wires, own, cached),
        *_width(facts, layout, wires, own),
    )
    return tuple(row for row in every if row.wires.ways > 1 and row.count)


def _row(part: str, what: str, kind: Kind, group: str, size: Number, count: int, wires: Mapping[str, Wires]) -> Traffic:
    return Traffic(part=part, what=what, kind=kind, group=group, array_bytes=size, count=count, wires=wires[group])


def _results(facts: Facts, layout: Layout, wires: Mapping[str, Wires], own: Number) -> list[Traffic]:
    stream, L = facts.stream_bytes * own / layout.width, facts.layers
    looked_up = _row("tensor", "embedding", "all-reduce", "tensor", stream, 1, wires)
    if not layout.gathers:
        return [looked_up, _row("tensor", "results", "all-reduce", "tensor", stream, facts.blocks, wires)]
    together = stream * layout.data
    return [
        looked_up,
        _row("tensor", "attention: results", "reduce-scatter", "tensor", stream, facts.blocks - L, wires),
        _row("data", "feed-forward: inputs", "all-gather", "all", together, L, wires),
        _row("data", "feed-forward: results", "reduce-scatter", "all", together, L, wires),
        _row("tensor", "attention: inputs", "all-gather", "tensor", stream, L, wires),
    ]


def _experts(facts: Facts, layout: Layout, wires: Mapping[str, Wires], own: Number) -> list[Traffic]:
    if layout.expert == 1 or layout.data == 1 or not facts.routed:
        return []
    copies = layout.devices // layout.expert  # devices that share an expert each need its tokens
    sent = facts.routed_bytes * own / layout.split * copies
    return [_row("expert", "tokens", "all-to-all", "all", sent, 2 * facts.expert_layers, wires)]


def _attention(facts: Facts, layout: Layout, wires: Mapping[str, Wires], own: Number, cached: Number) -> list[Traffic]:
    L, split = facts.layers, layout.split
    back = facts.context_bytes * own / split
    part = cached / layout.tensor
    return [
        _row("kv_batch", "queries and new keys", "all-to-all", "kv_batch", facts.query_bytes * own / split, L, wires),
        _row("kv_batch", "results", "all-to-all", "kv_batch", back, L, wires),
        _row("sequence", "queries", "all-gather", "sequence", facts.query_bytes * part, L, wires),
        _row("sequence", "parts of results", "reduce-scatter", "sequence", facts.merge_bytes * part, L, wires),
    ]


def _width(facts: Facts, layout: Layout, wires: Mapping[str, Wires], own: Number) -> list[Traffic]:
    L, part = facts.layers, own / layout.split
    return [
        _row("width", "queries, keys and values", "reduce-scatter", "width", facts.query_bytes * part, L, wires),
        _row("width", "attention: results", "all-gather", "width", facts.context_bytes * part, L, wires),
        _row("width", "hidden: sums", "reduce-scatter", "width", facts.opened_bytes * part, L, wires),
        _row("width", "hidden: gathered", "all-gather", "width", facts.hidden_bytes * part, L, wires),
    ]
