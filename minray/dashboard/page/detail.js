// The page of one thing: all that is known about it, why it is not ready, and where to go on from there.

import { get, post } from "./api.js";
import { idLink, KINDS, stateOf } from "./cells.js";
import { ask, clean, h, heading, LONG, put, say, trouble } from "./dom.js";
import { number, plain, resources, shortId } from "./format.js";
import { bundleText, copyText, LISTS } from "./lists.js";
import { Question } from "./question.js";
import { link } from "./router.js";

const KIND_OF = {
  actor_id: "actor", task_id: "task", parent_task_id: "task", object_id: "object", node_id: "node", job_id: "job", creator_job_id: "job",
  worker_id: "worker", owner_id: "worker", placement_group_id: "placement_group",
};
const TEXTS = { error_message: "Error", exit_detail: "Exit detail", state_message: "Message" };
const LISTED = new Set(["death_cause", "bundles", "copies"]);
const DONE = new Set(["FINISHED", "FAILED"]);

/** Kind -> the name of one, whether `why` knows it, links to what belongs to it, and what may be done to it. */
const KINDS_OF_THINGS = {
  nodes: {
    one: "Node", kind: "node",
    links: (row) => [
      ["Workers", link(["workers"], { filter: `node_id=${row.node_id}` })], ["Actors", link(["actors"], { filter: `node_id=${row.node_id}` })],
      ["Tasks", link(["tasks"], { filter: `node_id=${row.node_id}` })], ["Logs", link(["logs"], { filter: `node_id=${row.node_id}` })],
    ],
    control: (row) => row.state === "ALIVE" && ["Drain", `Drain the node ${row.node_id}? It takes no new work, and leaves when its tasks have ended.`, "/api/control/drain", { node_id: row.node_id }],
  },
  workers: {
    one: "Worker", kind: "worker",
    links: (row) => [
      row.is_alive && ["Stack", link(["stacks"], { process: row.worker_id })], ["Tasks", link(["tasks"], { filter: `worker_id=${row.worker_id}` })],
      ["Logs", logsOf(row.worker_id)],
    ],
  },
  jobs: {
    one: "Job", kind: "job",
    links: (row) => [["Tasks", link(["tasks"], { filter: `job_id=${row.job_id}` })], ["Actors", link(["actors"], { filter: `job_id=${row.job_id}` })], ["Workers", link(["workers"], { filter: `job_id=${row.job_id}` })]],
  },
  actors: {
    one: "Actor", kind: "actor", why: (row) => row.state !== "DEAD",
    links: (row) => [
      ["Calls", link(["tasks"], { filter: `actor_id=${row.actor_id}` })], row.state === "ALIVE" && ["Stack", link(["stacks"], { process: String(row.pid) })],
      ["Worker", link(["workers"], { filter: `actor_id=${row.actor_id}` })],
    ],
    control: (row) => row.state !== "DEAD" && ["Kill", `Kill the actor ${clean(row.name || row.class_name)}? Its calls fail, and it is not restarted.`, "/api/control/kill", { actor_id: row.actor_id, no_restart: true }],
  },
  tasks: {
    one: "Task", kind: "task", why: (row) => !DONE.has(row.state),
    links: (row) => [
      row.worker_id && ["Worker", link(["workers", row.worker_id])], row.worker_pid && !DONE.has(row.state) && ["Stack", link(["stacks"], { process: String(row.worker_pid) })],
      row.worker_id && ["Logs", logsOf(row.worker_id)], ["Others with this name", link(["tasks"], { filter: `func_or_class_name=${row.func_or_class_name}` })],
      ["Children", link(["tasks"], { filter: `parent_task_id=${row.task_id}` })],
    ],
    control: (row) => !DONE.has(row.state) && ["Cancel", `Cancel the task ${clean(row.name)}? Its result becomes an error.`, "/api/control/cancel", { task_id: row.task_id, force: false, recursive: true }],
  },
  objects: { one: "Object", kind: "object", why: (row) => !["NIL", "FINISHED"].includes(row.task_status),
    links: (row) => [row.task_status !== "NIL" && ["Task that makes it", link(["tasks", row.object_id.slice(0, 48)])], row.owner_id && ["Owner", link(["workers", row.owner_id])]],
  },
  placement_groups: { one: "Placement group", kind: "placement_group", why: (row) => !["CREATED", "REMOVED"].includes(row.state), links: (row) => [["Job", link(["jobs", row.creator_job_id])]] },
};

function logsOf(workerId) {
  return link(["logs"], { search: workerId.slice(0, 8) });
}

class Detail {
  constructor(place, route) {
    [this.table, this.id] = route.path;
    this.thing = KINDS_OF_THINGS[this.table];
    if (!this.thing) throw new Error(`There are no pages of single ${clean(this.table)}.`);
    this.tables = [this.table];
    this.title = `${this.thing.one} ${shortId(this.id, this.thing.kind)}`;
    this.trouble = h("div");
    this.question = new Question(this.trouble);
    this.name = h("p", { class: "note isolate" });
    this.links = h("p", { class: "bar" });
    this.facts = h("dl", { class: "facts-of" });
    this.after = h("div");
    this.why = h("ol", { class: "reasons" });
    this.whySection = h("section", { hidden: !this.thing.why }, h("h2", {}, "Why it is not ready, or what it does"), this.why);
    place.append(h("p", { class: "note" }, h("a", { href: link([this.table]) }, LISTS[this.table].title)), heading(this.title), this.trouble, this.name,
      this.links, this.whySection, this.after, h("section", {}, h("h2", {}, "All that is known"), this.facts));
    this.refresh();
    this.findControl();
  }

  update() {}

  async findControl() {
    if (!this.thing.control) return;
    try {
      this.mayControl = Boolean((await get("/api/cluster")).allow_control);
      if (this.row) this.showLinks(this.row);
    } catch {
      this.mayControl = false; // the view itself says what is wrong
    }
  }

  async refresh() {
    const take = async (answer, signal) => {
      this.show(answer);
      if (this.thing.why?.(answer.row)) await this.explain(signal);
      else this.whySection.hidden = true;
    };
    await this.question.ask((signal) => get(`/api/${this.table}/${encodeURIComponent(this.id)}`, {}, signal), take, (error) => this.fail(error));
  }

  fail(error) {
    const text = error.status === 404 ? `${error.message}. It may have ended, and be forgotten.` : error.message;
    this.trouble.replaceChildren(trouble(text, () => this.refresh()));
  }

  async explain(signal) {
    let lines;
    try {
      lines = (await get(`/api/why/${encodeURIComponent(this.id)}`, {}, signal)).lines;
    } catch (error) {
      lines = [error.message];
    }
    if (signal.aborted) return;
    const texts = lines.length ? lines.map((line) => clean(line, 2000)) : ["Nothing keeps it."];
    if (JSON.stringify(texts) === this.whyText) return;
    this.whyText = JSON.stringify(texts);
    this.whySection.hidden = false;
    this.why.replaceChildren(...texts.map((text) => h("li", {}, text)));
  }

  show(answer) {
    const { row } = answer;
    const signature = JSON.stringify(answer);
    if (signature === this.signature) return;
    this.signature = signature;
    this.row = row;
    put(this.name, clean([row.class_name, row.name, row.entrypoint, row.node_name].filter(Boolean).join(" · "), 300));
    this.showLinks(row);
    const labels = Object.fromEntries(LISTS[this.table].columns.map((column) => [column.key, column]));
    const facts = Object.entries(row).filter(([key, value]) => !TEXTS[key] && !LISTED.has(key) && value !== null && value !== "");
    this.facts.replaceChildren(...facts.flatMap(([key, value]) => [h("dt", {}, key.replaceAll("_", " ")), h("dd", {}, drawFact(key, value, labels[key]))]));
    this.after.replaceChildren(...this.sections(row, answer.rows ?? [row]));
  }

  showLinks(row) {
    const links = this.thing.links(row).filter(Boolean).map(([text, href]) => h("a", { class: "button", href }, text));
    const control = this.mayControl && this.thing.control?.(row);
    const focused = this.links.contains(document.activeElement) ? document.activeElement.textContent : "";
    this.links.replaceChildren(...links, control ? h("button", { type: "button", class: "danger", onclick: () => this.control(control) }, control[0]) : "");
    if (focused) [...this.links.children].find((one) => one.textContent === focused)?.focus();
  }

  async control([verb, question, path, body]) {
    if (!(await ask(question, verb))) return;
    try {
      await post(path, body);
      say(`${verb}: done`);
      await this.refresh();
    } catch (error) {
      this.trouble.replaceChildren(trouble(error.message));
    }
  }

  sections(row, rows) {
    const found = [];
    if (row.death_cause) found.push(section("Death certificate", h("p", {}, stateOf(row.death_cause.kind, "bad")), pre(row.death_cause.message)));
    for (const [key, title] of Object.entries(TEXTS)) if (row[key]) found.push(section(title, pre(row[key])));
    if (row.bundles) found.push(section(`Bundles (${number(row.bundles.length)})`, listOf(row.bundles.map((bundle) => [bundleText(bundle, false), bundle.node_id && idLink(bundle.node_id, "node")]))));
    if (row.copies) found.push(section(`Copies (${number(row.copies.length)})`, listOf(row.copies.map((copy) => [`${copyText(copy, false)} on`, idLink(copy.node_id, "node")]))));
    if (this.table === "objects") {
      found.push(section(`Processes that refer to it (${number(rows.length)})`, listOf(rows.map((one) => [`${one.holder || `pid ${one.pid}`}: ${one.reference_type}${one.call_site && one.call_site !== "disabled" ? `, ${one.call_site}` : ""}`, idLink(one.worker_id, "worker")]))));
    }
    return found;
  }

  close() {
    this.question.stop();
  }
}

function section(title, ...parts) {
  return h("section", {}, h("h2", {}, title), ...parts);
}

function pre(text) {
  return h("pre", { tabindex: "0" }, clean(text, LONG));
}

function listOf(entries) {
  if (!entries.length) return h("p", { class: "empty" }, "None.");
  return h("ul", { class: "reasons" }, ...entries.map(([text, place]) => h("li", {}, clean(text, 1000), " ", place)));
}

function drawFact(key, value, column) {
  if (key.endsWith("pid")) return KINDS.pid.draw(value);
  if (KIND_OF[key] && value) return idLink(value, KIND_OF[key], true);
  if (value && typeof value === "object" && key.startsWith("resources")) return clean(resources(value), LONG);
  if (value && key === "required_resources") return clean(resources(value), LONG);
  if (column && !column.of && ["bytes", "moment", "state"].includes(column.kind) && value !== null) return KINDS[column.kind].draw(value);
  if (column && ["used"].includes(column.kind) && value !== null) return KINDS.bytes.draw(value);
  if (/_(total|used)$/.test(key) && /^(store|memory|ram|disk)/.test(key)) return KINDS.bytes.draw(value);
  if (/^(network_.*_speed|disk_free)$/.test(key)) return KINDS.bytes.draw(value);
  if (/_time$/.test(key)) return KINDS.moment.draw(value);
  return clean(plain(value), LONG);
}

export const open = (place, route) => new Detail(place, route);
