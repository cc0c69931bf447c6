"""Labels of nodes, and the selectors that tasks may give: ``{"zone": "in(a,b)", "disk": "!slow"}``.

Ray: src/ray/common/scheduling/label_selector.h, python/ray/_private/label_utils.py

A node is started with labels, which are names with values; every node also has ``ray.io/node-id``. A term names the
acceptable values of one label. ``in`` and ``exists`` require that the label is there; ``!in`` and ``!exists`` are their
opposites, so a node without the label satisfies them. All terms of a selector must hold.

The label ``minray.io/speed`` is minray's own: it tells policies how fast a node is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from minray.common.shown import shown

IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "in", "!in", "exists", "!exists"
Term = tuple[str, str, tuple[str, ...]]
"""One condition of a selector: the label, one of the four operators above, and the values."""

RESERVED = "ray.io/"
"""Prefix of the labels that Ray defines, such as ``ray.io/accelerator-type``; users may give them to a node."""
NODE_ID_LABEL = f"{RESERVED}node-id"
"""Label that every node has; users may not give it."""
SPEED_LABEL = "minray.io/speed"
"""Label with the relative speed of a node, a number above 0; a node without it has speed 1."""
_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[A-Za-z0-9.-]+/)?{_WORD}")
_SEVERAL = re.compile(rf"(!?)in\(\s*({_WORD}(?:\s*,\s*{_WORD})*)\s*\)")
_ONE = re.compile(rf"(!?)({_WORD})")
SPELLING = "letters, digits, '-', '_' and '.', at most 63"


def parse_selector(selector: Mapping[str, str]) -> tuple[Term, ...]:
    """Parse ``{"label": "value" | "!value" | "in(a,b)" | "!in(a,b)"}`` into sorted terms; raise ValueError otherwise."""
    return tuple(sorted(_parse(key, value) for key, value in selector.items()))


def _parse(key: str, value: str) -> Term:
    check_key(key)
    match = _SEVERAL.fullmatch(value) or _ONE.fullmatch(value)
    if match is None:
        raise ValueError(f"label {shown(key)}: {shown(value)} is none of 'value', '!value', 'in(a,b)', '!in(a,b)'")
    return key, NOT_IN if match[1] else IN, tuple(sorted(part.strip() for part in match[2].split(",")))


def check_key(key: str) -> None:
    """Raise ValueError for a text that cannot be the name of a label."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{shown(key)} is not the name of a label: {SPELLING}, perhaps after 'prefix/'")


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise TypeError or ValueError if these cannot be the labels of a node."""
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"labels must be a dict from str to str, but is {shown(labels)}")
        check_key(key)
        if key == NODE_ID_LABEL:
            raise ValueError(f"label {shown(key)} cannot be given to a node: it is the id that the node has anyway")
        if not re.fullmatch(_WORD, value):
            raise ValueError(f"label {shown(key)} cannot be {shown(value)}: {SPELLING}")
        if key == SPEED_LABEL and not _is_speed(value):
            raise ValueError(f"label {shown(key)} cannot be {shown(value)}: it must be a finite number above 0, such as 1.5")


def _is_speed(value: str) -> bool:
    try:
        return 0 < float(value) < math.inf
    except ValueError:
        return False


def speed_of(labels: Mapping[str, str]) -> float:
    """Return the relative speed of a node with these labels, which ``check_labels`` has accepted."""
    return float(labels.get(SPEED_LABEL, 1.0))


def parse_labels(text: str) -> dict[str, str]:
    """Parse a node's labels as written on a command line, ``zone=a,disk=fast``; raise ValueError for anything else."""
    labels: dict[str, str] = {}
    for pair in text.split(",") if text else ():
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals:
            raise ValueError(f"{shown(pair)} is not a label such as zone=a")
        if labels.get(key, value) != value:
            raise ValueError(f"label {shown(key)} is given twice, as {shown(labels[key])} and {shown(value)}: give it once")
        labels[key] = value
    check_labels(labels)
    return labels


def labels_of(node_id: bytes, labels: Mapping[str, str]) -> dict[str, str]:
    """Return all labels of a node: those it was started with, and its node id."""
    return {NODE_ID_LABEL: node_id.hex(), **labels}


class Selector(Protocol):
    """The part of a ``LabelSelector`` that says which nodes are acceptable."""

    @property
    def hard(self) -> tuple[Term, ...]: ...

    @property
    def fallbacks(self) -> tuple[tuple[Term, ...], ...]: ...


class Labelled(Protocol):
    """A node, as a scheduler sees it."""

    labels: Mapping[str, str]


N = TypeVar("N", bound=Labelled)


def accepts(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Tell whether a node with these labels will do, be it by a fallback."""
    return matches(selector.hard, labels) or any(matches(terms, labels) for terms in selector.fallbacks)


def preferred(selector: Selector, nodes: Sequence[N]) -> Sequence[N]:
    """Return the nodes that satisfy the first set of terms that any of them satisfies."""
    for terms in (selector.hard, *selector.fallbacks) if selector.hard else ():
        if found := [node for node in nodes if matches(terms, node.labels)]:
            return found
    return [] if selector.hard else nodes


def matches(terms: tuple[Term, ...], labels: Mapping[str, str]) -> bool:
    return all(_holds(term, labels) for term in terms)


def _holds(term: Term, labels: Mapping[str, str]) -> bool:
    key, operator, values = term
    has = key in labels if operator in (EXISTS, DOES_NOT_EXIST) else labels.get(key) in values
    return has == (operator in (EXISTS, IN))


def describe_selector(selector: Selector) -> str:
    """Format a selector for messages: ``{zone: in(a)}, or {disk: in(fast)}``."""
    return ", or ".join(describe_terms(terms) for terms in (selector.hard, *selector.fallbacks))


def describe_terms(terms: tuple[Term, ...]) -> str:
    """Format terms for messages: ``{zone: in(a,b), disk: !exists}``."""
    parts = [f"{key}: {operator}" + (f"({','.join(values)})" if values else "") for key, operator, values in terms]
    return "{" + ", ".join(parts) + "}"
