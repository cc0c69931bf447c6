"""Forms in which commands print what they have found for programs: JSON and YAML.

Ray: python/ray/util/state/state_cli.py (output_with_format)

Both have everything, with whole ids, whatever the tables leave out (``common/text_table``). YAML is written here, so that
nobody has to install a library for it. Only scalars are difficult: every text that is no plain word becomes a string as in
JSON, which YAML reads as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

FORMAT = click.option("--format", "form", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
"""Texts that YAML needs no quotes for."""
WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""Plain texts that YAML reads as something else."""
SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def formatted(form: str, facts: Any) -> str:
    """Return facts, made of dicts, lists and scalars, as ``json`` or ``yaml``."""
    return json.dumps(facts, indent=2) if form == "json" else "\n".join(_yaml(facts, 0))


# --- YAML


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """Yield the lines of a value that stands in lines of its own."""
    indent = "  " * depth
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _entry(f"{indent}{_scalar(str(key))}:", inner, depth)
    elif isinstance(value, list | tuple) and value:
        for inner in value:
            if isinstance(inner, Mapping | list | tuple) and inner:
                first, *rest = _yaml(inner, depth + 1)
                yield f"{indent}- {first[len(indent) + 2 :]}"
                yield from rest
            else:
                yield f"{indent}- {_scalar(inner)}"
    else:
        yield f"{indent}{_scalar(value)}"


def _entry(head: str, value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple) and value:
        yield head
        yield from _yaml(value, depth + 1)
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and value.lower() not in WORDS else _quoted(value)
    if isinstance(value, float) and not isinstance(value, bool):
        return _number(value)
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    return json.dumps(value)


def _quoted(text: str) -> str:
    """Return a text as a string of JSON, but with characters beyond 16 bits as YAML writes them."""

    def whole(pair: re.Match[str]) -> str:
        high, low = int(pair[1], 16), int(pair[2], 16)
        return f"\\U{0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF):08x}"

    return SURROGATES.sub(whole, json.dumps(text))


def _number(value: float) -> str:
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if math.isnan(value):
        return ".nan"
    mantissa, e, exponent = repr(value).partition("e")
    return f"{mantissa}{'' if '.' in mantissa or not e else '.0'}{e}{exponent}"
