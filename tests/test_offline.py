"""The bundle for a place without internet, used as its reader does: unpacked in a new folder, and served by its own script."""

import ast
import http.client
import re
import subprocess
import sys
import zipfile
from urllib.parse import quote

import bundle
import pytest

from tests import test_live as live
from tests.test_book import HTML, ROOT

pytestmark = pytest.mark.book
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "course.zip"
    done = subprocess.run(
        [sys.executable, ROOT / "_ext/bundle.py", "--out", path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def unpacked(archive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("a reader's folder")
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    return folder / bundle.NAME


@pytest.fixture(scope="module")
def site(unpacked):
    """Where the bundle's own script serves it; in place of `conftest.site`, so that what that one is used for works here too."""
    serve = [sys.executable, "-I", "-S", "serve.py", "--no-browser"]
    with subprocess.Popen(serve, cwd=unpacked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = server.stdout.readline()
            yield re.search(r"http://127\.0\.0\.1:\d+", said)[0]
        finally:
            server.terminate()


def test_it_is_small_enough_for_a_stick_and_has_all_parts(archive, unpacked):
    assert archive.stat().st_size < bundle.LIMIT_MB * 1e6
    assert {path.name for path in (unpacked / "notebooks/labs").iterdir()} == {path.name for path in ROOT.glob("labs/*.ipynb")}
    assert len(list((unpacked / "notebooks/chapters").iterdir())) >= 11
    (wheel,) = (unpacked / "wheel").iterdir()
    words = (unpacked / "README.txt").read_text(encoding="utf-8")
    assert f"pip install --no-index wheel/{wheel.name}" in words
    assert (unpacked / "requirements.txt").read_text().startswith(f"./wheel/{wheel.name}[")
    for named in re.findall(r"(?m)[\w./-]+\.(?:py|txt|html|pdf)\b", words):
        assert (unpacked / named).is_file(), f"README.txt names {named}, which is not there"


def test_its_library_installs_alone_and_counts(unpacked, tmp_path):
    (wheel,) = (unpacked / "wheel").iterdir()
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path)
    code = "from scaling_lib.hardware import chip; import scaling_lib; print(chip('v5e').hbm_bytes, scaling_lib.__file__)"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert str(tmp_path) in done.stdout, done.stderr


def test_the_script_that_serves_runs_on_python_3_9():
    ast.parse((ROOT / "_ext/offline/serve.py").read_text(encoding="utf-8"), feature_version=(3, 9))


def test_every_file_of_the_site_is_served_as_it_was_built_with_the_type_browsers_insist_on(site):
    built = {path.relative_to(HTML).as_posix(): path for path in HTML.rglob("*") if path.is_file()}
    server = http.client.HTTPConnection(site.removeprefix("http://"), timeout=30)
    for name, path in built.items():
        server.request("HEAD", "/" + quote(name))
        answer = server.getresponse()
        answer.read()
        assert answer.status == 200, name
        assert int(answer.headers["Content-Length"]) == path.stat().st_size, name
        assert answer.headers["Content-Type"].startswith(TYPES.get(path.suffix, "")), name
    server.close()


def unharmed(log):
    """Nothing was asked of another host, nothing was missing, nothing failed."""
    assert log.outside() == []
    assert log.missing == []
    assert log.unknown_errors() == []


@pytest.fixture(scope="module")
def context(browser):
    with live.new_context(browser) as context:
        yield context


def test_a_search_finds_a_word_and_leads_to_its_page(site, context):
    page, log = live.watched(context)
    page.goto(f"{site}/search.html?q=all-gather")
    page.locator("#search-results li a", has_text="Sharded matmuls").first.click()
    page.wait_for_url("**/03-sharding.html*")
    assert "all-gather" in page.locator("article").inner_text().lower()
    unharmed(log)
    page.close()


def moved_once(name, chapter, site, context):
    """An explorer comes live on the bundle's page, and its first control moves it."""
    page, log = live.watched(context)
    page.goto(f"{site}/{chapter}.html", wait_until="load")
    explorer = live.Explorer(page, name).start()
    label, move, change = live.MOVES[name][0]
    move(explorer.row(label))
    explorer.comes_to_show(live.STARTS[name] | change)
    unharmed(log)
    page.close()


@pytest.mark.parametrize(("chapter", "name"), [(live.ROOFLINES, "roofline")])
def test_an_explorer_works_with_the_network_off(chapter, name, site, context):
    moved_once(name, chapter, site, context)


@pytest.mark.weekly
@pytest.mark.parametrize(("chapter", "name"), [(c, name) for c, names in live.EXPLORERS.items() for name in names])
def test_every_explorer_works_with_the_network_off(chapter, name, site, context):
    moved_once(name, chapter, site, context)


@pytest.mark.weekly
@pytest.mark.parametrize("doc", live.DOCS)
def test_every_page_opens_with_the_network_off(doc, site, context):
    page, log = live.watched(context)
    page.goto(f"{site}/{doc}.html", wait_until="load")
    assert page.locator("article h1").is_visible()
    unharmed(log)
    page.close()


def test_without_a_built_book_it_says_so_and_writes_nothing(tmp_path):
    with pytest.raises(bundle.BundleError, match="run `make book` first"):
        bundle.write(tmp_path / "none", tmp_path / "no.pdf", tmp_path / "course.zip")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_fails_halfway_leaves_nothing(tmp_path, monkeypatch):
    def fails(folder):
        raise bundle.BundleError("the wheel could not be built: no hatchling")

    monkeypatch.setattr(bundle, "build_wheel", fails)
    with pytest.raises(bundle.BundleError, match="no hatchling"):
        bundle.write(HTML, tmp_path / "no.pdf", tmp_path / "course.zip")
    assert list(tmp_path.iterdir()) == []


def test_the_script_says_what_is_wrong(unpacked, tmp_path, site):
    script = tmp_path / "serve.py"
    script.write_bytes((unpacked / "serve.py").read_bytes())
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == "serve: no folder 'site' beside this file; unpack the whole archive first\n"
    taken = site.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, unpacked / "serve.py", "--port", taken], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"serve: port {taken} cannot be used")
