"""Every page of the built book in headless Chromium: phone and desktop, light and dark."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Error, sync_playwright

from tests.test_book import DOCS, HTML, ROOT

pytestmark = pytest.mark.book
SCREENS = ROOT / "_build/screens"
OURS = "http://127.0.0.1"

# Errors that Jupyter Book's own scripts raise on every page, harmless.
KNOWN_ERRORS = ("THEBE_JS_URL",)


@pytest.fixture(scope="module")
def site():
    handler = functools.partial(QuietHandler, directory=str(HTML))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"{OURS}:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def find_chromium(playwrights_own):
    """The Chromium to test with: one on PATH, or Playwright's own download."""
    on_path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not on_path and not Path(playwrights_own).exists():
        pytest.fail("no Chromium found: apt install chromium, or: python -m playwright install --with-deps chromium")
    return on_path or playwrights_own


def test_without_a_chromium_the_check_fails_and_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="no Chromium found: apt install chromium"):
        find_chromium(tmp_path / "none")
    (tmp_path / "own").touch()
    assert find_chromium(tmp_path / "own") == tmp_path / "own"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        found = find_chromium(playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=found, args=flags)
        yield browser
        browser.close()


@pytest.fixture(params=[390, 1280], ids=["phone", "desktop"], scope="module")
def width(request):
    return request.param


@pytest.fixture(params=["light", "dark"], scope="module")
def context(request, browser, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=request.param)
    context.route(lambda url: not url.startswith(OURS), lambda route: route.abort())  # nothing outside can be reached
    context.add_init_script(f"localStorage.setItem('mode', '{request.param}'); localStorage.setItem('theme', '{request.param}')")
    yield context, width, request.param
    context.close()


@pytest.mark.parametrize("doc", DOCS)
def test_a_page_fits_its_screen_and_runs_without_errors(doc, site, context):
    context, width, theme = context
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(f"{site}/{doc}.html", wait_until="load", timeout=60_000)
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        broken = page.evaluate("[...document.querySelectorAll('article img')].filter(i => !i.naturalWidth).map(i => i.src)")
        SCREENS.mkdir(exist_ok=True)
        page.screenshot(path=SCREENS / f"{doc.replace('/', '-')}-{width}-{theme}.png", full_page=True)
    except Error as error:
        pytest.fail(f"{doc}: {error}")
    finally:
        page.close()
    assert too_wide <= 0, f"{doc} is {too_wide} px wider than a screen of {width} px"
    assert broken == []
    assert [e for e in errors if not any(known in e for known in KNOWN_ERRORS)] == []
