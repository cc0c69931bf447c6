// Turns values of the state tables into text: numbers, bytes, times, ids, resources.
//
// Ids are long, and most of their digits are equal. The short forms are those of minray's own logs and command line: the counter and
// four digits of what it counts for, or the first eight digits.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const COUNTED = new Set(["task", "object"]);

/** Names of resources that stand for a node or a bundle of a placement group. */
const INTERNAL = /^node:|_group_/;

export const NOTHING = "–";

export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return NOTHING;
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumFractionDigits: 2 });
}

export function bytes(value) {
  if (typeof value !== "number" || !(value >= 0)) return NOTHING;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function percent(share) {
  return Number.isFinite(share) ? `${Math.round(share * 100)} %` : NOTHING;
}

/** Describe a number of seconds with two units at most. */
export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return NOTHING;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Math.round(seconds * 1e3)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.floor(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** Return a point in time, given in milliseconds since 1970: the time of day, and the date unless it is today. */
export function moment(ms) {
  if (typeof ms !== "number" || !(ms > 0)) return NOTHING;
  const date = new Date(ms);
  const time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? time : `${date.toISOString().slice(0, 10)} ${time}`;
}

/** Return the short form of an id in hexadecimal digits. */
export function shortId(id, kind = "") {
  const text = String(id ?? "");
  if (!text) return NOTHING;
  if (!/^[0-9a-f]{9,}$/.test(text)) return text.length > 16 ? `${text.slice(0, 15)}…` : text;
  if (COUNTED.has(kind)) return `${text.slice(16, 20)}-${BigInt(`0x${text.slice(0, 16)}`)}`;
  if (kind === "actor") return `${text.slice(8, 12)}-${parseInt(text.slice(0, 8), 16)}`;
  return text.slice(0, 8);
}

export function resources(value) {
  const entries = Object.entries(value ?? {}).filter(([name]) => !INTERNAL.test(name));
  return entries.length ? entries.map(([name, amount]) => `${name} ${isBytes(name) ? bytes(amount) : number(amount)}`).join(", ") : NOTHING;
}

function isBytes(name) {
  return name === "memory" || name === "object_store_memory";
}

/** Return any value as text: objects as one line of JSON. */
export function plain(value) {
  if (value === null || value === undefined || value === "") return NOTHING;
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value === "number") return number(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
