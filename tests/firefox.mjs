// The roofline explorer in Firefox. Standard input: {"firefox": path, "url": …, "shown": a function's text, "html": […]}.
// Prints {"seen": what the page shows at first and after each key, "expected": the same of the given HTML, "requests", "errors"}.
import { readFileSync } from "node:fs";
import puppeteer from "puppeteer-core";

const { firefox, url, shown, html } = JSON.parse(readFileSync(0, "utf8"));
const browser = await puppeteer.launch({ browser: "firefox", executablePath: firefox, headless: true });
const read = { seen: [], expected: [], requests: [], errors: [] };
try {
  const page = await browser.newPage();
  page.on("request", (request) => read.requests.push(request.url()));
  page.on("pageerror", (error) => read.errors.push(String(error)));
  await page.goto(url);
  const cell = ".tag_live:has(.explorer-roofline)";
  await page.locator(`${cell} .live-bar button`).click();
  await page.waitForSelector(`.tag_live[data-live]:not([data-live=loading]) .explorer-roofline`);
  read.expected = await page.evaluate(`${JSON.stringify(html)}.map((innerHTML) =>
    (${shown})(Object.assign(document.createElement("div"), { innerHTML })))`);
  const now = () => page.evaluate(`(${shown})(document.querySelector(".explorer-roofline"))`);
  await page.focus(`${cell} [role=slider]`);
  for (const wanted of read.expected) {
    if (read.seen.length) await page.keyboard.press("ArrowRight");
    const until = Date.now() + 5000;
    while (JSON.stringify(await now()) !== JSON.stringify(wanted) && Date.now() < until) await new Promise((go) => setTimeout(go, 20));
    read.seen.push(await now());
  }
} finally {
  await browser.close();
}
process.stdout.write(JSON.stringify(read));
