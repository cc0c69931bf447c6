// When each worker ran which task: a drawing that can be zoomed, the sums by name as a table, and the trace as a file for Perfetto.
//
// The drawing is a canvas as large as its box; the box scrolls over the rows, and what is in view is drawn. Tasks of one row do not
// overlap, so that those in view are found by halving. A line below the controls describes the chosen task.

import { get } from "./api.js";
import { clean, h, heading, put } from "./dom.js";
import { duration, number, plain } from "./format.js";
import { Question } from "./question.js";
import { link } from "./router.js";

const ROW = 20;
const AXIS = 24;
const MOST_LIVE = 5000;
const MOST_SHOWN = 20000;
const MOST_NAMES = 40;
const HUES = [205, 150, 265, 30, 330, 95, 185, 60];
const NARROWEST_US = 1;
const NARROW = 600;

class Timeline {
  constructor(place) {
    this.tables = ["tasks"];
    this.rows = [];
    this.left = 0;
    this.right = 1;
    this.build(place);
    this.load();
  }

  build(place) {
    const button = (text, label, what) => h("button", { type: "button", "aria-label": label, title: label, onclick: what }, text);
    this.trouble = h("div");
    this.question = new Question(this.trouble);
    this.count = h("span", {}, "asking all workers");
    this.missing = h("span", { class: "missing" });
    this.chosen = h("p", { class: "chosen" }, " ");
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.spacer = h("div", { class: "spacer" });
    this.box = h("div", { class: "box chart", tabindex: "0", role: "application", "aria-label": "Timeline. Plus and minus zoom, arrow keys pan, 0 shows all, comma and full stop choose a task, Enter opens it. The table below has the sums." }, this.canvas, this.spacer);
    this.body = h("tbody");
    this.more = h("p", { class: "note" });
    place.append(heading("Timeline", "Tasks that have ended, and the workers that ran them."), this.trouble,
      h("div", { class: "bar" }, button("−", "Zoom out", () => this.zoom(1.6)), button("+", "Zoom in", () => this.zoom(1 / 1.6)), button("←", "Earlier", () => this.pan(-0.25)),
        button("→", "Later", () => this.pan(0.25)), button("All", "Show all", () => this.all()), button("Reload", "Ask for the newest tasks", () => this.load()),
        h("a", { class: "button", href: "/api/timeline", download: "minray-timeline.json" }, "Download for Perfetto")),
      h("div", { class: "counts" }, this.count, this.missing), this.chosen, this.box,
      h("section", {}, h("h2", {}, "Time by name"), h("div", { class: "box", role: "region", "aria-label": "Time by name", tabindex: "0" }, sumsTable(this.body)), this.more));
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    this.box.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    this.box.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    this.canvas.addEventListener("pointermove", (event) => this.onMove(event));
    this.canvas.addEventListener("pointerup", (event) => this.onUp(event));
    this.canvas.addEventListener("dblclick", (event) => this.zoom(1 / 3, this.timeAt(event.offsetX)));
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this.box);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.onScheme = () => this.draw();
    this.dark.addEventListener("change", this.onScheme);
  }

  update() {}

  async refresh() {
    if ((this.total ?? 0) <= MOST_LIVE) await this.load();
  }

  async load() {
    await this.question.ask((signal) => get("/api/timeline", { limit: MOST_SHOWN }, signal), (trace) => this.take(trace));
  }

  take(trace) {
    const wasAll = !this.total || (this.left <= this.begin && this.right >= this.end);
    const names = { process_name: new Map(), thread_name: new Map() };
    const rows = new Map();
    for (const event of trace.traceEvents) {
      if (event.ph === "M") names[event.name]?.set(event.name === "thread_name" ? `${event.pid}/${event.tid}` : event.pid, event.args.name);
      if (event.ph !== "X") continue;
      const key = `${event.pid}/${event.tid}`;
      if (!rows.has(key)) rows.set(key, { key, pid: event.pid, tasks: [], phases: [] });
      rows.get(key)[event.cat.startsWith("task::") ? "tasks" : "phases"].push(event);
    }
    this.rows = [];
    let node = null;
    for (const row of [...rows.values()].sort((one, other) => one.pid - other.pid)) {
      if (row.pid !== node) this.rows.push({ title: names.process_name.get(row.pid) ?? `node ${row.pid}` });
      node = row.pid;
      for (const list of [row.tasks, row.phases]) list.sort((one, other) => one.ts - other.ts);
      row.name = (names.thread_name.get(row.key) ?? row.key).replace(/^worker:([0-9a-f]{8})[0-9a-f]*/, "$1");
      this.rows.push(row);
    }
    const tasks = this.rows.flatMap((row) => row.tasks ?? []);
    this.total = tasks.length;
    this.begin = tasks.reduce((least, task) => Math.min(least, task.ts), Infinity);
    this.end = tasks.reduce((most, task) => Math.max(most, task.ts + task.dur), -Infinity);
    if (wasAll) [this.left, this.right] = this.total ? [this.begin, Math.max(this.end, this.begin + NARROWEST_US)] : [0, 1];
    put(this.count, this.total ? `${number(this.total)} tasks of ${number(rows.size)} workers in ${duration((this.end - this.begin) / 1e6)}${this.total > MOST_LIVE ? "; so many are read again only by Reload" : ""}` : "No task has ended yet.");
    put(this.missing, clean(notShown(trace), 500));
    this.spacer.style.height = `${this.rows.length * ROW + AXIS}px`;
    this.showSums(tasks, trace.left_out);
    this.draw();
  }

  showSums(tasks, leftOut) {
    const sums = new Map();
    for (const task of tasks) {
      const name = task.args?.func_or_class_name || task.name;
      const sum = sums.get(name) ?? { name, count: 0, total: 0, longest: 0, failed: 0 };
      sum.count += 1;
      sum.total += task.dur;
      sum.longest = Math.max(sum.longest, task.dur);
      sum.failed += task.args?.state === "FAILED" ? 1 : 0;
      sums.set(name, sum);
    }
    const rows = [...sums.values()].sort((one, other) => other.total - one.total);
    this.body.replaceChildren(...rows.slice(0, MOST_NAMES).map((row) => h("tr", {}, h("th", { scope: "row", title: clean(row.name) }, clean(row.name)),
      ...[number(row.count), number(row.failed), duration(row.total / 1e6), duration(row.total / row.count / 1e6), duration(row.longest / 1e6)].map((text) => h("td", { class: "num" }, text)))));
    const most = rows.length > MOST_NAMES ? `${number(MOST_NAMES)} of ${number(rows.length)} names: those that took most time. ` : "";
    put(this.more, most + (leftOut ? "These are sums of the tasks that are shown." : ""));
  }

  // --- what is in view

  all() {
    if (!this.total) return;
    [this.left, this.right] = [this.begin, Math.max(this.end, this.begin + NARROWEST_US)];
    this.draw();
  }

  zoom(by, at = (this.left + this.right) / 2) {
    const width = Math.max(NARROWEST_US, Math.min((this.right - this.left) * by, (this.end - this.begin) * 2));
    const share = (at - this.left) / (this.right - this.left);
    this.left = at - share * width;
    this.right = this.left + width;
    this.draw();
  }

  pan(share) {
    const by = share * (this.right - this.left);
    this.left += by;
    this.right += by;
    this.draw();
  }

  timeAt(x) {
    return this.left + ((x - this.labels) / (this.width - this.labels)) * (this.right - this.left);
  }

  xOf(time) {
    return this.labels + ((time - this.left) / (this.right - this.left)) * (this.width - this.labels);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      "+": () => this.zoom(1 / 1.6), "=": () => this.zoom(1 / 1.6), "-": () => this.zoom(1.6), ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15),
      0: () => this.all(), Home: () => this.all(), ",": () => this.step(-1), ".": () => this.step(1),
      Enter: () => { if (this.task) location.hash = link(["tasks", this.task.args.task_id]); },
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  onWheel(event) {
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      this.pan((event.deltaX || event.deltaY) / this.width);
    } else if (event.ctrlKey || event.metaKey || event.altKey) {
      event.preventDefault();
      this.zoom(1.002 ** event.deltaY, this.timeAt(event.offsetX));
    }
  }

  onDown(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, left: this.left, right: this.right, moved: false };
  }

  onMove(event) {
    if (!this.drag) {
      if (!this.isPinned) this.choose(this.taskAt(event.offsetX, event.offsetY));
      return;
    }
    const by = ((event.offsetX - this.drag.x) / (this.width - this.labels)) * (this.drag.right - this.drag.left);
    this.drag.moved ||= Math.abs(event.offsetX - this.drag.x) > 3;
    if (!this.drag.moved) return;
    [this.left, this.right] = [this.drag.left - by, this.drag.right - by];
    this.draw();
  }

  onUp(event) {
    if (this.drag && !this.drag.moved) {
      const task = this.taskAt(event.offsetX, event.offsetY);
      this.isPinned = Boolean(task);
      this.choose(task);
    }
    this.drag = null;
  }

  taskAt(x, y) {
    const row = this.rows[Math.floor((y - AXIS + this.box.scrollTop) / ROW)];
    if (!row?.tasks || x < this.labels || y < AXIS) return null;
    const time = this.timeAt(x);
    const slack = (2 * (this.right - this.left)) / this.width;
    return row.tasks.slice(firstAt(row.tasks, time - slack)).find((task) => task.ts - slack <= time) ?? null;
  }

  /** Choose the next or previous task in the order of the rows, and bring it into view. */
  step(by) {
    const tasks = this.rows.flatMap((row) => row.tasks ?? []);
    const task = tasks[Math.max(0, Math.min(tasks.length - 1, tasks.indexOf(this.task) + by))];
    if (!task) return;
    this.isPinned = true;
    if (task.ts < this.left || task.ts + task.dur > this.right) this.zoom(1, this.left);
    if (task.ts < this.left || task.ts > this.right) {
      const width = this.right - this.left;
      [this.left, this.right] = [task.ts - width / 2, task.ts + width / 2];
    }
    this.choose(task);
  }

  choose(task) {
    if (task === this.task) return;
    this.task = task;
    const parts = task && [
      h("a", { href: link(["tasks", task.args.task_id]) }, clean(task.name)), ` ${clean(task.args.state)}, ${duration(task.dur / 1e6)}, began ${duration((task.ts - this.begin) / 1e6)} after the first`,
      task.args.attempt_number ? `, attempt ${task.args.attempt_number}` : "",
    ];
    this.chosen.replaceChildren(...(parts ?? [" "]));
    this.draw();
  }

  // --- drawing

  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const { canvas, box } = this;
    const scale = devicePixelRatio || 1;
    this.width = box.clientWidth;
    this.labels = this.width < NARROW ? 92 : 170;
    const height = box.clientHeight;
    if (canvas.width !== Math.round(this.width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(this.width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${height}px`;
    }
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries(["fg", "dim", "line", "panel", "bad", "accent"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, this.width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const first = Math.floor(box.scrollTop / ROW);
    for (let index = first; index < Math.min(this.rows.length, first + height / ROW + 1); index += 1) {
      const row = this.rows[index];
      const top = AXIS + index * ROW - box.scrollTop;
      if (row.tasks) this.paintRow(pen, row, top);
      else this.paintTitle(pen, row, top);
    }
    this.paintAxis(pen, height);
  }

  paintTitle(pen, row, top) {
    pen.fillStyle = this.colours.fg;
    pen.font = "600 11px system-ui, sans-serif";
    pen.fillText(clean(row.title, 80), 8, top + ROW / 2 + 1);
    pen.font = "11px system-ui, sans-serif";
  }

  paintRow(pen, row, top) {
    let painted = -1;
    for (let index = firstAt(row.tasks, this.left); index < row.tasks.length; index += 1) {
      const task = row.tasks[index];
      if (task.ts > this.right) break;
      const from = Math.max(this.labels, this.xOf(task.ts));
      const to = Math.max(from + 1, this.xOf(task.ts + task.dur));
      if (to <= painted + 0.5) continue;
      painted = to;
      this.paintTask(pen, task, from, Math.min(to, this.width), top);
    }
    for (let index = firstAt(row.phases, this.left); index < row.phases.length && row.phases[index].ts <= this.right; index += 1) {
      const phase = row.phases[index];
      const [from, to] = [Math.max(this.labels, this.xOf(phase.ts)), Math.min(this.width, this.xOf(phase.ts + phase.dur))];
      if (to - from < 1) continue;
      pen.fillStyle = phase.name === "task:execute" ? this.colours.accent : this.colours.dim;
      pen.fillRect(from, top + ROW - 4, to - from, 2);
    }
    pen.fillStyle = this.colours.panel;
    pen.fillRect(0, top, this.labels, ROW);
    pen.fillStyle = this.colours.dim;
    pen.fillText(clean(this.width < NARROW ? row.name : `worker ${row.name}`, this.labels / 7), 14, top + ROW / 2 + 1);
  }

  paintTask(pen, task, from, to, top) {
    const isDark = this.dark.matches;
    const failed = task.args?.state === "FAILED";
    pen.fillStyle = failed ? this.colours.bad : `hsl(${HUES[hash(task.name) % HUES.length]} ${isDark ? "34% 32%" : "48% 80%"})`;
    pen.fillRect(from, top + 2, to - from, ROW - 4);
    if (task === this.task) {
      pen.strokeStyle = this.colours.fg;
      pen.lineWidth = 2;
      pen.strokeRect(from, top + 2, to - from, ROW - 4);
    }
    if (to - from < 30) return;
    pen.save();
    pen.beginPath();
    pen.rect(from, top, to - from - 3, ROW);
    pen.clip();
    pen.fillStyle = failed ? this.colours.panel : this.colours.fg;
    pen.fillText(clean(task.name, 60), from + 4, top + ROW / 2 + 1);
    pen.restore();
  }

  paintAxis(pen, height) {
    pen.fillStyle = this.colours.panel;
    pen.fillRect(0, 0, this.width, AXIS);
    pen.strokeStyle = this.colours.line;
    pen.lineWidth = 1;
    if (!this.total) return;
    const wanted = (this.right - this.left) / Math.max(2, (this.width - this.labels) / 90);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= wanted);
    pen.fillStyle = this.colours.dim;
    for (let time = Math.ceil((this.left - this.begin) / step) * step; time <= this.right - this.begin; time += step) {
      const x = Math.round(this.xOf(this.begin + time)) + 0.5;
      if (x < this.labels) continue;
      pen.beginPath();
      pen.moveTo(x, AXIS - 5);
      pen.lineTo(x, height);
      pen.globalAlpha = 0.6;
      pen.stroke();
      pen.globalAlpha = 1;
      pen.fillText(Math.abs(time) < 0.5 ? "0" : `${time < 0 ? "−" : ""}${duration(Math.abs(time) / 1e6)}`, x + 4, AXIS / 2);
    }
    pen.beginPath();
    pen.moveTo(0, AXIS - 0.5);
    pen.lineTo(this.width, AXIS - 0.5);
    pen.stroke();
  }

  close() {
    this.question.stop();
    this.resizing.disconnect();
    this.dark.removeEventListener("change", this.onScheme);
    cancelAnimationFrame(this.frame);
  }
}

/** Return the index of the first task that ends at a time or later. Tasks are in the order of their beginnings and ends. */
function firstAt(tasks, time) {
  let [low, high] = [0, tasks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tasks[middle].ts + tasks[middle].dur < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

function hash(text) {
  let sum = 7;
  for (let index = 0; index < Math.min(text.length, 64); index += 1) sum = (sum * 31 + text.charCodeAt(index)) >>> 0;
  return sum;
}

function sumsTable(body) {
  const labels = ["Name", "Tasks", "Failed", "In all", "Mean", "Longest"];
  const columns = labels.map((_, index) => {
    const column = h("col");
    if (index) column.style.width = "92px";
    return column;
  });
  const table = h("table", {}, h("caption", { class: "unseen" }, "Time by name"), h("colgroup", {}, ...columns),
    h("thead", {}, h("tr", {}, ...labels.map((label, index) => h("th", { scope: "col", class: index ? "num" : undefined }, label)))), body);
  table.style.minWidth = "640px";
  return table;
}

export const open = (place) => new Timeline(place);

/** Say what the drawing leaves out, and where the rest is. */
function notShown(trace) {
  const more = trace.total > trace.most_downloaded ? `The download has ${number(trace.most_downloaded)}, and the command "minray timeline" writes all.` : "The download has all.";
  const left = trace.left_out && `Of ${number(trace.total)} tasks ${number(trace.left_out)} are not shown: each worker ended them earlier than its others. ${more}`;
  const silent = trace.silent.length && `No answer in time from: ${trace.silent.map(plain).join("; ")}.`;
  return [left, silent, ...trace.notes].filter(Boolean).join(" ");
}
