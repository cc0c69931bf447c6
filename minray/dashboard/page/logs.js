// The log files of all nodes as a table, and one file: its end, a search in it, and what is written while one looks.

import { address, get } from "./api.js";
import { clean, h, heading, put, say } from "./dom.js";
import { number, plain, shortId } from "./format.js";
import { Question } from "./question.js";
import { go, link } from "./router.js";
import { TableView } from "./table.js";

const TAILS = ["100", "1000", "5000"];
const MOST_LINES = 5000;
const LONGEST_LINE = 4000;
const AGAIN_MS = 2000;
const TYPING_MS = 250;
const ESCAPES = /\u001b\[[0-9;?]*[A-Za-z]|\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\)/g;

const NAME_CHARACTERS = matchMedia("(max-width: 820px)").matches ? 26 : 54;

const nameOf = (row) => row.file ?? row.name ?? row.filename;

const LOGS = {
  title: "Logs", table: "logs", id: "file", isStill: true,
  note: "What the processes of each node have written.",
  search: "Search in names of files",
  columns: [
    { key: "file", label: "File", kind: "text", width: NAME_CHARACTERS, of: nameOf, sort: "file", href: (row) => link(["logs", row.node_id, nameOf(row)]) },
    { key: "size", label: "Size", kind: "bytes" },
    { key: "group", label: "Kind", kind: "short", width: 14 },
    { key: "node_id", label: "Node", kind: "node" },
    { key: "node_name", label: "Name of the node", kind: "text", more: true },
    { key: "modified", label: "Written", kind: "moment", of: (row) => row.modified * 1000, sort: "modified" },
  ],
};

class LogFile {
  constructor(place, route) {
    [, this.node, this.file] = route.path;
    this.tables = [];
    this.lines = [];
    this.title = this.file;
    this.trouble = h("div");
    this.question = new Question(this.trouble);
    this.search = h("input", { type: "search", class: "search", placeholder: "Lines that contain", "aria-label": "Lines that contain this text", "aria-keyshortcuts": "/", oninput: () => this.onTyping() });
    this.tail = h("select", { "aria-label": "Number of lines", onchange: () => this.write({ tail: this.tail.value }) }, ...TAILS.map((tail) => h("option", { value: tail }, `last ${number(Number(tail))} lines`)));
    this.follow = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.write({ follow: this.isFollowing ? "" : "1" }) }, "Follow");
    this.wrap = h("button", { type: "button", "aria-pressed": "true", onclick: () => this.onWrap() }, "Wrap");
    this.count = h("span", {}, "asking the node");
    this.box = h("div", { class: "log", role: "log", "aria-live": "off", "aria-label": `Lines of ${clean(this.file)}`, tabindex: "0" });
    place.append(h("p", { class: "note" }, h("a", { href: link(["logs"]) }, "Logs"), " of node ", h("a", { href: link(["nodes", this.node]), class: "mono" }, shortId(this.node))),
      heading(clean(this.file)), this.trouble, h("div", { class: "bar", role: "search" }, this.search, this.tail, this.follow, this.wrap,
        h("button", { type: "button", onclick: () => this.toEnd() }, "To the end")),
      h("div", { class: "counts" }, this.count), this.box);
    this.update(route);
  }

  get path() {
    return `/api/logs/${encodeURIComponent(this.node)}/${encodeURIComponent(this.file)}`;
  }

  update(route) {
    this.query = route.query;
    if (document.activeElement !== this.search) this.search.value = route.query.get("search") ?? "";
    this.tail.value = route.query.get("tail") ?? TAILS[1];
    const follow = Boolean(route.query.get("follow"));
    this.follow.setAttribute("aria-pressed", String(follow));
    this.load().then(() => this.setFollowing(follow));
  }

  write(changes) {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) query.set(name, value);
    go(link(["logs", this.node, this.file], query), true);
  }

  onTyping() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.write({ search: this.search.value }), TYPING_MS);
  }

  onWrap() {
    const isWrapped = this.box.classList.toggle("wide");
    this.wrap.setAttribute("aria-pressed", String(!isWrapped));
  }

  async refresh() {
    if (!this.isFollowing) await this.load();
  }

  async load() {
    await this.question.ask((signal) => get(this.path, { tail: this.tail.value, search: this.search.value }, signal), (answer) => this.show(answer));
  }

  show(answer) {
    this.box.replaceChildren();
    this.lines = 0;
    this.add(answer.lines);
    this.summarize(answer);
    this.toEnd();
  }

  summarize(answer) {
    const notes = (answer.notes ?? []).map(plain).join(" ");
    const what = this.search.value ? `${number(answer.lines.length)} lines contain the text` : `${number(answer.lines.length)} lines`;
    put(this.count, clean(`${what}${this.isFollowing ? ", following" : ""}. ${notes}`, 400));
    if (!answer.lines.length) this.box.replaceChildren(h("p", { class: "empty" }, this.search.value ? "No line contains this." : "The file is empty."));
  }

  add(lines) {
    if (!lines.length) return;
    this.box.querySelector(".empty")?.remove();
    const atEnd = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
    this.box.append(...lines.map((line) => h("div", {}, clean(String(line).replace(ESCAPES, ""), LONGEST_LINE) || " ")));
    while (this.box.childElementCount > MOST_LINES) this.box.firstChild.remove();
    if (atEnd) this.toEnd();
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
  }

  setFollowing(isFollowing) {
    if (this.isClosed || isFollowing === Boolean(this.isFollowing)) return;
    this.isFollowing = isFollowing;
    this.source?.close();
    clearTimeout(this.again);
    if (!isFollowing) return;
    this.source = new EventSource(address(`${this.path}/follow`));
    this.source.onmessage = (event) => this.onLines(JSON.parse(event.data));
    this.source.onerror = () => {
      put(this.count, "The stream was lost, retrying.");
      this.setFollowing(false);
      this.again = setTimeout(() => this.load().then(() => this.setFollowing(true)), AGAIN_MS);
    };
    this.source.onopen = () => put(this.count, `${number(this.box.childElementCount)} lines, following`);
    say("Following");
  }

  onLines(news) {
    const wanted = this.search.value.toLowerCase();
    this.add((news.lines ?? []).filter((line) => !wanted || line.toLowerCase().includes(wanted)));
    put(this.count, clean(news.error ?? `${number(this.box.childElementCount)} lines, following`, 400));
  }

  close() {
    this.isClosed = true;
    this.question.stop();
    this.source?.close();
    clearTimeout(this.again);
    clearTimeout(this.typing);
  }
}

export const open = (place, route) => (route.path.length > 2 ? new LogFile(place, route) : new TableView(LOGS, place, route));
