// The page: what is run, the run itself, and what the visitor does to it.
//
// A run follows from the text, the seed, the number of nodes, and the faults. Either the seed draws faults of the chosen kinds,
// or `overrides` are exactly those that strike. A click on a process or a message adds one fault to those that have struck. The
// whole of this is in the page's address after #, so that a link shows the same run.
//
// The lanes are in a frame: the story page of minray.simulation, whose data the page fills in. The frame tells which moment is
// looked at ("moment"), and which process was clicked ("process").

import { attemptIn } from "./attempt.js";
import { Cluster, canSuspend } from "./cluster.js";
import { KINDS, OF_MESSAGE, OF_PROCESS, say } from "./faults.js";

const $ = (id) => document.getElementById(id);
const NATIVE = "python -m minray.simulation.script run.json --html run.html";

let attempt = null;  // a student's file, and the scenario in which it fails; then the page shows this alone
let cluster = null, site = null, overrides = null, shown = null, ran = null, event = 0, chosen = null, frames = 0;

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// --- What is run ---

function kindsDrawn() {
  return [...$("kinds").querySelectorAll("input:checked")].map((box) => box.value);
}

const bug = () => site.bugs.find(({ name }) => `bug:${name}` === $("program").value);

function script() {
  const drawn = { source: $("source").value, seed: +$("seed").value, nodes: +$("nodes").value, faults: kindsDrawn() };
  return overrides === null ? drawn : { ...drawn, overrides };
}

function onChanged() {  // what was struck belongs to another program, seed or cluster
  overrides = null;
  $("drawn").textContent = kindsDrawn().map((kind) => kind.replaceAll("_", " ")).join(", ") || "none";
}

function chooseProgram(name) {
  const program = site.programs.find((each) => each.name === name), inmate = bug();
  if (program) $("source").value = program.source;
  if (inmate) {
    $("source").value = inmate.program;
    $("bug-there").textContent = `There: ${inmate.there}`;
    $("bug-here").textContent = `Here: ${inmate.here}`;
    $("bug-guarantee").textContent = `What it breaks: ${inmate.guarantee}`;
  }
  $("bug").hidden = !inmate;
  for (const id of ["of-script", "kinds"]) $(id).hidden = Boolean(inmate);
  $("source").readOnly = Boolean(inmate);
  $("source-name").textContent = inmate ? "The smallest program that shows it" : "Its text, to be changed as you like";
  onChanged();
}

function fillMenus() {
  for (const { name, title } of site.programs) $("program").append(element("option", { value: name }, title));
  $("program").append(element("option", { value: "" }, "Your own"));
  const bugs = site.bugs.map(({ name }) => element("option", { value: `bug:${name}` }, name));
  $("program").append(element("optgroup", { label: "Planted bugs" }, ...bugs));
  for (const [group, kinds] of Object.entries(KINDS)) {
    const set = element("fieldset", {}, element("legend", {}, group));
    for (const [kind, does] of kinds) {
      const box = element("input", { type: "checkbox", value: kind, onchange: onChanged });
      set.append(element("label", { class: "check" }, box, ` ${kind.replaceAll("_", " ")}: ${does}`));
    }
    $("kinds").append(set);
  }
}

// --- The address ---

function link() {
  const { source, seed, nodes, faults } = script();
  const known = site.programs.find((program) => program.source === source);
  if (bug()) return `#${encode({ program: $("program").value, planted: $("planted").checked, event })}`;
  const state = { ...(known ? { program: known.name } : { source }), seed, nodes };
  if (faults.length) state.faults = faults;
  if (overrides !== null) state.overrides = overrides;
  if (event) state.event = event;
  return `#${encode(state)}`;
}

function encode(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Take over what the address says; return whether it says a run. */
function readLink() {
  if (location.hash.length < 2) return false;
  try {
    const text = atob(location.hash.slice(1).replaceAll("-", "+").replaceAll("_", "/"));
    const state = JSON.parse(new TextDecoder().decode(Uint8Array.from(text, (mark) => mark.charCodeAt(0))));
    $("program").value = state.program ?? "";
    chooseProgram(state.program);
    if (bug()) $("planted").checked = state.planted !== false;
    if (state.source !== undefined) $("source").value = String(state.source);
    $("seed").value = Number(state.seed) || 0;
    $("nodes").value = Number(state.nodes) || 3;
    for (const box of $("kinds").querySelectorAll("input")) box.checked = (state.faults ?? []).includes(box.value);
    onChanged();
    overrides = state.overrides ?? null;
    event = Number(state.event) || 0;
    return true;
  } catch {
    $("outcome").textContent = "This link is damaged, so it shows no run.";
    return false;
  }
}

// --- A run ---

function busy(isBusy) {
  for (const button of document.querySelectorAll("#run, #link, #moment button, #faults button")) button.disabled = isBusy;
  $("stop").disabled = !isBusy;
}

async function ask(what, question, onPartial) {
  busy(true);
  try {
    return await cluster.ask(what, question, onPartial);
  } catch (error) {
    $("outcome").textContent = error.message === "stopped" ? "The run was stopped." : lastLine(error.message);
    $("outcome").className = "bad";
    return null;
  } finally {
    busy(false);
  }
}

const lastLine = (text) => text.trim().split("\n").at(-1);

async function runBug() {
  $("outcome").textContent = "Running …";
  $("outcome").className = "";
  const answer = await ask("bug", { name: bug().name, planted: $("planted").checked });
  if (answer === null) return;
  ran = answer;
  show(answer);
  history.replaceState(null, "", link());
}

async function runAttempt() {
  $("outcome").textContent = "Running …";
  $("outcome").className = "";
  const answer = await ask("scenario", attempt.scenario);
  if (answer === null) return;
  ran = answer;
  show(answer);
}

function showAttempt() {
  $("source").value = attempt.scenario;
  $("source").readOnly = true;
  $("source-name").textContent = `A scenario of a lab, run with a student's ${attempt.file}`;
  for (const selector of ["#program", "label[for=program]", "#of-script", "#kinds"]) document.querySelector(selector).hidden = true;
}

async function run(aim) {
  if (attempt) return runAttempt();
  if (bug()) return runBug();
  const asked = script();
  $("outcome").textContent = "Running …";
  $("outcome").className = "";
  const question = aim ? { script: { ...asked, overrides: ran.answers }, aim } : { script: asked };
  const answer = await ask("perform", question, (partial) => draw(partial.page, partial.page.events.length - 1, true));
  if (answer === null) return;
  ran = answer;
  if (aim) overrides = answer.answers;
  show(answer);
  history.replaceState(null, "", link());
}

function show(answer) {
  const isWell = ["the program has ended", "nothing is broken"].includes(answer.outcome), isBug = "problems" in answer;
  $("outcome").textContent = answer.outcome;
  $("outcome").className = isWell ? "" : "bad";
  $("output").textContent = [...answer.output, ...(answer.details ? ["", answer.details] : [])].join("\n");
  $("output").hidden = !$("output").textContent;
  const broken = (answer.problems ?? []).map((problem) => element("li", {}, problem.split("\n")[0].slice(0, 300)));
  $("problems").replaceChildren(...broken, ...answer.missed.map((fault) => element("li", {}, `has not struck: ${say(fault)}`)));
  $("faults").replaceChildren(...answer.answers.map((fault) => element("li", {}, element("span", {}, say(fault)),
    isBug ? "" : element("button", { type: "button", class: "quiet", onclick: () => runWithout(fault) }, "Take back"))));
  $("struck").hidden = !answer.answers.length;
  $("digest").textContent = answer.digest;
  const drawn = answer.page.events.length, isWhole = drawn === answer.events;
  $("size").textContent = `${answer.events.toLocaleString("en")} events in ${answer.seconds.toFixed(1)} virtual seconds`
    + (isWhole ? "" : `, of which the first ${drawn.toLocaleString("en")} are drawn`);
  $("native").textContent = attempt ? "python -m labs.grade LAB --page story.html"
    : isBug ? `python -m tests.zoo.witness pages . ${bug()?.name}` : NATIVE;
  $("how").hidden = isBug;
  $("proof").hidden = false;
  const { events, lanes } = answer.page;
  const struck = events.findLastIndex(([, , kind]) => kind === "fault");
  const begins = events.findIndex(([, lane, kind]) => kind === "send" && lanes[lane][0].startsWith("driver"));
  draw(answer.page, Math.min(event || Math.max(struck, begins, 0), drawn - 1));
}

function runWithout(fault) {
  overrides = ran.answers.filter((other) => other !== fault);
  run();
}

// --- The lanes ---

function draw(page, at, goesOn = false) {
  const frame = $("lanes");
  shown = page;
  chosen = null;
  frame.hidden = false;
  $("empty").hidden = true;
  frame.onload = () => {
    const story = frame.contentDocument;
    if (!story?.getElementById("data")) return;
    if (!goesOn) {  // Nothing can strike a run that goes on, and its last moment so far is not the one that a link asks for.
      story.addEventListener("moment", ({ detail }) => onMoment(detail));
      story.addEventListener("process", ({ detail }) => { chosen = shown.lanes[detail][0]; onMoment(event); });
    }
    story.getElementById("data").textContent = JSON.stringify(page);
    story.body.append(Object.assign(story.createElement("script"), { src: "story.js" }));
  };
  // Not by src: each run would be one more step of the browser's way back.
  frame.contentWindow.location.replace(at > 0 ? `story.html?${++frames}#event=${at}` : `story.html?${++frames}`);
}

function onMoment(number) {
  if (number !== event) chosen = null;
  event = number;
  const [, lane, kind, details] = shown.events[number];
  const process = chosen ?? shown.lanes[lane][0];
  const isMessage = kind === "send" && chosen === null;
  $("moment").hidden = Boolean(bug() || attempt);
  $("what").textContent = isMessage
    ? `Event ${number + 1}: the message ${details[0]} from ${process} to ${details[1]}. Strike it, or ${process}:`
    : `Event ${number + 1}: strike ${process} at its next step:`;
  const strikes = isMessage ? OF_MESSAGE.map(([text, fault, answer]) => [text, { kind: fault, answer, event: number }]) : [];
  for (const [text, fault, answer] of OF_PROCESS)
    strikes.push([text.replace("@", process), { kind: fault, answer, event: number, process }]);
  $("strikes").replaceChildren(...strikes.map(([text, aim]) =>
    element("button", { type: "button", disabled: !$("stop").disabled, onclick: () => strike(aim) }, text)));
  $("reasons").replaceChildren();
}

async function strike(aim) {
  const before = ran.answers.length;
  event = 0;
  await run(aim);
  if (ran.answers.length === before)
    $("problems").prepend(element("li", {}, `${aim.process || "The message"} was not struck: nothing of it happens from that moment on.`));
}

async function explain() {
  const at = event;
  const found = await ask("explain", { script: { ...script(), overrides: ran.answers }, event: at });
  if (found === null) return;
  const list = element("ul", {}, ...found.map(([process, lines]) => element("li", {}, `${process}: ${lines.join("; ")}`)));
  $("reasons").replaceChildren(found.length ? list : "No task waits or runs at this moment.");
}

// --- Buttons and keys ---

function save() {
  const text = JSON.stringify({ ...script(), overrides: ran.answers }, null, 1);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: "run.json" }).click();
  URL.revokeObjectURL(address);
}

function onKey(pressed) {
  const isWriting = ["INPUT", "TEXTAREA", "SELECT", "BUTTON", "SUMMARY"].includes(pressed.target.tagName);
  if (pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey)) {
    pressed.preventDefault();
    if (!$("run").disabled) $("setup").requestSubmit();
  } else if (!isWriting && ["ArrowLeft", "ArrowRight", "n", "p"].includes(pressed.key)) {
    $("lanes").contentDocument?.dispatchEvent(new KeyboardEvent("keydown", { key: pressed.key, bubbles: true }));
  }
}

async function begin() {
  if (!canSuspend()) {
    $("state").className = "trouble";
    $("state").textContent = "This browser cannot suspend WebAssembly (JSPI), which the simulated cluster needs. "
      + "Chrome and Edge can from version 137 on, Firefox from 153, Safari from 27.";
    return;
  }
  site = await (await fetch("site.json")).json();
  fillMenus();
  if (site.book) {  // The playground is a part of the book's site.
    document.querySelector("#book a").href = site.book;
    $("book").hidden = false;
  }
  try {
    attempt = await attemptIn(location.hash);
  } catch (error) {
    $("outcome").textContent = error.message;
    history.replaceState(null, "", location.pathname);
  }
  cluster = new Cluster((text, isReady) => {
    $("state").textContent = text;
    $("run").disabled = !isReady;
  }, attempt ? location.hash : "");
  $("program").onchange = () => chooseProgram($("program").value);
  for (const id of ["source", "seed", "nodes"]) $(id).oninput = onChanged;
  $("planted").onchange = () => { event = 0; };
  $("setup").onsubmit = (submitted) => { submitted.preventDefault(); event = 0; run(); };
  $("stop").onclick = () => cluster.stop();
  $("why").onclick = explain;
  $("save").onclick = save;
  $("link").onclick = async () => {
    if (!attempt) history.replaceState(null, "", link());
    await navigator.clipboard?.writeText(location.href);
    $("state").textContent = "The link is copied, and in the address.";
  };
  document.addEventListener("keydown", onKey);
  if (attempt) {
    showAttempt();
    run();
  } else if (readLink()) run();
  else chooseProgram(site.programs[0].name);
}

begin();
