// The page's side of the web worker: starts it, asks it, and replaces it when a program has no end or has broken Python.
//
// Rules
//   * One question at a time is under way; the page disables its buttons meanwhile.
//   * A worker that was stopped or is broken cannot be asked again: a new one starts, and loads all over again from the browser's cache.
//   * Only a worker that was ready is replaced because it broke. One that breaks while it loads would do so again and again.

/** Return whether the browser can suspend WebAssembly, without which no program can wait (JSPI). */
export function canSuspend() {
  return typeof WebAssembly === "object" && "Suspending" in WebAssembly && "promising" in WebAssembly;
}

const read = (bytes) => JSON.parse(new TextDecoder().decode(bytes));

export class Cluster {
  /** `onState(text, isReady)` hears what the worker does while it loads. A fragment may have a student's code (attempt.js). */
  constructor(onState, fragment = "") {
    this.onState = onState;
    this.fragment = fragment;
    this.open = new Map();
    this.count = 0;
    this.start();
  }

  start() {
    this.isReady = false;
    this.onState("Loading …", false);
    this.worker = new Worker(`worker.js${this.fragment}`, { type: "module" });
    this.worker.onmessage = ({ data }) => this.onMessage(data);
    this.worker.onerror = (event) => this.onBroken(event.message);
  }

  /** Ask the worker, in JSON or by a value; resolves to its answer. `onPartial` hears of a run that goes on. */
  ask(what, question, onPartial = () => {}) {
    const id = ++this.count;
    return new Promise((resolve, reject) => {
      this.open.set(id, { resolve, reject, onPartial });
      this.worker.postMessage({ id, ask: what, question: typeof question === "string" ? question : JSON.stringify(question) });
    });
  }

  /** End the worker and all that it does, and start another one. What was asked is rejected with the reason. */
  stop(reason = "stopped") {
    this.worker.terminate();
    this.rejectAll(reason);
    this.start();
  }

  onBroken(cause) {
    if (this.isReady) this.stop(`Python in this page has failed (${cause}). It starts again, and then you can run another program.`);
    else this.onFailed(`The worker has failed: ${cause}`);
  }

  /** Tell that the worker will never be ready, also those who have asked it already. */
  onFailed(reason) {
    this.onState(reason, false);
    this.rejectAll(reason);
  }

  rejectAll(reason) {
    for (const { reject } of this.open.values()) reject(new Error(reason));
    this.open.clear();
  }

  onMessage({ id, stage, ready, failed, broken, partial, answer, error }) {
    if (broken !== undefined) {
      this.onBroken(broken);
      return;
    }
    if (stage) this.onState(`${stage} …`, false);
    if (failed) this.onFailed(`Loading has failed: ${failed}`);
    if (ready) {
      this.isReady = true;
      this.onState(`Ready: Python ${ready.python}, loaded in ${ready.seconds.toFixed(1)} s`, true);
    }
    const asked = this.open.get(id);
    if (!asked) return;
    let told;
    try {
      told = error === undefined ? read(partial ?? answer) : null;
    } catch {  // The worker has sent something else than it should. What else is damaged there cannot be known.
      this.onBroken("its memory is damaged");
      return;
    }
    if (partial !== undefined) {
      asked.onPartial(told);
      return;
    }
    this.open.delete(id);
    if (error === undefined) asked.resolve(told);
    else asked.reject(new Error(error));
  }
}
