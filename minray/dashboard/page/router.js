// Reads and writes the address of the page. A view, a thing in it and every filter are in the hash, so that a link, the back
// button and a reload show what was shown: #/actors?filter=state=ALIVE&sort=-pid, #/tasks/ID, #/logs/NODE/FILE.

/** Read a hash. `path` has the parts between slashes, `query` the rest. */
export function read(hash = location.hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { path: (path || "overview").split("/").map(decode), query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address that somebody typed
  }
}

/** Write a hash from parts and a query: an object, pairs, or URLSearchParams. Empty values are left out. */
export function link(path, query = {}) {
  const pairs = query instanceof URLSearchParams || Array.isArray(query) ? [...query] : Object.entries(query);
  const kept = new URLSearchParams(pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const text = kept.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Go to a hash; `replace` leaves no step for the back button, as when somebody types in the search field. */
export function go(hash, replace = false) {
  if (hash === location.hash) return;
  if (!replace) {
    location.hash = hash;
    return;
  }
  history.replaceState(null, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
