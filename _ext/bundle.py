"""The course in one archive for a place without internet: `python _ext/bundle.py`, after the book is built.

Site, students' notebooks, the library's wheel, the PDF if it was made, and a script that serves the site.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import editions
import nbformat
import notebooks

ROOT = Path(__file__).parents[1]
OFFLINE = Path(__file__).parent / "offline"
NAME = "scaling-course-offline"  # also the folder that unpacking makes
LIMIT_MB = 80
EXTRAS = "show,jax,labs,cli,serving"
SMALL_ALREADY = {".png", ".pdf", ".whl", ".zip", ".woff", ".woff2"}


class BundleError(Exception):
    """Why there is no bundle, in one line."""


def build_wheel(folder: Path) -> Path:
    """The library's wheel, in a folder."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BundleError(f"the wheel could not be built: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def contents(html: Path, pdf: Path, wheel: Path) -> Iterator[tuple[str, Path | str]]:
    """What goes into the bundle: a path in it, and a file or a text."""
    has_pdf = pdf.is_file()
    words = "    Or read scaling-course.pdf, the whole book with its solutions at the end.\n" if has_pdf else ""
    yield "README.txt", (OFFLINE / "README.txt").read_text(encoding="utf-8").format(pdf=words, wheel=wheel.name)
    yield "requirements.txt", f"./wheel/{wheel.name}[{EXTRAS}]\njupyterlab\n"
    yield "serve.py", OFFLINE / "serve.py"
    yield f"wheel/{wheel.name}", wheel
    if has_pdf:
        yield "scaling-course.pdf", pdf
    for name in ("LICENSE", "LICENSE-TEXT"):
        yield name, ROOT / name
    for path in sorted((ROOT / "constraints").glob("*.txt")):
        yield f"constraints/{path.name}", path
    for page in notebooks.pages():
        text: str = nbformat.writes(editions.student(page))  # type: ignore[no-untyped-call]
        yield f"notebooks/{page.relative_to(ROOT).with_suffix('.ipynb').as_posix()}", text
    for path in sorted(path for path in html.rglob("*") if path.is_file()):
        yield f"site/{path.relative_to(html).as_posix()}", path


def write(html: Path, pdf: Path, out: Path) -> int:
    """Writes the archive and returns its bytes."""
    if not (html / "index.html").is_file():
        raise BundleError(f"no {html}/index.html: run `make book` first")
    unfinished = out.with_suffix(".part")
    try:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(unfinished, "w") as archive:
            for name, content in contents(html, pdf, build_wheel(Path(folder))):
                method = zipfile.ZIP_STORED if Path(name).suffix in SMALL_ALREADY else zipfile.ZIP_DEFLATED
                if isinstance(content, str):
                    archive.writestr(f"{NAME}/{name}", content, method)
                else:
                    archive.write(content, f"{NAME}/{name}", method)
        size = unfinished.stat().st_size
        if size > LIMIT_MB * 1e6:
            raise BundleError(f"{size / 1e6:.0f} MB; a bundle may have {LIMIT_MB}")
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
    return size


def main() -> int:
    """Bundles what `make book` built."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--html", type=Path, default=ROOT / "_build/html", help="the built site")
    parser.add_argument("--pdf", type=Path, default=ROOT / "_build/scaling-course.pdf", help="left out if it does not exist")
    parser.add_argument("--out", type=Path, default=ROOT / f"_build/{NAME}.zip")
    given = parser.parse_args()
    try:
        size = write(given.html, given.pdf, given.out)
    except BundleError as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    print(f"{given.out}: {size / 1e6:.1f} MB, {'with' if given.pdf.is_file() else 'without'} the PDF")
    return 0


if __name__ == "__main__":
    sys.exit(main())
