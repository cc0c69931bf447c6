"""Label selectors: which are valid, and which nodes satisfy them."""

from __future__ import annotations

import pytest

from minray.common.labels import labels_of, matches, parse_labels, parse_selector, speed_of

NODE = labels_of(b"\x01" * 16, {"zone": "a", "disk": "fast"})


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "!a"}, False),
        ({"zone": "in(a,b)"}, True),
        ({"zone": "in( b , c )"}, False),
        ({"zone": "!in(a,b)"}, False),
        ({"zone": "!in(b,c)", "disk": "fast"}, True),
        ({"zone": "a", "disk": "slow"}, False),
        ({"rack": "1"}, False),
        ({"rack": "!1"}, True),
        ({"rack": "x" * 63}, False),
        ({"ray.io/node-id": "01" * 16}, True),
        ({"ray.io/node-id": "!" + "01" * 16}, False),
    ],
)
def test_a_selector_matches_if_all_its_terms_hold(selector: dict[str, str], expected: bool) -> None:
    assert matches(parse_selector(selector), NODE) is expected


@pytest.mark.parametrize(("operator", "key", "expected"), [("exists", "zone", True), ("!exists", "zone", False)])
def test_a_label_may_have_to_be_there(operator: str, key: str, expected: bool) -> None:
    assert matches(((key, operator, ()),), NODE) is expected
    assert matches((("rack", operator, ()),), NODE) is not expected


def test_equal_selectors_are_equal_terms() -> None:
    assert parse_selector({"a": "in(x,y)", "b": "!z"}) == parse_selector({"b": "!in(z)", "a": "in(y, x)"})


@pytest.mark.parametrize("value", ["", "!", "in()", "in(a", "a b", "!!a", "in(a,)", "not(a)", "a,b", "x" * 64])
def test_values_that_mean_nothing_are_value_errors(value: str) -> None:
    with pytest.raises(ValueError, match="label 'zone'"):
        parse_selector({"zone": value})


@pytest.mark.parametrize("key", ["", "a b", "/a", "a/", "-", "x" * 64])
def test_names_that_are_none_are_value_errors(key: str) -> None:
    with pytest.raises(ValueError, match="not the name of a label"):
        parse_selector({key: "a"})


def test_labels_of_a_node_on_a_command_line() -> None:
    assert parse_labels("") == {}
    assert parse_labels("zone=a, example.com/disk = very-fast") == {"zone": "a", "example.com/disk": "very-fast"}
    assert parse_labels("ray.io/market-type=spot,zone=a,zone=a") == {"ray.io/market-type": "spot", "zone": "a"}


@pytest.mark.parametrize(
    "text",
    [
        *("zone", "a=a,", "=a", "zone=", "zone=a=b", "a b=c", "zone=b c", "zone=" + "x" * 64),
        *("ray.io/node-id=x", "zone=a,zone=b"),
    ],
)
def test_what_cannot_be_labels_of_a_node(text: str) -> None:
    with pytest.raises(ValueError, match="label"):
        parse_labels(text)


def test_the_speed_of_a_node_is_a_label_and_one_without_it() -> None:
    assert speed_of(NODE) == 1.0
    assert [speed_of(parse_labels(f"minray.io/speed={text}")) for text in ("2", "0.25", "1e-3")] == [2.0, 0.25, 0.001]


@pytest.mark.parametrize("text", ["fast", "0", "0.0", "inf", "nan", "1e999", "1_a"])
def test_a_speed_that_is_no_number_above_0_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="'minray.io/speed' cannot be '.*': it must be a finite number above 0"):
        parse_labels(f"minray.io/speed={text}")
