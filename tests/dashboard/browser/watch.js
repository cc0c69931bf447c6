// Runs in each page before its own scripts: notes what the security policy refuses, and what moves by itself.
window.refused = [];
window.moved = [];
document.addEventListener("securitypolicyviolation", (event) => window.refused.push(`${event.violatedDirective} ${event.blockedURI}`));
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) {
    if (entry.hadRecentInput) continue;
    const names = entry.sources.map((source) => {
      const element = source.node?.nodeType === 3 ? source.node.parentElement : source.node;
      const place = [source.previousRect, source.currentRect].map((rect) => JSON.stringify(rect)).join(" -> ");
      return `${element?.tagName}.${element?.className?.baseVal ?? element?.className} ${place}`;
    });
    window.moved.push({ value: entry.value, names });
  }
}).observe({ type: "layout-shift", buffered: true });
