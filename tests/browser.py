"""What tests share that read the built book in a browser: a server, a Chromium, and what an explorer shows on a page."""

import functools
import http.server
import shutil
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

OURS = "http://127.0.0.1"
HERE = Path(__file__).parent

# No name of a host can be looked up, so that nothing outside is reached, and a page that needs it shows that.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
]

# Reads what an explorer shows inside an element: its own, or one made of the HTML of a view.
SHOWN = (HERE / "shown.js").read_text(encoding="utf-8")


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args, replaced, **more):
        self.replaced = replaced
        super().__init__(*args, **more)

    def log_message(self, *args):
        pass

    def do_GET(self):
        content = self.replaced.get(self.path.partition("?")[0])
        if content is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(self.path.partition("?")[0]))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def copyfile(self, source, outputfile):
        try:
            super().copyfile(source, outputfile)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page was closed while it still loaded


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(folder, replaced=None):
    """Serves a folder on a free port; `replaced` gives other content for some paths. Yields its address."""
    handler = functools.partial(_Handler, directory=str(folder), replaced=replaced or {})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{OURS}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def find(names, what, how, own=""):
    """The first of some programs on PATH, or one of our own; fails with one line that says how to get it."""
    found = next(filter(None, map(shutil.which, names)), None)
    if not found and not (own and Path(own).exists()):
        pytest.fail(f"no {what} found: {how}")
    return found or own


def find_chromium(playwrights_own):
    """The Chromium to test with: one on PATH, or Playwright's own download."""
    how = "apt install chromium, or: python -m playwright install --with-deps chromium"
    return find(("chromium", "chromium-browser", "google-chrome"), "Chromium", how, playwrights_own)


def find_firefox():
    return find(("firefox-esr", "firefox"), "Firefox", "apt install firefox-esr")


def find_node():
    """The Node.js on PATH, or the one that `make` takes from PyPI."""
    return find(("node",), "Node.js", "make book, which brings it, or: apt install nodejs", Path(sys.executable).parent / "node")


def set_theme(page, theme):
    page.evaluate("theme => Object.assign(document.documentElement.dataset, { mode: theme, theme })", theme)


def expected(page, view):
    """What the page has to show for a view: its HTML, read by the same browser in the same way."""
    html = view.numbers + view.svg + view.python + view.link
    return page.evaluate(f"html => ({SHOWN})(Object.assign(document.createElement('div'), {{ innerHTML: html }}))", html)


def shown(explorer):
    """What an explorer shows now."""
    return explorer.evaluate(SHOWN)
