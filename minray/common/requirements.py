"""Requirements of Python packages: which of them this Python does not meet.

Ray: has no counterpart; its workers install the packages, and pip reads the requirements

``unmet`` takes requirements as PEP 508 writes them, ``name[extra]>=1.2,<2; python_version < "3.13"``, and looks at the
installed distributions. Versions compare as PEP 440 says. An installed pre-release meets a requirement, as it does for pip.

Rules
  * A requirement whose marker is false for this Python is met.
  * An extra is met if the distribution's own requirements for this extra are.
  * ``name @ url`` is met if the installed distribution says that it comes from this URL.
  * A requirement that cannot be read raises ValueError. It is never taken for met.

Left out: requirements without a name, such as paths and bare URLs of repositories. They raise ValueError.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from operator import eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

_VERSION = re.compile(
    r"""\s*v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)
    (?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_number>\d*))?
    (?:-(?P<post_number>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<named_number>\d*))?
    (?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?
    (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*""",
    re.VERBOSE | re.IGNORECASE,
)
_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}
"""Other spellings of the phases a, b and rc."""
_REQUIREMENT = re.compile(
    r"""\s*(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[^\]]*)\])?\s*
    (?:@\s*(?P<url>\S+)|\(?(?P<specifiers>[^;@()]*)\)?)\s*(?:;(?P<marker>.*))?""",
    re.VERBOSE | re.DOTALL,
)
_SPECIFIER = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*([^\s,]+)\s*")
_TOKEN = re.compile(r"""\s*(?:(?P<word>[A-Za-z_]\w*)|(?P<text>'[^']*'|"[^"]*")|(?P<sign>===|[=~!<>]=|[<>()]))""")


class Version(NamedTuple):
    """A version; versions compare as PEP 440 orders them."""

    epoch: int
    release: tuple[int, ...]
    """Without zeros at its end."""
    pre: tuple[Any, ...]
    post: int
    """-1: no post-release."""
    dev: float
    """Infinity: no development release."""
    local: tuple[Any, ...]

    def public(self) -> Version:
        return self._replace(local=())

    def final(self) -> Version:
        """Return the version that this pre-release or development release leads to."""
        return self._replace(pre=(2,), post=self.post if self.pre[0] == 2 else -1, dev=float("inf"))

    def is_early(self) -> bool:
        return self.final() != self


def version_of(text: str) -> Version:
    """Read a version. Raises ValueError."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a version")
    release = [int(number) for number in found["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    has_post = found["post"] is not None or found["post_number"] is not None
    pre: tuple[Any, ...] = (2,)
    if found["pre"]:
        phase = found["pre"].lower()
        pre = (1, _PRE.get(phase, phase), int(found["pre_number"] or 0))
    elif found["dev"] and not has_post:
        pre = (0,)
    local = re.split(r"[-_.]", found["local"].lower()) if found["local"] else []
    return Version(
        epoch=int(found["epoch"] or 0),
        release=tuple(release),
        pre=pre,
        post=int(found["post_number"] or found["named_number"] or 0) if has_post else -1,
        dev=int(found["dev_number"] or 0) if found["dev"] else float("inf"),
        local=tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in local),
    )


def satisfies(installed: str, specifiers: str) -> bool:
    """Tell whether a version satisfies all of these specifiers, such as ``>=1.2,<2``. Raises ValueError."""
    for specifier in filter(None, map(str.strip, specifiers.split(","))):
        found = _SPECIFIER.fullmatch(specifier)
        if found is None:
            raise ValueError(f"{specifier!r} is not a condition on a version such as '>=1.2'")
        if not _satisfies_one(installed, found[1], found[2]):
            return False
    return True


def _satisfies_one(installed: str, sign: str, wanted: str) -> bool:
    if sign == "===":
        return installed.lower() == wanted.lower()
    have = version_of(installed)
    if wanted.endswith(".*") and sign in ("==", "!="):
        return _begins_with(have, wanted.removesuffix(".*")) is (sign == "==")
    want = version_of(wanted)
    if sign == "~=":
        numbers = (_VERSION.fullmatch(wanted) or {"release": ""})["release"].split(".")[:-1]
        if not numbers:
            raise ValueError(f"'~={wanted}' needs a version of two numbers or more")
        if want.local:
            raise ValueError(f"'~={wanted}' has a local version, which only '==' and '!=' may have")
        return have.public() >= want and _begins_with(have, f"{want.epoch}!{'.'.join(numbers)}")
    if sign in ("==", "!="):
        return ((have if want.local else have.public()) == want) is (sign == "==")
    if want.local:
        raise ValueError(f"'{sign}{wanted}' compares with a local version, which only '==' and '!=' can")
    if sign == "<" and not want.is_early() and have.public().final() == want:
        return False
    if sign == ">" and want in (have.public(), have.public()._replace(post=-1, dev=float("inf"))):
        return False
    return _COMPARE[sign](have if sign in "<>" else have.public(), want)


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {"<=": le, ">=": ge, "<": lt, ">": gt, "==": eq, "!=": ne}


def _begins_with(have: Version, prefix: str) -> bool:
    epoch, _, numbers = prefix.rpartition("!")
    wanted = [int(number) for number in numbers.split(".")]
    padded = [*have.release, *[0] * len(wanted)][: len(wanted)]
    return have.epoch == int(epoch or 0) and padded == wanted


# --- Markers -----------------------------------------------------------------------------------------------------------


def _facts(extra: str) -> dict[str, str]:
    """Return the values of a marker's variables."""
    implementation = sys.implementation.version
    serial = f"{implementation.releaselevel[0]}{implementation.serial}" if implementation.releaselevel != "final" else ""
    return {
        "os_name": os.name,
        "sys_platform": sys.platform,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "python_full_version": platform.python_version(),
        "implementation_name": sys.implementation.name,
        "implementation_version": ".".join(map(str, implementation[:3])) + serial,
        "extra": extra,
    }


class _Marker:
    """Reads a marker from left to right, and knows whether it holds."""

    def __init__(self, text: str, extra: str) -> None:
        self._text = text
        self._facts = _facts(extra)
        self._tokens = list(_tokens(text))

    def holds(self) -> bool:
        value = self._either()
        if self._tokens:
            raise self._error()
        return value

    def _error(self) -> ValueError:
        return ValueError(f"{self._text.strip()!r} is not a marker such as 'python_version < \"3.13\"'")

    def _take(self, *wanted: str) -> str:
        """Remove and return the next token if it is one of these; else return an empty string."""
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in wanted else ""

    def _either(self) -> bool:
        value = self._both()
        while self._take("or"):
            other = self._both()
            value = value or other
        return value

    def _both(self) -> bool:
        value = self._one()
        while self._take("and"):
            other = self._one()
            value = value and other
        return value

    def _one(self) -> bool:
        if self._take("("):
            value = self._either()
            if not self._take(")"):
                raise self._error()
            return value
        left = self._value()
        sign = self._take("in", "not", *_COMPARE, "===", "~=")
        if not sign or (sign == "not" and not self._take("in")):
            raise self._error()
        right = self._value()
        if sign in ("in", "not"):
            return (left in right) is (sign == "in")
        try:
            satisfies("0", f"{sign}{right}")
        except ValueError:
            if sign not in _COMPARE:
                raise self._error() from None
            return (left == right) is (sign != "!=") and sign not in "<>"  # Texts have no order.
        try:
            return satisfies(left, f"{sign}{right}")
        except ValueError:
            return False

    def _value(self) -> str:
        token = self._tokens.pop(0) if self._tokens else ""
        if token[:1] in ("'", '"'):
            return token[1:-1]
        if token not in self._facts:
            raise self._error()
        return _normalized(self._facts[token]) if token == "extra" else self._facts[token]


def _tokens(text: str) -> Iterator[str]:
    at, text = 0, text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"{text.strip()!r} is not a marker: it cannot be read from {text[at:]!r} on")
        yield found[0].strip()
        at = found.end()


# --- Requirements ------------------------------------------------------------------------------------------------------


def unmet(requirements: Iterable[str]) -> list[str]:
    """Return a complaint for each requirement that the installed distributions do not meet, with what is installed.

    Raises ValueError for a requirement that cannot be read.
    """
    return [complaint for requirement in requirements for complaint in _complaints(requirement, "", set())]


def _complaints(requirement: str, extra: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield complaints about one requirement; ``extra`` is the extra of the distribution that has it."""
    found = _REQUIREMENT.fullmatch(requirement)
    if found is None:
        raise ValueError(f"{requirement!r} is not a requirement such as 'numpy>=2'; minray can only look for names")
    if found["marker"] and not _Marker(found["marker"], extra).holds():
        return
    name, specifiers = found["name"], (found["specifiers"] or "").strip()
    satisfies("0", specifiers)  # It raises ValueError for bad conditions, also if there is no distribution.
    asked = f"{name}{specifiers}"
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        yield f"{asked} is not installed"
        return
    if found["url"]:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}").get("url")
        if origin != found["url"]:
            yield f"{name} @ {found['url']} is not installed; {name} {distribution.version} is, from {origin or 'an index'}"
    elif not satisfies(distribution.version, specifiers):
        yield f"{asked} is not installed; {name} {distribution.version} is"
    for wanted in filter(None, map(_normalized, (found["extras"] or "").split(","))):
        if (name, wanted) not in seen:
            seen.add((name, wanted))
            for further in distribution.requires or ():
                if "extra" in further.partition(";")[2]:
                    yield from _complaints(further, wanted, seen)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
