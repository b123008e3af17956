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


LIVE = {"live": "01", "roofline": "01", "matmul": "01", "torus": "02", "sharding": "03"}
"""Fixtures that bring a chapter live, and its number."""


def pytest_collection_modifyitems(items):
    """In browsers, tests of one live page go to one process, which loads it once; those of other files stay together."""
    for item in items:
        if item.get_closest_marker("book"):
            given = item.callspec.params if hasattr(item, "callspec") else {}
            chapter = given.get("chapter", "").removeprefix("chapters/")[:2]
            of = chapter or next((LIVE[name] for name in item.fixturenames if name in LIVE), "")
            page = given["doc"] if "visited" in item.fixturenames else of
            item.add_marker(pytest.mark.xdist_group(f"{item.path.stem} {page}"))


@pytest.fixture(autouse=True)
def no_columns(monkeypatch):
    """Workers of pytest-xdist set it; what the command line prints into a pipe must not depend on it."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def from_records(monkeypatch):
    """Programs for the TPU are read, never compiled."""
    monkeypatch.setenv("SCALING_LIB_RECORDS", "only")


@pytest.fixture(scope="module")
def compiles_quickly():
    """Small programs that run on a CPU take longer to compile than to run. Not for `tpu.compile`: it would optimize less too."""
    import jax

    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


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
