"""Fixtures of the tests in browsers."""

import pytest
from playwright.sync_api import sync_playwright

from tests import browser as browsers
from tests.test_book import HTML


@pytest.fixture(scope="module")
def site():
    with browsers.serve(HTML) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        found = browsers.find_chromium(playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=found, args=browsers.FLAGS)
        yield browser
        browser.close()
