// A student's code and the scenario in which it fails, out of the page's address (labs/permalink.py makes such links).
//
// After #attempt= there is JSON, compressed by zlib, in base64: { file, text, scenario }. The worker writes the text in place of
// the file before it imports minray. It does so in its own memory, so nothing outlives the tab.

const MARK = "#attempt=", FILE = /^minray\/[a-z_/]+\.py$/;

/** Return the attempt of an address's fragment; null if it has none. Throws an Error with a sentence if it is damaged. */
export async function attemptIn(fragment) {
  if (!fragment.startsWith(MARK)) return null;
  try {
    const packed = atob(fragment.slice(MARK.length).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = new Blob([Uint8Array.from(packed, (mark) => mark.charCodeAt(0))]);
    const attempt = await new Response(bytes.stream().pipeThrough(new DecompressionStream("deflate"))).json();
    if (FILE.test(attempt.file) && typeof attempt.text === "string" && typeof attempt.scenario === "string") return attempt;
  } catch { /* said below */ }
  throw new Error("This link is damaged, so it shows no run.");
}
