"""`make bench`: how fast things are on this machine. Compared within one run, so that ratios carry over between machines."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import notebooks

from scaling_lib import roofline
from scaling_lib.hardware import chip
from scaling_lib.show import tables

ROOT = Path(__file__).parents[1]
CORE = "import scaling_lib.units, scaling_lib.catalog, scaling_lib.hardware, scaling_lib.roofline"


def seconds(work, repeats=1):
    """Median seconds of `work` over some repeats."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def python(code):
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def make(*targets):
    return lambda: subprocess.run(["make", *targets], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def bounds(count=10_000):
    v5e = chip("v5e")
    for m in range(1, count + 1):
        roofline.bound(roofline.matmul(m, 8192, 8192), v5e)


def main():
    bare, core = seconds(python("pass"), 9), seconds(python(CORE), 9)
    results = {
        "start Python alone (s)": bare,
        "import the core on top (s)": core - bare,
        "import the core / start Python": (core - bare) / bare,
        "one roofline bound (µs)": seconds(bounds, 3) * 1e6 / 10_000,
        "make draft of chapter 1 (s)": seconds(make("draft", "PAGE=chapters/01-roofline.md")),
        "make book (s)": seconds(make("book")),
        "lab 1, executed (s)": seconds(lambda: notebooks.run(ROOT / "labs/01-roofline.md")),
    }
    print(tables.Table([{"what": what, "value": f"{value:.3g}"} for what, value in results.items()]))
    (ROOT / "_build/bench.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
