// What every process does at this moment: its Python stacks. They are asked for by a button, because each process must answer.

import { get } from "./api.js";
import { clean, h, heading, LONG, put, say, trouble } from "./dom.js";
import { number, plain, shortId } from "./format.js";
import { Question } from "./question.js";
import { go, link } from "./router.js";

class Stacks {
  constructor(place, route) {
    this.tables = [];
    this.trouble = h("div");
    this.question = new Question(this.trouble);
    this.process = h("input", { type: "search", class: "search", name: "process", placeholder: "Process id or pid; empty: all", "aria-label": "Process id or pid; empty for all processes", "aria-keyshortcuts": "/" });
    this.count = h("span", {}, "Press the button, and each process writes down what its threads do.");
    this.missing = h("span", { class: "missing" });
    this.list = h("div");
    const dump = (event) => {
      event.preventDefault();
      go(link(["stacks"], { process: this.process.value.trim() }), true);
      this.dump();
    };
    place.append(heading("Stacks", "What the threads of each process do at this moment."), this.trouble,
      h("form", { class: "bar", onsubmit: dump }, this.process, h("button", {}, "Dump stacks")), h("div", { class: "counts" }, this.count, this.missing), this.list);
    this.process.value = route.query.get("process") ?? "";
    if (this.process.value) this.dump();
  }

  update(route) {
    this.process.value = route.query.get("process") ?? "";
  }

  async refresh() {}

  async dump() {
    put(this.count, "asking the processes");
    const fail = (error) => {
      put(this.count, "");
      this.trouble.replaceChildren(trouble(error.message, () => this.dump()));
    };
    await this.question.ask((signal) => get("/api/stacks", { process: this.process.value.trim() }, signal), (answer) => this.show(answer), fail);
  }

  show(answer) {
    const text = `${number(answer.processes.length)} process${answer.processes.length === 1 ? "" : "es"} at ${new Date().toLocaleTimeString("en-GB")}`;
    put(this.count, text);
    say(text);
    put(this.missing, answer.silent?.length ? clean(`No answer in time from: ${answer.silent.map(plain).join("; ")}`, 500) : "");
    this.list.replaceChildren(...answer.processes.map((process) => {
      const title = `${process.is_driver ? "Driver" : "Worker"} ${shortId(process.worker_id)}, pid ${process.pid}, node ${shortId(process.node_id)}`;
      const runs = (process.running ?? []).length ? `runs ${process.running.join(", ")}` : "runs no task";
      const rest = process.left_out ? [`${number(process.left_out)} further coroutines`] : [];
      const text = [...(process.stacks ?? []).map(stackText), ...rest].join("\n\n");
      return h("section", {}, h("h2", { class: "isolate" }, title), h("p", { class: "note isolate" }, clean(runs, 400)), h("pre", { class: "wide", tabindex: "0", "aria-label": title }, clean(text, LONG)));
    }));
  }

  close() {
    this.question.stop();
  }
}

/** Write a stack as Python's tracebacks do: the newest call is the last. */
function stackText(packed) {
  const stack = named(packed, ["name", "is_coroutine", "count", "frames", "left_out"]);
  const kind = stack.is_coroutine ? "Coroutine" : "Thread";
  if (!stack.frames?.length) return `${kind} ${stack.name}: ${stack.is_coroutine ? "runs" : "waits for work"}`;
  const frames = stack.frames.map((one) => named(one, ["filename", "line", "function", "source"])).map((frame) => `  File "${frame.filename}", line ${frame.line}, in ${frame.function}${frame.source ? `\n    ${frame.source}` : ""}`);
  if (stack.left_out) frames.splice(Math.floor(frames.length / 2), 0, `  ... ${number(stack.left_out)} frames ...`);
  return [`${kind} ${stack.name}${stack.count > 1 ? `, ${number(stack.count)} times` : ""}`, ...frames].join("\n");
}

/** Name the fields of a record that came as a list of values, as minray's records travel. */
function named(record, names) {
  return Array.isArray(record) ? Object.fromEntries(names.map((name, index) => [name, record[index]])) : record;
}

export const open = (place, route) => new Stacks(place, route);
