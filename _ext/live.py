"""Sphinx extension for live pages: a cell tagged `live` runs in the reader's browser, on the very files of the library.

It stages Pyodide, the widgets' front end, RequireJS and MathJax from `node_modules` into the built site, and packs the library
with the few packages that explorers need. No page of the book then asks another host for anything. A live cell that could not
run there is a warning, which `make book` takes for an error.
"""

import ast
import hashlib
import importlib.util
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

_LOGGER = logging.getLogger(__name__)
_ASSETS = Path(__file__).parent / "live"
_PACKAGES = ("traitlets", "comm", "ipywidgets")  # shipped whole, without their tests
_LIBRARY = "scaling_lib"  # shipped without what a browser cannot import
_NEEDS_JAX = "xla"  # the room of the library that does not ship at all, not even its modules that only read text

# Of the standard library, what Pyodide leaves out.
_ABSENT = {"curses", "dbm", "ensurepip", "grp", "pwd", "readline", "resource", "syslog", "tkinter", "turtle", "venv"}
_BUILT_IN = {*sys.stdlib_module_names, *_PACKAGES, _LIBRARY} - _ABSENT

_MANAGER = "@jupyter-widgets/html-manager/dist"
_CDN = "https://cdn.jsdelivr.net/npm/"  # where html-manager looks for widgets that it does not know
_REQUIRE, _EMBED, _MATHJAX = "live/require.js", f"live/amd/{_MANAGER}/embed-amd.js", "live/mathjax/tex-mml-chtml.js"

# What is copied as it is: folder in node_modules, patterns, folder in _static/live.
_COPIED = (
    ("pyodide", ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"), "pyodide"),
    (_MANAGER, ("*.woff2",), "amd/fonts"),
    (
        "mathjax/es5",
        (
            "tex-mml-chtml.js",
            "input/tex/extensions/*.js",
            "output/chtml/fonts/woff-v2/*.woff",
            "a11y/*.js",  # speech and the explorer of formulas, which a reader can choose in MathJax's menu
            "sre/mathmaps/base.json",
            "sre/mathmaps/en.json",
            "sre/mathmaps/nemeth.json",
        ),
        "mathjax",
    ),
)

# The front end looks for its fonts below RequireJS's baseUrl, by default the page's own folder.
# It also knows only MathJax 2, whose Hub it calls for every text that may hold math.
_AFTER_REQUIRE = """
requirejs.config({ baseUrl: new URL("amd/", document.currentScript.src).href });
addEventListener("load", () => {
  const typeset = ([, , element]) => window.MathJax.typesetPromise?.([element]);
  if (window.MathJax && !window.MathJax.Hub) window.MathJax.Hub = { Queue: typeset };
});
"""


def imports(code: Iterable[ast.AST]) -> Iterator[str]:
    """Dotted names that these statements import; `from a import b` gives both `a` and `a.b`, which may be a module."""
    for node in code:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


@dataclass(frozen=True)
class Pack:
    """What goes into the browser: `files` by path, and for each module of the library `left_out`, the import to blame."""

    files: Mapping[str, bytes]
    left_out: Mapping[str, str]

    def blame(self, code: Iterable[ast.AST]) -> str:
        """What `code` imports that the browser does not have, or nothing."""
        return next((reason for name in imports(code) if (reason := _missing(name, self.left_out))), "")


def _missing(name: str, left_out: Mapping[str, str]) -> str:
    if name in left_out:
        return f"{name} (it needs {left_out[name]})"
    top = name.partition(".")[0]
    return "" if top in _BUILT_IN else top


def pack(library: Path, packages: Iterable[Path] = ()) -> Pack:
    """Packs a library in the folder `library` and whole `packages`.

    Of the library, its room `xla` is left out, and the modules that import what no browser has.
    """
    files = {path: source for root in packages for path, source in _sources(root).items()}
    own, room = _sources(library), f"{library.name}/{_NEEDS_JAX}/"
    trees = {_module(path): ast.parse(source).body for path, source in own.items() if path.endswith(".py")}
    left_out = {_module(path): "jax" for path in own if path.startswith(room)}
    while True:  # a module that imports one left out is left out, too
        reasons = {name: Pack({}, left_out).blame(body) for name, body in trees.items() if name not in left_out}
        if not any(reasons.values()):
            break
        left_out |= {name: reason for name, reason in reasons.items() if reason}
    return Pack(files | {path: source for path, source in own.items() if _module(path) not in left_out}, left_out)


def _sources(root: Path) -> dict[str, bytes]:
    kept = (path for path in root.rglob("*") if path.suffix in {".py", ".csv"} and "tests" not in path.parts)
    return {path.relative_to(root.parent).as_posix(): path.read_bytes() for path in sorted(kept)}


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def _shipped() -> Pack:
    library, *packages = (_folder(name) for name in (_LIBRARY, *_PACKAGES))
    return pack(library, packages)


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ExtensionError(f"live pages need the package {package}")
    return Path(spec.origin).parent


def _configure(app: Sphinx, config: Config) -> None:
    config.mathjax_path = _MATHJAX
    config.nb_ipywidgets_js = {_REQUIRE: {}, _EMBED: {}}


def _stage(app: Sphinx) -> None:
    """Fills `_static/live` of the built site.

    Never the book's own `_static`: Jupyter Book puts a script element for every .js file there on every page.
    """
    if app.builder.format != "html":
        return
    npm = Path(app.srcdir, app.config.live_npm).resolve()
    if not (npm / "pyodide").is_dir():
        raise ExtensionError(f"live pages need {npm}: run `make book`, or `npm ci` beside package.json")
    static = Path(app.outdir, "_static")
    live = static / "live"
    shutil.rmtree(live, ignore_errors=True)
    for source, patterns, target in _COPIED:
        for path in (path for pattern in patterns for path in (npm / source).glob(pattern)):
            _write(live / target / path.relative_to(npm / source), path.read_bytes())
    for name in ("live.mjs", "live.css", "worker.mjs"):
        _write(live / name, (_ASSETS / name).read_bytes())
    _write(static / _REQUIRE, (npm / "requirejs/require.js").read_bytes() + _AFTER_REQUIRE.encode())
    _write(static / _EMBED, _at_home((npm / _MANAGER / "embed-amd.js").read_bytes()))
    _write_manifest(live)


def _at_home(front_end: bytes) -> bytes:
    """The widgets' front end without its way to another host.

    It comes as two modules, which look for their fonts each in a folder of its own, and so load them twice; here in one.
    """
    one_folder = re.sub(rb'\b\w\.p\+(?="[0-9a-f]{20}\.)', b'requirejs.toUrl("fonts/")+', front_end)
    return one_folder.replace(_CDN.encode(), b"./")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _write_manifest(live: Path) -> None:
    """Names the archive and what is to be loaded. Pages cannot: Sphinx does not write an unchanged page again."""
    files = {**_shipped().files, "live_kernel.py": (_ASSETS / "live_kernel.py").read_bytes()}
    digest = hashlib.sha256(repr(sorted(files.items())).encode() + (live / "worker.mjs").read_bytes()).hexdigest()[:12]
    archive = live / f"python-{digest}.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path, source in sorted(files.items()):  # always with the same date, so that equal content makes an equal file
            packed.writestr(zipfile.ZipInfo(path), source, zipfile.ZIP_DEFLATED, compresslevel=9)
    loaded = [archive, *(live / "pyodide" / name for name in ("pyodide.asm.wasm", "python_stdlib.zip"))]
    sizes = {path.relative_to(live).as_posix(): path.stat().st_size for path in loaded}
    manifest = {"archive": archive.name, "worker": f"worker.mjs?v={digest}", "sizes": sizes}
    _write(live / "manifest.json", json.dumps(manifest, indent=1).encode())


class LiveCells(SphinxPostTransform):
    """Checks the live cells of a page, and keeps the static figure that stands in for their widgets."""

    default_priority = 3  # at 4, MyST-NB keeps but one representation of an output: the widget
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Warns of what would fail in the browser."""
        for cell in _live_cells(self.document):
            if complaint := _complaint(cell):
                _LOGGER.warning("live cell: %s", complaint, location=cell, type="live")
            if "tag_live" in cell["classes"] and not _keep_static(cell):
                _LOGGER.warning(
                    "live cell: its widget has no text/html for readers without JavaScript", location=cell, type="live"
                )


def _live_cells(document: nodes.document) -> list[nodes.container]:
    return [cell for cell in document.findall(nodes.container) if {"tag_live", "tag_live-setup"} & {*cell["classes"]}]


def _complaint(cell: nodes.container) -> str:
    inputs = [part for part in cell.findall(nodes.container) if "cell_input" in part["classes"]]
    if not inputs:
        return "the page runs the code that it shows, so use hide-input, not remove-input"
    try:
        code = ast.walk(ast.parse(inputs[0].astext()))
    except SyntaxError as error:
        return f"not plain Python: {error.msg}"
    missing = _shipped().blame(code)
    return f"imports {missing}, which no browser has" if missing else ""


def _keep_static(cell: nodes.container) -> bool:
    """Puts the text/html of each widget behind it; false if one has none. The style sheet shows one of the two."""
    bundles = [part for part in cell.findall(nodes.container) if part.get("nb_element") == "mime_bundle"]
    complete = True
    for bundle in bundles:
        views = {part["mime_type"]: part for part in bundle.children}
        if "application/vnd.jupyter.widget-view+json" not in views:
            continue
        if html := views.get("text/html"):
            static = nodes.container("", *(child.deepcopy() for child in html.children), classes=["live-static"])
            bundle.parent.insert(bundle.parent.index(bundle) + 1, static)
        complete = complete and html is not None
    return complete


def _add_assets(app: Sphinx, page: str, template: str, context: dict[str, Any], document: nodes.document | None) -> None:
    if document is not None and _live_cells(document):
        app.add_css_file("live/live.css")
        app.add_js_file("live/live.mjs", type="module")


def _without_drawn_icons(app: Sphinx, exception: Exception | None) -> None:
    """The theme ships every icon twice. A font has them, so a script of 1.5 MB that draws them anew is more than a page needs."""
    script = Path(app.outdir, "_static/scripts/fontawesome.js")
    if exception is None and script.exists():
        script.write_text("/* The icons come from the font. */\n", encoding="utf-8")


def _without_thebe(app: Sphinx) -> None:
    """Jupyter Book always adds sphinx-thebe, which puts an address of unpkg.com and a script error on every page."""
    app.setup_extension("sphinx_thebe")
    for listener in [each for group in app.events.listeners.values() for each in group]:
        if listener.handler.__module__ == "sphinx_thebe":
            app.disconnect(listener.id)
    app.registry.css_files[:] = [each for each in app.registry.css_files if each[0] != "sphinx-thebe.css"]


def setup(app: Sphinx) -> dict[str, Any]:
    """Stages at the start, checks page by page."""
    app.setup_extension("myst_nb")
    _without_thebe(app)
    app.add_config_value("live_npm", "node_modules", "html")
    app.add_post_transform(LiveCells)
    app.connect("config-inited", _configure)
    app.connect("builder-inited", _stage)
    app.connect("html-page-context", _add_assets)
    app.connect("build-finished", _without_drawn_icons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
