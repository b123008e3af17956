"""The command `scaling-lib serve`: the servers worth having for a model, or the price of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling_lib.cli import layouts, names, quantities, screen, status

if TYPE_CHECKING:
    from scaling_lib.inference import ServingEstimate
    from scaling_lib.search import Pareto

EXAMPLES = """
scaling-lib serve llama-3-70b v5e:4x4 --input 2048 --slo-tpot 25ms
scaling-lib serve llama-3-8b v6e --weights int8 --kv int8 --slo-tpot 20ms
scaling-lib serve llama-3-70b v5e:4x4 --layout tensor=8,kv_batch=2 --batch 8
scaling-lib serve deepseek-v3 tpu7x:2x2x2 --weights fp8 --math fp8 --json
"""


def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=names.MODEL)],
    slice: Annotated[str, typer.Argument(metavar="SLICE", help="v5e:4x4 or h100:8x1; a chip for all its slices: v5e.")],
    input: Annotated[str, typer.Option("--input", metavar="N", help="Tokens of a prompt.")] = "2048",
    output: Annotated[str, typer.Option("--output", metavar="N", help="New tokens of a request.")] = "256",
    slo_ttft: Annotated[
        str | None, typer.Option("--slo-ttft", metavar="TIME", help="What the first token may take: 0.5s, 800ms.")
    ] = None,
    slo_tpot: Annotated[
        str | None, typer.Option("--slo-tpot", metavar="TIME", help="What it may take from token to token: 25ms.")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="continuous, disaggregated, or static for one layout.")
    ] = "continuous",
    weights: Annotated[str, typer.Option("--weights", metavar="DTYPE", help="Of the weights: bf16, int8, fp8, int4.")] = "bf16",
    kv: Annotated[str, typer.Option("--kv", metavar="DTYPE", help="Of the cache.")] = "bf16",
    dtype: Annotated[str, typer.Option("--math", metavar="DTYPE", help="Of the layers' matmuls.")] = "bf16",
    layout: Annotated[
        str | None, typer.Option("--layout", metavar="tensor=8,...", help="Price this one layout, in place of a search.")
    ] = None,
    batch: Annotated[
        str | None, typer.Option("--batch", metavar="N", help="Sequences, for one layout; as many as fit if not given.")
    ] = None,
    chunk: Annotated[
        str | None, typer.Option("--chunk", metavar="N", help="For one layout: read prompts in chunks, inside decode steps.")
    ] = None,
    cached: Annotated[
        str | None, typer.Option("--cached", metavar="N", help="For one layout: tokens of each prompt in the cache already.")
    ] = None,
    block: Annotated[
        str | None, typer.Option("--block", metavar="N", help="For one layout: tokens of a block of a paged cache.")
    ] = None,
    keep: Annotated[str, typer.Option("--keep", metavar="N", help="How many servers of the front to show.")] = "10",
    most_chips: Annotated[str, typer.Option("--most-chips", metavar="N", help="Of a slice, where a chip is given.")] = "256",
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="ops|full|none", help="What hides: reads behind math, all, or nothing.")
    ] = "ops",
    efficiency: Annotated[str, typer.Option("--efficiency", metavar="PART", help="Part of the peak that matmuls reach.")] = "1",
    hbm_efficiency: Annotated[
        str, typer.Option("--hbm-efficiency", metavar="PART", help="Part of the memory's bandwidth that is reached.")
    ] = "1",
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="USD", help="Of a chip and hour; the catalog's if not given.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """Latency, throughput and cost of serving a model: the front of servers, and the cheapest that is fast enough.

    Tries every layout and batch on the slice, or on all slices of a chip. Times are those of a server that is always full; what
    waiting adds is not in them. Tokens a second and dollars are of new tokens, with the time that prompts take in them. The
    status is 0 where a server will do, and 3 where none does.
    """
    from scaling_lib.inference import Layout, Speed

    known = names.model(model)
    asked: dict[str, Any] = {
        "input": quantities.size("--input", input),
        "output": quantities.size("--output", output),
        "engine": engine,
        "usd_per_chip_hour": None if price is None else quantities.number("--price", price),
        "speed": Speed(
            overlap=overlap,  # type: ignore[arg-type]  # Speed says what it may be
            efficiency=quantities.number("--efficiency", efficiency),
            hbm_efficiency=quantities.number("--hbm-efficiency", hbm_efficiency),
        ),
    }
    limits: dict[str, Any] = {
        "ttft_s": None if slo_ttft is None else quantities.duration("--slo-ttft", slo_ttft),
        "tpot_s": None if slo_tpot is None else quantities.duration("--slo-tpot", slo_tpot),
    }
    base = Layout(weights=weights, kv=kv, math=dtype)
    of_one = {"batch": batch, "chunk": chunk, "cached": cached, "block": block}
    given: dict[str, Any] = {name: quantities.size(f"--{name}", value) for name, value in of_one.items() if value is not None}
    if layout is not None:
        from scaling_lib.inference import serve

        one = serve(known, slice, base.but(**layouts.ways("--layout", layout)), **asked, **given)
        print(screen.to_json(one.to_json() | {"meets": one.meets(**limits)}) if json else _priced(one, limits))
        if not one.meets(**limits):
            raise typer.Exit(status.NOTHING_FITS)
        return
    if given:
        raise ValueError(f"--{next(iter(given))} is for one layout; give --layout tensor=8 as well, or leave it out of a search")
    from scaling_lib.search import serving_pareto  # loads NumPy

    count = quantities.size("--keep", keep)
    found = serving_pareto(known, slice, **asked, **limits, base=base, most_chips=quantities.size("--most-chips", most_chips))
    print(screen.to_json(found.to_json()) if json else _found(found, count))
    if found.best is None:
        raise typer.Exit(status.NOTHING_FITS)


def _priced(one: ServingEstimate, limits: dict[str, Any]) -> str:
    lines = [screen.text(one.explain())]
    for words, seconds, most in (
        ("first token", one.ttft_s, limits["ttft_s"]),
        ("token", one.tpot_s, limits["tpot_s"]),
    ):
        if most is not None and seconds > most:
            lines.append(screen.text(f"too slow: a {words} may take {most * 1e3:g} ms and takes {seconds * 1e3:.4g} ms"))
    return "\n".join(lines)


def _found(found: Pareto, keep: int) -> str:
    parts = [screen.table([layouts.row(one) for one in _thinned(found.front, keep)], numbers=layouts.NUMBERS)]
    return "\n\n".join([*filter(None, parts), screen.text(found.explain())])


def _thinned(front: Sequence[ServingEstimate], keep: int) -> list[ServingEstimate]:
    """So many of the front, the fastest and the cheapest among them."""
    if len(front) <= keep:
        return list(front)
    last = len(front) - 1
    return [front[round(i * last / max(keep - 1, 1))] for i in range(keep)]
