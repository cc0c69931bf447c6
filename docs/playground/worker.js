// The web worker in which the simulated cluster runs, so that the page stays responsive whatever a program does.
//
// Messages to it: { id, ask, question }, where `ask` is "perform" or "explain" (methods of Session), or "bug" or "scenario" (the zoo's). Messages from it: { id, answer } or
// { id, error }, and before these { stage } while it loads, { ready } when it has, and { id, partial } while a program runs. After
// { broken } a worker answers nothing more: WebAssembly has failed, a stack whose promise nobody holds has ended in an error, or
// Python has taken more memory than Pyodide can read.
// A question is a JSON text; answers are JSON in arrays of bytes.
//
// Python is entered by callPromising, since only code that was entered like this can be suspended (JSPI).

import { attemptIn } from "./attempt.js";
import { loadPyodide } from "./pyodide/pyodide.mjs";

const MOST_BYTES = 2 ** 31;  // Pyodide takes higher addresses for negative numbers, so what Python sends from there is something else.

let asked = 0, memoryBytes = () => 0;

const onBroken = (error) => postMessage({ broken: String(error?.message ?? error).trim().split("\n").at(-1) });  // not Python's traceback
addEventListener("unhandledrejection", (event) => onBroken(event.reason));

/** Post what a run says, unless it may come from memory that Pyodide cannot read. */
function tell(message) {
  if (memoryBytes() > MOST_BYTES) onBroken("it has taken more than 2 GiB of memory");
  else postMessage(message);
}

async function fetchWheels() {
  const site = await (await fetch("site.json")).json();
  return Promise.all(site.wheels.map(async (name) => (await fetch(name)).arrayBuffer()));
}

async function load() {
  const began = performance.now();
  const files = fetchWheels();  // while Python starts
  postMessage({ stage: "Python is starting" });
  const pyodide = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  pyodide._api.on_fatal = onBroken;
  memoryBytes = () => pyodide._module.HEAPU8.length;
  for (const wheel of await files) pyodide.unpackArchive(wheel, "wheel");
  const attempt = await attemptIn(location.hash);
  if (attempt) {
    const package_ = pyodide.runPython("import importlib.util; importlib.util.find_spec('minray').origin");  // imports nothing
    pyodide.FS.writeFile(package_.replace("minray/__init__.py", attempt.file), attempt.text);
  }
  postMessage({ stage: "minray is being imported" });
  pyodide.globals.set("post", (partial) => tell({ id: asked, partial }));
  const session = pyodide.runPython("from minray.simulation.browser.session import Session; Session(post)");
  postMessage({ ready: { seconds: (performance.now() - began) / 1000, python: pyodide.runPython("import sys; sys.version.split()[0]") } });
  return { pyodide, session };
}

/** Return the functions that run judged scenarios, by question. What they need is loaded when the first is asked for. */
async function loadZoo(pyodide) {
  const archive = await (await fetch("zoo.zip")).arrayBuffer();
  pyodide.unpackArchive(archive, "zip", { extractDir: pyodide.runPython("import minray, pathlib; str(pathlib.Path(minray.__file__).parents[1])") });
  const module = pyodide.runPython("import tests.zoo.in_a_page as judged; judged");
  return { bug: module.show, scenario: module.show_scenario };
}

const loaded = load();
loaded.catch((error) => postMessage({ failed: String(error) }));
let last = Promise.resolve(), zoo = null;

onmessage = ({ data: { id, ask, question } }) => {
  last = last.then(async () => {
    asked = id;
    try {
      const { pyodide, session } = await loaded;
      const isJudged = ask === "bug" || ask === "scenario";
      if (isJudged) zoo ??= await loadZoo(pyodide);
      const answer = isJudged ? session.call.callPromising(zoo[ask], question) : session[ask].callPromising(question);
      tell({ id, answer: await answer });
    } catch (error) {
      tell({ id, error: String(error.message ?? error) });
    }
  });
};
