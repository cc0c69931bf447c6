// The web worker in which the simulated cluster runs, so that the page stays responsive whatever a program does.
//
// Messages to it: { id, ask, question }, where `ask` is "perform" or "explain" (methods of Session), or "bug" (the zoo's). Messages from it: { id, answer } or
// { id, error }, and before these { stage } while it loads, { ready } when it has, and { id, partial } while a program runs.
// A question is a JSON text; answers are JSON in arrays of bytes.
//
// Python is entered by callPromising, since only code that was entered like this can be suspended (JSPI).

import { loadPyodide } from "./pyodide/pyodide.mjs";

let asked = 0;

async function load() {
  const began = performance.now();
  const site = await (await fetch("site.json")).json();
  const files = Promise.all(site.wheels.map(async (name) => (await fetch(name)).arrayBuffer()));
  postMessage({ stage: "Python is starting" });
  const pyodide = await loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href });
  for (const wheel of await files) pyodide.unpackArchive(wheel, "wheel");
  postMessage({ stage: "minray is being imported" });
  pyodide.globals.set("post", (partial) => postMessage({ id: asked, partial }));
  const session = pyodide.runPython("from minray.simulation.browser.session import Session; Session(post)");
  postMessage({ ready: { seconds: (performance.now() - began) / 1000, python: pyodide.runPython("import sys; sys.version.split()[0]") } });
  return { pyodide, session };
}

/** Return the function that runs a bug of the zoo. What it needs is loaded when the first bug is asked for. */
async function loadZoo(pyodide) {
  const archive = await (await fetch("zoo.zip")).arrayBuffer();
  pyodide.unpackArchive(archive, "zip", { extractDir: pyodide.runPython("import minray, pathlib; str(pathlib.Path(minray.__file__).parents[1])") });
  return pyodide.runPython("from tests.zoo.in_a_page import show; show");
}

const loaded = load();
loaded.catch((error) => postMessage({ failed: String(error) }));
let last = loaded, zoo = null;

onmessage = ({ data: { id, ask, question } }) => {
  last = last.catch(() => {}).then(async () => {
    const { pyodide, session } = await loaded;
    asked = id;
    try {
      if (ask === "bug") zoo ??= await loadZoo(pyodide);
      const answer = ask === "bug" ? session.call.callPromising(zoo, question) : session[ask].callPromising(question);
      postMessage({ id, answer: await answer });
    } catch (error) {
      postMessage({ id, error: String(error.message ?? error) });
    }
  });
};
