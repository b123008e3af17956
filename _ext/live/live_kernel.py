"""The kernel of a live page: runs cells as Jupyter would, and joins ipywidgets' comms to the page.

It runs in Pyodide, is imported before ipywidgets, and stands in for the few names that ipywidgets takes from IPython.
"""

import ast
import io
import sys
import traceback
from types import ModuleType
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager
from js import Object
from live_page import post
from pyodide.ffi import to_js

_cell: Any = None  # the cell that runs, or whose widget has a message
_outputs: list[Any] = []  # the open `with Output():` blocks
_names: dict[str, Any] = {"__name__": "__main__"}  # of the cells
_failures: list[str] = []  # tracebacks of the callbacks of one message


def _post(**message: Any) -> None:
    post(to_js(message, dict_converter=Object.fromEntries))


def _emit(output: dict[str, Any]) -> None:
    if _outputs:
        _outputs[-1].outputs += (output,)
    else:
        _post(type="display", cell=_cell, data=output.get("data", {"text/plain": output.get("text", "").rstrip("\n")}))


def _mimebundle(shown: Any) -> dict[str, Any]:
    if hasattr(shown, "_repr_mimebundle_"):
        bundle = shown._repr_mimebundle_()
        return dict(bundle[0] if isinstance(bundle, tuple) else bundle)
    data = {"text/plain": repr(shown)}
    for mime, method in (("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")):
        if hasattr(shown, method):
            data[mime] = getattr(shown, method)()
    return data


def display(*shown: Any, **options: Any) -> None:
    """IPython's function of that name."""
    for each in shown:
        _emit({"output_type": "display_data", "data": _mimebundle(each), "metadata": {}})


def clear_output(wait: bool = False) -> None:
    """Clears the open Output widget."""
    if _outputs:
        _outputs[-1].outputs = ()


def _shows(mime: str) -> type:
    def bundle(self: Any) -> dict[str, Any]:
        return {mime: self.data}

    def create(self: Any, data: str = "", **options: Any) -> None:
        self.data = data

    return type(mime, (), {"__init__": create, "_repr_mimebundle_": bundle})


class _Shell:
    """What ipywidgets asks a shell for: representations of what an Output shows, and to show what a callback raised."""

    class display_formatter:  # noqa: N801 - IPython's name
        @staticmethod
        def format(shown: Any, *options: Any, **more: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            return _mimebundle(shown), {}

    class events:  # noqa: N801
        @staticmethod
        def trigger(event: str) -> None:
            pass

    @staticmethod
    def showtraceback() -> None:
        if error := sys.exc_info()[1]:
            _failures.append(_failure(error))

    @classmethod
    def instance(cls) -> type:
        return cls


def _module(name: str, **names: Any) -> None:
    module = sys.modules[name] = ModuleType(name)
    vars(module).update(names)


_mimes = {"HTML": "text/html", "Markdown": "text/markdown", "SVG": "image/svg+xml", "Latex": "text/latex"}
_module("IPython", __path__=[], get_ipython=_Shell.instance)
_module("IPython.display", display=display, clear_output=clear_output, **{name: _shows(mime) for name, mime in _mimes.items()})
_module("IPython.core", __path__=[])
_module("IPython.core.interactiveshell", InteractiveShell=_Shell)
_module("IPython.core.getipython", get_ipython=_Shell.instance)


class _Comm(BaseComm):
    """A comm whose other end is in the page; it belongs to the cell that made it."""

    def publish_msg(self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any) -> None:
        if msg_type == "comm_open":
            self.cell = _cell
        sent = [bytes(each) for each in buffers or ()]
        _post(type=msg_type, comm_id=self.comm_id, data=data or {}, metadata=metadata or {}, buffers=sent)


_manager = CommManager()
comm.create_comm = _Comm
comm.get_comm_manager = lambda: _manager

import ipywidgets  # noqa: E402 - after the stand-ins


def _enter(output: Any) -> None:
    _outputs.append(output)


def _exit(output: Any, kind: Any, error: Any, trace: Any) -> bool:
    _flush()
    if error is not None:
        _emit({"output_type": "stream", "name": "stderr", "text": "".join(traceback.format_exception(error))})
    _outputs.remove(output)
    return error is not None


ipywidgets.Output.__enter__, ipywidgets.Output.__exit__ = _enter, _exit


class _Stream(io.TextIOBase):
    """stdout or stderr, a line at a time.

    Pyodide's own way, a function given to `loadPyodide`, fails in version 314: "Attempted to use PyProxy when Python GIL
    not held", which Python sees as an I/O error.
    """

    def __init__(self, name: str) -> None:
        self._stream, self._part = name, ""

    def write(self, text: str) -> int:
        self._part += text
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        text, self._part = self._part, ""
        if text:
            _emit({"output_type": "stream", "name": self._stream, "text": text})


sys.stdout, sys.stderr = _Stream("stdout"), _Stream("stderr")


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def set_link(state: Any) -> None:
    """Gives the explorers what the page's address says."""
    values = state.to_py()
    if values:
        from scaling_lib.show import explorers

        explorers.LINK.update(values)


def run_cell(cell: Any, code: str) -> str:
    """Runs a cell and shows the value of its last expression; returns the traceback if it fails."""
    global _cell
    _cell = cell
    try:
        tree = ast.parse(code)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, "<cell>", "exec"), _names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), _names)
            if value is not None and not code.rstrip().endswith(";"):
                display(value)
    except Exception as error:
        return _failure(error)
    finally:
        _flush()
    return ""


def on_message(kind: str, comm_id: str, data: Any, buffers: Any) -> Any:
    """Handles what a widget of the page sends; returns its cell, and the traceback if a callback fails."""
    global _cell
    receiver: Any = _manager.get_comm(comm_id)
    if receiver is None:
        return to_js([None, ""])
    _cell = receiver.cell
    message = {
        "content": {"comm_id": comm_id, "data": data.to_py()},
        "buffers": [memoryview(each.to_bytes()) for each in buffers],
    }
    _failures.clear()
    try:
        (receiver.handle_msg if kind == "comm_msg" else receiver.handle_close)(message)
    except Exception as error:
        _failures.append(_failure(error))
    finally:
        _flush()
    return to_js([_cell, "".join(_failures)])


def _failure(error: BaseException) -> str:
    trace = error.__traceback__
    return "".join(traceback.format_exception(type(error), error, trace and trace.tb_next))
