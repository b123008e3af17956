"""The program: its commands, what it prints of errors, and its exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scaling_lib import __version__
from scaling_lib.cli import chips, compile, count, grade, matmul, models, plan, rehearse, serve, status, validate
from scaling_lib.cli.pairs import WithPairs


class Program(TyperGroup):
    """Says on one or two lines of stderr what is wrong, and returns the exit status for it."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run; the status is returned, or ends the process in standalone mode."""
        extra |= {"args": args, "complete_var": complete_var, "windows_expand_args": windows_expand_args}
        code = self._run(prog_name="scaling-lib", **extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run the command and see that what it printed has arrived."""
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # piped into head
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still flushes at its end

    def _run(self, **extra: Any) -> int:
        try:
            return super().main(standalone_mode=False, **extra) or status.FOUND
        except typer.Abort:
            return status.INTERRUPTED
        except status.Missing as error:
            return _says(error, status.MISSING)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("scaling_lib"):
                raise
            return _says(f"this needs {error.name.partition('.')[0]}: pip install 'scaling-lib[cli]'", status.MISSING)
        except (ValueError, OSError) as error:
            return _says(error, status.BAD_INPUT)
        except Exception as error:
            if not hasattr(error, "format_message"):  # what all errors of the parser have, in old and new versions of it
                raise
            where = getattr(getattr(error, "ctx", None), "command_path", "scaling-lib")
            return _says(f"{error.format_message()}\nTry {where} --help", status.BAD_INPUT)


def _says(error: object, code: int) -> int:
    """Print the first line of an error; below it, some point at the column. Returns the status."""
    lines = str(error).splitlines() or [type(error).__name__]
    hint = [line for line in lines[-1:] if line.startswith("Try ")]
    print("\n".join([f"scaling-lib: {lines[0]}", *hint]), file=sys.stderr)
    return code


def _version(asked: bool) -> None:
    if asked:
        print(f"scaling-lib {__version__}")
        raise typer.Exit()


def _start(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Predict the time, memory and cost of language models on TPUs."""


def _examples(text: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())


app = typer.Typer(
    cls=Program,
    add_completion=False,
    rich_markup_mode=None,  # plain help: readable in a pipe and on a narrow terminal
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(epilog=status.WORDS)(_start)
for command in (chips, models, matmul, count, plan, serve, compile, validate, grade, rehearse):
    app.command(command.__name__.rpartition(".")[2], cls=WithPairs, epilog=_examples(command.EXAMPLES))(command.run)
