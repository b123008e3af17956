"""The command `scaling-lib compile`: what the TPU compiler makes of a product of arrays, or of a training plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from scaling_lib import hardware, units
from scaling_lib.cli import names, quantities, screen, status
from scaling_lib.cli.batches import batch_of
from scaling_lib.cli.pairs import pairs

if TYPE_CHECKING:
    from scaling_lib.xla.judge import Judgement

EXAMPLES = """
scaling-lib compile v5e:4x4 "A[I, J_X]" "B[J_X, K]" --to "C[I, K]" \\
    --size I=256 J=512 K=384 --mesh X=16
scaling-lib compile llama-3.2-1b v5e:2x2 --plan fsdp=4,remat=full \\
    --batch 4 --length 2048
"""


def run(
    what: Annotated[
        list[str],
        typer.Argument(metavar="WHAT", help="A slice and arrays: v5e:4x4 'A[I_X, J]' 'B[J, K_Y]'; or a model and a slice."),
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="ARRAY", help="The result: 'C[I_X, K_Y]'; dimensions that it lacks are summed over."),
    ] = None,
    size: Annotated[list[str] | None, typer.Option("--size", metavar="I=8192", help="Of every dimension.")] = None,
    mesh: Annotated[
        list[str] | None, typer.Option("--mesh", metavar="X=4", help="Axes of the mesh; none for one device.")
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Of the arrays.")] = "bf16",
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="fsdp=16,...", help="Compile a training step of MODEL under this plan.")
    ] = None,
    batch: Annotated[str | None, typer.Option("--batch", metavar="N", help="Sequences of that step.")] = None,
    batch_tokens: Annotated[str | None, typer.Option("--batch-tokens", metavar="N", help="The same in tokens: 128Ki.")] = None,
    length: Annotated[str, typer.Option("--length", metavar="N", help="Tokens of a sequence.")] = "8192",
    json: Annotated[bool, typer.Option("--json", help="Base units, under the library's field names.")] = False,
) -> None:
    """What the TPU compiler makes of a product of arrays, or of a training plan; no TPU is needed.

    Of a product: memory, FLOPs and collectives. Of a plan: its memory and collectives as predicted and as compiled.
    """
    if plan is not None:
        fits = _judge(what, plan, batch, batch_tokens, quantities.size("--length", length), json)
    else:
        fits = _product(what, to, size or (), mesh or (), dtype, json)
    if not fits:
        raise typer.Exit(status.NOTHING_FITS)


def _product(what: Sequence[str], to: str | None, size: Sequence[str], mesh: Sequence[str], dtype: str, json: bool) -> bool:
    slice, *written = what
    if to is None or not written:
        raise ValueError(
            "give a slice, arrays and --to 'C[I, K]' for a product; or a model, a slice and --plan for a training step"
        )
    axes, sizes = pairs("--mesh", mesh), pairs("--size", size)
    hardware.slice_of(slice)
    try:
        from scaling_lib.xla import arrays, tpu
    except ModuleNotFoundError as error:
        raise status.Missing(_install(error)) from error
    laid = arrays.mesh(**axes) if axes else None
    inside = [arrays.dimensions(array) for array in written]
    specs = [
        arrays.spec(laid, array, dtype, **{name: sizes[name] for name in dimensions if name in sizes})
        for array, dimensions in zip(written, inside, strict=True)
    ]
    kept = arrays.dimensions(to)
    if strange := [name for name in kept if not any(name in dimensions for dimensions in inside)]:
        raise ValueError(f"--to {to!r} has dimension {strange[0]}, which no array has")
    out = None if laid is None else arrays.sharding(laid, to)
    try:
        program = tpu.compile(arrays.product(inside, kept), *specs, slice=slice, out=out, name="product")
    except tpu.TPUCompilerUnavailable as error:
        raise status.Missing(str(error)) from error
    print(screen.to_json(program.to_json()) if json else screen.text(str(program)))
    return program.fits


def _judge(what: Sequence[str], plan: str, batch: str | None, batch_tokens: str | None, T: int, json: bool) -> bool:
    if len(what) != 2:
        raise ValueError(f"--plan wants a model and a slice before it, like llama-3-8b v5e:4x4, but there is {' '.join(what)!r}")
    from scaling_lib.cli import plans
    from scaling_lib.training import Plan

    model, where = names.model(what[0]), hardware.slice_of(what[1])
    wanted = Plan(**plans.settings("--plan", [plan]))
    sequences, says = batch_of(batch, batch_tokens, T, where.devices)
    try:
        from scaling_lib.xla import judge, tpu
    except ModuleNotFoundError as error:
        raise status.Missing(_install(error)) from error
    try:
        judged = judge.judge(model, where, judge.in_jax(wanted), sequences, T=T)
    except tpu.TPUCompilerUnavailable as error:
        raise status.Missing(str(error)) from error
    print(screen.to_json(judged.to_json()) if json else _judged(judged, says))
    return judged.fits


def _judged(judged: Judgement, says: str) -> str:
    rows = [_row(row.name, row.predicted, row.compiled, "GiB") for row in judged.memory]
    if judged.fits:
        sent = judged.collectives
        rows += [_row(f"{row.kind} {' '.join(row.axes)}", row.predicted_bytes, row.compiled_bytes, "B") for row in sent.rows]
        rows.append(_row("sent in all", sent.predicted_bytes, sent.compiled_bytes, "B"))
        rows.append(_row("sent, with the differences below", sent.reconciled_bytes, sent.compiled_bytes, "B"))
    fits, agrees = "fits" if judged.fits else "does not fit", "as was" if judged.agree else "which was not"
    kept = "weights, gradients and moments in float32, without a master copy"
    return "\n\n".join(
        [
            screen.text(f"{says}\n{judged.estimate.plan}; {kept}\n{fits}, {agrees} predicted"),
            screen.table(rows, numbers=("predicted", "compiled", "error")),
            *([screen.text("\n".join(judged.differences))] if judged.differences else []),
        ]
    )


def _row(name: str, predicted: float, compiled: float | None, unit: str) -> dict[str, str]:
    return {
        "on a device": name,
        "predicted": units.human(predicted, unit, 4),
        "compiled": "not said" if compiled is None else units.human(compiled, unit, 4),
        "error": f"{predicted / compiled - 1:+.1%}" if compiled else "",
    }


def _install(error: ModuleNotFoundError) -> str:
    return f"compile needs {error.name}: pip install 'scaling-lib[tpu-compiler]'"
