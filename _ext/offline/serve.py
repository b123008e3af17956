"""Shows the course in a browser without internet.

Any Python from 3.9 on runs it, with nothing installed. Only this machine sees the pages; `--host 0.0.0.0` shows them to others.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import pathlib
import webbrowser
from typing import Any

SITE = pathlib.Path(__file__).resolve().parent / "site"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ipynb": "application/json",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".woff2": "font/woff2",
}


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files with the types that browsers insist on, whatever this machine's own list says."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | TYPES

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing of what goes well."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        """Sends a file; a reader may leave before it has all come."""
        try:
            super().copyfile(source, outputfile)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


def main() -> None:
    """Serves until Control-C."""
    parser = argparse.ArgumentParser(description="Shows the course in a browser without internet.")
    parser.add_argument("--port", type=int, default=0, help="a fixed port; otherwise one that is free")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 shows the pages to others in this network")
    parser.add_argument("--no-browser", action="store_true", help="only say the address")
    given = parser.parse_args()
    if not (SITE / "index.html").is_file():
        parser.exit(1, "serve: no folder 'site' beside this file; unpack the whole archive first\n")
    try:
        server = http.server.ThreadingHTTPServer((given.host, given.port), functools.partial(Handler, directory=str(SITE)))
    except OSError as error:
        parser.exit(1, f"serve: port {given.port} cannot be used ({error.strerror}); leave --port out to get a free one\n")
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"The course is at {address} until you press Control-C.", flush=True)
    if not given.no_browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
