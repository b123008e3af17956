"""What publishes the course and lets a class run it: workflows, Binder, the image of a JupyterHub, the citation."""

import re
import shutil
import subprocess
import sys
import tomllib
from html import unescape
from pathlib import Path

import pytest
import yaml
from docutils.core import publish_doctree
from publish import first_words
from pybtex.database import parse_string

from tests import addresses
from tests.addresses import ROOT
from tests.test_book import DOCS, HTML

BIN = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HUB = ROOT / "deploy/jupyterhub"


def lint(program, text, *options):
    """What a linter says of a text; it finds ShellCheck beside itself."""
    command = [shutil.which(program, path=BIN), *options, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env={"PATH": f"{BIN}:/usr/bin:/bin"})
    assert done.stdout or done.returncode == 0, done.stderr
    return done.stdout


# Workflows.


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_and_shellcheck_find_nothing_in_a_workflow(path):
    assert lint("actionlint", path.read_text(encoding="utf-8"), "-no-color") == ""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("needs: build", "needs: built", "built"),
        ("persist-credentials", "persist-credential", "persist-credential"),
        ("cp _build/scaling-course.pdf", "cp $HOME/scaling-course.pdf", "SC2086"),
        ("actions/checkout@v6", "actions/checkout@v3", "retired|too old|deprecated"),
    ],
)
def test_a_broken_workflow_is_found(old, new, words):
    text = (ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8")
    assert old in text
    assert re.search(words, lint("actionlint", text.replace(old, new), "-no-color"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_makes_what_the_makefile_has(path):
    asked = re.findall(r"^\s*(?:run: )?make ([a-z ]+)", path.read_text(encoding="utf-8"), flags=re.M)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    assert {target for line in asked for target in line.split()} <= set(targets)


def test_the_site_gets_what_links_name_and_no_build_makes():
    copied = re.search(r"cp (.+) _build/html/$", (ROOT / ".github/workflows/publish.yml").read_text(encoding="utf-8"), flags=re.M)
    assert {Path(path).name for path in copied[1].split()} == addresses.ADDED


# Binder and the hub.


def constraint_of(python):
    return f"constraints/python{python}.txt"


def test_binder_installs_the_library_with_the_versions_of_its_python():
    python = (ROOT / ".binder/runtime.txt").read_text().strip().removeprefix("python-")
    text = (ROOT / ".binder/requirements.txt").read_text(encoding="utf-8")
    constraint, installed = [line for line in text.splitlines() if not line.startswith("#")]
    assert constraint == f"-c ../{constraint_of(python)}"
    assert (ROOT / constraint_of(python)).is_file()
    assert_enough_for_the_labs(re.fullmatch(r"\.\[(.+)\]", installed)[1])


def assert_enough_for_the_labs(extras):
    named = set(extras.split(","))
    assert named <= set(PROJECT["optional-dependencies"])
    assert {"show", "jax", "labs", "serving"} <= named


def dockerfile():
    return (HUB / "Dockerfile").read_text(encoding="utf-8")


def test_hadolint_finds_nothing_in_the_image():
    assert lint("hadolint", dockerfile(), "--no-color") == ""
    assert "DL3006" in lint("hadolint", dockerfile().replace(":python-3.12", ""), "--no-color")


def test_the_image_installs_the_versions_of_its_python_and_never_as_root():
    python = re.search(r"^FROM quay\.io/jupyter/minimal-notebook:python-(3\.\d+)$", dockerfile(), flags=re.M)[1]
    assert constraint_of(python) in dockerfile()
    assert (ROOT / constraint_of(python)).is_file()
    (extras,) = re.findall(r'"/course\[(.+)\]"', dockerfile())
    assert_enough_for_the_labs(extras)
    assert re.findall(r"^USER (.+)$", dockerfile(), flags=re.M) == ["1000"]


def test_the_builder_is_given_what_the_image_needs_and_no_answers():
    (copied,) = re.findall(r"^COPY (\S+) \S+$", dockerfile(), flags=re.M)
    given = [line[1:] for line in (HUB / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied == "labs/*.ipynb"
    assert [pattern for pattern in given if not list(ROOT.glob(pattern))] == []
    needed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "scaling_lib", copied}
    assert all(any(Path(name).match(pattern) for pattern in given) for name in needed)
    for notebook in ROOT.glob(copied):
        assert '"answer"' not in notebook.read_text(encoding="utf-8"), notebook


def test_a_student_gets_two_cores_and_four_gigabytes_of_the_image():
    single = yaml.safe_load((HUB / "values.yaml").read_text(encoding="utf-8"))["singleuser"]
    (profile,) = single["profileList"]
    asked = profile["kubespawner_override"]
    assert (asked["cpu_limit"], asked["mem_limit"]) == (2, "4G")
    assert asked["cpu_guarantee"] <= asked["cpu_limit"]
    assert int(asked["mem_guarantee"][:-1]) <= int(asked["mem_limit"][:-1])
    assert asked["image"] in dockerfile()


def test_each_start_brings_new_labs_and_keeps_what_a_student_wrote(tmp_path):
    hook = yaml.safe_load((HUB / "values.yaml").read_text(encoding="utf-8"))["singleuser"]["lifecycleHooks"]["postStart"]
    shell, option, script = hook["exec"]["command"]
    assert lint("shellcheck", script, "--shell=sh") == ""
    image, home = tmp_path / "image", tmp_path / "a home"
    image.mkdir()
    (image / "01.ipynb").write_text("lab")
    home.mkdir()

    def start():
        command = [shell, option, script.replace("/opt/scaling-course/labs", str(image))]
        assert command[2] != script
        done = subprocess.run(command, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")  # a hook that fails ends the student's server

    start()
    (home / "labs/01.ipynb").write_text("my answer")
    (image / "02.ipynb").write_text("a new lab")
    start()
    start()
    assert {path.name: path.read_text() for path in (home / "labs").iterdir()} == {
        "01.ipynb": "my answer",
        "02.ipynb": "a new lab",
    }


# The citation.


def test_the_bibtex_of_the_page_agrees_with_the_citation_file():
    (bibtex,) = re.findall(r"```bibtex\n(.*?)```", (ROOT / "chapters/references.md").read_text(encoding="utf-8"), flags=re.S)
    (entry,) = parse_string(bibtex, "bibtex").entries.values()
    given = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    names = [author.get("name") for author in given["authors"]]
    assert [str(author).strip("{}") for author in entry.persons["author"]] == names
    assert {name: entry.fields[name] for name in ("title", "version", "url")} == {
        name: str(given[name]) for name in ("title", "version", "url")
    }
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert entry.fields["year"] == config["copyright"]
    assert (given["type"], entry.type) == ("software", "software")


# The site.


def description_of(doc):
    found = re.search(r'<meta name="description" content="(.*?)" />', (HTML / f"{doc}.html").read_text(encoding="utf-8"))
    return unescape(found[1]) if found else ""


@pytest.mark.book
def test_every_page_has_a_description_and_a_card_of_its_own():
    found = {doc: description_of(doc) for doc in DOCS}
    assert [doc for doc, text in found.items() if not 40 < len(text) <= 200 or re.search(r"[{}`]|\*\*", text)] == []
    assert len(set(found.values())) == len(DOCS)
    starts = {doc: text[:15] for doc, text in found.items() if re.match(r"(chapters|labs)/\d", doc)}
    assert set(starts.values()) == {"After this chap", "In this lab you"}
    cards = [len(list((HTML / "_images/social_previews").glob(f"summary_{doc.replace('/', '_')}_*.png"))) for doc in DOCS]
    assert min(cards) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Some words, and\nmore.\n\n- an item\n\nOf :math:`x`.\n\nThe end.", "Some words, and more. The end."),
        (".. admonition:: Before you start\n\n   - You **learn**.\n   - You need.\n\nWords.", "You learn."),
        (".. note:: A box.\n\nWords.", "Words."),
        ("A word, " * 10, "A word, A word, A word, A word, A…"),
    ],
)
def test_a_description_is_what_a_page_is_for(text, said):
    doctree = publish_doctree(f"Title\n=====\n\n{text}", settings_overrides={"doctitle_xform": False})
    assert first_words(doctree, 36) == said
