// Who waits for whom: the graph of all that waits now, drawn and in sentences. This is the view for a program that hangs.
//
// Rules
//   * Cycles and needs that no node can satisfy come first, in words, because they do not pass by waiting.
//   * The sentences say all that the drawing shows. A screen reader gets them, and the drawing is hidden from it.
//   * The drawing is made anew only when the graph has changed.

import { get } from "./api.js";
import { clean, h, heading, put, s, say } from "./dom.js";
import { number, plain } from "./format.js";
import { keyOf, layered } from "./layers.js";
import { Question } from "./question.js";
import { link } from "./router.js";

const BOX = { width: 216, height: 46, across: 74, down: 14 };
const EDGE = 16;
const BACK = { first: 14, apart: 8 };
const MOST_DRAWN = 250;
const MOST_SENTENCES = 500;
const CHARACTERS = 30;

class Waits {
  constructor(place) {
    this.tables = ["tasks", "actors", "workers", "placement_groups"];
    this.trouble = h("div");
    this.question = new Question(this.trouble);
    this.count = h("span", {}, "asking all processes");
    this.missing = h("span", { class: "missing" });
    this.problems = h("div");
    this.box = h("div", { class: "box graph", role: "region", tabindex: "0", "aria-label": "Drawing of who waits for whom; the list below says the same" });
    this.list = h("ul", { class: "reasons" });
    this.search = h("input", { type: "search", class: "search", placeholder: "Search in the list", "aria-label": "Search in the list", "aria-keyshortcuts": "/", oninput: () => this.showList() });
    place.append(heading("Who waits for whom", "Arrows go from what waits to what it waits for."), this.trouble,
      h("div", { class: "counts" }, this.count, this.missing), this.problems, this.box, legend(),
      h("section", {}, h("h2", {}, "The same in sentences"), h("div", { class: "bar", role: "search" }, this.search), this.list));
    this.refresh();
  }

  update() {}

  async refresh() {
    await this.question.ask((signal) => get("/api/waits", {}, signal), (graph) => this.show(graph));
  }

  show(graph) {
    const silent = (graph.silent ?? []).map(plain);
    const notes = graph.notes ?? [];
    put(this.missing, clean([silent.length && `No answer in time from: ${silent.join("; ")}.`, ...notes].filter(Boolean).join(" "), 500));
    const signature = JSON.stringify([graph.vertices, graph.edges]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.graph = graph;
    this.of = new Map(graph.vertices.map((vertex) => [vertex.id, vertex]));
    const waiting = graph.vertices.filter((vertex) => vertex.kind !== "reason");
    const bad = graph.vertices.filter((vertex) => vertex.kind === "reason" && vertex.is_infeasible);
    put(this.count, `${number(waiting.length)} wait or run, ${number(graph.cycles.length)} cycle${graph.cycles.length === 1 ? "" : "s"}, ${number(bad.length)} need${bad.length === 1 ? "" : "s"} that cannot be met`);
    this.showProblems(graph, bad);
    this.draw(graph);
    this.showList();
  }

  showProblems(graph, bad) {
    const cycles = graph.cycles.map((ids) => `Deadlock: ${this.cycleText(ids)}.`);
    const needs = bad.map((reason) => {
      const who = graph.edges.filter((edge) => edge.target === reason.id).map((edge) => this.nameOf(edge.source));
      return `Cannot be satisfied: ${reason.name}. It keeps ${who.slice(0, 5).join(", ")}${who.length > 5 ? ` and ${who.length - 5} more` : ""}.`;
    });
    const lines = [...cycles, ...needs];
    this.problems.replaceChildren(...(lines.length ? [h("ul", { class: "problems" }, ...lines.map((line) => h("li", {}, clean(line, 1500))))] : []));
    if (lines.length) say(`${graph.cycles.length} cycles and ${bad.length} needs that cannot be met`);
  }

  /** Describe a cycle in the order of its edges. */
  cycleText(ids) {
    const inside = new Set(ids);
    const path = [ids[0]];
    for (;;) {
      const last = path[path.length - 1];
      const next = this.graph.edges.find((edge) => edge.kind === "waits" && edge.source === last && inside.has(edge.target) && (!path.includes(edge.target) || (edge.target === ids[0] && path.length === ids.length)));
      if (!next || next.target === ids[0]) break;
      path.push(next.target);
    }
    return `${path.map((id) => this.nameOf(id)).join(" waits for ")}, which waits for ${path.length === 1 ? "itself" : this.nameOf(path[0])}`;
  }

  nameOf(id) {
    const vertex = this.of.get(id);
    if (!vertex) return id;
    if (vertex.kind === "reason") return vertex.name;
    return vertex.kind === "driver" ? vertex.name : `${vertex.kind} ${clean(vertex.name, 80)} (${id.replace(/^actor /, "")})`;
  }

  showList() {
    if (!this.graph) return;
    const wanted = this.search.value.trim().toLowerCase();
    const lines = this.graph.edges.map((edge) => {
      const verb = edge.kind === "held_by" ? "is held by" : this.of.get(edge.target)?.kind === "reason" ? "—" : "waits for";
      const mark = this.of.get(edge.source)?.in_cycle && this.of.get(edge.target)?.in_cycle ? " [in a cycle]" : this.of.get(edge.target)?.is_infeasible ? " [cannot be satisfied]" : "";
      return [this.of.get(edge.source), `${this.nameOf(edge.source)} ${verb} ${this.nameOf(edge.target)}${mark}`];
    });
    const alone = this.graph.vertices.filter((vertex) => !this.graph.edges.some((edge) => edge.source === vertex.id || edge.target === vertex.id));
    for (const vertex of alone) lines.push([vertex, `${this.nameOf(vertex.id)}: ${vertex.state ?? "no reason is known"}`]);
    const found = lines.filter(([, text]) => !wanted || text.toLowerCase().includes(wanted));
    const rest = found.length > MOST_SENTENCES ? [h("li", { class: "dim" }, `${number(found.length - MOST_SENTENCES)} more; search to see them`)] : [];
    const none = this.graph.vertices.length ? "Nothing matches." : "Nothing waits.";
    this.list.replaceChildren(...found.slice(0, MOST_SENTENCES).map(([vertex, text]) => h("li", {}, clean(text, 1000), " ", pageOf(vertex) && h("a", { href: pageOf(vertex) }, "page"))), ...rest, ...(found.length ? [] : [h("li", { class: "dim" }, none)]));
  }

  draw(graph) {
    if (!graph.vertices.length) {
      this.box.replaceChildren(h("p", { class: "empty" }, "Nothing waits, and no task runs."));
      return;
    }
    const { vertices, edges } = part(graph, MOST_DRAWN);
    const { layers, turned, routes } = layered(vertices.map((vertex) => vertex.id), edges);
    const heights = layers.map((layer) => layer.reduce((sum, id) => sum + this.heightOf(id) + BOX.down, -BOX.down));
    const tallest = Math.max(...heights);
    const places = new Map();
    layers.forEach((layer, column) => {
      let y = EDGE + (tallest - heights[column]) / 2;
      for (const id of layer) {
        places.set(id, { x: EDGE + column * (BOX.width + BOX.across), y, column });
        y += this.heightOf(id) + BOX.down;
      }
    });
    const bottoms = heights.map((height) => EDGE + (tallest + height) / 2);
    const back = edges.filter((edge) => turned.has(keyOf(edge.source, edge.target)) || edge.source === edge.target);
    const width = 2 * EDGE + layers.length * (BOX.width + BOX.across) - BOX.across + (back.length ? BOX.across / 2 : 0);
    const height = 2 * EDGE + tallest + (back.length ? BACK.first + back.length * BACK.apart : 0);
    const way = (edge) => {
      const index = back.indexOf(edge);
      return index < 0 ? forward(edge, places, routes.get(keyOf(edge.source, edge.target)) ?? []) : backward(edge, places, bottoms, index);
    };
    const drawing = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", class: "drawing" },
      s("defs", {}, ...["plain", "cycle", "bad"].map((name) => arrow(name))),
      ...edges.map((edge) => this.edge(edge, way(edge))), ...vertices.map((vertex) => box(vertex, places.get(vertex.id))));
    const left = graph.vertices.length - vertices.length;
    this.box.replaceChildren(drawing, left ? h("p", { class: "empty" }, `${number(left)} of ${number(graph.vertices.length)} are not drawn. The list below has them.`) : "");
  }

  heightOf(id) {
    return this.of.has(id) ? BOX.height : BACK.apart;
  }

  edge(edge, path) {
    const isCycle = this.of.get(edge.source).in_cycle && this.of.get(edge.target).in_cycle && edge.kind === "waits";
    const tone = isCycle ? "cycle" : this.of.get(edge.target).is_infeasible ? "bad" : "plain";
    const classes = `edge ${tone} ${edge.kind === "held_by" ? "held" : ""}`;
    return s("path", { d: path, class: classes, "marker-end": `url(#arrow-${tone})` }, s("title", {}, clean(edge.text, 500)));
  }

  close() {
    this.question.stop();
  }
}

/** Draw an edge to the right, through its places in the layers between. */
function forward(edge, places, route) {
  let at = { x: places.get(edge.source).x + BOX.width, y: places.get(edge.source).y + BOX.height / 2 };
  let path = `M${at.x} ${at.y}`;
  const bend = BOX.across / 2;
  for (const id of route) {
    const { x, y } = places.get(id);
    const middle = y + BACK.apart / 2;
    path += `C${at.x + bend} ${at.y} ${x - bend} ${middle} ${x} ${middle}L${x + BOX.width} ${middle}`;
    at = { x: x + BOX.width, y: middle };
  }
  const end = places.get(edge.target);
  return `${path}C${at.x + bend} ${at.y} ${end.x - bend} ${end.y + BOX.height / 2} ${end.x - 4} ${end.y + BOX.height / 2}`;
}

/** Draw an edge that leads back, below all boxes between its ends. */
function backward(edge, places, bottoms, index) {
  const [from, to] = [places.get(edge.source), places.get(edge.target)];
  const low = Math.max(...bottoms.slice(to.column, from.column + 1)) + BACK.first + index * BACK.apart;
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + BOX.height / 2, to.x, to.y + BOX.height / 2];
  const turn = BOX.across / 2;
  return `M${x1} ${y1}C${x1 + turn} ${y1} ${x1 + turn} ${low} ${x1} ${low}L${x2} ${low}C${x2 - turn} ${low} ${x2 - turn} ${y2} ${x2 - 4} ${y2}`;
}

function arrow(name) {
  return s("marker", { id: `arrow-${name}`, viewBox: "0 0 8 8", refX: "6", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" },
    s("path", { d: "M0 0L8 4L0 8z", class: `head ${name}` }));
}

function box(vertex, { x, y }) {
  const state = vertex.state ? ` · ${vertex.state}` : vertex.pid ? ` · pid ${vertex.pid}` : "";
  const isReason = vertex.kind === "reason";
  const [first, second] = isReason ? inTwo(clean(vertex.name, 200)) : [cut(`${vertex.kind}${state}`), cut(vertex.name)];
  const classes = `vertex ${vertex.kind} ${vertex.in_cycle ? "cycle" : ""} ${vertex.is_infeasible ? "bad" : ""}`;
  const parts = [
    s("rect", { width: BOX.width, height: BOX.height, rx: isReason ? 12 : 4 }),
    s("text", { x: 10, y: isReason && !second ? 27 : 18, class: isReason ? "name" : "kind" }, first), s("text", { x: 10, y: 36, class: "name" }, second),
    s("title", {}, clean(`${vertex.kind} ${vertex.name} ${vertex.id}`, 500)),
  ];
  const page = pageOf(vertex);
  return s("g", { class: classes, transform: `translate(${x} ${y})` }, page ? s("a", { href: page, tabindex: "-1" }, ...parts) : parts);
}

/** Break a text into two lines of a box. */
function inTwo(text) {
  if (text.length <= CHARACTERS) return [text, ""];
  const space = text.lastIndexOf(" ", CHARACTERS);
  const at = space > CHARACTERS / 2 ? space : CHARACTERS;
  return [text.slice(0, at), cut(text.slice(at).trim())];
}

function cut(text) {
  const shown = clean(text, 200);
  return shown.length > CHARACTERS ? `${shown.slice(0, CHARACTERS - 1)}…` : shown;
}

function pageOf(vertex) {
  if (vertex?.task_id) return link(["tasks", vertex.task_id]);
  return vertex?.actor_id ? link(["actors", vertex.actor_id]) : "";
}

/** Choose the vertices that are drawn: cycles and needs that cannot be met first, and what is connected with them. */
function part(graph, most) {
  if (graph.vertices.length <= most) return graph;
  const near = new Map(graph.vertices.map((vertex) => [vertex.id, []]));
  for (const { source, target } of graph.edges) {
    near.get(source).push(target);
    near.get(target).push(source);
  }
  const weight = (vertex) => (vertex.in_cycle ? 0 : vertex.is_infeasible ? 1 : vertex.kind === "driver" ? 2 : 3);
  const chosen = new Set();
  const queue = [...graph.vertices].sort((one, other) => weight(one) - weight(other)).map((vertex) => vertex.id);
  for (const start of queue) {
    const nearby = [start];
    for (const id of nearby) {
      if (chosen.size >= most) break;
      if (chosen.has(id)) continue;
      chosen.add(id);
      nearby.push(...near.get(id));
    }
  }
  return {
    vertices: graph.vertices.filter((vertex) => chosen.has(vertex.id)),
    edges: graph.edges.filter((edge) => chosen.has(edge.source) && chosen.has(edge.target)),
  };
}

function legend() {
  const entry = (name, text) => h("li", {}, h("i", { class: `key ${name}` }), text);
  return h("ul", { class: "legend", "aria-hidden": "true" }, entry("cycle", "in a cycle: none of them goes on"), entry("bad", "no node can satisfy it"), entry("held", "held by a task that runs"));
}

export const open = (place) => new Waits(place);
