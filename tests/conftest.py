"""Fixtures of the tests in browsers, and the simulated devices that all tests of one process share."""

import sys

import pytest
from playwright.sync_api import sync_playwright

from tests import browser as browsers
from tests.test_book import HTML


def pytest_collection_finish(session):
    """Before the first test starts JAX with fewer devices than a later one needs."""
    if "jax" in sys.modules:
        from scaling_lib.xla import simulate

        simulate.mesh(X=16)


@pytest.fixture(autouse=True)
def no_columns(monkeypatch):
    """Workers of pytest-xdist set it; what the command line prints into a pipe must not depend on it."""
    monkeypatch.delenv("COLUMNS", raising=False)


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
