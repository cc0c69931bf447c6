// The script of a run's page: draws the picture from the trace, and shows the tables of the selected moment.
//
// It reads only the element `data`, which `page_data` in page.py describes. That data becomes text and numbers of the page,
// never markup. After # the page's address may say where to begin: at=SECONDS or event=NUMBER, zoom=FACTOR, and all=1 to
// show polls and heartbeats, too. Without a moment in the address the page begins with the first fault, if there is one.
//
// It tells a page around it of two things, as events of its document: "moment" (the number of the event that is looked at) and
// "process" (the number of a lane whose name was clicked).
//
// Its parts, in order: reading the trace; drawing; the rows of states; the axis and labels that stay visible; the selected
// moment; mouse and keys.

"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent), EVENTS = DATA.events, LANES = DATA.lanes;
const $ = id => document.getElementById(id), svg = $("picture"), scroll = $("scroll");
const LABELS = 190, TOP = 34, LANE = 38, ROW = 17;  // in pixels, as all that follows
const MARGINS = LABELS + 76;
const PER_TICK = .2, STEP = 5, FOLD = 46;  // a tick, two events of one tick, a gap in which nothing happens
const FOLD_TICKS = DATA.ticks_per_second / 1500;  // what is longer is such a gap
const QUIET = ["Poll", "CheckAlive", "ReportResources"];  // hidden unless asked for
const FAMILIES = [[/Task/, "#138a4c"], [/Lease/, "#1f5fd0"], [/Object|Ref|Borrow/, "#c2670a"], [/Actor/, "#b0308a"],
  [/Worker|Node/, "#7a3fc4"], [/./, "#5d6b7c"]];
const TINTS = ["#fde9c8", "#d7e6ff", "#eadbfb", "#f7e58c", "#d4eef2", "#fbd3ea", "#e9e6cf", "#dfe3ea"];
const GOOD = "#b5e3c4", BAD = "#f6b9b9", TABLES = ["task", "lease", "object", "actor", "worker", "node"];
const parameters = new URLSearchParams(location.hash.slice(1)), everything = parameters.has("all");

// --- What the trace says ---

const ARRIVALS = new Map();  // number of a SEND -> numbers of its RECEIVEs, of which a repeated message has two
for (const [sent, received] of DATA.messages) ARRIVALS.set(sent, [...(ARRIVALS.get(sent) || []), received]);
const UNDER_WAY = new Set(DATA.under_way), isLost = i => !ARRIVALS.has(i) && !UNDER_WAY.has(i);  // of SENDs
const isMessage = i => EVENTS[i][2] === "send" || EVENTS[i][2] === "receive";
const wordOf = i => EVENTS[i][3][0], methodOf = i => wordOf(i).split(" ")[0];
const laneOf = new Map(LANES.map(([process], number) => [process, number]));
const peerOf = i => laneOf.get(EVENTS[i][3][1]);
const hidden = new Set(everything ? [] : QUIET), hiddenTables = new Set(), words = new Map(), tableNames = new Map();
EVENTS.forEach((event, i) => {
  if (event[2] === "send") words.set(methodOf(i), (words.get(methodOf(i)) || 0) + 1);
  if (event[2] === "state") tableNames.set(event[3][0], (tableNames.get(event[3][0]) || 0) + 1);
});

function seconds(ticks) {
  const s = ticks / DATA.ticks_per_second;
  return s >= 10 ? s.toFixed(2) + " s" : s >= 1 ? s.toFixed(3) + " s" : (s * 1000).toFixed(s < .1 ? 2 : 1) + " ms";
}

const isEnd = i => EVENTS[i][2] === "life" && EVENTS[i][3][0] === "ends";  // of a process, and all its tables

function statesAt(number) {  // the tables after the event of this number: [process, table, key, state, number of the event]
  const rows = new Map();
  for (let i = 0; i <= number; i++) {
    const [, lane, kind, details] = EVENTS[i];
    if (isEnd(i)) for (const [id, row] of rows) if (row[0] === LANES[lane][0]) rows.delete(id);
    if (kind !== "state") continue;
    const [table, key, , state] = details, id = JSON.stringify([lane, table, key]);
    if (state) rows.set(id, [LANES[lane][0], table, key, state, i]); else rows.delete(id);
  }
  return [...rows.values()];
}

function tell(i) {  // an event in words
  const [, lane, kind, d] = EVENTS[i], who = LANES[lane][0];
  if (kind === "send") return `${who} sends ${d[0]} to ${d[1]}` + (isLost(i) ? " (never arrives)" : "");
  if (kind === "receive") return `${who} receives ${d[0]} from ${d[1]}`;
  if (kind === "state" && d[2]) return `${who}: ${d[0]} ${short(d[1])} goes from ${d[2]} to ${d[3] || "gone"}`;
  if (kind === "state") return `${who}: ${d[0]} ${short(d[1])} is new: ${d[3]}`;
  if (kind === "fault") return `FAULT, ${who}: ${d.join(" ")}`;
  if (kind === "output" && d[1].startsWith(DATA.task_mark))
    return `${who} will print for ${d[1].split(DATA.task_mark)[1]}`;
  if (kind === "output") return `${who} prints to ${d[0]}: ${d[1]}`;
  return `${who} ${kind === "log" ? "logs: " : ""}${d.join(" ")}`;
}

function isNotable(i) {  // what a reader looks for: faults, lost messages, ends of processes, lines of logs
  const kind = EVENTS[i][2];
  return kind === "fault" || kind === "log" || isEnd(i) || (kind === "send" && isLost(i));
}

function byTable(a, b) {  // the well-known tables first, then the others by name
  const rank = table => (TABLES.indexOf(table) + 99) % 99;
  return rank(a) - rank(b) || (a < b ? -1 : +(a > b));
}

const short = key => key.length > 12 ? key.slice(0, 8) : key;
const colourOf = word => FAMILIES.find(([pattern]) => pattern.test(word))[1];
const tints = new Map();
function tintOf(table, state) {
  if (/FAILED|DEAD|DYING|LOST|ERROR/.test(state)) return BAD;
  if (/FINISHED|SEALED|HERE/.test(state)) return GOOD;
  const id = table + " " + state;
  const known = [...tints.keys()].filter(each => each.startsWith(table + " ")).length;
  if (!tints.has(id)) tints.set(id, TINTS[known % TINTS.length]);
  return tints.get(id);
}

// --- Where it is drawn ---

let zoom = +parameters.get("zoom") || 1, cursor = 0, shown = [], xs = [], folds = [], targets = [], width = 0, marks = null;
const laneY = lane => TOP + 26 + lane * LANE;

function isShown(i) {
  const [, , kind, details] = EVENTS[i];
  return isMessage(i) ? !hidden.has(methodOf(i)) : kind !== "state" || !hiddenTables.has(details[0]);
}

function layout() {
  let x = LABELS + 16, before = EVENTS.length ? EVENTS[0][0] : 0;
  shown = []; folds = []; xs = [];
  EVENTS.forEach(([ticks], i) => {
    if (isShown(i)) {
      const gap = ticks - before;
      let step = gap ? Math.max(STEP, gap * PER_TICK) * zoom : STEP * Math.min(zoom, 1.5);
      if (gap > FOLD_TICKS) { step = FOLD * Math.min(1, zoom); folds.push([x, step, gap]); }
      x += step; before = ticks; shown.push(i);
    }
    xs.push(x);
  });
  width = x + 60;
}

function xOfTicks(ticks) {
  let low = 0, high = shown.length - 1;
  if (high < 0 || ticks >= EVENTS[shown[high]][0]) return width - 40;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (EVENTS[shown[middle]][0] < ticks) low = middle + 1; else high = middle;
  }
  return xs[shown[low]];
}

function make(parent, name, attributes, text) {
  const node = document.createElementNS(svg.namespaceURI, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return parent.appendChild(node);
}

function html(parent, name, text, attributes) {
  const node = document.createElement(name);
  node.textContent = text;
  for (const key in attributes || {}) node.setAttribute(key, attributes[key]);
  return parent.appendChild(node);
}

function draw() {
  layout();
  svg.replaceChildren(); targets = [];
  const rows = rowsOfStates(), bottom = laneY(LANES.length), height = bottom + rows.height + 24;
  svg.setAttribute("width", width); svg.setAttribute("height", height);
  const stripes = make(make(svg, "defs", {}), "pattern",
    { id: "stripes", width: 6, height: 6, patternUnits: "userSpaceOnUse" });
  make(stripes, "rect", { width: 6, height: 6, fill: "#fff3e0" });
  make(stripes, "path", { d: "M0 6 L6 0", stroke: "#e07a00", "stroke-width": 1.5 });
  for (const [x, w] of folds) make(svg, "rect", { class: "fold", x: x + 3, y: TOP - 6, width: Math.max(w - 6, 1), height });
  drawLives(); drawMessages(); drawPoints();
  drawRows(rows, bottom);
  marks = make(svg, "g", {});
  drawAxis(height); drawLabels(rows, bottom, height);
  const at = Math.max(0, shown.findIndex(i => i >= cursor));
  $("slider").max = Math.max(0, shown.length - 1);
  moveTo(shown.length ? shown[at] : 0, false);
}

function drawLives() {
  LANES.forEach((lane, number) => {
    const y = laneY(number);
    make(svg, "line", { class: "unborn", x1: LABELS, x2: width, y1: y, y2: y });
    let birth = -1;
    const end = (from, x) => make(svg, "line", { class: "life", x1: from, x2: x, y1: y, y2: y });
    EVENTS.forEach(([, of, kind, details], i) => {
      if (of !== number || kind !== "life") return;
      if (details[0] === "starts") { birth = i; target(i, xs[i], y); }
      if (details[0] === "ends" && birth >= 0) {
        end(xs[birth], xs[i]); birth = -1;
        make(svg, "line", { class: "death", x1: xs[i], x2: xs[i], y1: y - 8, y2: y + 8 }); target(i, xs[i], y);
      }
    });
    if (birth >= 0) end(xs[birth], width - 20);
  });
  for (const [i, ticks] of DATA.bars) {
    const x = xs[i], y = laneY(EVENTS[i][1]) - 7, until = xOfTicks(EVENTS[i][0] + ticks);
    make(svg, "rect", { class: "stall", x, y, width: Math.max(4, until - x), height: 14, rx: 3 });
  }
}

function drawMessages() {
  const taken = new Map();  // a line of text -> the stretches of it that labels have taken
  const label = (x, y, text, colour, side) => {
    x += side * (text.length * 2.7 + 4);
    const line = Math.round(y / 11), from = x - text.length * 2.7, to = x + text.length * 2.7;
    for (const each of [line - 1, line, line + 1])
      if ((taken.get(each) || []).some(([a, b]) => a < to + 4 && from < b + 4)) return false;
    if (taken.has(line)) taken.get(line).push([from, to]); else taken.set(line, [[from, to]]);
    return make(svg, "text", { class: "word", x, y: y + 3, style: `fill:${colour}` }, text);
  };
  const texts = [];
  const sent = shown.filter(i => EVENTS[i][2] === "send" && (ARRIVALS.has(i) || isLost(i)));
  for (const [i, to] of sent.flatMap(i => (ARRIVALS.get(i) || [undefined]).map(to => [i, to]))) {
    const colour = colourOf(wordOf(i)), from = EVENTS[i][1], there = peerOf(i);
    const x1 = xs[i], y1 = laneY(from), lost = to === undefined;
    let x2 = lost ? x1 + 14 : xs[to], y2 = laneY(there ?? from);
    if (lost) y2 = y1 + (y2 < y1 ? -15 : 15);
    const a = Math.atan2(y2 - y1, x2 - x1), back = n => `${x2 - 6 * Math.cos(a + n)} ${y2 - 6 * Math.sin(a + n)}`;
    let d = `M${x1} ${y1} L${x2} ${y2}`;
    if (from === there && !lost) d = `M${x1} ${y1} Q${(x1 + x2) / 2} ${y1 - 24} ${x2} ${y2}`;
    const kind = lost ? "message lost" : wordOf(i).includes(" ") ? "message reply" : "message";
    const path = make(svg, "path", { class: kind, d, style: lost ? "" : `stroke:${colour}` });
    if (lost) make(svg, "path", { class: "lost", d: `M${x2 - 4} ${y2 - 4} l8 8 m0 -8 l-8 8` });
    else make(svg, "path", { d: `M${back(.4)} L${x2} ${y2} L${back(-.4)} Z`, fill: colour });
    targets.push({ x1, y1, x2, y2, i, to, path });
    if (kind !== "message reply") texts.push([x1, y1, x2, y2, wordOf(i), lost ? "#d3202c" : colour]);
  }
  for (const [x1, y1, x2, y2, text, colour] of texts)
    [[.5, 0], [.3, 0], [.7, 0], [.5, 1], [.5, -1]].some(([part, side]) =>
      label(x1 + (x2 - x1) * part, y1 + (y2 - y1) * part, text, colour, side));
}

function target(i, x, y, path) { targets.push({ x1: x, y1: y, x2: x, y2: y, i, path }); }

function drawPoints() {
  for (const i of shown) {
    const [, lane, kind, details] = EVENTS[i], x = xs[i], y = laneY(lane);
    if (kind === "state") {
      const fill = tintOf(details[0], details[3] || "gone");
      target(i, x, y, make(svg, "circle", { cx: x, cy: y, r: 3.2, fill, stroke: "#5d6b7c" }));
    } else if (kind === "output" || kind === "log") {
      const fill = kind === "log" ? "#e07a00" : "#1c2430";
      target(i, x, y, make(svg, "rect", { x: x - 3, y: y - 3, width: 6, height: 6, fill }));
    } else if (kind === "fault") {
      const late = / late: /.test(details[0]);
      if (late) make(svg, "path", { class: "crash", d: `M${x - 7} ${y} l7 -7 l7 7 l-7 7 Z` });
      else if (!DATA.bars.some(([number]) => number === i))
        make(svg, "path", { class: "crash", d: `M${x - 7} ${y - 7} l14 14 m0 -14 l-14 14` });
      make(svg, "text", { x: x + 10, y: y - 9, class: "fault" }, details[0]);
      target(i, x, y);
    }
  }
}

// --- A row per task, lease, object, ... ---

function rowsOfStates() {
  const rows = new Map();
  EVENTS.forEach(([, lane, kind, [table, key, , state]], i) => {
    if (isEnd(i)) for (const row of rows.values()) if (row.lane === lane) row.steps.push([i, ""]);
    if (kind !== "state" || hiddenTables.has(table)) return;
    const id = JSON.stringify([lane, table, key]);
    if (!rows.has(id)) rows.set(id, { lane, table, key, steps: [] });
    rows.get(id).steps.push([i, state]);
  });
  const sorted = [...rows.values()].sort((a, b) => byTable(a.table, b.table));
  let y = 0, last = "";
  for (const row of sorted) { if (row.table !== last) y += 22; last = row.table; row.y = y; y += ROW; }
  return { sorted, height: y };
}

function drawRows(rows, bottom) {
  for (const row of rows.sorted) row.steps.forEach(([i, state], n) => {
    if (!state) return;
    const x = xs[i], until = n + 1 < row.steps.length ? xs[row.steps[n + 1][0]] : width - 20, y = bottom + row.y;
    const path = make(svg, "rect", { x, y, width: Math.max(2, until - x - 1), height: ROW - 3, rx: 5,
      fill: tintOf(row.table, state) });
    targets.push({ x1: x, y1: y + 7, x2: Math.max(x, until - 2), y2: y + 7, i, path });
    const room = Math.floor((until - x - 8) / 5.6);
    const text = state.length > room ? state.slice(0, room - 1) + "\u2026" : state;
    if (room >= 3) for (let at = x + 5; at === x + 5 || at + state.length * 6 < until; at += 420)
      make(svg, "text", { x: at, y: y + 10.5, class: "state" }, text);
  });
}

// --- What stays in sight when one scrolls: times above, names on the left ---

let axis, labels;
function drawAxis(height) {
  axis = make(svg, "g", { class: "axis" });
  make(axis, "rect", { width, height: TOP - 6, fill: "#fff", stroke: "#d5dbe3" });
  let end = 0;
  for (const [x, w, gap] of folds) {
    if (x + w / 2 - 26 < end) continue;
    make(axis, "text", { x: x + w / 2, y: 11, "text-anchor": "middle" }, "+" + seconds(gap));
    end = x + w / 2 + 26;
  }
  let free = LABELS + 4;
  for (const i of shown) {
    const text = seconds(EVENTS[i][0]);
    if (xs[i] - 20 < free) continue;
    make(axis, "text", { x: xs[i], y: 23, "text-anchor": "middle", style: "fill:#1c2430" }, text);
    free = xs[i] + 60;
  }
}

function drawLabels(rows, bottom, height) {
  labels = make(svg, "g", {});
  make(labels, "rect", { width: LABELS - 6, height, fill: "#fff" });
  make(labels, "line", { x1: LABELS - 6, x2: LABELS - 6, y1: 0, y2: height, stroke: "#d5dbe3" });
  const nodes = [...new Set(LANES.map(lane => lane[1]))];
  LANES.forEach(([process, node], number) => {
    const y = laneY(number);
    make(labels, "rect", { x: 0, y: y - LANE / 2 + 1, width: 5, height: LANE - 2,
      fill: node ? ["#7aa7e8", "#8fce9f", "#e7b76c", "#c59be0", "#e59aa5"][nodes.indexOf(node) % 5] : "#aaa" });
    make(labels, "text", { x: 12, y: y + (node ? 0 : 4), class: "lane" }, process);
    if (node) make(labels, "text", { x: 12, y: y + 12, class: "quiet" }, "on " + node);
  });
  let last = "";
  for (const row of rows.sorted) {
    const y = bottom + row.y + 11;
    if (row.table !== last) make(labels, "text", { x: 12, y: y - 15, class: "table" }, row.table + " states");
    last = row.table;
    make(labels, "text", { x: 12, y, class: "key" }, short(row.key));
    make(labels, "text", { x: LABELS - 14, y, "text-anchor": "end", class: "quiet" }, LANES[row.lane][0]);
  }
  stick();
}

function stick() {
  axis.setAttribute("transform", `translate(0 ${scroll.scrollTop})`);
  labels.setAttribute("transform", `translate(${scroll.scrollLeft} 0)`);
}

// --- The moment that is looked at ---

function moveTo(i, follow) {
  cursor = i;
  if (!shown.length) return;
  const at = shown.indexOf(i), x = xs[i];
  $("slider").value = at;
  $("now").textContent = `${seconds(EVENTS[i][0])}  \u00b7  event ${i + 1} of ${EVENTS.length}`;
  $("caption").textContent = tell(i);
  $("caption").className = EVENTS[i][2];
  $("before").disabled = notable(-1) === undefined;
  $("after").disabled = notable(1) === undefined;
  marks.replaceChildren();
  make(marks, "line", { class: "now", x1: x, x2: x, y1: TOP - 6, y2: svg.getAttribute("height") });
  make(marks, "circle", { cx: x, cy: laneY(EVENTS[i][1]), r: 6, fill: "none", class: "now" });
  if (follow && (x < scroll.scrollLeft + LABELS + 40 || x > scroll.scrollLeft + scroll.clientWidth - 60))
    scroll.scrollLeft = x - LABELS - (scroll.clientWidth - LABELS) / 3;
  const list = $("around");
  list.replaceChildren();
  for (const each of shown.slice(Math.max(0, at - 4), at + 6)) {
    const item = html(list, "li", tell(each), each === i ? { class: "here" } : {});
    item.onclick = () => moveTo(each, true);
  }
  const table = document.createElement("table"), rows = statesAt(i).filter(row => !hiddenTables.has(row[1]));
  let last = "";
  for (const [process, name, key, state, since] of rows.sort((a, b) => byTable(a[1], b[1]))) {
    if (name !== last) html(html(table, "tr", ""), "th", name, { colspan: 3 });
    last = name;
    const row = html(table, "tr", "", { class: since === i ? "new" : "" });
    row.dataset.row = JSON.stringify([process, name, key, state]);
    html(row, "td", short(key), { title: key });
    html(row, "td", process);
    html(html(row, "td", ""), "span", state, { class: "chip", style: `background:${tintOf(name, state)}` });
  }
  $("tables").replaceChildren(table);
  if (!rows.length) $("tables").textContent = "The tables are empty.";
  document.dispatchEvent(new CustomEvent("moment", { detail: i }));
}

function laneAt(event) {  // the lane whose name is there, or undefined
  const box = svg.getBoundingClientRect(), y = event.clientY - box.top;
  const number = Math.floor((y - laneY(0) + LANE / 2) / LANE), isName = event.clientX - box.left - scroll.scrollLeft < LABELS;
  return isName && LANES[number] ? number : undefined;
}

function step(by) { moveTo(shown[Math.min(shown.length - 1, Math.max(0, shown.indexOf(cursor) + by))], true); }

function notable(by) {  // the next notable event after the cursor, or the last one before it
  const found = shown.filter(i => isNotable(i) && (by > 0 ? i > cursor : i < cursor));
  return found.at(by > 0 ? 0 : -1);
}

function jump(by) {
  const found = notable(by);
  if (found !== undefined) moveTo(found, true);
}

function nearest(event) {
  const box = svg.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let best = null, least = 9;
  for (const each of targets) {
    const dx = each.x2 - each.x1, dy = each.y2 - each.y1, length = dx * dx + dy * dy;
    const t = length ? Math.max(0, Math.min(1, ((x - each.x1) * dx + (y - each.y1) * dy) / length)) : 0;
    const distance = Math.hypot(x - each.x1 - t * dx, y - each.y1 - t * dy) + (length ? 2 : 0);
    if (distance < least) { least = distance; best = each; }
  }
  return best;
}

let hot = null;
function point(event) {
  const found = nearest(event), tip = $("tip");
  if (hot && hot.path) hot.path.classList.remove("hot");
  hot = found; tip.hidden = !found;
  if (!found) return;
  if (found.path) found.path.classList.add("hot");
  const [ticks, lane, kind, details] = EVENTS[found.i], to = EVENTS[found.to];
  const end = to ? `received at ${seconds(to[0])} (${seconds(to[0] - ticks)} later)` : "never received";
  tip.textContent = kind !== "send" ? `${tell(found.i)}\nat ${seconds(ticks)}` :
    `${details[0]}\nfrom ${LANES[lane][0]} to ${details[1]}\nsent at ${seconds(ticks)}, ${end}`;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - 320) + "px";
  tip.style.top = Math.min(event.clientY + 14, innerHeight - 90) + "px";
}

function zoomTo(value, around) {
  const at = around ?? cursor, offset = xs[at] - scroll.scrollLeft;
  zoom = Math.min(20, Math.max(.02, value));
  draw();
  scroll.scrollLeft = xs[at] - offset;
  stick();
}

function choice(text, set, name) {
  const label = html($("words"), "label", ""), box = html(label, "input", "", { type: "checkbox" });
  box.checked = !set.has(name);
  label.append(" " + text);
  box.onchange = () => { if (box.checked) set.delete(name); else set.add(name); draw(); };
}

for (const [name, count] of tableNames) choice(`states of ${name}s (${count})`, hiddenTables, name);
html($("words"), "hr", "");
for (const [word, count] of [...words].sort()) choice(`${word} (${count})`, hidden, word);
$("slider").oninput = () => moveTo(shown[+$("slider").value], true);
$("back").onclick = () => step(-1);
$("forth").onclick = () => step(1);
$("before").onclick = () => jump(-1);
$("after").onclick = () => jump(1);
$("in").onclick = () => zoomTo(zoom * 1.5);
$("out").onclick = () => zoomTo(zoom / 1.5);
$("fit").onclick = () => zoomTo(zoom * (scroll.clientWidth - MARGINS) / (width - MARGINS));
scroll.onscroll = stick;
scroll.onmousemove = point;
scroll.onmouseleave = () => { $("tip").hidden = true; };
scroll.onclick = event => {
  const found = nearest(event), lane = laneAt(event);
  if (lane !== undefined) document.dispatchEvent(new CustomEvent("process", { detail: lane }));
  else if (found) moveTo(found.i, false);
};
scroll.addEventListener("wheel", event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoomTo(zoom * (event.deltaY < 0 ? 1.2 : 1 / 1.2), (nearest(event) || { i: cursor }).i);
}, { passive: false });
document.onkeydown = event => {
  const act = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), p: () => jump(-1), n: () => jump(1) }[event.key];
  if (!act || event.target.tagName === "INPUT" || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
};
draw();
const ticksAtFirst = +parameters.get("at") * DATA.ticks_per_second, eventAtFirst = +parameters.get("event");
const isSaid = parameters.has("at") || parameters.has("event");
const first = isSaid ? shown.find(i => i >= eventAtFirst && EVENTS[i][0] >= ticksAtFirst)
  : shown.find(i => EVENTS[i][2] === "fault") ?? shown[0];
if (first !== undefined) { moveTo(first, false); scroll.scrollLeft = xs[first] - LABELS - 60; }
stick();
