"""Metric families as bytes for a server that answers Prometheus, written by ``prometheus_client``.

Ray: python/ray/_private/metrics_agent.py, whose agents serve families of prometheus_client

The library comes with the extra ``dashboard``. It is imported where it is used, so that all else works without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from minray.observability.metric_families import Family
from minray.protocol.state import COUNTER

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the text format."""


class MissingLibrary(RuntimeError):
    """The library that writes the format for a server is not installed."""


def check_library() -> None:
    """Raise MissingLibrary if ``prometheus_client`` is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError:
        raise MissingLibrary(
            "serving metrics needs the library prometheus_client: pip install 'minray[dashboard]'. Plain `minray metrics`"
            " prints them without it"
        ) from None


def exposition(families: Iterable[Family]) -> bytes:
    """Return families in Prometheus's text format. Raises MissingLibrary."""
    check_library()
    from prometheus_client import generate_latest

    return generate_latest(_Registry([family for family in families if family.samples]))


class _Registry:
    """A registry whose values are known already."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        from prometheus_client import Metric

        for family in self._families:
            name = family.name.removesuffix("_total") if family.kind == COUNTER else family.name
            metric = Metric(name, family.description, family.kind)
            for suffix, labels, value in family.samples:
                metric.add_sample(family.name + suffix, labels, value)
            yield metric
