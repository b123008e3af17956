"""What it takes to serve requests, from the steps of prefill and decode.

Derived in chapters/07-inference.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaling_lib import units
from scaling_lib.hardware import Slice
from scaling_lib.inference import disaggregation, forward
from scaling_lib.inference.estimate import USUAL, decode_step, prefill
from scaling_lib.inference.facts import Reads
from scaling_lib.inference.layout import Layout
from scaling_lib.inference.paging import mean_room
from scaling_lib.inference.server import ENGINES, Engine, ServingEstimate
from scaling_lib.inference.speed import Speed
from scaling_lib.inference.step import Step, largest_batch
from scaling_lib.transformer import Transformer


def serve(
    model: Transformer | str,
    slice: Slice | str,
    layout: Layout,
    *,
    input: int,
    output: int,
    batch: int | None = None,
    engine: Engine = "continuous",
    chunk: int | None = None,
    cached: int = 0,
    cache: int | None = None,
    block: int | None = None,
    reads: Reads = "used",
    usd_per_chip_hour: float | None = None,
    speed: Speed = USUAL,
) -> ServingEstimate:
    """What it takes to serve requests of one size on a server that is always full.

    Args:
        model: or its name in the catalog.
        slice: or its name.
        layout: of prefill and decode.
        input: tokens of a prompt.
        output: new tokens of each request.
        batch: sequences that are decoded together; as many as fit if not given.
        engine: "continuous" puts a new prompt in the place of each finished sequence, and decode waits for its prefill;
            "static" reads all prompts, then decodes all to the end; "disaggregated" has other servers for prefill, of the same
            slice and layout.
        chunk: for the continuous engine: prompts are read in chunks of so many tokens, inside the decode steps.
        cached: tokens at the start of each prompt that are in the cache already, as of `prefill`.
        cache: tokens that each sequence reserves, as a static cache has them; `input + output` if not given.
        block: tokens of a block where the cache is paged: sequences of all lengths then take the room they need, a mean of half
            the output less. Without, each reserves room for `input + output`.
        reads: as of `decode_step`.
        usd_per_chip_hour: price; the catalog's on-demand price if not given.
        speed: what chips and wires reach, and what hides.

    Raises:
        ValueError: as of `decode_step` and `prefill`; for chunks too small to bring in the prompts of a full batch; and where no
            batch is given and not one sequence fits. A batch beyond the memory is a result: `fits` is False.

    NB: a decode step is priced at the mean length, input and half of the output. All requests are alike and none waits:
    `scaling_lib.serving` simulates what queues and unequal requests add. With "disaggregated" the first token waits for the cache
    to move, which is pessimistic: there the prefill server sends it, and the second one waits.
    """
    input, output = units.size("input", input), units.size("output", output)
    if engine not in ENGINES:
        raise ValueError(f"engine={engine!r} is unknown; give {', '.join(map(repr, ENGINES))}")
    if chunk is not None and engine != "continuous":
        raise ValueError(f"chunk={chunk} is for engine='continuous'; {engine!r} reads a prompt at once")
    middle = input + output // 2
    room = input + output if cache is None else units.size("cache", cache)
    if room < input + output:
        raise ValueError(f"cache={room} has no room for input + output = {input + output} tokens; give cache={input + output}")
    if block is not None:
        if cache is not None:
            raise ValueError(f"cache={cache} and block={block}: a cache is static or paged; give one of them")
        room = max(middle, mean_room(input, output, units.size("block", block)))
    chunk = None if chunk is None else units.size("chunk", chunk)
    how: dict[str, Any] = {"prompt": input, "chunk": chunk, "cached": cached, "cache": room, "speed": speed}
    one = decode_step(model, slice, layout, 1, context=middle, cache=room, reads=reads, speed=speed)
    model, slice, apart = one.model, one.slice, engine == "disaggregated"
    reading = prefill(model, slice, layout, **how)
    beside = float(reading.memory.working) if engine == "continuous" else 0.0
    most = largest_batch(one, beside_bytes=beside)
    if engine == "static":
        most = min(most, largest_batch(reading))
    if batch is None and not most:
        raise ValueError(f"{layout} on {slice}: {one.lacking}")
    batch = most if batch is None else units.size("batch", batch)
    decode = decode_step(model, slice, layout, batch, context=middle, cache=room, reads=reads, speed=speed)
    if not apart:  # on the same devices, so the weights lie as they do for decode
        reading = prefill(model, slice, decode.layout, batch=batch if engine == "static" else 1, **how)
    dtypes: dict[str, Any] = {"kv": layout.kv, "kv_scale": layout.kv_scale}
    ratio = disaggregation.servers(prefill_s=reading.seconds, step_s=decode.seconds, batch=batch, output=output)
    return ServingEstimate(
        engine=engine, input=input, output=output, batch=batch, max_batch=most, prefill=reading, decode=decode,
        mixed=None if chunk is None else _mixed(decode, reading, chunk, output), chunk=chunk,
        prefill_servers=float(ratio) if apart else 0.0, usd_per_chip_hour=_price(slice, usd_per_chip_hour),
        transfer_s=disaggregation.transfer_s(model, slice, tokens=input, **dtypes) if apart else 0.0,
    )  # fmt: skip


def _price(slice: Slice, given: float | None) -> float | None:
    if given is None:
        return slice.chip.figures.get("usd_per_hour")
    if units.number("usd_per_chip_hour", given) <= 0:
        raise ValueError(f"usd_per_chip_hour={given!r} must be positive")
    return given


def _mixed(decode: Step, reading: Step, chunk: int, output: int) -> Step:
    """A decode step with a chunk of a prompt in it, at the middle of the prompt."""
    need = decode.batch * reading.new / output
    if chunk < need:
        most = chunk * output // reading.new
        raise ValueError(
            f"chunk={chunk} tokens a step cannot bring in the prompts of {decode.batch} sequences, {need:.0f} tokens a step; "
            f"give chunk={-int(-need // 1)}" + (f", or batch={most}" if most else "")
        )
    size = min(chunk, reading.new)
    end = min(reading.context, reading.context - reading.new + max(size, (reading.new + size) // 2))
    piece = prefill(
        decode.model, decode.slice, decode.layout, prompt=end, cached=end - size, cache=reading.context, speed=decode.speed
    )
    both = forward.together(decode.passes[0], piece.passes[0])
    return replace(decode, passes=(both,))
