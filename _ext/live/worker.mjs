// The Python of a live page, started by the first click. Pyodide 314 is an ES module, so this must be a module worker.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const here = (path) => new URL(path, import.meta.url).href;
const post = (message) => self.postMessage(message);
const kept = new Map(); // what the page asked for before the click, as promises of answers
const download = self.fetch.bind(self);
let kernel, loaded = 0, total = 1;

// Each file comes once, even if the click falls into its prefetch, and counts for the progress as it comes.
async function keep(url) {
  const answer = await download(url);
  if (!answer.ok) throw new Error(`${answer.status} for ${answer.url}`);
  const count = {
    transform(chunk, to) {
      to.enqueue(chunk);
      const before = Math.floor((20 * loaded) / total);
      loaded += chunk.byteLength;
      if (before < Math.floor((20 * loaded) / total)) post({ type: "progress", share: Math.min(1, loaded / total) });
    },
  };
  const large = { highWaterMark: 10_000 }; // in chunks: it does not wait for a reader
  return new Response(answer.body.pipeThrough(new TransformStream(count, large, large)), answer);
}
let fail;
const failed = new Promise((_, no) => (fail = no)); // Pyodide itself waits for ever if its wasm does not come
failed.catch(() => {});
self.fetch = (url) => {
  const answer = kept.get(String(url)) ?? keep(url);
  kept.delete(String(url));
  answer.catch(fail);
  return answer;
};

const handlers = {
  prefetch({ sizes }) {
    total = Object.values(sizes).reduce((sum, size) => sum + size);
    for (const url of Object.keys(sizes).map(here)) {
      kept.set(url, keep(url));
      kept.get(url).catch(() => kept.delete(url)); // asked for again at the click
    }
  },
  async init({ archive, link }) {
    const packed = fetch(here(archive)).then((answer) => answer.arrayBuffer());
    packed.catch(() => {}); // reported where it is awaited
    const env = { HOME: "/home/pyodide", JUPYTER_WIDGETS_ECHO: "0" };
    const python = await Promise.race([loadPyodide({ indexURL: here("pyodide/"), env }), failed]);
    python.unpackArchive(await packed, "zip", { extractDir: python.runPython("import site; site.getsitepackages()[0]") });
    python.registerJsModule("live_page", { post });
    kernel = python.pyimport("live_kernel");
    kernel.set_link(link);
    post({ type: "ready", version: python.runPython("import sys; sys.version.split()[0]") });
  },
  run({ cell, code }) {
    const failure = kernel.run_cell(cell, code);
    post(failure ? { type: "error", cell, text: failure } : { type: "done", cell });
  },
  comm({ kind, comm_id, data, buffers, msg_id }) {
    const [cell, failure] = kernel.on_message(kind, comm_id, data, buffers);
    post({ type: "idle", msg_id, cell, failure });
  },
};

let queue = Promise.resolve(); // one message after the other
self.onmessage = ({ data: message }) => {
  queue = queue
    .then(() => handlers[message.type](message))
    .catch((error) => post({ type: "error", cell: message.cell, text: String(error.message || error) }));
};
