// The last ten minutes in numbers: a line for each series, with its value now, and its least and greatest in words.

import { get } from "./api.js";
import { clean, h, heading, put, s } from "./dom.js";
import { bytes, number } from "./format.js";
import { Question } from "./question.js";

const WIDTH = 300;
const HEIGHT = 56;
const PERIOD_MS = 5000;
const TITLES = {
  cpu_percent: "CPU of the machines", ram_used: "Memory of the machines", disk_used: "Disks in use", cpus_used: "CPUs taken by tasks and actors", cpus_total: "CPUs", gpus_used: "GPUs taken", memory_used: "Memory taken", store_used: "Object store in use",
  store_total: "Object store", spilled: "Spilled to disk", nodes: "Nodes alive", workers: "Workers", waiting: "Requests that wait", jobs: "Jobs that run",
  silent: "Processes that do not answer",
};
const FIRST = ["cpu_percent", "ram_used", "store_used", "disk_used", "cpus_used", "waiting", "workers", "spilled", "memory_used", "gpus_used", "nodes", "jobs", "silent"];
const LIMIT_OF = { cpus_used: "cpus_total", store_used: "store_total", ram_used: "ram_total" };
const WRITERS = { bytes, "%": (value) => `${number(value)} %` };

class Metrics {
  constructor(place) {
    this.tables = [];
    this.period_ms = PERIOD_MS;
    this.trouble = h("div");
    this.question = new Question(this.trouble);
    this.note = h("p", { class: "note" }, " ");
    this.cards = new Map();
    this.list = h("ul", { class: "sparks" });
    place.append(heading("Metrics", "The last ten minutes. Prometheus can read the same and more at /metrics."), this.trouble, this.note, this.list);
    this.refresh();
  }

  update() {}

  async refresh() {
    await this.question.ask((signal) => get("/api/metrics/history", {}, signal), (history) => this.show(history));
  }

  show(history) {
    const { samples, units = {}, period_s: period } = history;
    const names = [...new Set(samples.flatMap((sample) => Object.keys(sample.series)))];
    const totals = new Set(Object.values(LIMIT_OF));
    const shown = [...FIRST.filter((name) => names.includes(name)), ...names.filter((name) => !FIRST.includes(name) && !totals.has(name)).sort()];
    const gaps = samples.filter((sample) => !Object.keys(sample.series).length).length;
    put(this.note, samples.length ? `${number(samples.length)} samples, one every ${number(period)} s${gaps ? `; in ${number(gaps)} of them the cluster did not answer` : ""}` : "The first sample is on its way.");
    for (const [name, card] of this.cards) {
      if (!shown.includes(name)) {
        card.item.remove();
        this.cards.delete(name);
      }
    }
    for (const name of shown) this.showSeries(name, samples, units[name], period);
  }

  showSeries(name, samples, unit, period) {
    const values = samples.map((sample) => sample.series[name]);
    const known = values.filter((value) => value !== undefined);
    const write = WRITERS[unit] ?? number;
    const [least, most, last] = [Math.min(...known), Math.max(...known), known.at(-1)];
    const limit = samples.at(-1)?.series[LIMIT_OF[name]];
    let card = this.cards.get(name);
    if (!card) {
      card = { value: h("strong"), rest: h("span", { class: "dim" }), line: s("path", { class: "line" }), area: s("path", { class: "area" }), dot: s("circle", { r: 2.5 }) };
      card.svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" }, card.area, card.line);
      card.item = h("li", {}, h("h2", {}, clean(TITLES[name] ?? name.replaceAll("_", " "))), card.value, card.rest, card.svg);
      this.cards.set(name, card);
      this.list.append(card.item);
    }
    put(card.value, write(last));
    put(card.rest, `${limit ? `of ${write(limit)}` : write(least) === write(most) ? "unchanged" : `${write(least)} to ${write(most)}`}`);
    card.svg.setAttribute("aria-label", `${TITLES[name] ?? name}: now ${write(last)}, least ${write(least)}, greatest ${write(most)} in ${Math.round((samples.length * period) / 60)} minutes`);
    const top = Math.max(limit ?? (unit === "%" ? 100 : 0), most, 1e-9) * 1.05;
    const step = WIDTH / Math.max(samples.length - 1, 119);
    const start = WIDTH - step * (samples.length - 1);
    const points = values.map((value, index) => (value === undefined ? null : [start + index * step, HEIGHT - 1 - (value / top) * (HEIGHT - 3)]));
    card.line.setAttribute("d", runs(points).map((run) => `M${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`).join(""));
    card.area.setAttribute("d", runs(points).map((run) => `M${run[0][0].toFixed(1)} ${HEIGHT}L${run.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}L${run.at(-1)[0].toFixed(1)} ${HEIGHT}z`).join(""));
  }

  close() {
    this.question.stop();
  }
}

/** Split points at the gaps. */
function runs(points) {
  const found = [[]];
  for (const point of points) {
    if (point) found.at(-1).push(point);
    else if (found.at(-1).length) found.push([]);
  }
  return found.filter((run) => run.length);
}

export const open = (place) => new Metrics(place);
