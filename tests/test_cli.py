import json
import subprocess
import sys
from dataclasses import fields

import pytest

from scaling_lib import cli, transformer
from scaling_lib.hardware import CHIPS, chip
from scaling_lib.sharding import MatmulPlan, Step, matmul_plan


def test_chips_lists_every_chip(capsys):
    assert cli.main(["chips"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(CHIPS)
    assert "197 TFLOP/s" in next(line for line in lines if line.startswith("v5e"))


def test_json_prints_base_units_under_the_field_names(capsys):
    assert cli.main(["chips", "Trillium", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["name"] == "v6e"
    assert shown["figures"]["hbm_bytes_per_s"] == chip("v6e").hbm_bytes_per_s
    assert shown["peak_flops_per_s"]["bf16"] == chip("v6e").flops_per_s("bf16")
    assert all(row["source"] for row in shown["sources"])


def test_a_named_chip_shows_every_source_and_conflict(capsys):
    assert cli.main(["chips", "v5e"]) == 0
    out = capsys.readouterr().out
    assert "docs.cloud.google.com/tpu/docs/v5e" in out
    assert "no" in {line.split()[-1] for line in out.splitlines()} or " no " in out


def test_a_mistake_is_one_line_and_status_two(capsys):
    assert cli.main(["chips", "v5x"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("scaling-lib: chip='v5x' is unknown; did you mean")
    assert err.count("\n") == 1


def test_without_tabulate_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tabulate", None)
    monkeypatch.delitem(sys.modules, "scaling_lib.show.tables", raising=False)
    monkeypatch.delattr("scaling_lib.show.tables", raising=False)
    assert cli.main(["chips"]) == 4
    assert "pip install 'scaling-lib[cli]', or use --json" in capsys.readouterr().err
    assert cli.main(["chips", "--json"]) == 0


def test_the_installed_command_runs():
    command = [sys.executable, "-c", "from scaling_lib.cli import main; raise SystemExit(main(['--version']))"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("scaling-lib 0.")


def test_no_command_is_a_usage_error(capsys):
    assert cli.main([]) == 2
    assert capsys.readouterr().err == "scaling-lib: Missing command.\nTry scaling-lib --help\n"


def test_json_of_all_chips_has_no_sources_and_of_one_only_its_own(capsys):
    cli.main(["chips", "--json"])
    everything = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in everything] == list(CHIPS)
    assert all("sources" not in entry for entry in everything)
    cli.main(["chips", "v5e", "v6e", "--json"])
    text = capsys.readouterr().out
    assert text.startswith("[\n  {")
    assert [{row["chip"] for row in entry["sources"]} for entry in json.loads(text)] == [{"v5e"}, {"v6e"}]


def test_a_named_chip_is_headed_by_name_and_maker(capsys):
    cli.main(["chips", "Ironwood"])
    assert capsys.readouterr().out.startswith("tpu7x (Google)\n")


def test_a_closed_pipe_is_no_error():
    code = "from scaling_lib.cli import main; raise SystemExit(main(['chips', 'v5e']))"
    piped = f'{sys.executable} -c "{code}" | head -n 1'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", piped], capture_output=True, text=True)
    assert "Traceback" not in done.stderr


PRODUCT = [
    "compile",
    "v5e:4x4",
    "A[I, J_X]",
    "B[J_X, K]",
    "--to",
    "C[I, K]",
    "--size",
    "I=256",
    "J=512",
    "K=384",
    "--mesh",
    "X=16",
]


def test_a_product_compiled_for_a_slice_prints_its_collectives(capsys):
    assert cli.main(PRODUCT) == 0
    assert f"1 × all-reduce, along X: {2 * 2 * 256 * 384 * 15 / 16 / 1e3:.0f} kB sent" in capsys.readouterr().out


def test_a_compiled_product_as_json_has_the_fields_of_the_dataclasses(capsys):
    assert cli.main([*PRODUCT, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["target"] == "v5e:4x4"
    assert shown["memory"]["arguments_bytes"] == 2 * 512 * (256 + 384) / 16
    assert [one["kind"] for one in shown["code"]["collectives"]] == ["all-reduce"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--to", "C[I, Q]"), "--to 'C[I, Q]' has dimension Q, which no array has"),
        (("v5e:4x4", "v5e:32x32"), "cannot be built from v5e"),
        (("X=16", "X=4"), "X=4 is 4 devices, but v5e:4x4 has 16"),
        (("X=16", "X"), "--mesh X does not read as name=size"),
        (("J=512", "J=500"), "J=500 is no multiple of X=16; 512 would do"),
        (("J=512", "Q=512"), "give a size for J"),
    ],
)
def test_a_product_that_does_not_do_is_one_line(change, words, capsys):
    was, now = change
    arguments = [now if one == was else one for one in PRODUCT]
    if was == "--to":
        arguments = PRODUCT.copy()
        arguments[arguments.index("--to") + 1] = now
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


MATMUL = ["matmul", "A[I, J_X] · B[J, K_Y] -> C[I_X, K_Y]", "--sizes", "I=8192,J=4096,K=2048", "--mesh", "X=4,Y=4"]
MATMUL += ["--slice", "v5e:4x4"]
PLAN = matmul_plan(MATMUL[1], {"I": 8192, "J": 4096, "K": 2048}, {"X": 4, "Y": 4}, "v5e:4x4")


@pytest.mark.parametrize("sizes", [["I=8192,J=4096,K=2048"], ["I=8192", "J=4096", "K=2048"], ["I=8192, J=4096,", "K=2048"]])
def test_a_planned_product_is_explained(sizes, capsys):
    at = MATMUL.index("--sizes")
    assert cli.main([*MATMUL[: at + 1], *sizes, *MATMUL[at + 2 :]]) == 0
    assert capsys.readouterr().out == f"{PLAN.explain()}\n"


def test_a_plan_as_json_has_the_fields_of_the_dataclasses(capsys):
    assert cli.main([*MATMUL, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {field.name for field in fields(MatmulPlan)} <= set(shown)
    assert shown["product"] == MATMUL[1]
    assert (shown["sizes"], shown["mesh"], shown["objective"]) == (dict(PLAN.sizes), dict(PLAN.mesh), "sum")
    totals = ("communication_s", "compute_s", "lower_s", "upper_s", "seconds")
    assert [shown[name] for name in totals] == [getattr(PLAN, name) for name in totals]
    for written, step in zip(shown["steps"], PLAN.steps, strict=True):
        assert list(written) == [field.name for field in fields(Step)]
        assert [written[name] for name in ("kind", "array", "in_bytes", "out_bytes", "seconds")] == [
            step.kind, step.array, step.in_bytes, step.out_bytes, step.seconds,
        ]  # fmt: skip
        assert (written["axes"], written["before"]) == (list(step.axes), list(map(str, step.before)))
        assert written["after"] == str(step.after)
    assert shown["runner_up"]["seconds"] == PLAN.runner_up.seconds
    assert shown["runner_up"]["runner_up"] is None


def test_dtype_and_objective_reach_the_plan(capsys):
    assert cli.main([*MATMUL, "--dtype", "int8", "--objective", "max", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["seconds"] == shown["lower_s"]
    plan = matmul_plan(MATMUL[1], PLAN.sizes, PLAN.mesh, "v5e:4x4", dtype="int8", objective="max")
    assert shown == json.loads(json.dumps(plan.to_json()))


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (MATMUL[1], "A[I, J_X] · B[J, K_Y] -> C[I_X, L]", "column 33: L is in no operand"),
        (MATMUL[1], "A[I, J_X] · B[J, K_Y -> C[I_X, K_Y]", "column 22: this does not read as notation"),
        (MATMUL[1], "A[I, J_Z] · B[J, K_Y] -> C[I, K_Y]", "column 8: 'Z' is no axis of the mesh, which has X=4, Y=4"),
        (MATMUL[1], "A[I_X, J_X] · B[J, K_Y] -> C[I, K_Y]", "column 10: this array uses mesh axis X twice"),
        ("I=8192,J=4096,K=2048", "I=8192,J=4096", "give a size for K"),
        ("I=8192,J=4096,K=2048", "I=8192,J=4096,K=2048,L=3", "sizes has 'L'"),
        ("I=8192,J=4096,K=2048", "I=8190,J=4096,K=2048", "I=8190 is no multiple of X=4; 8192 would do, with 0.0244 % more"),
        ("I=8192,J=4096,K=2048", "I=8192,J=8k,K=2048", "--sizes J=8k does not read as name=size"),
        ("I=8192,J=4096,K=2048", "I=8192,J=4096,I=2048", "--sizes gives I twice"),
        ("X=4,Y=4", "X=2,Y=8", "does not lie on v5e:4x4"),
        ("X=4,Y=4", "X=4,Y=0", "Y=0"),
        ("v5e:4x4", "v5x:4x4", "v5x"),
        ("v5e:4x4", "v5e", "does not read as chip:shape"),
    ],
)
def test_a_product_that_cannot_be_planned_is_one_line(was, now, words, capsys):
    assert cli.main([now if one == was else one for one in MATMUL]) == 2
    err = capsys.readouterr().err
    assert err.startswith("scaling-lib: ")


def test_count_prints_base_units_under_the_field_names(capsys):
    assert cli.main(["count", "llama3-8b", "--length", "8192", "--batch", "3", "--dtype", "int8", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    model = transformer.model("Llama-3 8B")
    assert shown["parameters"]["total"] == 8_030_261_248 == sum(shown["parameters"].values()) / 2
    assert shown["active_parameters"]["without_lookup"] == 8_030_261_248 - 128_256 * 4096
    assert shown["train_flops_per_token"]["causal"] * 8192 == transformer.train_flops(model, T=8192, causal=True).model_flops
    assert shown["decode_flops_per_token"] == shown["forward_flops_per_token"]["full"]  # the last token sees all
    assert shown["kv_bytes_per_token"] == 65_536
    assert shown["kv_cache_bytes"] == 3 * 8192 * 65_536
    full = transformer.train_flops(model, T=8192, causal=False)
    assert shown["train_flops_per_token"]["full"] * 8192 == full.model_flops
    assert shown["forward_flops_per_token"]["full"] * 8192 == full.forward.total
    assert shown["weight_bytes"]["total"] == 8_030_261_248


def test_count_shows_parts_and_conventions(capsys):
    assert cli.main(["count", "deepseek-v3"]) == 0
    out = capsys.readouterr().out
    for words in ("671,026,419,200", "without_lookup", "36,625,618,432", "shared_experts", "70,272  70.27 kB"):
        assert words in out
    assert "positions" not in out  # which it has not


def test_count_reads_a_hugging_face_configuration(tmp_path, capsys):
    config = {"model_type": "llama", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 77}
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config | {"num_attention_heads": 4}))
    assert cli.main(["count", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == "tiny"
    assert shown["parameters"]["total"] == 3 * (4 * 48 * 48 + 3 * 48 * 96 + 2 * 48) + 48 + 2 * 77 * 48
    path.write_text(json.dumps(config))
    assert cli.main(["count", str(path)]) == 2
    assert "config has no 'num_attention_heads', which llama needs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lama3-8b"], "model='lama3-8b' is unknown"),
        (["missing/config.json"], "cannot be read: No such file"),
        (["llama3-8b", "--length", "0"], "--length=0"),
        (["llama3-8b", "--batch", "-2"], "--batch=-2"),
        (["llama3-8b", "--dtype", "bf17"], "dtype='bf17' is unknown"),
    ],
)
def test_a_count_that_cannot_be_is_one_line_and_status_two(arguments, words, capsys):
    assert cli.main(["count", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("option", "words"), [("--dtype", "dtype='none' is unknown"), ("--objective", "objective='none'")])
def test_an_unknown_choice_is_one_line(option, words, capsys):
    assert cli.main([*MATMUL, option, "none"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("written", [b"", b"{", b"\xff{}", b"[" * 100_000, b'{"vocab_size": ' + b"9" * 5000 + b"}"])
def test_a_configuration_that_is_no_json_says_so(written, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_bytes(written)
    assert cli.main(["count", str(path)]) == 2
    err = capsys.readouterr().err
    assert f"model={str(path)!r} is no JSON" in err
    assert err.count("\n") == 1


def test_a_folder_and_a_name_too_long_for_a_file_are_one_line(tmp_path, capsys):
    (tmp_path / "config.json").mkdir()
    for name, words in ((str(tmp_path / "config.json"), "cannot be read: Is a directory"), ("a" * 5000, "is unknown")):
        assert cli.main(["count", name]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert err.count("\n") == 1
