// Starts the page: the list of views, the live indicator, keys, and the one view that is open.
//
// A view is a module with open(place, route), which returns an object: `tables` that it follows, update(route) when the address changes
// within the view, refresh() when a table has changed, close(), and if it has rows enter(). Views are loaded when they are first opened.

import { get, Live } from "./api.js";
import { clean, h, heading, put, say, trouble } from "./dom.js";
import { bytes, number } from "./format.js";
import { link, read } from "./router.js";

const VIEWS = [
  ["overview", "Overview", () => import("./overview.js")],
  ["waits", "Who waits for whom", () => import("./waits.js")],
  ["nodes", "Nodes", () => import("./lists.js")],
  ["workers", "Workers", () => import("./lists.js")],
  ["jobs", "Jobs", () => import("./lists.js")],
  ["actors", "Actors", () => import("./lists.js")],
  ["tasks", "Tasks", () => import("./lists.js")],
  ["objects", "Objects", () => import("./lists.js")],
  ["placement_groups", "Placement groups", () => import("./lists.js")],
  ["timeline", "Timeline", () => import("./timeline.js")],
  ["logs", "Logs", () => import("./logs.js")],
  ["metrics", "Metrics", () => import("./metrics.js")],
  ["stacks", "Stacks", () => import("./stacks.js")],
];
const LETTERS = { o: "overview", w: "waits", n: "nodes", k: "workers", j: "jobs", a: "actors", t: "tasks", b: "objects", p: "placement_groups", i: "timeline", l: "logs", m: "metrics", s: "stacks" };
const SOONEST_MS = 1000;
const AGAIN_FACTOR = 4;

const main = document.getElementById("main");
const live = new Live({ changed: onChanged, state: showLive });
let view = null;
let shown = "";
let opened = 0;
let isFresh = true;
let updatedAt = Date.now();
let waiting = 0;
let asked = 0;
let lasted = 0;

function showViews() {
  const items = VIEWS.map(([name, title]) => h("li", {}, h("a", { href: link([name]), "data-view": name }, title)));
  document.getElementById("views").replaceChildren(h("ul", {}, ...items));
}

/** Open the view of an address, or tell the open one that its address has changed. */
async function show() {
  const route = read();
  const [name, ...rest] = route.path;
  const detail = rest.length > 0 && name !== "logs";
  const key = route.path.join("/");
  for (const item of document.querySelectorAll("[data-view]")) {
    if (item.dataset.view === name) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  if (view && key === shown) return view.update(route);
  view?.close();
  view = null;
  shown = key;
  const known = VIEWS.find(([other]) => other === name);
  main.replaceChildren();
  document.title = `${known?.[1] ?? name} · minray`;
  const mine = ++opened;
  try {
    if (!known) throw new Error(`There is no view ${clean(name)}.`);
    const module = await (detail ? import("./detail.js") : known[2]());
    if (mine !== opened) return undefined;
    view = module.open(main, route);
    if (view.title) document.title = `${view.title} · minray`;
    live.follow(view.tables);
    ran();
  } catch (error) {
    if (mine === opened) main.replaceChildren(heading(known?.[1] ?? "No such view"), trouble(error.message, () => location.reload()));
  }
  if (!isFresh) main.querySelector("h1")?.focus({ preventScroll: true });
  if (!isFresh) scrollTo(0, 0);
  isFresh = false;
  document.querySelector("[data-view][aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  return undefined;
}

function ran() {
  asked = Date.now();
  updatedAt = asked;
}

/** Refresh the open view if one of its tables has changed; null stands for all. Slow answers are asked for less often. */
function onChanged(tables, cluster) {
  updatedAt = Date.now();
  if (cluster) showFacts(cluster);
  else if (tables === null) loadFacts();
  if (!view || (tables && !tables.some((name) => view.tables.includes(name)))) return;
  if (waiting) return;
  const pause = Math.max(0, asked + Math.max(SOONEST_MS, AGAIN_FACTOR * lasted) - Date.now());
  waiting = setTimeout(refresh, tables === null ? 0 : pause);
}

async function refresh() {
  const began = Date.now();
  try {
    await view?.refresh();
  } finally {
    waiting = 0;
    lasted = Date.now() - began;
    ran();
  }
}

async function loadFacts() {
  try {
    showFacts(await get("/api/cluster"));
  } catch (error) {
    put(document.getElementById("facts"), error.message);
  }
}

function showFacts(cluster) {
  const total = cluster.resources_total ?? {};
  const free = cluster.resources_available ?? {};
  const parts = cluster.is_connected === false
    ? [cluster.trouble || "The gcs does not answer."]
    : [
      `${number(cluster.nodes_alive)} node${cluster.nodes_alive === 1 ? "" : "s"}${cluster.nodes_dead ? ` (${number(cluster.nodes_dead)} dead)` : ""}`,
      `${number((total.CPU ?? 0) - (free.CPU ?? 0))} of ${number(total.CPU ?? 0)} CPUs taken`,
      `store ${bytes(cluster.store_used)} of ${bytes(cluster.store_total)}`,
      cluster.version && `minray ${cluster.version}`,
      cluster.address,
    ];
  put(document.getElementById("facts"), clean(parts.filter(Boolean).join("  ·  "), 400));
  document.body.dataset.connected = String(cluster.is_connected !== false);
}

let said = "connecting";

/** Write the indicator: each second, and when the state changes. Only changes are told to a screen reader. */
function showLive() {
  const { state } = live;
  const seconds = Math.max(0, Math.round((Date.now() - updatedAt) / 1000));
  const left = Math.max(0, Math.ceil((live.retryAt - Date.now()) / 1000));
  const text = {
    connecting: "connecting",
    live: `live, updated ${seconds} s ago`,
    lost: `connection lost, retrying${left ? ` in ${left} s` : ""}`,
    refused: "not signed in any more",
    paused: `paused, updated ${seconds} s ago`,
  }[state];
  put(document.getElementById("live-text"), text);
  document.getElementById("live").className = `live ${state === "lost" || state === "refused" ? "lost" : ""}`;
  document.getElementById("live-dot").className = `dot ${{ live: "good", lost: "bad", refused: "bad", paused: "warn" }[state] ?? ""}`;
  if (said !== state) {
    if (state === "lost") say("Connection lost. Trying again.");
    if (state === "refused") say("The server does not know this browser any more. Open the address that minray has printed.");
    if (state === "live" && said === "lost") say("Connected again.");
    said = state;
  }
}

/** Write the indicator, and ask again for a view that has a period of its own. */
function onSecond() {
  showLive();
  if (view?.period_ms && live.state === "live" && !document.hidden && !waiting && Date.now() - asked >= view.period_ms) refresh();
}

function pause() {
  live.pause(!live.isPaused);
  document.getElementById("pause").setAttribute("aria-pressed", String(live.isPaused));
  put(document.getElementById("pause"), live.isPaused ? "Resume" : "Pause");
}

function help() {
  const dialog = document.getElementById("help");
  const keys = [
    ["/", "search"], ["?", "this help"], ["p", "pause and resume live updates"], ["r", "ask again now"], ["Enter, ↓ ↑ or j k", "into the table, and from row to row"],
    ["g, then a letter", Object.entries(LETTERS).map(([letter, name]) => `${letter} ${VIEWS.find(([other]) => other === name)[1].toLowerCase()}`).join(", ")],
    ["+ − ← → 0", "in the timeline: zoom, pan, all"], ["Esc", "close"],
  ];
  dialog.replaceChildren(h("h2", { id: "help-title" }, "Keys"), h("dl", { class: "keys" }, ...keys.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("form", { method: "dialog", class: "buttons" }, h("button", { autofocus: true }, "Close")));
  dialog.showModal();
}

let began = 0;

function onKey(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (target.closest("input, select, textarea")) {
    if (key === "Escape") target.blur();
    if (key === "Enter" && target.type === "search") view?.enter?.();
    return;
  }
  if (Date.now() - began < 1500 && LETTERS[key]) {
    began = 0;
    location.hash = link([LETTERS[key]]);
  } else if (key === "g") began = Date.now();
  else if (key === "/") main.querySelector("input[type=search]")?.focus();
  else if (key === "?") help();
  else if (key === "p") pause();
  else if (key === "r") refresh();
  else if ((key === "j" || key === "ArrowDown") && target.matches(".box, main, h1")) view?.enter?.();
  else return;
  event.preventDefault();
}

showViews();
document.getElementById("pause").addEventListener("click", pause);
document.getElementById("help-open").addEventListener("click", help);
addEventListener("keydown", onKey);
addEventListener("hashchange", show);
setInterval(onSecond, 1000);
loadFacts();
show();
