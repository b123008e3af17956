"""Every page of the built book in headless Chromium: phone and desktop, light and dark."""

import os

import pytest
from playwright.sync_api import Error

from tests.browser import find_chromium, find_firefox, find_node
from tests.test_book import DOCS, ROOT

pytestmark = pytest.mark.book
SCREENS = ROOT / "_build/screens"


def test_without_a_chromium_the_check_fails_and_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="no Chromium found: apt install chromium"):
        find_chromium(tmp_path / "none")
    (tmp_path / "own").touch()
    assert find_chromium(tmp_path / "own") == tmp_path / "own"


def test_without_a_firefox_or_a_node_the_check_fails_and_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(pytest.fail.Exception, match="no Firefox found: apt install firefox-esr"):
        find_firefox()
    with pytest.raises(pytest.fail.Exception, match=r"no Node\.js found: make book"):
        find_node()


# Figures load late, when a reader comes near them: ask for all, and name those that do not come.
BROKEN_IMAGES = """() => Promise.all([...document.querySelectorAll("article img")].map(image => {
  image.loading = "eager";
  return image.decode().then(() => null, () => image.src);
})).then(found => found.filter(Boolean))"""


@pytest.fixture(params=[(390, "dark"), (1280, "light")], ids=["phone-dark", "desktop-light"], scope="module")
def context(request, browser):
    width, theme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    context.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
    yield context, width, theme
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
        broken = page.evaluate(BROKEN_IMAGES)
        if "SCREENS" in os.environ:
            SCREENS.mkdir(exist_ok=True)
            page.screenshot(path=SCREENS / f"{doc.replace('/', '-')}-{width}-{theme}.png", full_page=True)
    except Error as error:
        pytest.fail(f"{doc}: {error}")
    finally:
        page.close()
    assert too_wide <= 0, f"{doc} is {too_wide} px wider than a screen of {width} px"
    assert broken == []
    assert errors == []
