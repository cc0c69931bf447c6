"""A program's own counters, gauges and histograms, and their text for Prometheus.

Ray: python/ray/util/metrics.py

    seen = Counter("pages_seen", description="Pages that were read.", tag_keys=("site",))
    seen.inc(tags={"site": "example.org"})

Metrics work in tasks, actors and drivers, and before ``init``. Values stay in the process that has recorded them, under the
name of the metric. ``minray metrics`` and ``metrics_text`` collect them from all processes. Counters and histograms of a
worker that has ended are kept by its node until the job is over.

Errors are those of Ray. For a name that Prometheus does not allow a warning is given, and its values are discarded. Other
bad arguments raise an exception.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from minray.api.calls import ask_cluster
from minray.common.shown import a, check_encodable, shown
from minray.core_worker.introspection.metric_registry import MetricDefinition, registry
from minray.observability.prometheus_text import prometheus_text
from minray.protocol.state import COUNTER, GAUGE, HISTOGRAM

VALID_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
TIMEOUT_S = 30.0

M = TypeVar("M", bound="Metric")

__all__ = ["Counter", "Gauge", "Histogram", "metrics_text"]


class Metric:
    """The common part of the three kinds of metrics."""

    _kind = ""

    def __init__(
        self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None, _boundaries: Sequence[float] = ()
    ) -> None:
        tag_keys = tag_keys or ()
        if not isinstance(tag_keys, tuple):
            raise TypeError(f"tag_keys must be a tuple, not {type(tag_keys).__name__}")
        for key in tag_keys:
            if not isinstance(key, str):
                raise TypeError(f"tag keys must be strings, not {type(key).__name__}")
        if not isinstance(description, str):
            raise TypeError(f"description must be a string, not {type(description).__name__}")
        check_encodable("description", description)
        for key in tag_keys:
            check_encodable("a tag key", key)
        self._definition = MetricDefinition(self._kind, name, description, tuple(_boundaries))
        self._is_discarded = _is_discarded(self._definition)
        self._tag_keys = tag_keys
        self._default_tags: dict[str, str] = {}

    def set_default_tags(self: M, default_tags: dict[str, str]) -> M:
        """Set the values of tags that a call does not give; return the metric itself. Raises ValueError for an unknown
        key."""
        for key, value in default_tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"{shown(key)} is not one of the tag keys {self._tag_keys}")
            _check_tag(key, value)
        self._default_tags = dict(default_tags)
        return self

    @property
    def info(self) -> dict[str, Any]:
        """The arguments of the metric: ``name``, ``description``, ``tag_keys``, ``default_tags``."""
        return {
            "name": self._definition.name,
            "description": self._definition.description,
            "tag_keys": self._tag_keys,
            "default_tags": self._default_tags,
        }

    def __reduce__(self) -> Any:
        definition = self._definition
        arguments = {"name": definition.name, "description": definition.description, "tag_keys": self._tag_keys}
        if definition.boundaries:
            return _remade, (type(self), {**arguments, "boundaries": list(definition.boundaries)}, self._default_tags)
        return _remade, (type(self), arguments, self._default_tags)

    def _record(self, value: float, tags: Mapping[str, str] | None) -> None:
        if not isinstance(value, int | float):
            raise TypeError(f"value must be an int or a float, not {type(value).__name__}")
        for key, text in (tags or {}).items():
            _check_tag(key, text)
        all_tags = {**self._default_tags, **(tags or {})}
        if missing := [key for key in self._tag_keys if key not in all_tags]:
            raise ValueError(f"there is no value for the tag keys {', '.join(missing)}")
        if not self._is_discarded:
            registry().record(self._definition, all_tags, float(value))


class Counter(Metric):
    """A sum that only grows; ``ray_<name>_total`` in Prometheus."""

    _kind = COUNTER

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None) -> None:
        super().__init__(name, description, tag_keys)

    def inc(self, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        """Add a positive amount. ``tags`` override the default ones. Raises ValueError for an amount that is not positive,
        or a tag key without a value."""
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"value must be positive, not {value}")
        self._record(value, tags)


class Gauge(Metric):
    """A value that goes up and down; only the last one counts."""

    _kind = GAUGE

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None) -> None:
        super().__init__(name, description, tag_keys)

    def set(self, value: float | None, tags: dict[str, str] | None = None) -> None:
        """Set the value; None changes nothing. ``tags`` override the default ones."""
        if value is not None:
            self._record(value, tags)


class Histogram(Metric):
    """Counts of values by range."""

    _kind = HISTOGRAM

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: list[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        """``boundaries`` are the upper ends of the ranges: positive and increasing. A value belongs to the first range whose
        boundary it does not exceed. Raises ValueError for other boundaries, or none."""
        if not boundaries:
            raise ValueError('boundaries are needed: Histogram("name", boundaries=[1.0, 2.0])')
        for index, boundary in enumerate(boundaries):
            if not 0 < boundary < math.inf:
                raise ValueError(f"boundaries must be positive numbers, but at index {index} of {boundaries} is {boundary}")
        if any(low >= high for low, high in pairwise(boundaries)):
            raise ValueError(f"boundaries must increase, but are {boundaries}")
        self.boundaries = boundaries
        super().__init__(name, description, tag_keys, boundaries)

    def observe(self, value: float, tags: dict[str, str] | None = None) -> None:
        """Add a value to its range. ``tags`` override the default ones."""
        self._record(value, tags)

    @property
    def info(self) -> dict[str, Any]:
        return {**super().info, "boundaries": self.boundaries}


def metrics_text(timeout: float = TIMEOUT_S) -> str:
    """Return what programs have recorded in this cluster, in Prometheus's text format.

    A RuntimeWarning names each process that does not answer within ``timeout`` seconds. Raises RuntimeError if this process
    is not connected.
    """
    return prometheus_text(ask_cluster(lambda reader: reader.metrics(timeout), "its metrics are missing"))


def _is_discarded(metric: MetricDefinition) -> bool:
    """Whether nothing can be recorded under this name; warns with the reason."""
    name = metric.name
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {type(name).__name__}")
    if not name:
        raise ValueError("the name of a metric must not be empty")
    if not VALID_NAME.fullmatch(name):
        problem = "names have letters, digits, _ and : only, and do not begin with a digit"
    elif not registry().fits(metric):
        problem = "this process has another kind of metric with this name, or one with other boundaries"
    else:
        return False
    warnings.warn(f"the metric {shown(name)} is discarded: {problem}", UserWarning, stacklevel=4)
    return True


def _check_tag(key: str, value: str) -> None:
    if not isinstance(key, str):
        raise TypeError(f"tag keys must be strings, not {type(key).__name__}")
    if not isinstance(value, str):
        raise TypeError(f"values of tags must be strings, but that of {shown(key)} is {a(value)}")
    check_encodable(f"the value of tag {shown(key)}", value)  # The error comes here, and not when the metrics are collected.


def _remade(kind: type[Metric], arguments: dict[str, Any], default_tags: dict[str, str]) -> Metric:
    """Make a metric again where it is unpickled."""
    return kind(**arguments).set_default_tags(default_tags)
