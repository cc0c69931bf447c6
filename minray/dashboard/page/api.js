// Asks the server, and keeps the one stream of events that says which tables have changed.
//
// Rules
//   * Every request has a time limit, and an answer that comes after the view has closed is dropped.
//   * The stream carries names of tables, no rows: a view asks again for what it shows, at most once a second.
//   * A lost connection is tried again for good, with pauses that grow to ten seconds. A page in the background has no stream: a
//     browser opens six connections to one server, for all its tabs.

const LIMIT_MS = 30_000;
const LONGEST_PAUSE_S = 10;
const HIDDEN_MS = 5_000;

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Write the address of a path with a query: an object or URLSearchParams. Empty values are left out. */
export function address(path, query = {}) {
  const pairs = query instanceof URLSearchParams || Array.isArray(query) ? [...query] : Object.entries(query);
  const text = new URLSearchParams(pairs.filter(([, value]) => value !== "" && value !== undefined && value !== null)).toString();
  return text ? `${path}?${text}` : path;
}

async function answer(response) {
  const body = response.headers.get("content-type")?.includes("json") ? await response.json() : null;
  if (response.ok) return body;
  if (response.status === 401) throw new ApiError("The server does not know this browser. Open the address that minray has printed, with its token.", 401);
  throw new ApiError(body?.error ?? `The server answered ${response.status} to ${new URL(response.url).pathname}.`, response.status);
}

async function send(path, options, signal) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  try {
    return await answer(await fetch(path, { ...options, signal: signal ? AbortSignal.any([signal, limit]) : limit }));
  } catch (error) {
    if (error instanceof ApiError || signal?.aborted) throw error;
    if (limit.aborted) throw new ApiError(`The server did not answer to ${path.split("?")[0]} in ${LIMIT_MS / 1000} s.`, 0);
    throw new ApiError("The server cannot be reached.", 0);
  }
}

export function get(path, query = {}, signal = undefined) {
  return send(address(path, query), { credentials: "same-origin" }, signal);
}

/** Change something in the cluster. The header shows the server that its own page asks. */
export function post(path, body) {
  const headers = { "content-type": "application/json", "X-Minray-Dashboard": "1" };
  return send(path, { method: "POST", credentials: "same-origin", headers, body: JSON.stringify(body) });
}

/** The stream of events. `on.changed(tables, cluster)` is called for news and after each new connection, `on.state(state)` for the
 * indicator: connecting, live, lost, paused or refused. */
export class Live {
  constructor(on) {
    this.on = on;
    this.tables = "";
    this.state = "connecting";
    this.isPaused = false;
    this.pause_s = 1;
    this.retryAt = 0;
    this.heard = Date.now();
    document.addEventListener("visibilitychange", () => this.onVisibility());
  }

  /** Follow these tables from now on. */
  follow(tables) {
    const names = [...tables].sort().join(",");
    if (names === this.tables && this.source) return;
    this.tables = names;
    if (!this.isPaused && this.state !== "lost") this.open();
  }

  open() {
    this.close();
    const source = new EventSource(address("/api/events", { tables: this.tables }));
    this.source = source;
    source.onopen = () => {
      this.heard = Date.now();
      const again = this.state === "lost";
      this.pause_s = 1;
      this.enter("live");
      if (again) this.on.changed(null, null);
    };
    source.onmessage = (event) => {
      this.heard = Date.now();
      const news = JSON.parse(event.data);
      this.on.changed(news.tables ?? [], news.cluster ?? null);
    };
    source.onerror = () => this.onLost();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = undefined;
  }

  onLost() {
    this.close();
    this.enter("lost");
    this.retryAt = Date.now() + this.pause_s * 1000;
    this.timer = setTimeout(() => this.retry(), this.pause_s * 1000);
    this.pause_s = Math.min(this.pause_s * 2, LONGEST_PAUSE_S);
  }

  /** Look whether the server is there again. A server that was started again may not know this browser any more. */
  async retry() {
    try {
      await get("/api/cluster");
    } catch (error) {
      if (error.status === 401) this.enter("refused");
      if (error.status === 401 || error.status === 0) return this.onLost();
    }
    if (!this.isPaused) this.open();
    return undefined;
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    if (isPaused) {
      this.close();
      this.enter("paused");
    } else {
      this.enter("connecting");
      this.open();
      this.on.changed(null, null);
    }
  }

  onVisibility() {
    clearTimeout(this.hiding);
    if (this.isPaused) return;
    if (document.hidden) {
      this.hiding = setTimeout(() => this.close(), HIDDEN_MS);
    } else if (!this.source && this.state !== "lost") {
      this.open();
      this.on.changed(null, null);
    }
  }

  enter(state) {
    if (state === "lost" && this.state === "refused") return;
    this.state = state;
    this.on.state(state);
  }
}
