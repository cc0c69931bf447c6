"""Values of users in messages: short and printable, whatever they are."""

from __future__ import annotations

import pytest

from minray.common.shown import MOST_SHOWN, a, check_encodable, cut, shown


class Broken:
    def __repr__(self) -> str:
        raise ValueError("no")


def test_what_is_short_is_shown_as_it_is() -> None:
    assert [shown(value) for value in ("x", 3, None, [1], "\ud800")] == ["'x'", "3", "None", "[1]", "'\\ud800'"]
    assert cut("name") == "name"


@pytest.mark.parametrize("value", ["x" * 10_000_000, b"x" * 10_000_000, list(range(10**6)), "\ud800" * 10**6])
def test_what_is_long_is_cut(value: object) -> None:
    text = shown(value)
    assert len(text) < MOST_SHOWN + 30 and "..." in text
    text.encode()


def test_what_has_no_repr_is_named_by_its_type() -> None:
    assert (shown(Broken()), shown(10**5000)) == ("a Broken", "an int") and "5000 characters" in cut("n" * 5000)


def test_an_article_fits_its_noun() -> None:
    assert [a(value) for value in (1, "", None, {}, OSError())] == ["an int", "a str", "a NoneType", "a dict", "an OSError"]


def test_what_cannot_be_sent_is_named() -> None:
    check_encodable("name", "näme")
    with pytest.raises(ValueError, match=r"^name cannot be encoded as UTF-8: 'a\\ud800'$"):
        check_encodable("name", "a\ud800")
