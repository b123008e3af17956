"""`make bench`: how fast things are on this machine. Compared within one run, so that ratios carry over between machines."""

import gzip
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import browser as browsers
import notebooks
from playwright.sync_api import sync_playwright

from scaling_lib import hardware, roofline, sharding
from scaling_lib.hardware import chip
from scaling_lib.show import tables

ROOT = Path(__file__).parents[1]
HTML = ROOT / "_build/html"
CHAPTER, PLAIN = "chapters/01-roofline.html", "chapters/index.html"  # a page with widgets, and one without
STARTS = 5
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


def plan(slice, text):
    """Seconds of one plan, the median over meshes that were not planned for before."""
    shape = hardware.slice_of(slice).shape
    taken = []
    for letters in ("XYZ", "PQR", "LMN", "UVW", "EFG"):
        product = sharding.parse_product(text.translate(str.maketrans("XYZ", letters)))
        mesh, sizes = dict(zip(letters, shape, strict=False)), dict.fromkeys(product.dims, 1024)
        taken.append(seconds(lambda: sharding.matmul_plan(product, sizes, mesh, slice)))  # noqa: B023
    return statistics.median(taken)


def lab_2(records):
    """The lab on the TPU compiler, live or from records."""

    def work():
        os.environ["SCALING_LIB_RECORDS"] = records
        notebooks.run(ROOT / "labs/02-tpus.md")
        del os.environ["SCALING_LIB_RECORDS"]

    return work


def bounds(count=10_000):
    v5e = chip("v5e")
    for m in range(1, count + 1):
        roofline.bound(roofline.matmul(m, 8192, 8192), v5e)


SHARDED = """
from jax import numpy as jnp
from scaling_lib.xla import arrays, tpu
mesh = arrays.mesh(X=16, Y=16)
a, b = arrays.spec(mesh, "A[I_X, J_Y]", I=8192, J=4096), arrays.spec(mesh, "B[J_Y, K]", J=4096, K=16384)
print(tpu.compile(jnp.matmul, a, b, slice="v5e:16x16"))
"""
# The layers of Llama 3 8B, forward and backward, on 16 chips: every weight cut over all of them, 16 sequences of 4096 tokens.
STACK = """
import jax
from jax import numpy as jnp
from scaling_lib.xla import arrays, tpu

mesh = arrays.mesh(X=16)
sizes = dict(L=32, D=4096, F=14336, N=32, K=8, H=128)
shapes = dict(q="[L, D_X, N, H]", k="[L, D_X, K, H]", v="[L, D_X, K, H]", o="[L, N, H, D_X]",
              gate="[L, D_X, F]", up="[L, D_X, F]", down="[L, F, D_X]")
weights = {name: arrays.spec(mesh, text, **{d: n for d, n in sizes.items() if d in text}) for name, text in shapes.items()}

def layer(x, w):
    q, k, v = (jnp.einsum("btd,dnh->btnh", x, w[name]) for name in "qkv")
    x = x + jnp.einsum("btnh,nhd->btd", jax.nn.dot_product_attention(q, k, v, is_causal=True), w["o"])
    hidden = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
    return x + hidden @ w["down"], None

def loss(w, x):
    return jax.lax.scan(jax.checkpoint(layer, prevent_cse=False), x, w)[0].astype(jnp.float32).mean()

x = arrays.spec(mesh, "x[B_X, T, D]", B=16, T=4096, D=4096)
out = {name: arrays.sharding(mesh, text) for name, text in shapes.items()}
print(tpu.compile(jax.grad(loss), weights, x, slice="v5e:4x4", out=out))
"""


# Processor time, so that other work on the machine does not count; start-up of Python and imports left out.
SEARCH = """
import resource, time
from scaling_lib.search import best_training_plans

began = time.process_time()
plans = best_training_plans("Llama-3.1 405B", "v5p:16x16x24", 2048, T=8192).plans
print(plans, time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
# Processor time of one estimate, of batches that were not priced before.
ONE_SERVER = """
import time
from scaling_lib.inference import Layout, serve

began, where = time.process_time(), ("Llama-3 70B", "v5e:4x4", Layout(tensor=8, kv_batch=2))
for batch in range(1, 201):
    serve(*where, input=2048, output=256, batch=batch)
print("one server priced", 1e3 * (time.process_time() - began) / 200, sep=":")
"""
# Processor time of all servers of one generation.
PARETO = """
import time
from scaling_lib.inference import Layout
from scaling_lib.search import serving_pareto

for name, chip in (("Llama-3 70B", "v5e"), ("Llama-3 70B", "v5p"), ("DeepSeek-V3", "tpu7x")):
    began = time.process_time()
    serving_pareto(name, chip, input=2048, output=256, base=Layout(weights="int8", kv="int8"))
    print(f"{name} on all {chip}", time.process_time() - began, sep=":")
"""
# Processor time of 100,000 requests at three quarters of what each engine can do; the report included.
SERVED = """
import time
from dataclasses import replace
from scaling_lib.inference import Layout
from scaling_lib.serving import Continuous, Disaggregated, Geometric, Poisson, Server, Static, Workload, simulate_serving

server = Server.of("Llama-3 70B", "v5e:4x4", Layout(tensor=8, kv_batch=2), batch=64, context=8192)
engines = {
    "static": Static(server, 64), "continuous": Continuous(server, 64), "chunks of 512": Continuous(server, 64, chunk=512),
    "2 + 1 servers apart": Disaggregated(server, server, 64, prefill_servers=2),
}
for name, engine in engines.items():
    workload = Workload(arrivals=Poisson(1), prompt=Geometric(1024, most=4096), output=Geometric(256, most=4096), requests=2000)
    rate = 0.75 * simulate_serving(workload, engine).capacity_per_s
    workload = replace(workload, arrivals=Poisson(rate), requests=100_000)
    began = time.process_time()
    report = simulate_serving(workload, engine)
    print(name, time.process_time() - began, sep=":")
    assert not report.overloaded
"""
# The fastest search on PyPI that was found: of the same kind of plan, for GPUs.
PEER = """
import time
from mlsysim import Models, Systems
from mlsysim.solvers import DistributedModel

plans, began = [(t, p, m) for t in (1, 2, 4, 8) for p in (1, 2, 4, 8) for m in (1, 2, 4, 8)], time.process_time()
for t, p, m in plans:
    DistributedModel().solve(Models.Language.Llama3_70B, Systems.Clusters.Research_256,
                             batch_size=1024, tp_size=t, pp_size=p, microbatch_count=m, seq_len=4096)
print(len(plans), time.process_time() - began)
"""


def search():
    """What is said of the search, with limits, and its plans a second beside those of a peer, where that is installed."""

    def figures(code):
        out = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout
        return list(map(float, out.split()))

    plans, taken, resident = figures(SEARCH)
    limited = {
        f"search of {plans / 1e6:.1f} million plans, 405B on v5p:16x16x24 (s)": (taken, 5),
        "one plan of them, all included (µs)": (taken * 1e6 / plans, 1),
        "resident then (MB)": (resident / 1e6, 1000),
    }
    rates = {"plans a second, this search": plans / taken}
    if importlib.util.find_spec("mlsysim"):
        plans, taken = figures(PEER)
        rates["plans a second, mlsysim"] = plans / taken
    return rates, limited


def served():
    """What simulating servers takes, looking for the best ones and pricing one, with limits."""

    def figures(code):
        out = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True).stdout
        return {name: float(seconds) for name, seconds in (line.split(":") for line in out.splitlines())}

    simulated = {f"100,000 requests served, {name} (s)": (taken, 3) for name, taken in figures(SERVED).items()}
    fronts = {f"Pareto front of {name} (s)": (taken, 2) for name, taken in figures(PARETO).items()}
    return simulated | fronts | {f"{name} (ms)": (taken, 2) for name, taken in figures(ONE_SERVER).items()}


# Both run in the page and measure there; each ends with the next frame that the browser draws.
CLICK = """() => new Promise((done) => {
  const cell = document.querySelector(".tag_live:has(.explorer-roofline)"), began = performance.now();
  new MutationObserver(() => {
    if (cell.dataset.live !== "loading") requestAnimationFrame(() => done([cell.dataset.live, performance.now() - began]));
  }).observe(cell, { attributeFilter: ["data-live"] });
  cell.querySelector(".live-bar button").click();
})"""
STEP = """(key) => new Promise((done) => {
  const explorer = document.querySelector(".explorer-roofline"), began = performance.now();
  const words = () => explorer.querySelector(".explorer-words").textContent, before = words();
  new MutationObserver((_, observer) => {
    if (words() === before) return;
    observer.disconnect();
    requestAnimationFrame(() => done(performance.now() - began));
  }).observe(explorer, { childList: true, subtree: true, characterData: true });
  explorer.querySelector("[role=slider]").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
})"""


def megabytes(urls):
    """What these files of the site weigh as a server would send them: with gzip, unless that is larger."""
    files = {HTML / unquote(urlsplit(url).path).lstrip("/") for url in urls if url.startswith(browsers.OURS)}
    contents = [path.read_bytes() for path in files if path.is_file()]
    return sum(min(len(content), len(gzip.compress(content))) for content in contents) / 1e6


@contextmanager
def page_with_log(browser):
    """A page without anything in its cache, and the addresses that it asks for."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    urls = []
    context.on("request", lambda request: urls.append(request.url))
    yield context.new_page(), urls
    context.close()


def live():
    """Speeds and weights of the built pages in Chromium, on localhost."""
    clicks, steps = [], []
    with browsers.serve(HTML) as site, sync_playwright() as playwright:
        found = browsers.find_chromium(playwright.chromium.executable_path)
        browser = playwright.chromium.launch(executable_path=found, args=browsers.FLAGS)
        with page_with_log(browser) as (page, urls):
            page.goto(f"{site}/{PLAIN}", wait_until="networkidle")
            plain = megabytes(urls)
        for _ in range(STARTS):
            with page_with_log(browser) as (page, urls):
                page.goto(f"{site}/{CHAPTER}", wait_until="networkidle")
                widgets, before = megabytes(urls), set(urls)
                state, milliseconds = page.evaluate(CLICK)
                assert state == "live", page.locator(".live-error").all_inner_texts()
                clicks.append(milliseconds / 1000)
                after = megabytes(set(urls) - before)
                steps += [page.evaluate(STEP, key) for key in ["ArrowRight"] * 5 + ["ArrowLeft"] * 5]
        browser.close()
    return {
        f"click to interactive, median of {STARTS} cold starts (s)": (statistics.median(clicks), 4),
        "slider step, median (ms)": (statistics.median(steps), 100),
        "sent after the click, gzip (MB)": (after, 7),
        "page with widgets, gzip (MB)": (widgets, 2),
        "page without widgets, gzip (MB)": (plain, 1),
    }


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
    limited = {
        "a sharded matmul for v5e:16x16, start-up included (s)": (seconds(python(SHARDED), 3), 3),
        "32 layers of an 8B model for v5e:4x4, forward and backward (s)": (seconds(python(STACK)), 60),
        "a plan on two axes (ms)": (1e3 * plan("v5e:16x16", "A[B_X, I, J_Y] · W[B_X, J_Y, K] -> C[B_X, I, K_Y]"), 5),
        "a plan on three axes (ms)": (1e3 * plan("v5p:4x4x4", "A[B_X, S, D_Y] · T[D_X, H_Z, K] -> C[B, S_X, H_YZ, K]"), 100),
        "lab 2, compiled live (s)": (seconds(lab_2("")), 60),
        "lab 2 from records (s)": (seconds(lab_2("only")), 20),
    }
    rates, of_search = search()
    results |= rates
    limited |= of_search | served() | live()
    rows = [{"what": what, "value": f"{value:.3g}", "limit": ""} for what, value in results.items()]
    rows += [{"what": what, "value": f"{value:.3g}", "limit": f"{limit:g}"} for what, (value, limit) in limited.items()]
    print(tables.Table(rows))
    results |= {what: value for what, (value, _) in limited.items()}
    (ROOT / "_build/bench.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
