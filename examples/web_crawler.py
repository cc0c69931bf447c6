"""Crawl a web site politely: fetch many pages at once, but never more than a given number per second.

The fetcher is an async actor: its calls are coroutines that wait at the same time. They share the time of the next allowed
request, which needs no lock, because they run in one thread. Tasks find the links in a page, on any node with a free CPU.
They get the page by reference, so that the driver, which keeps the list of known pages, never has a page in its memory.

This program itself serves the site on loopback: a tree of pages with links across and some dead links.
"""

import argparse
import asyncio
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import minray as ray

LINK = re.compile(r'href="([^"]+)"')


class Page(NamedTuple):
    url: str
    status: int
    text: str


@ray.remote(num_cpus=0, max_concurrency=16)
class Fetcher:
    def __init__(self, requests_per_second: float) -> None:
        self.pause_s = 1 / requests_per_second
        self.next_at = 0.0
        self.open = self.most_open = 0

    async def fetch(self, url: str) -> Page:
        now = asyncio.get_running_loop().time()
        turn = self.next_at = max(now, self.next_at + self.pause_s)
        await asyncio.sleep(turn - now)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await get(url)
        finally:
            self.open -= 1

    async def most_at_once(self) -> int:
        return self.most_open


async def get(url: str) -> Page:
    """Get a page by HTTP/1.0, where the end of the connection ends the page."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return Page(url, int(head.split()[1]), body.decode())


@ray.remote
def links_in(page: Page) -> tuple[str, int, list[str]]:
    """Return the page's address, its status, and the addresses on the same site to which it links."""
    found = [urljoin(page.url, link) for link in LINK.findall(page.text)]
    return page.url, page.status, [url for url in found if urlsplit(url).netloc == urlsplit(page.url).netloc]


def crawl(start: str, fetcher: "ray.ActorHandle") -> dict[str, int]:
    """Return the HTTP status of every page that can be reached, by its address."""
    status: dict[str, int] = {}
    seen = {start}
    pending = [links_in.remote(fetcher.fetch.remote(start))]
    while pending:
        ready, pending = ray.wait(pending)
        url, status_of_url, links = ray.get(ready[0])
        status[url] = status_of_url
        new = [link for link in dict.fromkeys(links) if link not in seen]
        seen.update(new)
        pending += [links_in.remote(fetcher.fetch.remote(link)) for link in new]
    return status


class Site(ThreadingHTTPServer):
    """A site whose page 0 links to pages 1 and 2, page 1 to 3 and 4, and so on; all link to page 0 and to another site."""

    def __init__(self, pages: int, seconds: float) -> None:
        super().__init__(("127.0.0.1", 0), SitePage)
        self.pages, self.seconds = pages, seconds
        self.asked_at: list[float] = []
        """Times of all requests, in seconds of the monotonic clock."""

    def most_in_a_second(self) -> int:
        times = sorted(self.asked_at)
        return max(sum(start <= moment < start + 1 for moment in times) for start in times)


class SitePage(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked_at.append(time.monotonic())
        time.sleep(self.server.seconds)
        number = int(self.path.strip("/") or 0)
        if number >= self.server.pages:
            self.send_error(404)
            return
        links = [f"/{2 * number + 1}", f"/{2 * number + 2}", "/", "https://example.org/elsewhere"]
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f'<a href="{link}">read on</a>' for link in links).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def main(pages: int = 100, requests_per_second: float = 100, seconds: float = 0.05) -> dict[str, float]:
    site = Site(pages, seconds)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    began = time.perf_counter()
    try:
        with ray.init(num_cpus=2):
            fetcher = Fetcher.remote(requests_per_second)
            status = crawl(f"http://127.0.0.1:{site.server_port}/", fetcher)
            most_at_once = ray.get(fetcher.most_at_once.remote())
    finally:
        site.shutdown()
        site.server_close()
    return {
        "pages": sum(code == 200 for code in status.values()),
        "dead links": sum(code == 404 for code in status.values()),
        "requests": len(site.asked_at),
        "most in one second": site.most_in_a_second(),
        "most at once": most_at_once,
        "seconds": time.perf_counter() - began,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--requests-per-second", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=0.05, help="seconds that the site takes for an answer")
    arguments = parser.parse_args()
    for name, value in main(arguments.pages, arguments.requests_per_second, arguments.seconds).items():
        print(f"{name}: {value:.4g}")
