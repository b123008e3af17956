"""The program as a shell sees it: help and its examples, exit statuses, widths, pipes, what is not installed."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaling_lib import cli, transformer
from scaling_lib.cli.app import app
from scaling_lib.xla import tpu

ROOT = Path(__file__).parents[1]
COMMANDS = ("chips", "models", "matmul", "count", "plan", "serve", "compile", "validate")
TEACHING = ("grade", "rehearse")  # their examples need a class: tests of their own
PROGRAM = [sys.executable, "-c", "import sys; from scaling_lib.cli import main; sys.exit(main())"]
SMALL = ["plan", "llama-3-8b", "v5p:2x2x2", "--batch", "16"]
LLAMA_1B = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_hidden_layers": 16,
    "vocab_size": 128_256,
    "tie_word_embeddings": True,
}


def shell(*arguments, before="pass", **environment):
    """The program in a process of its own; `before` is Python that runs first."""
    command = [sys.executable, "-c", f"import sys; {before}; {PROGRAM[2].partition('; ')[2]}", *arguments]
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=kept | environment)


def run(*arguments, **environment):
    done = CliRunner(env=environment).invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def examples():
    for name in COMMANDS:
        shown = run(name, "--help").stdout.partition("Examples:\n")[2].replace("\\\n", " ")
        for line in filter(str.strip, shown.splitlines()):
            arguments = shlex.split(line)
            takes_a_minute = arguments[:2] == ["scaling-lib", "compile"] and "--plan" in arguments
            yield pytest.param(arguments, id=" ".join(arguments[1:])[:60], marks=[pytest.mark.weekly] * takes_a_minute)


@pytest.mark.parametrize("command", [*COMMANDS, *TEACHING])
def test_help_has_examples_and_fits_80_columns(command):
    done = run(command, "--help")
    assert done.exit_code == 0
    assert f"scaling-lib {command} " in done.stdout.partition("Examples:\n")[2] + " "
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [*examples()])
def test_examples_of_the_help_run(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_1B))
    assert arguments[0] == "scaling-lib"
    done = run(*arguments[1:])
    assert (done.exit_code, done.stderr) == (0, "")
    if "--json" in arguments:
        json.loads(done.stdout)
    else:
        assert len(done.stdout.splitlines()) > 2


def test_help_lists_the_commands_and_every_status():
    shown = run("--help").stdout
    assert re.findall(r"^  (\w+)  ", shown.partition("Commands:")[2].partition("Exit status")[0], flags=re.M) == [
        *COMMANDS,
        *TEACHING,
    ]
    assert re.findall(r"^ +([0-9])  ", shown.partition("Exit status")[2], flags=re.M) == [*"02345"]


@pytest.mark.parametrize(
    ("arguments", "status", "stream"),
    [
        ((*SMALL, "--keep", "1"), 0, "stdout"),
        ((*SMALL, "--plan", "fsdp=8,remat=full"), 0, "stdout"),
        (("plan", "llama-3-70b", "v5e:2x2", "--batch", "4"), 3, "stdout"),
        (("plan", "llama-3-70b", "v5e:2x2", "--batch", "4", "--plan", "fsdp=4"), 3, "stdout"),
        ((*SMALL, "--plan", "fsdp=7"), 2, "stderr"),
        ((*SMALL, "--no-such-option"), 2, "stderr"),
        (("plann",), 2, "stderr"),
    ],
)
def test_the_status_says_what_was_found(arguments, status, stream):
    done = shell(*arguments)
    assert done.returncode == status
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    assert getattr(done, stream)
    assert not getattr(done, other)
    assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize(
    ("hidden", "arguments", "words"),
    [
        ("typer", ("chips",), "the command line needs typer: pip install 'scaling-lib[cli]'"),
        ("rich", ("models",), "this needs rich: pip install 'scaling-lib[cli]'"),
        ("numpy", SMALL, "this needs numpy: pip install 'scaling-lib[cli]'"),
        ("jax", ("compile", "v5e:2x2", "A[I, J]", "B[J, K]", "--to", "C[I, K]"), "pip install 'scaling-lib[tpu-compiler]'"),
        (
            "jax",
            ("compile", "llama-3-8b", "v5e:2x2", "--plan", "fsdp=4", "--batch", "4"),
            "pip install 'scaling-lib[tpu-compiler]'",
        ),
        ("jax", ("validate", "memory"), "pip install 'scaling-lib[cli,jax]'"),
    ],
)
def test_what_is_not_installed_is_one_line_and_a_status_of_its_own(hidden, arguments, words):
    done = shell(*arguments, before=f"sys.modules[{hidden!r}] = None")
    assert done.returncode == 4
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_plan_is_priced_without_numpy():
    done = shell(*SMALL, "--plan", "fsdp=8,remat=full", before="sys.modules['numpy'] = None")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "v5e:2x2", "A[I, J]", "B[J, K]", "--to", "C[I, K]", "--size", "I=8", "J=8", "K=8"),
        ("compile", "llama-3-8b", "v5e:2x2", "--plan", "fsdp=4", "--batch", "4"),
    ],
)
def test_without_the_tpu_compiler_its_own_words_are_shown(arguments, monkeypatch):
    def unavailable(*_, **__):
        raise tpu.TPUCompilerUnavailable("libtpu is not installed: pip install 'jax[tpu]'")

    monkeypatch.setattr(tpu, "compile", unavailable)
    done = run(*arguments)
    assert done.exit_code == 4
    assert done.stderr == "scaling-lib: libtpu is not installed: pip install 'jax[tpu]'\n"


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize(
    "arguments",
    [("models", "llama"), ("chips",), ("chips", "v5e"), (*SMALL, "--keep", "3", "--tokens", "15T"), ("validate", "memory")],
    ids=" ".join,
)
def test_what_a_terminal_shows_is_no_wider_than_it_is_and_lacks_nothing(arguments, columns):
    wide, narrow = run(*arguments).stdout, run(*arguments, COLUMNS=str(columns)).stdout
    longest = max(len(line) for line in narrow.splitlines())
    assert longest <= columns
    assert "…" not in narrow
    taken = r"[0-9.,]+ m?s;"  # seconds that a search takes are never twice the same
    numbers = [set(re.findall(r"(?<![\w.])[0-9][0-9.,]*[0-9](?![\w.])", re.sub(taken, "", shown))) for shown in (wide, narrow)]
    assert numbers[0] <= numbers[1]


def test_in_a_pipe_there_are_whole_lines_and_no_control_characters():
    done = shell("chips", "v5e")
    assert "\x1b" not in done.stdout
    assert any("hbm_bytes_per_s" in line and "docs.cloud.google.com" in line for line in done.stdout.splitlines())
    assert done.stdout.isascii() or set(re.sub(r"[\x00-\x7f]", "", done.stdout)) <= set("×·—µ–²³−’“”")


def on_a_terminal(*arguments, **environment):
    """What the program writes on a terminal for standard output and error, and its status."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=theirs, stderr=theirs, stdin=theirs, cwd=ROOT, env=kept | {"TERM": "xterm"} | environment
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            written += (got := os.read(ours, 65536))
        except OSError:  # the other end is closed
            break
        if not got:
            break
    os.close(ours)
    return written.decode(), process.wait(timeout=60)


def test_a_terminal_sees_progress_and_bold_headings():
    shown, status = on_a_terminal(*SMALL, "--keep", "1", COLUMNS="100")
    assert status == 0
    assert "plans" in shown.partition("splits")[0]
    assert "\x1b[1m" in shown


def test_no_color_takes_colors_away():
    shown, _ = on_a_terminal(*SMALL, "--keep", "1", COLUMNS="100", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", shown)


def test_a_terminal_that_lacks_characters_still_gets_the_answer():
    done = shell(*SMALL, "--plan", "fsdp=4,tensor=2", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "tensor 2 ? fsdp 4" in done.stdout


def test_the_program_starts_without_heavy_libraries():
    done = shell("chips", "--json", before="import atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))")
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "typer" in loaded
    assert not loaded & {"jax", "matplotlib", "numpy", "rich", "tabulate"}


def test_the_package_is_importable_without_the_libraries_of_the_command_line():
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None; import scaling_lib, scaling_lib.cli, scaling_lib.search"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_one_of_our_own_modules_that_is_missing_is_a_bug_and_shows():
    done = shell("chips", before="sys.modules['scaling_lib.hardware'] = None")
    assert "ModuleNotFoundError" in done.stderr


def test_models_are_found_by_a_part_of_their_names():
    assert [entry["name"] for entry in json.loads(run("models", "LLAMA3.1", "--json").stdout)] == [
        "Llama-3.1 8B", "Llama-3.1 70B", "Llama-3.1 405B",
    ]  # fmt: skip
    assert len(json.loads(run("models", "--json").stdout)) == len(transformer.MODELS)
    (small,) = json.loads(run("models", "llama-3", "8b", "--json").stdout)[:1]
    model = transformer.model("Llama-3 8B")
    assert small["parameters"] == transformer.parameters(model).total
    assert small["n_layers"] == model.L
    assert small["source"]
    shown = next(line for line in run("models", "mixtral").stdout.splitlines() if line.startswith("Mixtral 8x7B"))
    assert shown.split()[2:6] == ["46.7", "B", "12.9", "B"]


def test_a_model_that_is_not_there_has_near_names(capsys):
    assert cli.main(["models", "lamma-3"]) == 2
    assert "no model has 'lamma-3' in its name; did you mean 'Llama-3" in capsys.readouterr().err


def test_validation_prints_what_the_library_reports():
    from scaling_lib import validation

    report = validation.training(3)
    shown = run("validate", "training", "--splits", "3", "--rows").stdout
    assert f"{report.figures['all'].median:.1%}" in shown
    for row in report.rows:
        assert any(line.startswith(f"{row.id} ") and f"{row.error:+.1%}" in line for line in shown.splitlines())
    data = json.loads(run("validate", "training", "--splits", "3", "--json").stdout)
    assert data["figures"]["all"]["median"] == report.figures["all"].median
    assert run("validate", "speed").exit_code == 2
