// The kinds of values in tables and on the pages of single things: how each is shown, and how wide its column is.

import { clean, h, LONG, SHORT } from "./dom.js";
import { bytes, duration, moment, NOTHING, number, percent, plain, resources, shortId } from "./format.js";
import { link } from "./router.js";

const TONES = {
  good: ["healthy", "ALIVE", "CREATED", "SUCCEEDED", "FINISHED", "live", "SEALED"],
  busy: ["LEASED", "RUNNING", "SUBMITTED_TO_WORKER", "PREPARED"],
  warn: [
    "draining", "RESTARTING", "RESCHEDULING", "PENDING", "PENDING_CREATION", "DEPENDENCIES_UNREADY", "PENDING_ARGS_AVAIL", "PENDING_ARGS_FETCH",
    "PENDING_NODE_ASSIGNMENT", "PENDING_ACTOR_TASK_ARGS_FETCH", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", "DRAINING", "SPILLED", "STOPPED",
  ],
  bad: ["dead", "silent", "FAILED", "DEAD", "SYSTEM_ERROR", "lost", "INFEASIBLE"],
};
const TONE = Object.fromEntries(Object.entries(TONES).flatMap(([tone, states]) => states.map((state) => [state, tone])));

/** Return the tone of a state: good, busy, warn, bad or idle. */
export function toneOf(state) {
  return TONE[state] ?? "idle";
}

export function stateOf(state, tone = undefined) {
  if (!state) return NOTHING;
  return h("span", { class: `state ${tone ?? toneOf(state)}` }, h("i", { class: "dot" }), clean(state));
}

/** Draw a share of one as a bar. The text beside it says the same. */
export function meter(share) {
  const inner = h("i");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span", { class: `meter ${share > 0.95 ? "bad" : share > 0.8 ? "warn" : ""}`, "aria-hidden": "true" }, inner);
}

function meterOf(value, text) {
  return Number.isFinite(value) ? h("span", {}, meter(value), text) : NOTHING;
}

/** Kind -> width in characters, whether it is right-aligned, and the function that draws a value. */
export const KINDS = {
  text: { width: 0, draw: (value) => clean(plain(value)) },
  short: { width: 12, draw: (value) => clean(plain(value)) },
  state: { width: 20, draw: (value) => stateOf(value) },
  number: { width: 9, right: true, draw: number },
  bytes: { width: 11, right: true, draw: bytes },
  seconds: { width: 12, right: true, draw: duration },
  moment: { width: 19, draw: moment },
  pid: { width: 10, draw: (value) => (value ? String(value) : NOTHING) },
  resources: { width: 0, draw: (value) => clean(resources(value)) },
  flag: { width: 9, draw: (value) => plain(Boolean(value)) },
  share: { width: 16, draw: (value) => meterOf(value, percent(value)) },
  used: { width: 27, draw: ([used, total]) => (total > 0 ? meterOf(used / total, `${bytes(used)} of ${bytes(total)}`) : bytes(used)) },
  counted: { width: 18, draw: ([used, total]) => (total > 0 ? meterOf(used / total, `${number(used)} of ${number(total)}`) : number(used)) },
  restarts: { width: 14, right: true, draw: ([done, most]) => (most === undefined ? number(done) : `${number(done)} of ${most < 0 ? "∞" : number(most)}`) },
};

const PLACES = { actor: "actors", task: "tasks", object: "objects", node: "nodes", job: "jobs", placement_group: "placement_groups", worker: "workers" };

/** Return an id as a link to the page of its thing, short, with the whole id as a tooltip. */
export function idLink(id, kind, isWhole = false) {
  if (!id) return NOTHING;
  const text = isWhole ? clean(id, LONG) : clean(shortId(id, kind), SHORT);
  return h("a", { href: link([PLACES[kind] ?? kind, id]), class: "mono", title: isWhole ? undefined : clean(id) }, text);
}
for (const kind of Object.keys(PLACES)) KINDS[kind] = { width: 13, draw: (value) => idLink(value, kind) };
