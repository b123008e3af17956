// The page's side of live cells: a button for each, one Python for all of them, and the way between it and the widgets.

const here = (path) => new URL(path, import.meta.url).href;
const make = (tag, more) => Object.assign(document.createElement(tag), more);
const codeOf = (cell) => cell.querySelector(".cell_input pre").textContent;
const loaded = new Promise((done) => (document.readyState === "complete" ? done() : addEventListener("load", done)));
const views = (buffers) => buffers.map((b) => new DataView(b.buffer, b.byteOffset, b.byteLength));
const bytes = (buffers = []) => buffers.map((b) => new Uint8Array(b.buffer ?? b, b.byteOffset ?? 0, b.byteLength).slice());

async function manifest() {
  const answer = await fetch(here("manifest.json"), { cache: "no-cache" });
  if (!answer.ok) throw new Error(`${answer.status} for ${answer.url}`);
  return answer.json();
}

async function widgetManager() {
  await loaded; // the front end defines its modules by then; asked earlier, RequireJS would look for files of their names
  const find = (done, failed) => window.requirejs(["@jupyter-widgets/html-manager"], ({ HTMLManager }) => done(new HTMLManager()), failed);
  return new Promise(find).catch(() => { throw new Error("a script of this page did not load; please load the page again"); });
}

class Comm { // what the widgets' front end wants of a comm
  constructor(kernel, comm_id) { Object.assign(this, { kernel, comm_id, target_name: "jupyter.widget" }); }
  on_msg(handle) { this.message = handle; }
  on_close(handle) { this.closed = handle; }
  send(data, callbacks, metadata, buffers, kind = "comm_msg") {
    const msg_id = String(++this.kernel.sent);
    this.kernel.status.set(msg_id, callbacks?.iopub?.status);
    this.kernel.worker.postMessage({ type: "comm", kind, comm_id: this.comm_id, data, buffers: bytes(buffers), msg_id });
    return msg_id;
  }
  close(data, callbacks, metadata, buffers) { return this.send(data, callbacks, metadata, buffers, "comm_close"); }
}

class Kernel {
  sent = 0; status = new Map(); comms = new Map(); waits = new Map(); shown = Promise.resolve(); say = () => {};

  constructor() { // the worker begins to load files; Python starts with the first click
    this.opened = this.open();
    this.broken = new Promise((_, failed) => (this.fail = failed));
    this.opened.catch(this.fail);
    this.broken.catch(() => {
      this.worker?.terminate();
      if (kernel === this) kernel = undefined; // the next try is a fresh one
    });
  }
  async open() {
    this.files = await manifest();
    this.worker = new Worker(here(this.files.worker), { type: "module" });
    this.worker.onmessage = ({ data }) => this[data.type](data);
    this.worker.onerror = (event) => this.fail(new Error(event.message || "the browser did not start its worker"));
    this.worker.postMessage({ type: "prefetch", sizes: this.files.sizes });
  }
  start(say) {
    this.say = say;
    this.progress({ share: this.share ?? 0 });
    return (this.started ??= this.load().catch(({ message }) => {
      const text = message.includes("\n") ? message : `Python could not be loaded (${message}). The figure stays as it is.`;
      this.fail(new Error(text)); // a message of several lines is a traceback, of a setup cell
      throw new Error(text);
    }));
  }
  async load() {
    [this.manager] = await Promise.all([widgetManager(), this.opened]);
    await this.ask("init", { archive: this.files.archive, link: Object.fromEntries(new URLSearchParams(location.search)) });
    for (const [i, cell] of document.querySelectorAll("div.cell.tag_live-setup").entries()) {
      await this.ask("run", { cell: `setup ${i}`, code: codeOf(cell) });
    }
    return this;
  }
  ask(type, more) {
    const answer = new Promise((done, failed) => {
      this.waits.set(more.cell, { done, failed });
      this.worker.postMessage({ type, ...more });
    });
    return Promise.race([answer, this.broken]);
  }
  // The rest are the worker's messages.
  progress({ share }) { this.share = share; this.say(`Loading Python: ${Math.round(100 * share)} %`); }
  ready({ version }) { this.version = version; this.waits.get(undefined).done(); }
  error({ cell, text }) { (this.waits.get(cell) ?? this.waits.get(undefined))?.failed(new Error(text)); }
  done({ cell }) { this.shown.then(this.waits.get(cell).done, this.waits.get(cell).failed); }
  idle({ msg_id, cell, failure }) {
    const tell = this.status.get(msg_id);
    this.status.delete(msg_id);
    tell?.({ content: { execution_state: "idle" } }); // a widget waits for this before it sends its next value
    cells[cell]?.complain(failure);
  }
  comm_open(message) {
    const comm = new Comm(this, message.comm_id);
    this.comms.set(message.comm_id, comm);
    this.manager.handle_comm_open(comm, { content: message, metadata: message.metadata, buffers: views(message.buffers) });
  }
  comm_msg(message) {
    const content = { content: message, metadata: message.metadata, buffers: views(message.buffers), parent_header: {} };
    this.comms.get(message.comm_id)?.message?.(content);
  }
  comm_close(message) {
    this.comms.get(message.comm_id)?.closed?.({ content: message });
    this.comms.delete(message.comm_id);
  }
  display({ cell, data }) { this.shown = this.shown.then(() => cells[cell]?.show(this.manager, data)); } // a setup cell shows nothing
}

let kernel; // the page's one

class Cell {
  constructor(element, index) {
    Object.assign(this, { element, index });
    this.still = element.querySelector(".cell_output") ?? element.appendChild(make("div"));
    this.still.classList.add("live-still");
    this.slot = make("div", { className: "cell_output live-running" });
    this.button = make("button", { type: "button", textContent: "Make it live" });
    this.status = make("span");
    this.status.role = "status";
    this.alert = make("div", { className: "live-error" });
    this.alert.role = "alert";
    const bar = make("div", { className: "live-bar" });
    bar.append(this.button, this.status);
    this.still.before(bar, this.alert);
    this.button.onclick = () => this.start();
    for (const event of ["pointerenter", "focus"]) this.button.addEventListener(event, () => (kernel ??= new Kernel()));
    this.still.onclick = ({ target }) => target.closest("a, button, summary, pre, .live-static") || this.start();
    new MutationObserver(() => this.tend()).observe(element, { childList: true, subtree: true, characterData: true });
    this.tend();
  }

  async start() {
    if (this.element.dataset.live === "loading") return;
    const began = performance.now();
    const say = (text) => (this.status.textContent = text);
    this.element.dataset.live = "loading";
    this.complain("");
    try {
      const python = await (kernel ??= new Kernel()).start(say);
      this.slot.replaceChildren();
      await python.ask("run", { cell: this.index, code: codeOf(this.element) });
      this.element.dataset.liveMs = Math.round(performance.now() - began);
      this.element.dataset.live = "live";
      this.button.textContent = "Start again";
      say(`Live: Python ${python.version} runs in this page`);
    } catch (error) {
      if (this.slot.isConnected) this.slot.replaceWith(this.still);
      this.element.dataset.live = "error";
      this.button.textContent = "Retry";
      say("");
      this.complain(String(error.message ?? error));
    }
  }
  async show(manager, data) {
    if (!this.slot.isConnected) this.still.replaceWith(this.slot); // a view's host must be attached
    const box = this.slot.appendChild(make("div", { className: "output" }));
    const view = data["application/vnd.jupyter.widget-view+json"];
    const html = data["text/html"] ?? data["image/svg+xml"];
    if (view) {
      box.classList.add("widget-subarea");
      await manager.display_view(manager.create_view(await manager.get_model(view.model_id)), box);
    } else if (html) box.innerHTML = html;
    else box.append(make("pre", { textContent: data["text/plain"] }));
  }
  complain(text) {
    const lines = text.trim().split("\n");
    this.alert.replaceChildren();
    if (!text) return;
    this.alert.append(make("p", { textContent: lines.at(-1) }));
    if (lines.length === 1) return;
    const details = this.alert.appendChild(make("details"));
    details.append(make("summary", { textContent: "Details" }), make("pre", { textContent: text }));
  }
  // The front end leaves its sliders and readouts without names, and what does not work yet must not take the focus.
  tend() {
    for (const label of this.element.querySelectorAll("label.widget-label")) {
      const [widget, name] = [label.parentElement, label.textContent.replace("\u200b", "").trim()];
      if (!name) continue;
      const handles = widget.querySelectorAll(".noUi-handle");
      const readout = widget.querySelector(".widget-readout");
      handles.forEach((handle, i) => {
        handle.ariaLabel = handles.length > 1 ? `${name}, ${["from", "to"][i]}` : name;
        if (readout && handles.length === 1) handle.ariaValueText = readout.textContent;
      });
      if (readout?.isContentEditable) Object.assign(readout, { role: "textbox", ariaLabel: `${name}, typed` });
      if (widget.querySelector("button, [type=radio]")) Object.assign(widget, { role: "group", ariaLabel: name });
    }
    const controls = ".lm-Widget:not(.widget-container, .widget-html)";
    for (const control of this.still.querySelectorAll(controls)) control.inert = true;
  }
}

const cells = [...document.querySelectorAll("div.cell.tag_live")].map((element, index) => new Cell(element, index));


const asked = new URLSearchParams(location.search).get("explorer");
const linked = asked && cells.find(({ element }) => codeOf(element).includes(`${asked}_explorer(`));
if (linked) {
  const show = () => linked.element.scrollIntoView({ behavior: "instant" });
  loaded.then(show);
  linked.start().then(show); // what stands above has its height by now
}
