"""The live explorers on the built page: they show what the library says in this process, however a reader works them."""

import ast
import contextlib
import dataclasses
import io
import json
import re
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from html import unescape
from pathlib import PurePosixPath
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import TimeoutError as TooLate

from scaling_lib import units
from scaling_lib.catalog.schedules import schedules
from scaling_lib.show import explorers
from scaling_lib.show.explorers.batch import USUAL as FOR_EIGHT
from scaling_lib.show.explorers.cache import EXAMPLES, USUAL
from scaling_lib.show.explorers.tiling import EXAMPLES as TILED
from scaling_lib.transformer import MODELS
from tests import browser as browsers
from tests.browser import OURS, expected, set_theme, shown
from tests.test_book import DOCS, HTML, ROOT

pytestmark = pytest.mark.book
ROOFLINES, TPUS, SHARDING = "chapters/01-roofline", "chapters/02-tpus", "chapters/03-sharding"
TRANSFORMERS, TRAINING, LLAMA = "chapters/04-transformers", "chapters/05-training", "chapters/06-training-llama"
INFERENCE, PROFILING = "chapters/07-inference", "chapters/09-profiling"
LIVE = HTML / "_static/live"
AXE = ROOT / "node_modules/axe-core/axe.min.js"
EXPLORERS = {
    ROOFLINES: ("roofline", "matmul"),
    TPUS: ("memory", "torus"),
    SHARDING: ("sharding",),
    TRANSFORMERS: ("model", "cache"),
    TRAINING: ("plan",),
    LLAMA: ("budget",),
    INFERENCE: ("batch", "serving", "speculation"),
    PROFILING: ("tiling", "schedule"),
}
VIEWS = {name: getattr(explorers, f"{name}_view") for names in EXPLORERS.values() for name in names}
STARTS = {
    "roofline": {"chip": "v5e", "dtype": "bf16", "log2_m": 5, "k": 8192, "n": 8192},
    "matmul": {"m": 32, "k": 8192, "n": 28672, "x": "bf16", "w": "int8", "chip": "v5e"},
    "memory": {"chip": "v5e", "dtype": "bf16", "log2_elements": 24},
    "torus": {"chip": "v5e", "shape": "4x4", "a": "0, 0", "b": "3, 3"},
    "sharding": {
        "slice": "v5e:4x4", "mesh": "X=4, Y=4", "product": "A[I, J_X] · B[J, K_Y] -> C[I, K_Y]",
        "sizes": "I=8192, J=4096, K=16384", "dtype": "bf16", "objective": "sum", "steps": "all",
    },
    "model": {"model": "Llama-3 8B", "T": 8192, "B": 1, "dtype": "bf16", "area": "parameters"},
    "cache": {"models": USUAL, "S": 32768, "B": 1, "dtype": "bf16", "chip": "v5e"},
    "plan": {
        "model": "Llama-3 70B", "slice": "v5p:8x8x8", "count": 1, "batch": 512, "T": 8192, "data": 1, "fsdp": "rest", "tensor": 4,
        "context": 1, "pipeline": 1, "expert": 1, "zero": 3, "microbatches": 1, "schedule": "1f1b", "virtual_stages": 1,
        "uneven_stages": False, "remat": "full", "sequence_parallel": True, "loss_chunks": 1, "efficiency": 1.0,
    },
    "budget": {
        "model": "Llama-3 70B", "chip": "v5p", "tokens": 15 * 10**12, "batch_tokens": 2**22, "T": 8192,
        "usd_per_chip_hour": "list", "efficiency": 0.7, "failures": "none", "checkpoint_s": 30, "restart_s": 600,
        "slice": "v5p:8x8x8",
    },
    "batch": {"models": FOR_EIGHT, "slice": "v5e:2x4", "S": 8192, "weights": "bf16", "kv": "bf16"},
    "serving": {
        "model": "Llama-3 8B", "chip": "v5e", "input": 2048, "output": 256, "weights": "bf16", "kv": "bf16", "math": "bf16",
        "tpot_ms": 25.0, "ttft_ms": "any", "usd_per_chip_hour": "list", "against": "USD a million tokens",
    },
    "speculation": {
        "model": "Llama-3 8B", "draft": "Llama-3.2 1B", "slice": "v5e:2x4", "tensor": 8, "batch": 8, "context": 2176,
        "acceptance": 0.8, "guesses": 4,
    },
    "tiling": {"shape": "[8, 3000, 64]", "dtype": "bf16", "chip": "v5e", "order": "as the compiler likes"},
    "schedule": {"program": "multiply while gathering", "operation": "collective-permute-start", "center": 50, "zoom": 1},
}  # fmt: skip

CONFIG = {
    "model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 5, "num_attention_heads": 24, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 7168, "vocab_size": 1001, "tie_word_embeddings": False, "rope_scaling": None,
}  # fmt: skip

# Page errors that are not ours, with the reason.
KNOWN_ERRORS: dict[str, str] = {}


@dataclass
class Log:
    """What the pages of a context asked for, and what went wrong in them."""

    requests: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def outside(self):
        return [url for url in self.requests if not url.startswith((f"{OURS}:", "data:", f"blob:{OURS}:"))]

    def unknown_errors(self):
        return [error for error in self.errors if not any(known in error for known in KNOWN_ERRORS)]


@contextlib.contextmanager
def new_context(browser, **options):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", **options)
    context.set_default_timeout(30_000)
    try:
        yield context
    finally:
        context.close()


def watched(context):
    """A new page, and the record of it."""
    page, log = context.new_page(), Log()
    page.on("request", lambda request: log.requests.append(request.url))
    page.on("response", lambda answer: log.missing.append(answer.url) if answer.status >= 400 else None)
    page.on("pageerror", lambda error: log.errors.append(str(error)))
    return page, log


@pytest.fixture(scope="module")
def context(browser):
    """One for most tests: its cache has the files after the first."""
    with new_context(browser) as context:
        yield context


@pytest.fixture
def open_chapter(context, site):
    """Opens a chapter, at the address of a state if one is given."""
    pages = []

    def open_chapter(query="", chapter=ROOFLINES):
        pages.append(context.new_page())
        pages[0].goto(f"{site}/{chapter}.html{query}", wait_until="load")
        return pages[0]

    yield open_chapter
    pages[0].close()


@dataclass
class Explorer:
    """One live cell of a page."""

    page: object
    name: str

    @property
    def cell(self):
        return self.page.locator(f".tag_live:has(.explorer-{self.name})")

    @property
    def root(self):
        return self.cell.locator(f".explorer-{self.name}")

    @property
    def button(self):
        return self.cell.locator(".live-bar button")

    def wait(self, outcome="live"):
        """Waits until the cell runs, or has failed."""
        self.page.wait_for_function(
            "cell => ![undefined, 'loading'].includes(cell.dataset.live)", arg=self.cell.element_handle(), timeout=30_000
        )
        assert self.cell.get_attribute("data-live") == outcome, self.cell.locator(".live-error").inner_text()
        return self

    def start(self):
        self.button.click()
        return self.wait()

    def row(self, label):
        """The control with this label, and the words about it."""
        exact = self.page.locator(".widget-label", has_text=re.compile(f"^{re.escape(label)}$"))
        return self.root.locator(".widget-hbox").filter(has=exact)

    def comes_to_show(self, state, within_ms=3000):
        """Asserts that the page shows what the view of this process shows for a state."""
        wanted = expected(self.page, VIEWS[self.name](**state))
        with contextlib.suppress(TooLate):
            self.page.wait_for_function(
                f"([root, wanted]) => JSON.stringify(({browsers.SHOWN})(root)) === wanted",
                arg=[self.root.element_handle(), json.dumps(wanted, separators=(",", ":"), ensure_ascii=False)],
                timeout=within_ms,
                polling=20,
            )
        assert shown(self.root) == wanted


@pytest.fixture(scope="module")
def go_live(context, site):
    """Gives a chapter's page with its explorers live, one for all tests that leave it so."""
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened = {}

    def go_live(chapter):
        if chapter not in opened:
            page, log = watched(context)
            page.goto(f"{site}/{chapter}.html", wait_until="load")
            both = {name: Explorer(page, name).start() for name in EXPLORERS[chapter]}
            opened[chapter] = SimpleNamespace(page=page, log=log, **both)
        return opened[chapter]

    return go_live


@pytest.fixture(scope="module")
def live(go_live):
    return go_live(ROOFLINES)


@pytest.fixture
def roofline(live):
    return live.roofline.start()


@pytest.fixture
def matmul(live):
    return live.matmul.start()


@pytest.fixture
def torus(go_live):
    return go_live(TPUS).torus.start()


@pytest.fixture
def sharding(go_live):
    return go_live(SHARDING).sharding.start()


# What the page shows is what the library says.


def choose(option) -> Callable:
    return lambda row: row.locator("select").select_option(option)


def press(*keys) -> Callable:
    return lambda row: [row.locator("[role=slider]").press(key) for key in keys]


def write(text) -> Callable:
    return lambda row: row.locator("input, textarea").fill(text)


def middle_of(program, operation):
    """Where the window goes to show an operation, in per cent."""
    of = schedules()[program]
    (one,) = (one for one in of.operations if one.name == operation)
    return round(100 * (one.start_s + one.duration_s / 2) / of.total_s)


def longest_of(program):
    return max(schedules()[program].operations, key=lambda one: one.duration_s).name


MOVES = {
    "roofline": [
        ("log2 of m, rows of X", press("ArrowRight"), {"log2_m": 6}),
        ("log2 of m, rows of X", press("End"), {"log2_m": 14}),
        ("log2 of m, rows of X", press("Home"), {"log2_m": 0}),
        ("log2 of m, rows of X", press(*["ArrowRight"] * 8), {"log2_m": 8}),
        ("k, contracted", press("ArrowLeft"), {"k": 4096}),
        ("n, columns of W", press("ArrowRight"), {"n": 16384}),
        ("n, columns of W", press("Home"), {"n": 256}),
        ("number format", choose("int8"), {"dtype": "int8"}),
        ("chip", choose("h100"), {"chip": "h100"}),
        ("number format", choose("fp8"), {"dtype": "fp8"}),
        ("chip", choose("v5e"), {"chip": "v5e", "dtype": "bf16"}),  # it has no fp8
    ],
    "matmul": [
        ("m, rows of X", write("500"), {"m": 500}),
        ("k, contracted", write("4,096"), {"k": 4096}),
        ("n, columns of W", write("8e3"), {"n": 8000}),
        ("X stored in", choose("int8"), {"x": "int8"}),
        ("W stored in", choose("int4"), {"w": "int4"}),
        ("chip", choose("v6e"), {"chip": "v6e"}),
    ],
    "memory": [
        ("log2 of elements", press("End"), {"log2_elements": 36}),
        ("log2 of elements", press("Home", "ArrowRight", "ArrowRight"), {"log2_elements": 12}),
        ("number format", choose("int4"), {"dtype": "int4"}),
        ("chip", choose("v5p"), {"chip": "v5p"}),  # one path of it has no source
        ("chip", choose("h100"), {"chip": "h100"}),
    ],
    "torus": [
        ("to chip b", write("2, 1"), {"b": "2, 1"}),
        ("from chip a", write("(3 0)"), {"a": "3, 0"}),
        ("chip", choose("v6e"), {"chip": "v6e"}),  # the same slice, so the same two of its chips
        ("slice", choose("8x16"), {"shape": "8x16", "a": "0, 0", "b": "7, 8"}),
        ("chip", choose("v5p"), {"chip": "v5p", "shape": "4x4x4", "a": "0, 0, 0", "b": "2, 2, 2"}),
        ("slice", choose("4x4x8_twisted"), {"shape": "4x4x8_twisted", "b": "2, 2, 4"}),
        ("to chip b", write("3,1,7"), {"b": "3, 1, 7"}),
        ("slice", choose("16x20x28"), {"shape": "16x20x28", "b": "8, 10, 14"}),
        ("chip", choose("v5e"), {"chip": "v5e", "shape": "4x4", "a": "0, 0", "b": "3, 3"}),
    ],
    "sharding": [
        ("kinds of steps", choose("textbook"), {"steps": "textbook"}),
        ("make small", choose("max"), {"objective": "max"}),
        ("number format", choose("int8"), {"dtype": "int8"}),
        ("product", write("A[I,J_X]*B[J_X,K] -> C[I,K]"), {"product": "A[I, J_X] · B[J_X, K] -> C[I, K]"}),
        ("sizes", write("I=4e3 J=8,192 K=96"), {"sizes": "I=4000, J=8192, K=96"}),
        (
            "example",
            choose("case 4: X on I and on K"),
            {"product": "A[I_X, J] · B[J, K_X] -> C[I_X, K]", "sizes": STARTS["sharding"]["sizes"]},
        ),
        ("slice", choose("v5p:4x4x4"), {"slice": "v5p:4x4x4", "mesh": "X=4, Y=16"}),
        ("number format", choose("fp8"), {"dtype": "fp8"}),
        ("mesh", write("Z=4 X=4 Y=4"), {"mesh": "Z=4, X=4, Y=4"}),
        ("slice", choose("v5e:4x4"), {"slice": "v5e:4x4", "mesh": "X=4, Y=4", "dtype": "bf16"}),  # it has no fp8
    ],
    "model": [
        ("model", choose("DeepSeek-V3"), {"model": "DeepSeek-V3"}),
        ("treemap of", choose("FLOPs"), {"area": "FLOPs"}),
        ("T, tokens", write("131,072"), {"T": 131072}),
        ("B, sequences", write("16"), {"B": 16}),
        ("number format", choose("fp8"), {"dtype": "fp8"}),
        ("or config.json", write(json.dumps(CONFIG, indent=2)), {"model": json.dumps(CONFIG, separators=(",", ":"))}),
        ("or config.json", write("gpt-oss-20b"), {"model": "gpt-oss-20b"}),
        ("model", choose("Llama-3 8B"), {"model": "Llama-3 8B"}),
    ],
    "cache": [
        ("example", choose("windows and chunks"), {"models": EXAMPLES["windows and chunks"]}),
        ("S, context", write("1e6"), {"S": 1_000_000}),
        ("B, sequences", write("64"), {"B": 64}),
        ("number format", choose("int8"), {"dtype": "int8"}),
        ("chip", choose("b200"), {"chip": "b200"}),
        ("models", write("qwen3 8b, kimi-k2"), {"models": "Qwen3 8B, Kimi-K2"}),
    ],
    "plan": [
        ("tensor", write("8"), {"tensor": 8}),
        ("data", write("2"), {"data": 2}),
        ("pipeline", write("4"), {"pipeline": 4}),
        ("microbatches", write("8"), {"microbatches": 8}),
        ("schedule", choose("interleaved"), {}),  # with one chunk a stage it is none
        ("virt. stages", write("5"), {"schedule": "interleaved", "virtual_stages": 5}),
        ("remat", choose("selective"), {"remat": "selective"}),
        ("zero", choose("1"), {"zero": 1}),
        ("loss chunks", write("4"), {"loss_chunks": 4}),
        ("seq. parallel", choose("False"), {"sequence_parallel": False}),
        ("context", write("2"), {"context": 2}),
        ("efficiency", choose("0.65"), {"efficiency": 0.65}),
        ("sequences", write("2,048"), {"batch": 2048}),
        ("T, tokens", write("4096"), {"T": 4096}),
        ("uneven", choose("True"), {"uneven_stages": True}),
        ("slices", write("2"), {"count": 2}),
        ("usual slices", choose("v5p:16x16x16"), {"slice": "v5p:16x16x16"}),
        ("slice", write("v5p:8x8x16"), {"slice": "v5p:8x8x16"}),
        ("fsdp", write("16"), {"fsdp": 16}),
        ("model", choose("Mixtral 8x22B"), {"model": "Mixtral 8x22B"}),
        ("fsdp", write("rest"), {"fsdp": "rest"}),
        ("expert", write("4"), {"expert": 4}),
    ],
    "budget": [
        ("failures", choose("as for Llama 3 405B"), {"failures": "as for Llama 3 405B"}),
        ("checkpoint (s)", write("60"), {"checkpoint_s": 60}),
        ("restart (s)", write("900"), {"restart_s": 900}),
        ("efficiency", press("ArrowLeft"), {"efficiency": 0.65}),
        ("tokens in all", write("2e12"), {"tokens": 2 * 10**12}),
        ("$ a chip and hour", write("$1.99"), {"usd_per_chip_hour": 1.99}),
        ("marked slice", choose("v5p:4x4x8"), {"slice": "v5p:4x4x8"}),
        ("chip", choose("h100"), {"chip": "h100", "slice": "h100:8x64"}),
        ("tokens a step", write("8,388,608"), {"batch_tokens": 2**23}),
        ("T, tokens", write("4096"), {"T": 4096}),
        ("model", choose("Llama-3 8B"), {"model": "Llama-3 8B"}),
    ],
    "batch": [
        ("cache in", choose("int8"), {"kv": "int8"}),
        ("S, context", write("131,072"), {"S": 131072}),
        ("slice", write("v5e:4x4"), {"slice": "v5e:4x4"}),
        ("weights in", choose("int4"), {"weights": "int4"}),
        ("example", choose("Llama, small to large"), {"models": EXAMPLES["Llama, small to large"]}),
        ("models", write("gpt-oss-120b, mixtral 8x7b"), {"models": "gpt-oss-120b, Mixtral 8x7B"}),
    ],
    "serving": [
        ("≤ ms a token", write("12.5"), {"tpot_ms": 12.5}),
        ("≤ ms first", write("50 ms"), {"ttft_ms": 50.0}),
        ("≤ ms a token", write("any"), {"tpot_ms": "any"}),
        ("cache in", choose("int8"), {"kv": "int8"}),
        ("weights in", choose("int8"), {"weights": "int8"}),
        ("matmuls in", choose("int8"), {"math": "int8"}),
        ("$ a chip and hour", write("$0.99"), {"usd_per_chip_hour": 0.99}),
        ("against", choose("tokens/s a chip"), {"against": "tokens/s a chip"}),
        ("chip", choose("v6e"), {"chip": "v6e"}),
        ("prompt", write("1e4"), {"input": 10_000}),
        ("answer", write("1,000"), {"output": 1000}),
        ("model", choose("Qwen3 8B"), {"model": "Qwen3 8B"}),
    ],
    "speculation": [
        ("acceptance", press("ArrowLeft"), {"acceptance": 0.75}),
        ("guesses, k", press("ArrowRight", "ArrowRight"), {"guesses": 6}),
        ("sequences", write("128"), {"batch": 128}),
        ("context", write("8,192"), {"context": 8192}),
        ("usual drafts", choose("5 %"), {"draft": "5 %"}),
        ("draft", write("llama-3.2 3b"), {"draft": "Llama-3.2 3B"}),
        ("tensor ways", write("4"), {"tensor": 4}),
        ("slice", write("v6e:4x4"), {"slice": "v6e:4x4"}),
        ("model", choose("Llama-3.1 70B"), {"model": "Llama-3.1 70B"}),
    ],
    "tiling": [
        ("shape", write("300x100"), {"shape": "[300, 100]"}),
        ("number format", choose("int8"), {"dtype": "int8"}),
        ("chip", choose("v6e"), {"chip": "v6e"}),
        ("example", choose("one scale a row"), {"shape": TILED["one scale a row"]}),
        ("dimensions", choose("as written"), {"order": "as written"}),
        ("chip", choose("h100"), {"chip": "h100"}),
        ("shape", write("3, 5, 7"), {"shape": "[3, 5, 7]"}),
    ],
    "schedule": [
        ("zoom", choose("10"), {"zoom": 10}),
        ("center (%)", press("ArrowRight"), {"center": 51}),
        ("center (%)", press("End"), {"center": 100}),
        ("operation", choose("fusion"), {"operation": "fusion", "center": middle_of("ring", "fusion")}),
        ("program", choose("training, FSDP"), {"program": "training, FSDP", "operation": longest_of("fsdp")}),
        ("zoom", choose("1"), {"zoom": 1}),
        ("program", choose("gather, then multiply"), {"program": "gather, then multiply", "operation": longest_of("gather")}),
    ],
}


@pytest.mark.parametrize(("chapter", "name"), [(chapter, name) for chapter, names in EXPLORERS.items() for name in names])
def test_after_each_move_of_each_control_the_page_shows_what_python_says(chapter, name, go_live):
    live = go_live(chapter)
    explorer, state = getattr(live, name).start(), dict(STARTS[name])
    explorer.comes_to_show(state)
    for label, move, change in MOVES[name]:
        move(explorer.row(label))
        state |= change
        explorer.comes_to_show(state)
    labels = [text for text in explorer.root.locator(".widget-label").all_inner_texts() if text]
    assert {label for label, *_ in MOVES[name]} == set(labels), "a control that no move tries"
    assert live.log.unknown_errors() == []


def test_a_typed_exponent_in_the_readout_moves_the_slider(roofline):
    readout = roofline.row("log2 of m, rows of X").locator(".widget-readout")
    readout.fill("7")
    readout.press("Enter")
    roofline.comes_to_show(STARTS["roofline"] | {"log2_m": 7})


def test_both_explorers_of_a_page_share_one_python(live):
    loads = [url for url in live.log.requests if url.endswith("pyodide.asm.wasm")]
    assert len(loads) == 1
    assert int(live.matmul.cell.get_attribute("data-live-ms")) < 1500


def test_the_code_on_the_page_prints_the_numbers_beside_it(matmul):
    matmul.row("m, rows of X").locator("input").fill("123")
    matmul.comes_to_show(STARTS["matmul"] | {"m": 123})
    (code,), numbers = shown(matmul.root)["python"], dict(shown(matmul.root)["numbers"])
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names := {})
    assert numbers["maximum, all overlaps"] == units.human(names["limits"].lower_s, "s")
    times = " to ".join(numbers[key] for key in ("maximum, all overlaps", "sum, nothing overlaps"))
    parts = f"{numbers['binds']} binds (mxu {numbers['matrix unit (mxu)']}, hbm {numbers['memory (hbm)']})"
    assert printed.getvalue().splitlines()[0] == f"{times}, {parts}"
    exact, rule = (
        units.human(float(re.search(rf"{key}=([\d.]+)", printed.getvalue())[1]), digits=4) for key in ("exact", "asymptotic")
    )
    assert (numbers["critical batch, exact"], numbers["critical batch, rule of thumb"]) == (f"m = {exact}", f"m = {rule}")


@pytest.mark.parametrize(
    ("chapter", "name"),
    [
        (ROOFLINES, "roofline"),
        (TPUS, "memory"),
        (TPUS, "torus"),
        (SHARDING, "sharding"),
        (TRANSFORMERS, "model"),
        (INFERENCE, "serving"),
        (PROFILING, "schedule"),
    ],
)
def test_the_copy_button_copies_the_code_and_says_so(chapter, name, go_live):
    explorer = getattr(go_live(chapter), name).start()
    explorer.page.bring_to_front()  # only the page in front may read what was copied
    explorer.root.locator(".explorer-copy").click()
    explorer.root.get_by_text("Copied").wait_for()
    copied = explorer.page.evaluate("navigator.clipboard.readText()")
    assert [copied.strip()] == [code.strip() for code in shown(explorer.root)["python"]]


# Bad input.


def refusal(text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its words are what is tested
        explorers.read_size("m", text)
    return f"⚠ {caught.value}"


@pytest.mark.parametrize("text", ["abc", "0", "-3", "1e99", "", "1.5"])
def test_a_refused_size_is_said_beside_its_field_and_the_last_good_picture_stays(text, matmul):
    row = matmul.row("m, rows of X")
    row.locator("input").fill(text)
    words = re.compile(f"^{re.escape(refusal(text))}$")
    row.locator(".explorer-problem[role=status]", has_text=words).wait_for()
    assert matmul.root.locator(".explorer-problem").count() == 1
    matmul.comes_to_show(STARTS["matmul"])
    row.locator("input").fill("64")
    matmul.comes_to_show(STARTS["matmul"] | {"m": 64})
    assert matmul.root.locator(".explorer-problem").count() == 0


@pytest.mark.parametrize("text", ["4, 0", "1", "0, 0, 0", "x", "-1, 0", "", "9" * 400, "<b>"])
def test_a_chip_that_is_none_is_said_beside_its_field_and_the_last_good_picture_stays(text, torus):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its words are what is tested
        explorers.torus_view(**STARTS["torus"] | {"b": text})
    row = torus.row("to chip b")
    row.locator("input").fill(text)
    words = re.compile(f"^{re.escape(f'⚠ {caught.value}')}$")
    row.locator(".explorer-problem[role=status]", has_text=words).wait_for()
    assert torus.root.locator(".explorer-problem").count() == 1
    torus.comes_to_show(STARTS["torus"])
    row.locator("input").fill("1 2")
    torus.comes_to_show(STARTS["torus"] | {"b": "1, 2"})
    assert torus.root.locator(".explorer-problem").count() == 0


@pytest.mark.parametrize(
    ("label", "field", "text", "words"),
    [
        ("product", "product", "A[I, J_X] · B[J, K_Q] -> C[I, K]", "column 20: 'Q' is no axis of the mesh, which has X=4, Y=4"),
        ("product", "product", "A[I, J_X", "a product has one '->' before its result"),
        ("sizes", "sizes", "I=8192, J=4098, K=16384", "J=4098 is no multiple of X=4; 4100 would do, with 0.0488 % more elements"),
        ("sizes", "sizes", "I=8192", "give a size for J"),
        ("mesh", "mesh", "X=4, Y=5", "does not lie on v5e:4x4"),
        ("mesh", "mesh", "<b>", "mesh='<b>' does not read; write it like 'X=4, Y=4'"),
    ],
)
def test_what_sharding_refuses_is_said_beside_its_field_and_the_last_good_picture_stays(label, field, text, words, sharding):
    row = sharding.row(label)
    row.locator("input").fill(text)
    row.locator(".explorer-problem[role=status]", has_text=words).wait_for()
    assert sharding.root.locator(".explorer-problem").count() == 1
    sharding.comes_to_show(STARTS["sharding"])
    row.locator("input").fill(STARTS["sharding"][field])
    row.locator(".explorer-problem").wait_for(state="detached")
    sharding.comes_to_show(STARTS["sharding"])


def test_the_column_of_a_fault_is_pointed_at_below_the_text(sharding):
    text = "A[I, J_X] · B[J, K_Q] -> C[I, K]"
    sharding.row("product").locator("input").fill(text)
    place = sharding.row("product").locator(".explorer-problem code")
    place.wait_for()
    assert place.inner_text() == f"{text}\n{' ' * text.index('Q')}^"
    assert place.evaluate("e => getComputedStyle(e).fontFamily").endswith("monospace")


def test_another_chip_offers_its_own_slices_and_replaces_coordinates_even_bad_ones(torus):
    torus.row("to chip b").locator("input").fill("no chip")
    torus.root.locator(".explorer-problem").wait_for()
    torus.row("chip").locator("select").select_option("tpu7x")
    torus.comes_to_show({"chip": "tpu7x", "shape": "4x4x4", "a": "0, 0, 0", "b": "2, 2, 2"})
    assert torus.root.locator(".explorer-problem").count() == 0
    offered = explorers.torus_explorer(chip="tpu7x", shape="4x4x4").controls["shape"].widget.options
    assert torus.row("slice").locator("option").all_inner_texts() == [*offered]
    assert torus.row("slice").locator("select").input_value() == "4x4x4"
    assert [torus.row(label).locator("input").input_value() for label in ("from chip a", "to chip b")] == ["0, 0, 0", "2, 2, 2"]


def test_values_that_do_not_go_together_are_said_beside_the_chip(matmul):
    matmul.row("W stored in").locator("select").select_option("fp4")
    matmul.row("X stored in").locator("select").select_option("fp4")
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        explorers.matmul_view(**STARTS["matmul"] | {"x": "fp4", "w": "fp4"})
    words = matmul.row("chip").locator(".explorer-problem")
    words.wait_for()
    assert words.inner_text() == f"⚠ {caught.value}"
    matmul.comes_to_show(STARTS["matmul"] | {"w": "fp4"})


def test_an_error_in_a_cell_is_shown_as_an_error_and_the_next_start_works(matmul):
    code = matmul.cell.locator(".cell_input pre")
    before = code.text_content()
    write_text = "(element, text) => { element.textContent = text }"
    code.evaluate(write_text, "def half(x):\n    return x / 0\n\nhalf(1)")
    try:
        matmul.button.click()
        matmul.wait("error")
        alert = matmul.cell.locator(".live-error[role=alert]")
        assert alert.locator("p").inner_text() == "ZeroDivisionError: division by zero"
        assert "in half" in alert.locator("details").text_content()
        assert matmul.button.inner_text() == "Retry"
        assert shown(matmul.root) == expected(matmul.page, VIEWS["matmul"](**STARTS["matmul"]))  # the static view
    finally:
        code.evaluate(write_text, before)
    matmul.start()
    assert not alert.is_visible()
    matmul.comes_to_show(STARTS["matmul"])


def test_a_load_that_fails_says_so_keeps_the_static_view_and_can_be_tried_again(open_chapter):
    page = open_chapter()
    explorer = Explorer(page, "roofline")
    for path in ("manifest.json", "worker.mjs*", "pyodide/pyodide.mjs", "*.zip", "pyodide/*.zip", "pyodide/*.wasm"):
        page.route(f"**/_static/live/{path}", lambda route: route.abort("internetdisconnected"))
        explorer.button.click()
        try:
            explorer.wait("error")
        except TooLate:
            pytest.fail(f"without {path} the page waits for ever")
        alert = explorer.cell.locator(".live-error")
        assert len(alert.inner_text()) > 10, f"nothing is said without {path}"
        assert explorer.button.inner_text() == "Retry"
        assert explorer.root.is_visible()
        explorer.comes_to_show(STARTS["roofline"])
        page.unroute_all()
    explorer.start()
    assert not alert.is_visible()
    explorer.row("log2 of m, rows of X").locator("[role=slider]").press("ArrowRight")
    explorer.comes_to_show(STARTS["roofline"] | {"log2_m": 6})


# Other ways to work them.


def often(chapter):
    """A parameter of a test that is run for one chapter in each check, and weekly for all."""
    return pytest.param(chapter, marks=[pytest.mark.weekly] * (chapter != "chapters/05-training"))


@pytest.mark.parametrize("chapter", [often(chapter) for chapter in EXPLORERS])
def test_the_keyboard_alone_works_every_control(chapter, open_chapter):
    """No call of a mouse, nor of an element: only keys, and a look at what has the focus."""
    page = open_chapter(chapter=chapter)
    for name in EXPLORERS[chapter]:
        explorer, state = Explorer(page, name), dict(STARTS[name])
        explorer.button.focus()
        page.keyboard.press("Enter")
        explorer.wait()
        for label, keys, change in KEYS[name]:
            tab_to(page, f"e => e.closest('.explorer-{name} .widget-hbox')?.textContent.startsWith({label!r})")
            for key in keys:
                page.keyboard.press(key)
            state |= change
            explorer.comes_to_show(state)
        tab_to(page, f"e => e.matches('.explorer-{name} .explorer-copy')")
        page.keyboard.press("Enter")
        explorer.root.get_by_text(re.compile("Copied|Selected")).wait_for()
        tab_to(page, f"e => e.matches('.explorer-{name} .explorer-link')")


KEYS = {
    "roofline": [
        ("chip", ["v", "6"], {"chip": "v6e"}),
        ("number format", ["ArrowDown"], {"dtype": "int8"}),
        ("log2 of m, rows of X", ["ArrowRight"], {"log2_m": 6}),
        ("k, contracted", ["ArrowLeft"], {"k": 4096}),
        ("n, columns of W", ["ArrowRight"], {"n": 16384}),
    ],
    "matmul": [
        ("m, rows of X", ["Control+a", "6", "4"], {"m": 64}),
        ("k, contracted", ["Control+a", "5", "1", "2"], {"k": 512}),
        ("n, columns of W", ["End", "0"], {"n": 286720}),
        ("X stored in", ["ArrowDown", "ArrowDown"], {"x": "int8"}),
        ("W stored in", ["End"], {"w": "int4"}),
        ("chip", ["h", "2"], {"chip": "h200"}),
    ],
    "memory": [
        ("chip", ["v", "6"], {"chip": "v6e"}),
        ("number format", ["ArrowUp"], {"dtype": "f32"}),
        ("log2 of elements", ["ArrowRight"], {"log2_elements": 25}),
    ],
    "torus": [
        ("chip", ["v", "6"], {"chip": "v6e"}),
        ("slice", ["ArrowDown"], {"shape": "4x8", "b": "3, 7"}),
        ("from chip a", ["Control+a", "1", ",", "2"], {"a": "1, 2"}),
        ("to chip b", ["End", "Backspace", "5"], {"b": "3, 5"}),
    ],
    "sharding": [
        ("example", ["c", "a", "s", "e", " ", "4"], {"product": "A[I_X, J] · B[J, K_X] -> C[I_X, K]"}),
        ("slice", ["v", "6"], {"slice": "v6e:4x4"}),
        ("mesh", ["Control+a", *"Y=4 X=4"], {"mesh": "Y=4, X=4"}),
        ("product", ["End", *["ArrowLeft"] * 4, "Backspace", "Backspace"], {"product": "A[I_X, J] · B[J, K_X] -> C[I, K]"}),
        ("sizes", ["End", "0"], {"sizes": "I=8192, J=4096, K=163840"}),
        ("number format", ["ArrowDown"], {"dtype": "int8"}),
        ("make small", ["ArrowDown"], {"objective": "max"}),
        ("kinds of steps", ["ArrowDown"], {"steps": "textbook"}),
    ],
    "model": [
        ("model", ["m", "i", "x"], {"model": "Mixtral 8x7B"}),
        ("or config.json", ["End", "Backspace", "Backspace", "Backspace", "Backspace", *"8x22B"], {"model": "Mixtral 8x22B"}),
        ("T, tokens", ["End", "0"], {"T": 81920}),
        ("B, sequences", ["Control+a", "7"], {"B": 7}),
        ("number format", ["ArrowDown"], {"dtype": "f32"}),
        ("treemap of", ["ArrowDown"], {"area": "FLOPs"}),
    ],
    "cache": [
        ("example", ["ArrowDown"], {"models": EXAMPLES["Llama, small to large"]}),
        ("models", ["Control+a", *"Kimi-K2"], {"models": "Kimi-K2"}),
        ("S, context", ["Control+a", "9", "9"], {"S": 99}),
        ("B, sequences", ["End", "0"], {"B": 10}),
        ("number format", ["End"], {"dtype": "int4"}),
        ("chip", ["v", "6"], {"chip": "v6e"}),
    ],
    "plan": [
        ("usual slices", ["ArrowUp"], {"slice": "v5p:4x4x4"}),
        ("slice", ["Control+a", *"v5p:4x4x8"], {"slice": "v5p:4x4x8"}),
        ("sequences", ["Control+a", *"256"], {"batch": 256}),
        ("fsdp", ["Control+a", *"32"], {"fsdp": 32}),
        ("zero", ["ArrowUp"], {"zero": 2}),
        ("remat", ["ArrowUp"], {"remat": "selective"}),
    ],
    "budget": [
        ("model", ["ArrowUp"], {"model": "Llama-3 8B"}),
        ("chip", ["v", "6"], {"chip": "v6e", "slice": "2 × v6e:16x16"}),
        ("tokens in all", ["Control+a", *"9e12"], {"tokens": 9 * 10**12}),
        ("efficiency", ["ArrowRight"], {"efficiency": 0.75}),
        ("failures", ["ArrowDown"], {"failures": "as for Llama 3 405B"}),
        ("marked slice", ["ArrowUp"], {"slice": "v6e:16x16"}),
    ],
    "batch": [
        ("example", ["ArrowDown", "ArrowDown"], {"models": EXAMPLES["Llama, small to large"]}),
        ("models", ["Control+a", *"Qwen3 8B"], {"models": "Qwen3 8B"}),
        ("slice", ["End", "Backspace", "2"], {"slice": "v5e:2x2"}),
        ("S, context", ["End", "0"], {"S": 81920}),
        ("weights in", ["ArrowDown"], {"weights": "int8"}),
        ("cache in", ["ArrowDown"], {"kv": "int8"}),
    ],
    "serving": [
        ("model", ["ArrowDown"], {"model": list(MODELS)[list(MODELS).index("Llama-3 8B") + 1]}),
        ("chip", ["v", "6"], {"chip": "v6e"}),
        ("prompt", ["End", "Backspace"], {"input": 204}),
        ("answer", ["Control+a", "9", "9"], {"output": 99}),
        ("weights in", ["ArrowDown"], {"weights": "int8"}),
        ("cache in", ["End"], {"kv": "int4"}),
        ("matmuls in", ["ArrowDown"], {"math": "int8"}),
        ("≤ ms a token", ["Control+a", *"any"], {"tpot_ms": "any"}),
        ("≤ ms first", ["Control+a", *"70"], {"ttft_ms": 70.0}),
        ("$ a chip and hour", ["Control+a", "3"], {"usd_per_chip_hour": 3.0}),
        ("against", ["ArrowDown"], {"against": "tokens/s a chip"}),
    ],
    "speculation": [
        ("usual drafts", ["ArrowDown"], {"draft": "Llama-3.2 3B"}),
        ("draft", ["Control+a", *"7 %"], {"draft": "7 %"}),
        ("slice", ["Control+a", *"v6e:2x4"], {"slice": "v6e:2x4"}),
        ("tensor ways", ["Control+a", "4"], {"tensor": 4}),
        ("sequences", ["End", "0"], {"batch": 80}),
        ("context", ["Control+a", *"999"], {"context": 999}),
        ("acceptance", ["ArrowRight"], {"acceptance": 0.85}),
        ("guesses, k", ["ArrowLeft"], {"guesses": 3}),
    ],
    "tiling": [
        ("example", ["ArrowDown"], {"shape": TILED["three rows"]}),
        ("shape", ["Control+a", *"7x300"], {"shape": "[7, 300]"}),
        ("number format", ["ArrowDown"], {"dtype": "f32"}),
        ("chip", ["v", "6"], {"chip": "v6e"}),
        ("dimensions", ["ArrowDown"], {"order": "as written"}),
    ],
    "schedule": [
        ("program", ["ArrowUp"], {"program": "gather, then multiply", "operation": longest_of("gather")}),
        ("operation", ["ArrowUp"], {"operation": schedules()["gather"].operations[0].name}),
        ("center (%)", ["ArrowLeft", "ArrowLeft"], {"center": 48}),
        ("zoom", ["ArrowDown"], {"zoom": 2}),
    ],
}


def tab_to(page, wanted, limit=30):
    """Presses Tab until what has the focus is wanted."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        if page.evaluate(f"({wanted})(document.activeElement)"):
            return
    pytest.fail(f"{limit} times Tab did not reach {wanted}")


def href(view):
    return unescape(re.search(r'href="([^"]*)"', view.link)[1])


@pytest.mark.parametrize(
    ("chapter", "name", "state"),
    [
        (ROOFLINES, "matmul", {"m": 7, "k": 512, "n": 1024, "x": "bf16", "w": "int4", "chip": "h100"}),
        (TPUS, "torus", {"chip": "v5p", "shape": "4x8x8_twisted", "a": "3, 0, 7", "b": "1, 5, 2"}),
        (
            SHARDING,
            "sharding",
            {"slice": "v5p:4x4x4", "mesh": "P=4, Q=16", "product": "X[B_P, D] · W[D_Q, F] -> Y[B_P, F]",
             "sizes": "B=512, D=1024, F=2048", "dtype": "fp8", "objective": "max", "steps": "textbook"},
        ),
        (
            TRANSFORMERS,
            "model",
            {"model": json.dumps(CONFIG, separators=(",", ":")), "T": 77, "B": 3, "dtype": "int8", "area": "FLOPs"},
        ),
        (TRANSFORMERS, "cache", {"models": "Llama-3 8B, Kimi-K2", "S": 77, "B": 3, "dtype": "fp4", "chip": "v4"}),
        (PROFILING, "tiling", {"shape": "[7, 300, 65]", "dtype": "int4", "chip": "v6e", "order": "as written"}),
        (
            PROFILING,
            "schedule",
            {"program": "training, FSDP", "operation": schedules()["fsdp"].operations[7].name, "center": 81, "zoom": 20},
        ),
        (
            INFERENCE,
            "serving",
            {"model": "Mixtral 8x7B", "chip": "h200", "input": 777, "output": 99, "weights": "fp8", "kv": "int8", "math": "fp8",
             "tpot_ms": 7.5, "ttft_ms": 120.0, "usd_per_chip_hour": 3.5, "against": "USD a million tokens"},
        ),
    ],
)  # fmt: skip
def test_the_link_of_a_state_brings_it_live_by_itself(chapter, name, state, open_chapter):
    page = open_chapter(href(VIEWS[name](**state)), chapter)
    explorer = Explorer(page, name).wait()
    explorer.comes_to_show(state)
    page.wait_for_timeout(100)
    assert explorer.cell.evaluate("cell => Math.abs(cell.getBoundingClientRect().top) < innerHeight")
    for other in set(EXPLORERS[chapter]) - {name}:
        assert Explorer(page, other).cell.get_attribute("data-live") is None


def test_a_bad_value_in_a_link_is_said_beside_its_field(open_chapter):
    page = open_chapter("?explorer=roofline&chip=v6e&log2_m=99&k=300")
    explorer = Explorer(page, "roofline").wait()
    explorer.comes_to_show(STARTS["roofline"] | {"chip": "v6e"})
    said = {label: explorer.row(label).locator(".explorer-problem") for label in ("log2 of m, rows of X", "k, contracted")}
    assert said["log2 of m, rows of X"].inner_text().startswith("⚠ log2_m='99' is not a whole number from 0 to 14")
    assert said["k, contracted"].inner_text().startswith("⚠ k='300' is not offered here")
    assert explorer.root.locator(".explorer-problem").count() == 2


@pytest.mark.parametrize("chapter", EXPLORERS)
def test_without_javascript_the_static_figures_stand_there(chapter, browser, site):
    with new_context(browser, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{site}/{chapter}.html", wait_until="load")
        stand_ins(page, chapter)


@pytest.mark.parametrize("chapter", EXPLORERS)
def test_in_print_the_static_figures_stand_for_the_widgets(chapter, open_chapter):
    page = open_chapter(chapter=chapter)
    page.locator(".explorer svg").last.wait_for()
    assert page.locator(".live-static:visible").count() == 0
    page.emulate_media(media="print")
    stand_ins(page, chapter)
    assert page.locator(":is(.explorer, .live-bar):visible").count() == 0


def stand_ins(page, chapter):
    for cell, name in zip(page.locator(".tag_live").all(), EXPLORERS[chapter], strict=True):
        static, view = cell.locator(".live-static"), VIEWS[name](**STARTS[name])
        assert static.locator("svg[role=img]").is_visible()
        assert static.locator("table.explorer-numbers").is_visible()
        assert static.locator("svg[role=img]").bounding_box()["width"] > 200
        soup = BeautifulSoup(view.numbers, "html.parser")
        assert " ".join(static.locator("p").inner_text().split()) == soup.p.text
        assert static.locator("td").all_inner_texts() == [td.text for td in soup.find_all("td")]


# Other engines.


def test_node_imports_every_explorer_in_pyodide_and_makes_the_same_views():
    states = {
        "roofline": {"chip": "h100", "dtype": "fp8", "log2_m": 9, "k": 4096, "n": 512},
        "matmul": {"m": 300, "k": 5120, "n": 777, "x": "bf16", "w": "int4", "chip": "v5p"},
        "memory": {"chip": "v5p", "dtype": "int4", "log2_elements": 30},
        "torus": {"chip": "v5p", "shape": "4x4x8_twisted", "a": "0, 3, 1", "b": "2, 1, 6"},
        "sharding": {
            "slice": "v5p:4x4x4", "mesh": "X=4, Y=4, Z=4", "product": "A[I_XY, J_Z] · B[J_Z, K] -> C[I_YX, K_Z]",
            "sizes": "I=512, J=1024, K=2048", "dtype": "int8", "objective": "max", "steps": "all",
        },
        "model": {"model": json.dumps(CONFIG), "T": 4097, "B": 3, "dtype": "fp8", "area": "FLOPs"},
        "cache": {"models": EXAMPLES["mixtures of experts"], "S": 70_001, "B": 3, "dtype": "int8", "chip": "v5p"},
        "plan": {
            "model": "Llama-3 70B", "slice": "h100:8x64", "count": 1, "batch": 512, "T": 4096, "data": 1, "fsdp": "rest",
            "tensor": 8, "context": 1, "pipeline": 4, "expert": 1, "zero": 1, "microbatches": 8, "schedule": "zero-bubble",
            "virtual_stages": 1, "uneven_stages": False, "remat": "none", "sequence_parallel": False, "loss_chunks": 2,
            "efficiency": 0.65,
        },
        "budget": {
            "model": "Llama-3 8B", "chip": "v6e", "tokens": 15 * 10**12, "batch_tokens": 2**21, "T": 4096,
            "usd_per_chip_hour": 1.99, "efficiency": 0.5, "failures": "as for Llama 3 405B", "checkpoint_s": 60,
            "restart_s": 900, "slice": "v6e:8x16",
        },
        "batch": {"models": EXAMPLES["mixtures of experts"], "slice": "v5p:4x4x4", "S": 70_001, "weights": "fp8", "kv": "int8"},
        "serving": {
            "model": "DeepSeek-V3", "chip": "h200", "input": 1001, "output": 333, "weights": "fp8", "kv": "fp8", "math": "fp8",
            "tpot_ms": 30.0, "ttft_ms": 900.0, "usd_per_chip_hour": 2.5, "against": "tokens/s a chip",
        },
        "speculation": {
            "model": "Llama-3.1 70B", "draft": "Llama-3.2 1B", "slice": "tpu7x:2x2x1", "tensor": 4, "batch": 7, "context": 5000,
            "acceptance": 0.65, "guesses": 5,
        },
        "tiling": {"shape": "[5, 70, 300]", "dtype": "int4", "chip": "v5p", "order": "as written"},
        "schedule": {
            "program": "training, data-parallel", "operation": schedules()["data"].operations[5].name, "center": 30, "zoom": 5,
        },
    }  # fmt: skip
    command = [browsers.find_node(), ROOT / "tests/pyodide.mjs", LIVE]
    done = subprocess.run(command, input=json.dumps(states), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert not read["numpy"]
    ours = {name: getattr(explorers, name)() for name in explorers.__all__ if name.endswith("_explorer")}
    assert set(ours) == {f"{name}_explorer" for name in states}
    assert read["started"] == {name: [each.state, dataclasses.asdict(each.shown)] for name, each in ours.items()}
    views = {name: getattr(explorers, f"{name}_view")(**state) for name, state in states.items()}
    assert read["views"] == {name: dataclasses.asdict(view) for name, view in views.items()}


def test_firefox_shows_what_python_says(site):
    states = [STARTS["roofline"] | {"log2_m": log2_m} for log2_m in (5, 6, 7)]
    views = [explorers.roofline_view(**state) for state in states]
    task = {
        "firefox": str(browsers.find_firefox()),
        "url": f"{site}/{ROOFLINES}.html",
        "shown": browsers.SHOWN,
        "html": [view.numbers + view.svg + view.python + view.link for view in views],
    }
    command = [browsers.find_node(), ROOT / "tests/firefox.mjs"]
    done = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)
    assert len(read["seen"]) == 3
    assert read["seen"] == read["expected"]
    assert Log(read["requests"]).outside() == []
    assert Log(errors=read["errors"]).unknown_errors() == []


# The same library, and no other host.


@pytest.fixture(scope="module")
def archive():
    return LIVE / json.loads((LIVE / "manifest.json").read_text(encoding="utf-8"))["archive"]


def imported(source):
    """Names of the modules that a file imports as it is loaded, and their packages."""
    names = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names | {name.split(".")[0] for name in names} - {"scaling_lib"}


def test_the_page_runs_the_very_files_of_this_library(archive):
    with zipfile.ZipFile(archive) as packed:
        shipped = {name: packed.read(name) for name in packed.namelist() if name.startswith("scaling_lib/")}
    ours = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in (ROOT / "scaling_lib").rglob("*") if path.is_file()}
    assert {name: content for name, content in shipped.items() if ours.get(name) != content} == {}
    assert {name for name in ours if name.endswith(".csv")} <= set(shipped)
    assert not any(name.startswith("scaling_lib/xla/") for name in shipped)
    left_out = {name for name in ours if name.endswith(".py") and not name.startswith("scaling_lib/xla/")} - set(shipped)
    imports = {name: imported(ours[name]) for name in left_out}
    missing = {"numpy", "jax", "matplotlib", "simpy", "tabulate", "tqdm", "typer", "rich", "resource"}
    explained = set()
    while more := {name for name in left_out - explained if imports[name] & missing}:  # and what imports a file left out
        explained |= more
        missing |= {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in more}
    assert left_out == explained
    assert "scaling_lib/show/explorers/torus.py" in shipped


LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data", "use": "href"}
FETCHED = {"stylesheet", "icon", "shortcut", "preload", "modulepreload", "prefetch", "preconnect", "dns-prefetch", "manifest"}


def foreign(address):
    return re.match(r"(https?:)?//", address.strip())


def test_no_file_of_the_site_names_a_script_style_font_or_image_of_another_host():
    found, pages, sheets = [], 0, 0
    for path in HTML.rglob("*.html"):
        soup, pages = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser"), pages + 1
        for tag in soup.find_all(LOADED):
            if tag.name != "link" or FETCHED & set(tag.get("rel", [])):
                found += [(path.name, str(tag)[:200])] if foreign(tag.get(LOADED[tag.name], "")) else []
        styles = [style.text for style in soup.find_all("style")] + [tag["style"] for tag in soup.find_all(style=True)]
        found += [(path.name, address) for text in styles for address in addresses(text) if foreign(address)]
    for path in HTML.rglob("*.css"):
        sheets += 1
        found += [(path.name, address) for address in addresses(path.read_text(encoding="utf-8")) if foreign(address)]
    assert found == []
    assert pages > len(DOCS)
    assert sheets > 3


def addresses(css):
    css = re.sub(r"(?s)/\*.*?\*/", "", css)
    return re.findall(r"url\(\s*[\"']?([^\"')]*)", css) + re.findall(r"@import\s+[\"']([^\"']*)", css)


@pytest.mark.parametrize("address", ["https://cdn.jsdelivr.net/x.js", "//unpkg.com/x.css"])
def test_an_address_of_another_host_would_be_found(address):
    assert foreign(address)
    assert [found for found in addresses(f'a {{ background: url("{address}") }}') if foreign(found)]
    assert [found for found in addresses(f'@import "{address}";') if foreign(found)]
    assert not foreign("../_static/x.js")


def test_live_use_asks_no_other_host_and_misses_no_file(live, roofline):
    roofline.row("log2 of m, rows of X").locator("[role=slider]").press("ArrowRight")
    roofline.comes_to_show(STARTS["roofline"] | {"log2_m": 6})
    asked = {PurePosixPath(url.partition("?")[0]).name for url in live.log.requests}
    assert {"pyodide.asm.wasm", "worker.mjs", "live.mjs"} <= asked, "requests of the worker are not seen"
    assert live.log.outside() == []
    assert sorted(set(live.log.missing)) == []
    assert live.log.unknown_errors() == []


# Accessibility, by axe, and what each page asks for.


def axe(page):
    """Serious and critical violations: rule, element, what to do."""
    if not page.evaluate("!!window.axe"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    options = {"resultTypes": ["violations"]}
    violations = page.evaluate("options => axe.run(options)", options)["violations"]
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))}: {node['html'][:160]}: {node['failureSummary'][:300]}"
        for rule in violations
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def nothing(found):
    assert not found, "\n".join(found)


def looks(page, *screens):
    """What axe finds in some pairs of theme and width."""
    found = []
    for theme, width in screens:
        if page.viewport_size["width"] != width:
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(600)  # the theme looks anew for what can be scrolled, and makes it focusable
        set_theme(page, theme)
        found += [f"{theme}, {width} px: {each}" for each in axe(page)]
    page.set_viewport_size({"width": 1280, "height": 900})
    return found


@pytest.fixture(scope="module")
def visited(context, site):
    """Loads each page once."""
    seen = {}

    def visit(doc):
        if doc not in seen:
            page, log = watched(context)
            page.goto(f"{site}/{doc}.html", wait_until="load")
            page.evaluate("window.MathJax?.startup?.promise")
            page.wait_for_timeout(100)
            seen[doc] = (log, looks(page, ("light", 1280)))
            page.close()
        return seen[doc]

    return visit


@pytest.mark.parametrize("doc", DOCS)
def test_axe_finds_nothing_serious_in_a_page(doc, visited):
    nothing(visited(doc)[1])


@pytest.mark.weekly
@pytest.mark.parametrize("doc", DOCS)
def test_axe_finds_nothing_serious_in_the_dark_on_a_phone(doc, context, site):
    page, _ = watched(context)
    page.goto(f"{site}/{doc}.html", wait_until="load")
    page.evaluate("window.MathJax?.startup?.promise")
    nothing(looks(page, ("dark", 390)))
    page.close()


@pytest.mark.parametrize("doc", DOCS)
def test_a_page_asks_no_other_host_misses_no_file_and_has_no_error(doc, visited):
    log = visited(doc)[0]
    assert log.requests
    assert log.outside() == []
    assert sorted(set(log.missing)) == []
    assert log.unknown_errors() == []


def test_axe_finds_nothing_serious_in_live_explorers_in_dark_nor_on_a_phone(live, roofline, matmul):
    matmul.row("m, rows of X").locator("input").fill("abc")
    matmul.root.locator(".explorer-problem").wait_for()
    nothing(looks(live.page, ("light", 390), ("dark", 1280)))


@pytest.mark.weekly
def test_axe_finds_nothing_serious_in_the_drawings_of_chapter_2_while_they_are_live(go_live, torus):
    torus.row("to chip b").locator("input").fill("9, 9")
    torus.root.locator(".explorer-problem").wait_for()
    nothing(looks(go_live(TPUS).page, ("light", 390), ("dark", 1280)))


@pytest.mark.weekly
def test_axe_finds_nothing_serious_in_the_sharding_explorer_while_it_is_live(go_live, sharding):
    sharding.row("product").locator("input").fill(STARTS["sharding"]["product"] + " -> D[I, K] and a long way on")
    sharding.root.locator(".explorer-problem code").wait_for()
    nothing(looks(go_live(SHARDING).page, ("light", 390), ("dark", 1280)))


@pytest.mark.weekly
def test_axe_finds_nothing_serious_in_the_explorers_of_models_and_caches_while_they_are_live(go_live):
    live = go_live(TRANSFORMERS)
    live.model.start().row("or config.json").locator("textarea").fill('{"model_type": "llama"')
    live.cache.start().row("models").locator("textarea").fill("Llama-9 8B")
    for explorer in (live.model, live.cache):
        explorer.root.locator(".explorer-problem").wait_for()
    nothing(looks(live.page, ("light", 390), ("dark", 1280)))


@pytest.mark.weekly
def test_axe_finds_nothing_serious_in_the_explorers_of_serving_while_they_are_live(go_live):
    live = go_live(INFERENCE)
    live.batch.start().row("slice").locator("input").fill("v5e:3x3")
    live.serving.start().row("≤ ms a token").locator("input").fill("soon")
    live.speculation.start().row("draft").locator("input").fill("Qwen3 8B")
    for explorer in (live.batch, live.serving, live.speculation):
        explorer.root.locator(".explorer-problem").wait_for()
    nothing(looks(live.page, ("light", 390), ("dark", 1280)))


@pytest.mark.weekly
def test_axe_finds_nothing_serious_in_the_explorers_of_practice_while_they_are_live(go_live):
    live = go_live(PROFILING)
    live.tiling.start().row("shape").locator("input").fill("3,000")
    live.tiling.root.locator(".explorer-problem").wait_for()
    live.schedule.start().row("zoom").locator("select").select_option("20")
    nothing(looks(live.page, ("light", 390), ("dark", 1280)))


# Proofs that the tests above can fail.


@contextlib.contextmanager
def changed(browser, path, change):
    """A page of the book with one file of `_static/live` changed, its roofline explorer live."""
    before = (LIVE / path).read_bytes()
    after = change(before)
    assert after != before
    with browsers.serve(HTML, {f"/_static/live/{path}": after}) as address, new_context(browser) as context:
        page = context.new_page()
        page.goto(f"{address}/{ROOFLINES}.html", wait_until="load")
        yield Explorer(page, "roofline").start()


@pytest.mark.weekly
def test_a_changed_library_changes_the_page(browser, archive):
    def change(content):
        changed = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(changed, "w") as new:
            for name in old.namelist():
                text = old.read(name)
                if name == "scaling_lib/roofline.py":
                    text = text.replace(b"FLOPS_PER_MAC = 2\n", b"FLOPS_PER_MAC = 3\n")
                    assert text != old.read(name)
                new.writestr(name, text)
        return changed.getvalue()

    with changed(browser, archive.name, change) as explorer:
        with pytest.raises(AssertionError):
            explorer.comes_to_show(STARTS["roofline"], within_ms=300)
        right = expected(explorer.page, VIEWS["roofline"](**STARTS["roofline"]))
        operations = [dict(each["numbers"])["operations"] for each in (right, shown(explorer.root))]
        assert operations == ["4.29 GFLOPs", "6.44 GFLOPs"]


@pytest.mark.weekly
@pytest.mark.parametrize(("old", "new"), [(b'type: "comm",', b'type: "com",'), (b"comm_id: this.comm_id", b"id: this.comm_id")])
def test_with_another_message_or_id_a_control_moves_nothing(old, new, browser):
    with changed(browser, "live.mjs", lambda content: content.replace(old, new)) as explorer:
        explorer.row("log2 of m, rows of X").locator("[role=slider]").press("ArrowRight")
        with pytest.raises(AssertionError):
            explorer.comes_to_show(STARTS["roofline"] | {"log2_m": 6}, within_ms=1000)
        explorer.comes_to_show(STARTS["roofline"])
