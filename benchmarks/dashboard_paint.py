"""The time until the dashboard's page is there, in a headless Chromium (``pip install 'minray[test-browser]'``).

``python -m benchmarks.dashboard_paint [VISITS]`` starts a cluster of one node with a dashboard, opens the overview so often
in new profiles, and once more in each with the files that the browser has kept. It prints medians: milliseconds until the
first paint and until the first contentful paint, files, and bytes as they travelled.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

import minray
from minray.dashboard.access import dashboard_token
from minray.node.discovery import find_nodes, session_token
from tests.chromium import running_chromium

LOOK = """() => {
  const paints = Object.fromEntries(performance.getEntriesByType("paint").map((one) => [one.name, one.startTime]));
  const files = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const loaded = files.filter((one) => !one.name.includes("/api/"));
  const bytes = loaded.reduce((sum, one) => sum + one.transferSize, 0);
  return [paints["first-paint"], paints["first-contentful-paint"], loaded.length, bytes];
}"""


def visit(page: Any, address: str) -> list[float]:
    page.goto(address)
    page.locator("h1").wait_for()
    seen: list[float] = page.evaluate(LOOK)
    return seen


def main() -> None:
    visits = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    context = minray.init(num_cpus=1, log_to_driver=False, include_dashboard=True)
    address = f"http://{context.dashboard_url}/"
    token = dashboard_token(session_token(find_nodes()[-1].session_dir))
    rows: dict[str, list[list[float]]] = {"a new browser": [], "with the files that it has kept": []}
    with running_chromium() as browser:
        for _ in range(visits):
            with browser.new_context() as profile:
                page = profile.new_page()
                page.goto(f"{address}?token={token}", wait_until="commit")  # for the cookie
                page.goto("about:blank")
                profile.new_cdp_session(page).send("Network.clearBrowserCache")
                for seen in rows.values():
                    seen.append(visit(page, address))
                    page.goto("about:blank")
    for state, seen in rows.items():
        first, contentful, files, size = map(median, zip(*seen, strict=True))
        paints = f"first paint {first:.0f} ms, first contentful paint {contentful:.0f} ms"
        print(f"{state}: {paints}, {files:.0f} files, {size:,.0f} B")
    minray.shutdown()


if __name__ == "__main__":
    main()
