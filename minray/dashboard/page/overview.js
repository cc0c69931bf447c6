// The first view: how much of the cluster is in use, what runs and what waits, and what has gone wrong.

import { get } from "./api.js";
import { KINDS, meter, stateOf } from "./cells.js";
import { clean, h, heading, put, trouble } from "./dom.js";
import { bytes, number, plain } from "./format.js";
import { Question } from "./question.js";
import { link } from "./router.js";

const MOST_NAMES = 10;
const MOST_FAILED = 5;
const STATES = ["PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT", "SUBMITTED_TO_WORKER", "RUNNING", "FINISHED", "FAILED"];
const AS = {
  PENDING_ARGS_FETCH: "SUBMITTED_TO_WORKER", PENDING_ACTOR_TASK_ARGS_FETCH: "SUBMITTED_TO_WORKER",
  PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY: "SUBMITTED_TO_WORKER",
};
const LABELS = ["Args pending", "Node pending", "Sent", "Running", "Finished", "Failed"];
const NO_ROW = " ";
const HEAD_PX = 32;
const ROW_PX = 27;
const CHARACTER_PX = 7.4;
const FLEXIBLE_PX = 170;

class Overview {
  constructor(place) {
    this.tables = ["nodes", "jobs", "actors", "tasks", "workers", "placement_groups", "objects"];
    this.cards = {};
    const cards = [
      ["cpu", "CPUs", "nodes"], ["memory", "Memory", "nodes"], ["store", "Object store", "objects"], ["nodes", "Nodes", "nodes"],
      ["waiting", "Waiting for a worker", "waits"], ["tasks", "Tasks", "tasks"], ["actors", "Actors", "actors"], ["jobs", "Jobs", "jobs"],
    ];
    this.trouble = h("div");
    this.question = new Question(this.trouble);
    this.names = table("Tasks by name", ["Name", "Type", ...LABELS, "Total"], [0, 24, 15, 15, 10, 11, 12, 10, 12], MOST_NAMES);
    this.failed = table("Failed tasks", ["Task", "Name", "Error", "Message"], [13, 0, 36, 0], MOST_FAILED);
    this.more = h("p", { class: "note" }, NO_ROW);
    this.count = h("p", { class: "note" }, NO_ROW);
    place.append(heading("Overview"), this.trouble,
      h("ul", { class: "cards" }, ...cards.map(([key, title, view]) => this.card(key, title, view))),
      h("section", {}, h("h2", {}, "Tasks by name"), this.names.box, this.more),
      h("section", {}, h("h2", {}, "Failed tasks"), this.failed.box, this.count));
    this.refresh();
  }

  card(key, title, view) {
    const value = h("strong", {}, "–");
    const rest = h("span", { class: "dim" }, NO_ROW);
    const bar = h("span", { class: "cardbar" });
    this.cards[key] = { value, rest, bar };
    return h("li", {}, h("a", { href: link([view]) }, h("span", { class: "dim" }, title), value, rest, bar));
  }

  fill(key, value, rest = NO_ROW, share = undefined) {
    const card = this.cards[key];
    put(card.value, value);
    put(card.rest, rest || NO_ROW);
    card.bar.replaceChildren(...(Number.isFinite(share) ? [meter(share)] : []));
  }

  update() {}

  async refresh() {
    const parts = (signal) => [
      get("/api/cluster", {}, signal).then((cluster) => this.showCluster(cluster)),
      get("/api/tasks/summary", {}, signal).then((summary) => this.showTasks(summary)),
      this.countOf("actors", ["ALIVE", "DEAD"], signal).then(([all, alive, dead]) => this.fill("actors", number(alive), `alive; ${number(all - alive - dead)} on the way, ${number(dead)} dead`)),
      get("/api/tasks", { filter: "state=FAILED", limit: String(MOST_FAILED) }, signal).then((answer) => this.showFailed(answer)),
    ];
    await this.question.ask((signal) => Promise.allSettled(parts(signal)), (results) => {
      const wrong = results.find((result) => result.status === "rejected");
      this.trouble.replaceChildren(...(wrong ? [trouble(wrong.reason.message)] : []));
    });
  }

  /** Count the rows of a table: all, and those in each state. */
  async countOf(name, states, signal) {
    const counts = await Promise.all(states.map((state) => get(`/api/${name}`, { filter: `state=${state}`, limit: "1" }, signal)));
    return [counts[0].total, ...counts.map((answer) => answer.matching)];
  }

  showCluster(cluster) {
    if (cluster.is_connected === false) throw new Error(cluster.trouble);
    const total = cluster.resources_total ?? {};
    const used = (name) => (total[name] ?? 0) - (cluster.resources_available?.[name] ?? 0);
    this.fill("cpu", `${number(used("CPU"))} of ${number(total.CPU ?? 0)}`, total.GPU ? `GPUs ${number(used("GPU"))} of ${number(total.GPU)}` : "taken by tasks and actors", used("CPU") / total.CPU);
    this.fill("memory", bytes(used("memory")), `taken of ${bytes(total.memory ?? 0)}`, used("memory") / total.memory);
    this.fill("store", bytes(cluster.store_used), `of ${bytes(cluster.store_total)}; ${bytes(cluster.spilled_bytes)} spilled`, cluster.store_used / cluster.store_total);
    this.fill("nodes", number(cluster.nodes_alive), `alive; ${number(cluster.nodes_dead)} dead`);
    this.fill("waiting", number(cluster.waiting), cluster.waiting ? "see who waits for whom" : "no request waits");
    this.fill("jobs", number(cluster.jobs_running), `running; ${number(cluster.jobs_total)} in all`);
  }

  showTasks(summary) {
    const totals = {};
    const rows = summary.rows.map((row) => {
      const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
      for (const [state, count] of Object.entries(row.states)) {
        counts[AS[state] ?? state] = (counts[AS[state] ?? state] ?? 0) + count;
        totals[state] = (totals[state] ?? 0) + count;
      }
      const filters = [["filter", `func_or_class_name=${row.name}`]];
      return [h("a", { href: link(["tasks"], filters) }, clean(row.name)), clean(row.type), ...STATES.map((state) => number(counts[state])), number(row.total)];
    });
    this.names.show(rows);
    const done = (totals.FINISHED ?? 0) + (totals.FAILED ?? 0);
    const known = Object.values(totals).reduce((sum, count) => sum + count, 0);
    this.fill("tasks", number(known - done), `unfinished; ${number(totals.FAILED ?? 0)} failed, ${number(summary.total)} known`);
    const silent = summary.silent?.length ? ` No answer in time from: ${summary.silent.map(plain).join("; ")}.` : "";
    const left = summary.left_out ? ` ${number(summary.left_out)} tasks are not in these counts.` : "";
    const names = summary.rows.length > MOST_NAMES ? `${number(summary.rows.length - MOST_NAMES)} more names are among the tasks.` : "";
    put(this.more, clean(`${names}${left}${silent}`, 500) || NO_ROW);
  }

  showFailed(answer) {
    const rows = answer.rows.map((row) => [KINDS.task.draw(row.task_id), clean(row.name), stateOf(row.error_type || "FAILED", "bad"), clean(lastLine(row.error_message))]);
    this.failed.show(rows);
    put(this.count, answer.matching ? `${number(answer.matching)} of ${number(answer.total)} tasks have failed.` : "No task has failed.");
  }

  close() {
    this.question.stop();
  }
}

/** Return the line of a traceback that names the error. */
function lastLine(text) {
  return (text ?? "").trim().split("\n").at(-1);
}

/** Make a small table that keeps room for its rows, so that nothing below it moves. */
function table(title, labels, widths, most) {
  const columns = labels.map((label, index) => {
    const column = h("col");
    if (widths[index]) column.style.width = `${widths[index] * CHARACTER_PX}px`;
    return column;
  });
  const isNumber = (index) => widths[index] > 0 && widths[index] < 16 && labels[index] !== "Task";
  const body = h("tbody");
  for (let row = 0; row < most; row += 1) {
    body.append(h("tr", {}, ...labels.map((_, index) => h(index ? "td" : "th", { scope: index ? undefined : "row", class: isNumber(index) ? "num" : undefined }))));
  }
  const whole = h("table", {}, h("caption", { class: "unseen" }, title), h("colgroup", {}, ...columns),
    h("thead", {}, h("tr", {}, ...labels.map((label, index) => h("th", { scope: "col", class: isNumber(index) ? "num" : undefined }, label)))), body);
  whole.style.minWidth = `${widths.reduce((sum, width) => sum + (width * CHARACTER_PX || FLEXIBLE_PX), 0)}px`;
  const box = h("div", { class: "box", role: "region", "aria-label": title, tabindex: "0" }, whole);
  box.style.minHeight = `${HEAD_PX + most * ROW_PX}px`;
  const show = (rows) => [...body.rows].forEach((line, index) => {
    line.hidden = !rows[index] && index > 0;
    [...line.cells].forEach((cell, at) => {
      const value = rows[index]?.[at] ?? "";
      const text = typeof value === "string" ? value : value.textContent;
      if (cell.textContent === text) return;
      cell.replaceChildren(value);
      cell.title = text;
    });
  });
  show([]);
  return { box, show };
}

export const open = (place) => new Overview(place);
