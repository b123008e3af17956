"""Of which kind an operation of a trace is: from its HLO instruction where that is known, else from its name. No JAX."""

from __future__ import annotations

import re

from scaling_lib.xla.program import hlo, operations

KINDS = ("matmul", "fusion", "copy", "collective", "host", "other", "control")
COMPUTE = ("matmul", "fusion", "other")

_PRIMITIVES = {
    "psum": "all-reduce", "pmax": "all-reduce", "pmin": "all-reduce", "ppermute": "collective-permute",
    "psum-scatter": "reduce-scatter",
}  # fmt: skip
_CONTROL = ("while", "conditional", "call")
_MATMUL = ("dot", "convolution", "dot-general", "conv-general-dilated")
_COPY = ("copy", "transpose", "bitcast")
_HOST = ("infeed", "outfeed", "send", "recv", "MemcpyH2D", "MemcpyD2H")
_KERNELS = (("collective", "^nccl"), ("matmul", "gemm|cutlass|^nvjet"), ("copy", "^Memcpy"))  # of NVIDIA's libraries


def base(name: str) -> str:
    """A name without the number that makes it unique, and without the -start or -done of something with two ends."""
    plain = re.sub(r"(\.(\d+|clone|remat\d*))+$", "", name).replace("_", "-")
    return re.sub(r"-(start|done)$", "", plain)


def of_name(name: str) -> str:
    """The kind of an operation by its name alone: fusions do not tell whether they hold a matmul."""
    plain = base(name)
    plain = _PRIMITIVES.get(plain, plain)
    if plain in operations.KINDS:
        return "collective"
    for kind, names in (("control", _CONTROL), ("matmul", _MATMUL), ("copy", _COPY), ("host", _HOST)):
        if plain in names:
            return kind
    if "callback" in plain:
        return "host"
    for kind, pattern in _KERNELS:
        if re.search(pattern, plain):
            return kind
    return "fusion" if "fusion" in plain or plain.startswith("wrapped-") else "other"


def of_instruction(one: hlo.Instruction, module: hlo.Module) -> str:
    """The kind of an operation by its HLO: a fusion is a matmul or a collective where it holds one, and a copy if that is all."""
    if one.opcode == "custom-call":
        target = one.attributes.get("custom_call_target", "").lower()
        return "host" if "callback" in target else "matmul" if re.search("matmul|dot|gemm", target) else "other"
    if one.opcode not in ("fusion", "async-start"):
        return of_name(one.opcode)
    inside = set(_opcodes(one, module)) - {"parameter", "tuple", "get-tuple-element", "constant", "reshape", "broadcast"}
    kinds = {of_name(opcode) for opcode in inside}
    return next((kind for kind in ("matmul", "collective") if kind in kinds), "copy" if kinds == {"copy"} else "fusion")


def _opcodes(one: hlo.Instruction, module: hlo.Module) -> set[str]:
    inside: set[str] = set()
    for name in one.called:
        for inner in module.computations[name].instructions.values():
            inside |= {inner.opcode} | _opcodes(inner, module)
    return inside
