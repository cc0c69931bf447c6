// Builds elements. Text from the cluster reaches the page through this file alone, and always as text.
//
// Rules
//   * h() sets attributes whose names stand in our code, and adds strings as text nodes. Nothing here parses HTML.
//   * clean() makes visible what an attacker would hide in a name: control characters, and marks that turn the direction of
//     text round. It also shortens long text; the whole text is on the page of the thing itself.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu;
const SVG = "http://www.w3.org/2000/svg";

export const SHORT = 160;
/** Most characters of one value in a table's cell. */
export const LONG = 100_000;
/** Most characters of one text on a page of its own. */

/** Return text in which hidden characters are shown by their numbers, cut to a number of characters. */
export function clean(value, most = SHORT) {
  const text = String(value ?? "");
  const cut = text.length > most ? `${text.slice(0, most)}… (${text.length.toLocaleString("en")} characters)` : text;
  return cut.replace(HIDDEN, (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== undefined && child !== null && child !== false) element.append(child);
  return element;
}

/** Make an HTML element. Attributes that begin with "on" are listeners; strings among the children become text. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Tell a screen reader something, once. */
export function say(text) {
  const place = document.getElementById("said");
  if (place.textContent !== text) place.textContent = text;
}

/** Replace the text of an element if it has changed. A new text node never counts as one that has moved. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make the heading of a view, which takes the focus when the view opens. */
export function heading(title, note = "") {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, title), h("p", { class: "note" }, note));
}

/** Make the banner for one thing that went wrong; `retry` makes a button. */
export function trouble(text, retry) {
  return h("div", { class: "trouble", role: "alert" }, h("p", {}, clean(text, 2000)),
    retry && h("button", { type: "button", onclick: retry }, "Try again"));
}

/** Ask a yes-or-no question in a dialog; resolves to whether the answer was yes. */
export function ask(question, yes) {
  const dialog = document.getElementById("ask");
  return new Promise((resolve) => {
    dialog.replaceChildren(h("form", { method: "dialog" }, h("h2", { id: "ask-title" }, question),
      h("p", { class: "buttons" }, h("button", { value: "no", autofocus: true }, "Cancel"), h("button", { value: "yes", class: "danger" }, yes))));
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    dialog.showModal();
  });
}
