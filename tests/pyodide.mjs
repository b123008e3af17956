// Imports every explorer in Pyodide, without a browser: node pyodide.mjs FOLDER, the staged `_static/live`.
// Standard input says which views to make: {"roofline": {"chip": "v5e", …}, …}. Prints them as JSON.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const live = resolve(process.argv[2]);
const { loadPyodide } = await import(pathToFileURL(join(live, "pyodide/pyodide.mjs")));
const { archive } = JSON.parse(readFileSync(join(live, "manifest.json")));
const python = await loadPyodide({ indexURL: join(live, "pyodide/") });
const packed = new Uint8Array(readFileSync(join(live, archive)));
python.unpackArchive(packed, "zip", { extractDir: python.runPython("import site; site.getsitepackages()[0]") });
python.registerJsModule("live_page", { post() {} });
python.pyimport("live_kernel");
python.globals.set("states", readFileSync(0, "utf8"));
const printed = python.runPython(`
import dataclasses, json, sys
from scaling_lib.show import explorers

made = {name: getattr(explorers, name)() for name in explorers.__all__ if name.endswith("_explorer")}
views = {name: getattr(explorers, name + "_view")(**state) for name, state in json.loads(states).items()}
json.dumps({
    "numpy": "numpy" in sys.modules,
    "started": {name: [explorer.state, dataclasses.asdict(explorer.shown)] for name, explorer in made.items()},
    "views": {name: dataclasses.asdict(view) for name, view in views.items()},
})
`);
await new Promise((done) => process.stdout.write(printed, done));
process.exit(0);
