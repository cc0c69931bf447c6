"""Takes values out of decoded JSON, with errors that name the file and the place.

Ray: has no counterpart

    tasks = JsonPlace(decoded, "montage.json").down("workflow").down("specification").items("tasks")
    tasks[3].text("id")        # "montage.json: workflow.specification.tasks[3].id is 7; it must be a text"

Foreign formats allow more fields than the readers use, and so they are not decoded into records: unknown fields are ignored,
and only what is used must be right.
"""

from __future__ import annotations

import math
from typing import Any

from minray.laboratory.workload import TraceError


class JsonPlace:
    """A JSON object at some place of a file."""

    def __init__(self, value: Any, file: str, path: str = "") -> None:
        self.file = file
        self.path = path
        if not isinstance(value, dict):
            raise self.wrong("", value, "an object")
        self._value: dict[str, Any] = value

    def wrong(self, name: str, value: Any, must_be: str) -> TraceError:
        """Return the error that a value is not what it must be."""
        where = self.path + ("." if self.path and name else "") + name
        shown = repr(value)
        told = "is missing" if value is None else f"is {shown[:40]}{'...' * (len(shown) > 40)}"
        return TraceError(f"{self.file}: {where or 'the whole file'} {told}; it must be {must_be}")

    def has(self, name: str) -> bool:
        """Tell whether there is a value other than null."""
        return self._value.get(name) is not None

    def names(self, name: str) -> bool:
        """Tell whether there is a value, null included."""
        return name in self._value

    def down(self, name: str) -> JsonPlace:
        """Return the object with this name."""
        value = self._value.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return JsonPlace(value, self.file, f"{self.path}.{name}".lstrip("."))

    def items(self, name: str) -> list[JsonPlace]:
        """Return the objects of a list."""
        path = f"{self.path}.{name}".lstrip(".")
        return [JsonPlace(each, self.file, f"{path}[{index}]") for index, each in enumerate(self.values(name))]

    def values(self, name: str) -> list[Any]:
        value = self._value.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, value, "a list")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; a missing one is empty."""
        values = self.values(name) if self.has(name) else []
        for value in values:
            if not isinstance(value, str):
                raise self.wrong(name, value, "a list of texts")
        return values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number from 0."""
        value = self._value.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise self.wrong(name, value, "a finite number from 0")
        return value
