"""The command `scaling-lib plan`: the fastest plans of a training step, or the price of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scaling_lib.cli import names, quantities, screen, status
from scaling_lib.cli.assumed import PUBLISHED, Assumed, assumed
from scaling_lib.cli.batches import batch_of
from scaling_lib.hardware import Slice, chip, slice_of

if TYPE_CHECKING:
    from scaling_lib.search import Search
    from scaling_lib.training import StepEstimate

EXAMPLES = """
scaling-lib plan llama-3-70b v5p:8x8x8 --batch-tokens 4M
scaling-lib plan llama-3-8b v5e:16x16 --batch 256 --length 4Ki --tensor 1,2
scaling-lib plan llama-3-8b v5p:4x4x4 --batch 64 --tokens 15T --price 4.2
scaling-lib plan llama-3-8b v5e --batch 256 --tokens 1T --days 60
scaling-lib plan ./config.json h100:8x4 --batch-tokens 1Mi --math fp8 --json
scaling-lib plan llama-3-8b v5p:4x4x4 --batch 64 --plan fsdp=64,remat=full
"""

SLICE = "v5p:8x8x8; GPUs as GPUs a node x nodes: h100:8x16; a chip for its usual slices: v5p."
MOST_SLICES = 10_000
"""Of more, a search would first look for all factors of a number that is a slip."""


def _pin(name: str, help: str = "") -> Any:
    return typer.Option(
        f"--{name.replace('_', '-')}", metavar="N,...", help=help or f"Only these {name} ways.", show_default=False
    )


def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=names.MODEL)],
    slice: Annotated[str, typer.Argument(metavar="SLICE", help=SLICE)],
    batch_tokens: Annotated[
        str | None, typer.Option("--batch-tokens", metavar="N", help=f"Tokens of a step: 4M, 4Mi, 4e6. {quantities.CONVENTION}.")
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="N", help="Sequences of a step, in place of tokens.")] = None,
    length: Annotated[str, typer.Option("--length", metavar="N", help="Tokens of a sequence.")] = "8192",
    slices: Annotated[str, typer.Option("--slices", metavar="N", help="Slices, joined by the data center's network.")] = "1",
    keep: Annotated[str, typer.Option("--keep", metavar="N", help="How many plans to show, of one slice.")] = "10",
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="fsdp=64,...", help="Price this one plan, in place of a search.")
    ] = None,
    place: Annotated[
        str | None,
        typer.Option(
            "--place",
            metavar="AXIS=PLACE,...",
            help="Where its ways lie: fsdp=0+1,tensor=2; data=2:4 for 4 parts of torus axis 2.",
        ),
    ] = None,
    data: Annotated[str | None, _pin("data")] = None,
    fsdp: Annotated[str | None, _pin("fsdp")] = None,
    tensor: Annotated[str | None, _pin("tensor")] = None,
    context: Annotated[str | None, _pin("context")] = None,
    pipeline: Annotated[str | None, _pin("pipeline", "Only so many pipeline stages.")] = None,
    expert: Annotated[str | None, _pin("expert")] = None,
    microbatches: Annotated[str | None, _pin("microbatches", "Only so many.")] = None,
    zero: Annotated[str | None, _pin("zero", "Only these ZeRO stages, 0 to 3.")] = None,
    virtual_stages: Annotated[str | None, _pin("virtual_stages", "Only so many chunks a stage.")] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="NAME,...", help="Only these: gpipe, 1f1b, interleaved, zero-bubble.")
    ] = None,
    remat: Annotated[
        str | None,
        typer.Option("--remat", metavar="NAME,...", help="Only these: none, selective, full, or names of tensors joined by +."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Anything else of a plan: moments=bf16, offload=optimizer, loss_chunks=8."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option("--math", metavar="DTYPE", help="Of the layers' matmuls: bf16, fp8, int8.")] = "bf16",
    overlap: Annotated[
        str, typer.Option("--overlap", metavar="full|none", help="Whether communication hides behind the math, or waits for it.")
    ] = "full",
    efficiency: Annotated[
        str,
        typer.Option(
            "--efficiency",
            metavar="PART",
            help=f"Part of the peak that matmuls reach, like 0.7; 1 is a bound, '{PUBLISHED}' what runs on this chip reached.",
        ),
    ] = "1",
    tokens: Annotated[
        str | None, typer.Option("--tokens", metavar="N", help="A budget, like 15T: adds days and dollars.")
    ] = None,
    goodput: Annotated[
        str,
        typer.Option("--goodput", metavar="PART", help="Part of the time in steps that count: longer days, more dollars."),
    ] = "1",
    days: Annotated[
        str | None, typer.Option("--days", metavar="N", help="Of a chip's slices, which is the smallest that is done by then?")
    ] = None,
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="USD", help="Of a chip and hour; the catalog's if not given.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """The fastest training plans on a slice, why the best one wins, and what binds.

    Tries every split over data, FSDP, tensor, context, pipeline and expert ways, with microbatches, schedules and remat.
    Given a chip, it shows the best plan on each of its usual slices. `scaling-lib count --help` shows how to write a model of
    your own. The status is 0 where a plan fits, and 3 where none does.
    """
    from scaling_lib.cli import plans
    from scaling_lib.training import Plan, estimate

    known, T = names.model(model), quantities.size("--length", length)
    if (count := quantities.size("--slices", slices)) > MOST_SLICES:
        raise ValueError(f"--slices={count} is more than any cluster has; give at most {MOST_SLICES:,}")
    several = _slices(slice, count)
    sold = several[0].chip
    basis = assumed(sold, math=dtype, efficiency=efficiency, overlap=overlap, tokens=tokens, goodput=goodput, price=price)
    limit = _limit(days, tokens, several)
    given = {"data": data, "fsdp": fsdp, "tensor": tensor, "context": context, "pipeline": pipeline, "expert": expert}
    given |= {"microbatches": microbatches, "zero": zero, "virtual_stages": virtual_stages, "schedule": schedule, "remat": remat}
    pinned = {name: _choice(name, value) for name, value in given.items() if value is not None}
    common = {"math": dtype} | plans.settings("--set", settings or ())
    options: dict[str, Any] = {"T": T, "overlap": overlap, "efficiency": basis.efficiency}
    if plan is not None:
        if len(several) > 1:
            raise ValueError(f"--plan is for one slice, and {slice} stands for {len(several)}; give one, like {several[-1]}")
        if pinned:
            raise ValueError(
                f"--{next(iter(pinned)).replace('_', '-')} narrows a search, but --plan asks for none; put it into --plan"
            )
        at = None if place is None else plans.placement("--place", place)
        wanted = Plan(**common | plans.settings("--plan", [plan]), placement=at)
        sequences, says = batch_of(batch, batch_tokens, T, several[0].devices)
        one = estimate(known, several[0], wanted, sequences, **options)
        print(screen.to_json(plans.facts(one, basis)) if json else _priced(one, says, basis))
        if not one.fits:
            raise typer.Exit(status.NOTHING_FITS)
        return
    if place is not None:
        raise ValueError("--place is for one plan, given by --plan; a search tries every place")
    if strange := [name for name in common if name in given]:
        raise ValueError(f"--set {strange[0]} is for what a search leaves alone; give --{strange[0].replace('_', '-')}")
    from scaling_lib.search import Choices, best_training_plans  # loads NumPy

    def search(where: Slice, keep: int, report: screen.Progress | None) -> tuple[Search, str]:
        sequences, says = batch_of(batch, batch_tokens, T, where.devices)
        found = best_training_plans(
            known,
            where,
            sequences,
            keep=keep,
            base=Plan(**common),
            choices=Choices(**pinned),
            progress=report,
            **options,
        )
        return found, says

    if len(several) > 1:
        from scaling_lib.cli import sizes

        best = sizes.best(several, lambda where: search(where, 1, None)[0])
        print(screen.to_json(sizes.facts(best, basis, limit)) if json else sizes.shown(best, basis, limit))
        if not best or (limit is not None and sizes.in_time(best, basis, limit) is None):
            raise typer.Exit(status.NOTHING_FITS)
        return
    with screen.progress("plans") as report:
        found, says = search(several[0], quantities.size("--keep", keep), report)
    print(screen.to_json(_facts(found, basis)) if json else _found(found, says, basis))
    if not found.best:
        raise typer.Exit(status.NOTHING_FITS)


def _slices(name: str, count: int) -> list[Slice]:
    """The slice of that name, or the usual ones of a chip."""
    from scaling_lib.cli import sizes

    try:
        known = chip(name)
    except ValueError:
        return [slice_of(name, count)]
    return sizes.of_chip(known, count)


def _limit(days: str | None, tokens: str | None, several: list[Slice]) -> float | None:
    """Days that training may take, where it is asked which slice would do."""
    if days is None:
        return None
    if tokens is None:
        raise ValueError("--days asks which slice is fast enough; give --tokens, like 15T, as well")
    if len(several) == 1:
        raise ValueError(f"--days asks which slice is fast enough; give {several[0].chip.name} in place of {several[0]}")
    if (limit := quantities.number("--days", days)) <= 0:
        raise ValueError(f"--days={days} must be above zero")
    return limit


def _choice(name: str, given: str) -> Any:
    """`1,2,4` as a tuple of whole numbers, `none,full` as one of names; + joins the names of tensors."""
    from scaling_lib.cli import plans

    option = f"--{name.replace('_', '-')}"
    parts = given.replace(",", " ").split()
    if not parts:
        raise ValueError(f"{option} is empty; give one value or more, joined by commas")
    if name in ("schedule", "remat"):
        return tuple(plans.remat(part) if name == "remat" else part for part in parts)
    if strange := [part for part in parts if not part.isdecimal() or len(part) > 15]:
        raise ValueError(f"{option}={strange[0]} is no whole number; write it like {option} 1,2,4")
    return tuple(map(int, parts))


def _priced(one: StepEstimate, says: str, basis: Assumed) -> str:
    lines = [screen.text(says), screen.text(str(basis)), screen.text(one.explain())]
    if (budget := basis.tokens) is not None:
        days = f"{one.days(budget, basis.goodput):,.1f} days"
        dollars = "" if basis.usd is None else f", {one.dollars(budget, basis.goodput, basis.usd):,.0f} USD"
        lines.append(screen.text(f"{budget:,} tokens: {days}{dollars}"))
    return "\n".join(lines)


def _found(found: Search, says: str, basis: Assumed) -> str:
    from scaling_lib.cli import plans

    rows = [plans.row(one, rank, basis) for rank, one in enumerate(found.best, start=1)]
    heads = f"{screen.text(says)}\n{screen.text(str(basis))}"
    return "\n\n".join(filter(None, [heads, screen.table(rows, numbers=plans.NUMBERS), screen.text(found.explain())]))


def _facts(found: Search, basis: Assumed) -> dict[str, Any]:
    from scaling_lib.cli import plans

    return {**found.to_json(), "best": [plans.facts(one, basis) for one in found.best]}
