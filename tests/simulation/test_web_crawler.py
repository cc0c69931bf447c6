"""The crawler of examples/web_crawler.py in virtual time, where its politeness can be measured exactly."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

import minray
from minray.simulation import run
from tests.simulation.judge import kept

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PAUSE_S = 0.1


async def get(url: str) -> Any:
    """A page of a site that takes ten times as long as the pause between requests."""
    from tests.simulation.judge import kept  # Travels by name; what stands around this function would be copied.

    crawler = importlib.import_module("web_crawler")
    kept.setdefault("asked", []).append(asyncio.get_running_loop().time())
    await asyncio.sleep(10 * PAUSE_S)
    number = int(url.rpartition("/")[2] or 0)
    return crawler.Page(url, 200, "".join(f'href="/{2 * number + i}" ' for i in (1, 2) if number < 30))


def fresh_module(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """An example of this test's own: what an actor class has been pickled with, it keeps."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_requests_keep_their_distance_and_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    crawler = fresh_module(monkeypatch, "web_crawler")
    crawler.get = get

    def body() -> tuple[int, int]:
        fetcher = crawler.Fetcher.remote(1 / PAUSE_S)
        return len(crawler.crawl("http://site/0", fetcher)), minray.get(fetcher.most_at_once.remote())

    pages, most_at_once = run(body, nodes=1)
    asked = kept.pop("asked")
    assert pages == len(asked) == 61 and 5 < most_at_once <= 11
    assert min(later - earlier for earlier, later in itertools.pairwise(asked)) > 0.999 * PAUSE_S
