"""Quantities of resources: exact sums, and GPUs one by one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minray.common.resources import UNIT, GpuInstances, add, describe, fits, resource_set, subtract, to_floats

AMOUNTS = st.dictionaries(st.sampled_from(["CPU", "memory", "custom"]), st.integers(1, 100 * UNIT))


def test_a_thousand_small_amounts_leave_nothing_over() -> None:
    """0.1 added ten times is 1 exactly, unlike with floats."""
    total = {"CPU": 0}
    for _ in range(10):
        add(total, resource_set({"CPU": 0.1}))
    assert total == resource_set({"CPU": 1}) == {"CPU": UNIT}


@given(AMOUNTS, st.lists(AMOUNTS, max_size=10))
def test_what_is_taken_and_given_back_changes_nothing(total: dict[str, int], demands: list[dict[str, int]]) -> None:
    available = dict(total)
    taken = []
    for demand in demands:
        if fits(demand, available):
            subtract(available, demand)
            taken.append(demand)
            assert all(amount >= 0 for amount in available.values())
    for demand in reversed(taken):
        add(available, demand)
    assert available == total


@given(AMOUNTS, AMOUNTS)
def test_a_demand_fits_if_all_of_it_does(demand: dict[str, int], available: dict[str, int]) -> None:
    assert fits(demand, available) == (min((available.get(name, 0) - demand[name] for name in demand), default=0) >= 0)


def test_zeros_are_left_out() -> None:
    assert resource_set({"CPU": 0, "GPU": 0.0, "custom": 2}) == {"custom": 2 * UNIT}


@given(st.floats(0.0001, 1e6))
def test_amounts_are_kept_to_the_granularity(amount: float) -> None:
    assert to_floats(resource_set({"custom": amount}))["custom"] == pytest.approx(amount, abs=0.5 / UNIT + 1e-9)


@pytest.mark.parametrize(
    ("name", "amount", "complaint"),
    [
        ("CPU", -1, "'CPU' must not be negative, but is -1"),
        ("CPU", -0.00001, "must not be negative"),
        ("custom", 0.00001, "less than the granularity of 0.0001"),
        ("GPU", 1.5, "num_gpus above 1 must be a whole number, but is 1.5"),
        ("memory", math.inf, "'memory' must be finite, but is inf"),
        ("CPU", math.nan, "must be finite"),
        ("memory", 10**18, "'memory' must be at most 922337203685477, but is 1000000000000000000"),
        ("no\udc80text", 1, "cannot be encoded as UTF-8"),
    ],
)
def test_amounts_that_make_no_sense_are_refused(name: str, amount: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        resource_set({name: amount})


def test_people_read_numbers() -> None:
    assert describe(resource_set({"GPU": 0.5, "CPU": 2})) == "{CPU: 2, GPU: 0.5}"
    assert to_floats({"CPU": 15_000}) == {"CPU": 1.5}


# --- GPUs


def test_whole_gpus_belong_to_one_task() -> None:
    gpus = GpuInstances(dict.fromkeys(range(3), UNIT))
    assert gpus.allocate_gpus(2 * UNIT) == {0: UNIT, 1: UNIT}
    assert gpus.allocate_gpus(2 * UNIT) == {}
    assert gpus.allocate_gpus(UNIT) == {2: UNIT}


def test_fractions_share_the_fullest_gpu_that_has_room() -> None:
    gpus = GpuInstances(dict.fromkeys(range(2), UNIT))
    assert gpus.allocate_gpus(4000) == {0: 4000}
    assert gpus.allocate_gpus(4000) == {0: 4000}
    assert gpus.allocate_gpus(4000) == {1: 4000}
    assert gpus.allocate_gpus(2000) == {0: 2000}
    assert gpus.allocate_gpus(UNIT) == {}, "half of each is free, but no whole one"


def test_a_share_is_freed_once() -> None:
    gpus = GpuInstances(dict.fromkeys(range(1), UNIT))
    taken = gpus.allocate_gpus(UNIT)
    gpus.free_gpus(taken)
    with pytest.raises(AssertionError, match="freed twice"):
        gpus.free_gpus(taken)


class Gpus(RuleBasedStateMachine):
    """Shares are handed out and come back in any order; none is handed out twice, and all come together again."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.count = count
        self.gpus = GpuInstances(dict.fromkeys(range(count), UNIT))
        self.taken: list[dict[int, int]] = []

    @rule(amount=st.one_of(st.sampled_from([UNIT, 2 * UNIT]), st.integers(1, UNIT)))
    def allocate(self, amount: int) -> None:
        used = self.used()
        taken = self.gpus.allocate_gpus(amount)
        if taken:
            assert sum(taken.values()) == amount and len(taken) == max(1, amount // UNIT)
            self.taken.append(taken)
        else:
            free = [UNIT - used[index] for index in range(self.count)]
            has_room = sum(share == UNIT for share in free) * UNIT >= amount if amount >= UNIT else max(free) >= amount
            assert not has_room, "there was room"

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 100))
    def free(self, which: int) -> None:
        self.gpus.free_gpus(self.taken.pop(which % len(self.taken)))

    def used(self) -> list[int]:
        return [sum(taken.get(index, 0) for taken in self.taken) for index in range(self.count)]

    @invariant()
    def no_gpu_is_promised_more_than_once(self) -> None:
        assert all(amount <= UNIT for amount in self.used())

    def teardown(self) -> None:
        for taken in self.taken:
            self.gpus.free_gpus(taken)
        assert len(self.gpus.allocate_gpus(self.count * UNIT)) == self.count


Gpus.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestGpus = Gpus.TestCase
