// The landing page's playground: loaded when a visitor asks for it, because it weighs 8 MB.

const start = document.getElementById("start");
const link = document.getElementById("start-link");
const LEAST_WIDTH = 900; // Pixels. A narrower window shows the playground alone, because one scrolled area in another is a trap.

/** Say why no cluster can start here, and what helps. */
function refuse() {
  const text = document.createElement("p");
  text.className = "start-note";
  text.textContent = "This page was opened as a file, and a browser runs no cluster in a file. In the folder of the site, run " +
    "python -m http.server 8000, and open http://localhost:8000/.";
  link.replaceWith(text);
}

function load(event) {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return; // the visitor wants a window of its own
  const isFile = location.protocol === "file:";
  if (!isFile && window.innerWidth < LEAST_WIDTH) return;
  event.preventDefault();
  if (isFile) return refuse();
  const frame = document.createElement("iframe");
  frame.src = link.getAttribute("href");
  frame.title = "The playground: a simulated cluster";
  frame.className = "playground";
  frame.allow = "clipboard-write";
  const alone = document.createElement("p");
  alone.className = "start-note";
  const whole = document.createElement("a");
  whole.href = frame.src;
  whole.textContent = "Open it alone";
  alone.append(whole, ", where there is more room.");
  start.replaceChildren(frame, alone);
  start.classList.add("running");
  frame.focus();
}

link?.addEventListener("click", load);
