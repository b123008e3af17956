"""Recorded programs: found by what was compiled, whatever JAX's version; renewed and checked by the pages that show them."""

import json
import os
import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import records as renewal
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from scaling_lib.xla import libtpu, tpu
from scaling_lib.xla.tpu import fingerprint, records

ROOT = Path(__file__).parents[1]
MESH = AbstractMesh((2, 2), ("X", "Y"), axis_types=(AxisType.Auto,) * 2)


def array(layout, *shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=NamedSharding(MESH, layout))


X, W = array(P("X", None), 256, 384), array(P("Y", None), 384, 640)


def matmul(x, w):
    return x @ w


compiled = partial(tpu.compile, matmul, X, W, slice="v5e:2x2", record="tests-matmul")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path / "recorded")
    monkeypatch.setattr(records, "told", False)
    monkeypatch.delenv("SCALING_LIB_RECORDS", raising=False)
    return tmp_path / "recorded"


@pytest.fixture
def written(monkeypatch, folder):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "write")
    live = compiled()
    monkeypatch.delenv("SCALING_LIB_RECORDS")
    return live


@pytest.fixture
def without_libtpu(monkeypatch):
    monkeypatch.setattr(libtpu, "library", lambda: None)


def edit(folder, **parts):
    """Changes parts of the one recorded program's memory and date."""
    path = folder / "tests-matmul.json"
    entries = json.loads(path.read_text())
    (entry,) = entries.values()
    entry["memory"].update({name: value for name, value in parts.items() if name in entry["memory"]})
    entry.update({name: value for name, value in parts.items() if name in entry})
    path.write_text(json.dumps(entries))


def test_a_record_has_the_numbers_of_the_live_program_and_no_text(written):
    found = tpu.record("tests-matmul")
    assert (found.name, found.date, found.versions) == ("tests-matmul", written.date, written.versions)
    assert found.program.to_json() == written.to_json()
    assert found.program.recorded
    with pytest.raises(ValueError, match="holds no text"):
        _ = found.program.text


def test_unset_compiles_live_and_writes_nothing(folder):
    assert not compiled().recorded
    assert not folder.exists()


def test_without_libtpu_the_record_stands_in_and_says_so_once(written, without_libtpu):
    with pytest.warns(
        UserWarning, match=rf"showing record 'tests-matmul', compiled on {written.date} with jax {jax.__version__}, "
    ):
        first = compiled()
    assert first.recorded
    assert compiled() == first  # a second warning would be an error here


def test_only_shows_the_record_where_the_compiler_could_be_had_too(written, monkeypatch):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")
    assert compiled().recorded


def test_what_does_not_fit_is_recorded_too(monkeypatch):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "write")
    huge = partial(tpu.compile, jnp.sin, array(P(), 2**17, 2**17), slice="v5e:2x2", record="tests-huge")
    live = huge()
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")
    assert huge().memory == live.memory
    assert not huge().fits


@pytest.mark.parametrize(
    "change",
    [
        {"fn": lambda x, w: 2 * (x @ w), "name": "matmul"},
        {"fn": lambda x, w: (x @ w).astype(jnp.float32), "name": "matmul"},
        {"fn": lambda x, w: (x @ w, x), "name": "matmul"},
        {"fn": lambda x, w: (x @ w)[:100], "name": "matmul"},
        {"specs": (X, array(P("Y", None), 384, 768))},
        {"specs": (X, array(P("Y", None), 384, 640, dtype="int8"))},
        {"specs": (X, array(P(None, "Y"), 384, 640))},
        {"slice": "v6e:2x2"},
        {"out": P("X")},
        {"donate": (0,)},
        {"options": {"xla_tpu_enable_async_collective_fusion": False}},
        {"schedule": True},
        {"name": "other"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_program_is_not_found(written, monkeypatch, change):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")
    asked = {"fn": matmul, "specs": (X, W), "slice": "v5e:2x2", **change}
    with pytest.raises(
        tpu.TPUCompilerUnavailable, match=r"record 'tests-matmul' holds no \w+\(.*\) on v.e:2x2 with these arguments"
    ):
        tpu.compile(asked.pop("fn"), *asked.pop("specs"), **asked, record="tests-matmul")


def test_a_mesh_of_the_slice_finds_what_an_abstract_one_recorded(written, monkeypatch):
    mesh = tpu.mesh("v5e:2x2", X=2, Y=2)
    moved = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=NamedSharding(mesh, s.sharding.spec)) for s in (X, W)]
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")
    assert tpu.compile(matmul, *moved, slice="v5e:2x2", record="tests-matmul").recorded


def test_no_record_at_all_is_a_clear_message(without_libtpu):
    with pytest.raises(
        tpu.TPUCompilerUnavailable, match=r"no record 'tests-matmul' of matmul\(.*\) on v5e:2x2; .*libtpu.* not installed"
    ):
        compiled()
    with pytest.raises(ValueError, match=r"record='tests-matmul' does not exist; there are: none"):
        tpu.record("tests-matmul")


@pytest.mark.parametrize("name", ["../x", "", "A b", "x.json", 3])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(ValueError, match="cannot name a record"):
        tpu.record(name)


def test_an_unknown_mode_is_refused(monkeypatch):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "always")
    with pytest.raises(ValueError, match="SCALING_LIB_RECORDS='always' is none of only, write, check"):
        compiled()


def test_several_programs_are_listed(written, monkeypatch):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "write")
    compiled(name="again")
    found = tpu.record("tests-matmul")
    assert [program.name for program in found.programs] == ["again", "matmul"]
    with pytest.raises(ValueError, match=r"holds 2 programs: take one of \.programs \(again on v5e:2x2, matmul on v5e:2x2\)"):
        _ = found.program


def test_equal_numbers_keep_their_date_and_every_byte(written, folder, monkeypatch):
    edit(folder, date="2025-01-02", versions={"jax": "0.1"})
    before = (folder / "tests-matmul.json").read_bytes()
    monkeypatch.setenv("SCALING_LIB_RECORDS", "write")
    compiled()
    assert (folder / "tests-matmul.json").read_bytes() == before
    edit(folder, peak_bytes=1)
    compiled()
    assert tpu.record("tests-matmul").date == written.date


def test_a_record_written_anew_drops_what_is_compiled_no_more(written, folder):
    edit(folder, date="2025-01-02")
    records.renew("tests-matmul", compiled)
    assert tpu.record("tests-matmul").program.date == "2025-01-02"
    records.renew("tests-matmul", lambda: compiled(name="other"))
    assert tpu.record("tests-matmul").program.name == "other"
    assert "SCALING_LIB_RECORDS" not in os.environ


def test_a_renewal_that_fails_loses_no_program(written):
    def fails():
        compiled(name="other")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        records.renew("tests-matmul", fails)
    assert [program.name for program in tpu.record("tests-matmul").programs] == ["matmul", "other"]


@pytest.mark.parametrize(
    ("part", "factor", "holds"),
    [("arguments_bytes", 1.001, False), ("peak_bytes", 1.1, True), ("peak_bytes", 1.3, False), ("peak_bytes", 0.7, False)],
)
def test_check_holds_a_record_to_the_compiler(written, folder, monkeypatch, part, factor, holds):
    edit(folder, **{part: factor * getattr(written.memory, part)})
    monkeypatch.setenv("SCALING_LIB_RECORDS", "check")
    if holds:
        assert compiled().recorded
    else:
        words = rf"record='tests-matmul' is out of date for matmul\(.*\) on v5e:2x2: {part} was .*make records"
        with pytest.raises(ValueError, match=words):
            compiled()


def test_check_compiles_the_first_program_of_a_record_and_every_fourth_after(monkeypatch):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "write")
    for name in "abcdef":
        compiled(name=name)
    live, made = tpu._live, []
    monkeypatch.setattr(tpu, "_live", lambda *rest: made.append(rest[5]) or live(*rest))
    monkeypatch.setenv("SCALING_LIB_RECORDS", "check")
    assert all(compiled(name=name).name == name for name in "abcdef")
    assert made == ["a", "e"]


def test_the_key_is_the_same_in_every_version_of_jax():
    """Written by JAX 0.10.2; a version that traces a training step to other operations would orphan every record."""

    def loss(w, x):
        def layer(x, w):
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

        y, _ = jax.lax.scan(jax.checkpoint(layer), x, w)
        y = jax.lax.with_sharding_constraint(jax.nn.softmax(y.astype(jnp.float32)), P("X", None))
        return jnp.where(y > 0, y, 0.0).mean() + jnp.clip(y, 0, 1).sum()

    def step(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, w, grads), value

    w = {"up": array(P(None, "Y", None), 3, 256, 640), "down": array(P(None, None, "Y"), 3, 640, 256)}
    signed = fingerprint.signature("step", "v5e:2x2", MESH, step, (w, array(P("X"), 128, 256)), None, (0,), {})
    assert records.key(signed).endswith(" on v5e:2x2 caaa385ed6e9eebb")


def test_what_jit_was_told_to_donate_is_part_of_the_key():
    specs = array(P("X"), 128, 256), array(P("X"), 128, 256)

    def step(state, gradient):
        return state - gradient

    def signed(fn):
        return fingerprint.signature("step", "v5e:2x2", MESH, fn, specs, None, (), {})

    donating = jax.jit(step, donate_argnums=0)
    assert signed(jax.jit(step)) == signed(step) == signed(lambda *given: step(*given))
    assert signed(donating) == signed(jax.jit(step, donate_argnames="state")) != signed(step)
    assert signed(jax.jit(step, donate_argnums=1)) != signed(donating)
    assert signed(lambda *given: donating(*given)) == signed(step)  # inside another function it has no effect


# The pages

PAGE = """\
---
kernelspec: {name: python3, display_name: Python 3}
---

# A page

A cell.

```{code-cell} python3
import pathlib
from scaling_lib.xla.tpu import records
records.FOLDER = pathlib.Path("recorded")
import jax, jax.numpy as jnp
from scaling_lib.xla import tpu
spec = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
program = tpu.compile(lambda x: x @ x, spec, slice="v5e:1x1", name="square", record="tests-page")
print(int(program.memory.arguments_bytes), program.recorded)
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch, folder):
    """A page whose records lie beside it."""
    monkeypatch.setattr(records, "FOLDER", tmp_path / "chapters" / "recorded")
    path = tmp_path / "chapters" / "page.md"
    path.parent.mkdir()
    (tmp_path / "_config.yml").write_text((ROOT / "_config.yml").read_text())
    path.write_text(PAGE.replace("SIZE", "384"))
    return path


def test_renewal_runs_the_pages_and_says_what_changed(page, capsys):
    assert renewal.pages(page.parents[1]) == [page]
    assert renewal.renew([page], everything=True)
    assert re.fullmatch(r"tests-page: square\(bfloat16\[\d+, \d+\]\) on v5e:1x1 \w{16} is new\n", capsys.readouterr().out)
    assert tpu.record("tests-page").program.memory.arguments_bytes == 2 * 384**2
    before = (records.FOLDER / "tests-page.json").read_bytes()
    assert renewal.renew([page], everything=True)
    assert capsys.readouterr().out == "the records are as they were\n"
    assert (records.FOLDER / "tests-page.json").read_bytes() == before
    assert renewal.run("check", [page])
    page.write_text(PAGE.replace("SIZE", "640"))
    assert not renewal.run("check", [page])
    assert "the program is not what was recorded" in capsys.readouterr().out
    assert renewal.renew([page], everything=True)
    assert re.fullmatch(
        r"(tests-page: square\(bfloat16\[\d+, \d+\]\) on v5e:1x1 \w{16} is (gone|new)\n){2}", capsys.readouterr().out
    )


def test_a_page_that_fails_loses_no_record(page, capsys):
    renewal.renew([page], everything=True)
    page.write_text(PAGE.replace("import jax", "1 / 0; import jax"))
    assert not renewal.renew([page], everything=True)
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert tpu.record("tests-page").program.name == "square"


CHAPTERS = [page for page in sorted((ROOT / "chapters").glob("*.md")) if "record=" in page.read_text(encoding="utf-8")]
"""Labs with records are run without the compiler and with it: tests/test_labs.py."""


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_finds_its_records(chapter, monkeypatch):
    monkeypatch.undo()
    assert renewal.run("only", [chapter])


@pytest.mark.weekly
@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_the_records_of_a_chapter_hold(chapter, monkeypatch):
    monkeypatch.undo()
    assert renewal.run("check", [chapter])


def test_the_records_are_small(monkeypatch):
    monkeypatch.undo()
    assert sum(path.stat().st_size for path in records.FOLDER.glob("*")) <= 2e6


def test_another_libtpu_may_lay_out_temporaries_anew_but_not_change_arguments(written, folder, monkeypatch):
    monkeypatch.setenv("SCALING_LIB_RECORDS", "check")
    edit(folder, peak_bytes=2 * written.memory.peak_bytes, versions={**written.versions, "libtpu": "0.0.1"})
    assert compiled().recorded
    edit(folder, arguments_bytes=2 * written.memory.arguments_bytes)
    with pytest.raises(ValueError, match="arguments_bytes was"):
        compiled()


def test_a_record_is_read_without_libtpu_from_a_wheel_like_copy(written, folder, tmp_path):
    """Only the package's own files, elsewhere on disk."""
    import shutil

    shutil.copytree(ROOT / "scaling_lib", tmp_path / "site" / "scaling_lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(folder, tmp_path / "site" / "scaling_lib" / "xla" / "tpu" / "recorded", dirs_exist_ok=True)
    code = """
        from scaling_lib.xla.tpu import records
        assert "site" in records.__file__
        print(records.record("tests-matmul").program.memory.arguments_bytes)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path / "site", capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == (str(written.memory.arguments_bytes), "")
