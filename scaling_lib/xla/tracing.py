"""From a function and the shapes of its arguments to what a compiler takes; JAX's complaints in one line each."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

_NO_FUNCTION = "not a valid JAX type|cannot create weak reference|got a generator function"


def name_of(fn: Callable[..., Any]) -> str:
    """What a function is called; `functools.partial` and callable objects have no name of their own.

    Raises:
        ValueError: for something that cannot be called.
    """
    if not callable(fn):
        raise ValueError(f"fn={fn!r} is not a function; give a function of JAX arrays")
    return getattr(fn, "__name__", None) or name_of(getattr(fn, "func", type(fn)))


def lower(fn: Any, specs: tuple[Any, ...], *, out: Any, donate: tuple[int, ...], called: str) -> Any:
    """`fn` traced with its arguments; one that `jax.jit` has already taken keeps what it was told there.

    Raises:
        ValueError: where JAX refuses, with the reason in one line.
    """
    with one_line(called):
        if not hasattr(fn, "lower") or out is not None or donate != ():
            fn = jax.jit(fn, out_shardings=out, donate_argnums=donate)
        return fn.lower(*specs)


def positions(donate: int | tuple[int, ...], arguments: int) -> tuple[int, ...]:
    """`donate` as a tuple.

    Raises:
        ValueError: for a position that no argument has.
    """
    many = tuple(donate) if isinstance(donate, tuple | list | set) else (donate,)
    if wrong := [position for position in many if type(position) is not int or position not in range(arguments)]:
        which = f"they are 0 to {arguments - 1}" if arguments else "there are none"
        raise ValueError(f"donate={wrong[0]!r} is no position of an argument; {which}")
    return many


@contextlib.contextmanager
def one_line(called: str) -> Iterator[None]:
    """JAX's complaints while it traces a function, in one line."""
    try:
        yield
    except Exception as error:
        known = isinstance(error, TypeError | ValueError | NotImplementedError)
        if not known and type(error).__name__ != "ShardingTypeError":  # JAX hides that type
            raise  # the function's own affair, such as a missing file
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, jax.errors.JAXTypeError) or re.search(_NO_FUNCTION, first):
            message = f"fn={called} is not a JAX function: {first}"
        elif found := re.search(r"spec=(P.*?\)).*array axis (\d+) is partitioned (\d+) times.* size is (\d+)", first):
            layout, axis, parts, size = found.groups()
            message = f"out={layout} cuts dimension {axis} of the result, of size {size}, into {parts}, which do not divide it"
        elif found := re.search(r"^One of pjit outputs.*spec=(P.*?\)),.* rank at least (\d+).* rank (\d+)", first):
            layout, names, rank = found.groups()
            message = f"out={layout} has {names} entries, but the result of fn={called} has {rank} dimensions"
        elif "pjit out_shardings" in str(error):
            message = f"out is no tree like the result of fn={called}: give one layout for all, or one an array"
        elif "incompatible devices" in first or "should match the mesh passed" in first:
            message = f"fn={called} holds a mesh of its own: leave it out of shard_map and constraints, or use that of the specs"
        else:
            message = f"fn={called} cannot be traced with these specs: {first}"
        raise ValueError(message + _where(error)) from None


def _where(error: BaseException) -> str:
    """The last line of the caller's own code that an error passed through."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not re.search(r"[/\\](jax|jaxlib|scaling_lib)[/\\]", code.co_filename):
            place = f" (line {trace.tb_lineno} of {code.co_name})"
        trace = trace.tb_next
    return place
