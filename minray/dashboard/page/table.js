// One table of the cluster's state: search, filters, order and pages are questions to the server, and stand in the address.
//
// Rules
//   * The page holds the rows of one page. Counts come from the server: how many match, and how many there are.
//   * A refresh writes into the rows that are there, by their place. So nothing moves, and the focus stays with its row.
//   * The line above the table names the processes that did not answer, and rows that are left out. It is always there, so that its text
//     does not push the table down.

import { get } from "./api.js";
import { KINDS } from "./cells.js";
import { clean, h, heading, put, say } from "./dom.js";
import { number, plain } from "./format.js";
import { Question } from "./question.js";
import { go, link } from "./router.js";

const LIMITS = [25, 50, 100, 250];
const LIMIT = 50;
const TYPING_MS = 250;
const NAMED_SILENT = 3;
const CHARACTER_PX = 7.4;
const FLEXIBLE_CHARACTERS = 22;

/** A column: `key` in the row, `label`, `kind` in KINDS, and if needed `of(row)` for the value, `sort` (false: none), `width`, `href(row)`,
 * `more` (shown with all columns only). */
export class TableView {
  constructor(spec, place, route) {
    this.spec = spec;
    this.question = new Question();
    this.place = place;
    this.tables = spec.isStill ? [] : [spec.table];
    this.columns = [];
    this.rows = [];
    this.build();
    this.update(route);
  }

  build() {
    const { spec } = this;
    const change = (event) => event.preventDefault();
    this.search = h("input", { type: "search", class: "search", placeholder: spec.search ?? "Search all columns", "aria-label": `Search ${spec.title}`, "aria-keyshortcuts": "/", oninput: () => this.onTyping() });
    this.states = spec.states && h("select", { "aria-label": `State of ${spec.title}`, onchange: () => this.onState() },
      h("option", { value: "" }, "Any state"), ...spec.states.map((state) => h("option", { value: state }, state)));
    this.key = h("select", { name: "key" });
    this.menu = h("details", { class: "menu", onkeydown: (event) => this.onMenuKey(event) }, h("summary", { class: "button" }, "Filter"),
      h("form", { onsubmit: (event) => { change(event); this.onFilter(event.target); } },
        h("label", {}, "Column", this.key),
        h("label", {}, "Condition", h("select", { name: "op" }, h("option", { value: "=" }, "is"), h("option", { value: "!=" }, "is not"))),
        h("label", {}, "Value", h("input", { name: "value", required: true, autocomplete: "off" })),
        h("button", {}, "Add filter")));
    this.all = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.go({ all: this.query.get("all") ? "" : "1" }) }, "All columns");
    this.range = h("span", { class: "range" });
    this.previous = h("button", { type: "button", "aria-label": "Previous page", onclick: () => this.turn(-1) }, "‹");
    this.next = h("button", { type: "button", "aria-label": "Next page", onclick: () => this.turn(1) }, "›");
    this.limit = h("select", { "aria-label": "Rows on a page", onchange: () => this.go({ limit: this.limit.value === String(LIMIT) ? "" : this.limit.value, offset: "" }) },
      ...LIMITS.map((limit) => h("option", { value: String(limit) }, `${limit} rows`)));
    this.chips = h("ul", { class: "chips", "aria-label": "Filters" });
    this.count = h("span", {});
    this.summary = h("summary", {});
    this.missingList = h("ul");
    this.missing = h("details", { class: "missing", hidden: true }, this.summary, this.missingList);
    this.head = h("tr");
    this.colgroup = h("colgroup");
    this.body = h("tbody", { onkeydown: (event) => this.onRowKey(event) });
    this.table = h("table", {}, h("caption", { class: "unseen" }, spec.title), this.colgroup, h("thead", {}, this.head), this.body);
    this.empty = h("p", { class: "empty", hidden: true });
    this.box = h("div", { class: "box", role: "region", "aria-label": `${spec.title}, table`, tabindex: "0" }, this.table, this.empty);
    this.place.append(heading(spec.title, spec.note ?? ""), ...(spec.above?.() ?? []),
      h("div", { class: "bar", role: "search" }, this.search, this.states, this.menu, this.all,
        h("span", { class: "right" }, this.range, this.previous, this.next, this.limit)),
      this.chips, h("div", { class: "counts" }, this.count, this.missing), this.box);
  }

  /** Show what an address asks for. */
  update(route) {
    this.path = route.path;
    this.query = route.query;
    if (document.activeElement !== this.search) this.search.value = this.query.get("search") ?? "";
    this.limit.value = this.query.get("limit") ?? String(LIMIT);
    this.all.setAttribute("aria-pressed", String(Boolean(this.query.get("all"))));
    const filters = this.query.getAll("filter");
    const state = filters.find((filter) => filter.startsWith(`${this.spec.stateKey ?? "state"}=`));
    if (this.states) this.states.value = state?.split(/=(.*)/s)[1] ?? "";
    const others = filters.filter((filter) => filter !== state || !this.states);
    this.chips.replaceChildren(...others.map((filter) => h("li", {},
      h("button", { type: "button", "aria-label": `Remove the filter ${clean(filter)}`, onclick: () => this.drop(filter) }, `${clean(filter).replace(/!?=/, (op) => ` ${op === "=" ? "is" : "is not"} `)} ×`))));
    this.showHead();
    return this.refresh();
  }

  /** Write a change of the query into the address, and so show it. */
  go(changes, replace = false) {
    const query = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(changes)) query.set(name, value);
    go(link(this.path, query), replace);
  }

  onTyping() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.go({ search: this.search.value.trim(), offset: "" }, true), TYPING_MS);
  }

  onState() {
    const key = `${this.spec.stateKey ?? "state"}=`;
    const kept = this.query.getAll("filter").filter((filter) => !filter.startsWith(key));
    this.goFilters(this.states.value ? [...kept, key + this.states.value] : kept);
  }

  onFilter(form) {
    const { key, op, value } = form.elements;
    this.menu.open = false;
    this.menu.querySelector("summary").focus();
    this.goFilters([...this.query.getAll("filter"), `${key.value}${op.value}${value.value.trim()}`]);
    value.value = "";
  }

  onMenuKey(event) {
    if (event.key !== "Escape" || !this.menu.open) return;
    this.menu.open = false;
    this.menu.querySelector("summary").focus();
  }

  drop(filter) {
    this.goFilters(this.query.getAll("filter").filter((other) => other !== filter));
    this.search.focus();
  }

  goFilters(filters) {
    const rest = [...this.query].filter(([name]) => name !== "filter" && name !== "offset");
    go(link(this.path, [...rest, ...filters.map((filter) => ["filter", filter])]));
  }

  turn(by) {
    const limit = Number(this.limit.value);
    this.go({ offset: String(Math.max(0, Number(this.query.get("offset") ?? 0) + by * limit) || "") });
  }

  async refresh() {
    const query = new URLSearchParams(this.query);
    query.delete("all");
    if (!query.has("limit")) query.set("limit", String(LIMIT));
    if (!query.has("sort") && this.spec.sort) query.set("sort", this.spec.sort);
    await this.question.ask((signal) => get(`/api/${this.spec.table}`, query, signal), (answer) => this.show(answer), (error) => this.fail(error));
  }

  fail(error) {
    this.table.classList.add("stale");
    this.showMissing(`${error.message}${this.rows.length ? " These rows are older." : ""}`, []);
    say(error.message);
  }

  show(answer) {
    this.table.classList.remove("stale");
    const names = (answer.columns ?? []).map((column) => (typeof column === "string" ? column : column.key ?? column.name));
    this.known = names.length ? names : Object.keys(answer.rows[0] ?? {});
    this.rows = answer.rows;
    this.showHead();
    this.showRows();
    const { matching, total } = answer;
    const text = matching === total ? `${number(total)} in all` : `${number(matching)} of ${number(total)} match`;
    if (this.count.textContent !== text && this.count.textContent) say(`${this.spec.title}: ${text}`);
    put(this.count, text);
    const offset = Number(answer.offset ?? this.query.get("offset") ?? 0);
    put(this.range, this.rows.length ? `${number(offset + 1)}–${number(offset + this.rows.length)}` : "0");
    this.previous.disabled = offset <= 0;
    this.next.disabled = offset + this.rows.length >= matching;
    this.empty.hidden = this.rows.length > 0;
    const none = total && matching === 0 ? "Nothing matches. Remove a filter, or search for something else." : this.spec.empty ?? "There is nothing yet.";
    put(this.empty, total && matching ? "This page is beyond the last one." : none);
    const silent = answer.silent ?? [];
    const notes = [...(answer.notes ?? [])];
    if (answer.left_out) notes.push(`${number(answer.left_out)} more are known as a number only.`);
    const named = silent.slice(0, NAMED_SILENT).map((name) => plain(name)).join("; ");
    const more = silent.length > NAMED_SILENT ? `; and ${silent.length - NAMED_SILENT} more` : "";
    const head = silent.length ? `No answer in time from: ${named}${more}` : notes[0] ?? "";
    this.showMissing(head, [...silent.map((name) => `No answer: ${plain(name)}`), ...notes]);
  }

  showMissing(head, lines) {
    this.missing.hidden = !head;
    put(this.summary, clean(head, 400));
    const list = lines.map((line) => clean(line, 1000));
    if (this.missingList.childElementCount !== list.length) this.missingList.replaceChildren(...list.map(() => h("li")));
    list.forEach((line, index) => put(this.missingList.children[index], line));
    this.missingList.hidden = !list.length;
  }

  shown() {
    const { spec } = this;
    const known = new Set(this.known ?? []);
    const all = Boolean(this.query.get("all"));
    const mine = spec.columns.filter((column) => (all || !column.more) && (!this.known || (column.of && !column.optional) || known.has(column.key)));
    if (!all) return mine;
    const named = new Set(spec.columns.flatMap((column) => [column.key, ...(column.parts ?? [])]));
    return [...mine, ...[...known].filter((key) => !named.has(key)).map((key) => ({ key, label: key.replaceAll("_", " "), kind: "text" }))];
  }

  showHead() {
    const columns = this.shown();
    const sort = this.query.get("sort") ?? this.spec.sort ?? "";
    const signature = JSON.stringify([columns.map((column) => column.key), sort]);
    if (signature === this.signature) return;
    this.signature = signature;
    this.columns = columns;
    const focused = this.head.contains(document.activeElement) ? [...this.head.children].indexOf(document.activeElement.closest("th")) : -1;
    this.colgroup.replaceChildren(...columns.map((column) => widthOf(column)));
    this.table.style.minWidth = `${columns.reduce((sum, column) => sum + charactersOf(column, FLEXIBLE_CHARACTERS), 0) * CHARACTER_PX}px`;
    this.head.replaceChildren(...columns.map((column) => this.headCell(column, sort)));
    if (focused >= 0) this.head.children[focused]?.querySelector("button")?.focus();
    this.body.replaceChildren();
    const keys = [...new Set([...(this.known ?? []), ...columns.filter((column) => !column.of).map((column) => column.key)])];
    const chosen = this.key.value;
    this.key.replaceChildren(...keys.map((key) => h("option", { value: key }, key)));
    if (keys.includes(chosen)) this.key.value = chosen;
  }

  headCell(column, sort) {
    const classes = KINDS[column.kind].right ? "num" : undefined;
    const key = column.sort ?? (column.of ? false : column.key);
    if (!key) return h("th", { scope: "col", class: classes, title: column.hint }, column.label);
    const order = sort === key ? "ascending" : sort === `-${key}` ? "descending" : "none";
    const turned = order === "ascending" ? `-${key}` : key;
    return h("th", { scope: "col", class: classes, "aria-sort": order, title: column.hint },
      h("button", { type: "button", onclick: () => this.go({ sort: turned, offset: "" }) }, column.label));
  }

  showRows() {
    const focused = this.body.contains(document.activeElement) ? document.activeElement.closest("tr") : null;
    const focusedKey = focused?.dataset.key;
    while (this.body.rows.length > this.rows.length) this.body.lastChild.remove();
    while (this.body.rows.length < this.rows.length) this.body.append(this.emptyRow());
    this.rows.forEach((row, index) => this.fillRow(this.body.rows[index], row));
    if (focusedKey && focused?.dataset.key !== focusedKey) {
      [...this.body.rows].find((row) => row.dataset.key === focusedKey)?.querySelector("a")?.focus({ preventScroll: true });
    } else if (focused && !focused.contains(document.activeElement)) {
      focused.querySelector("a")?.focus({ preventScroll: true });
    }
  }

  emptyRow() {
    return h("tr", {}, ...this.columns.map((column, index) => (index === 0 ? h("th", { scope: "row" }) : h("td", { class: KINDS[column.kind].right ? "num" : undefined }))));
  }

  fillRow(element, row) {
    element.dataset.key = this.spec.id ? String(row[this.spec.id]) : "";
    this.columns.forEach((column, index) => {
      const cell = element.cells[index];
      const value = column.of ? column.of(row) : row[column.key];
      const href = column.href?.(row) ?? "";
      const signature = `${href} ${JSON.stringify(value)}`;
      if (cell.signature === signature) return;
      cell.signature = signature;
      const drawn = KINDS[column.kind].draw(value, row);
      cell.replaceChildren(href ? h("a", { href }, drawn) : drawn);
      if (column.kind === "text" || column.kind === "resources" || column.kind === "state") cell.title = cell.textContent;
    });
  }

  /** Move between rows with the arrow keys. */
  onRowKey(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    const row = event.target.closest("tr");
    if (!by || !row || event.ctrlKey || event.metaKey || event.altKey) return;
    const other = this.body.rows[row.rowIndex - 1 + by]?.querySelector("a");
    if (!other) return;
    event.preventDefault();
    other.focus();
  }

  /** Put the focus into the first row. */
  enter() {
    this.body.querySelector("a")?.focus();
  }

  close() {
    this.question.stop();
    clearTimeout(this.typing);
  }
}

function charactersOf(column, otherwise = 0) {
  return (column.width ?? KINDS[column.kind].width) || otherwise;
}

function widthOf(column) {
  const characters = charactersOf(column);
  const element = h("col");
  if (characters) element.style.width = `${characters * CHARACTER_PX}px`;
  return element;
}
