"""Reach of the campaign: where stretches of code begin, and which scenarios come there."""

from __future__ import annotations

import ast
import textwrap

from tests.zoo.mutants import Mutant, rarest_first, seeds_that_reach
from tests.zoo.reach import beginnings, measure, stretch_at, stretches_of


def begin_at(source: str) -> list[int]:
    tree = ast.parse(textwrap.dedent(source))
    return sorted({block[start].lineno for block, start in beginnings(tree)})


def test_a_stretch_begins_with_a_block_and_after_what_may_end_it() -> None:
    source = '''\
        def f(x):
            """Told."""
            a = 1
            b = 2
            if x:
                return a
            else:
                b = 3
            for y in x:
                b += y
            c = b
            return c
    '''
    assert begin_at(source) == [3, 6, 8, 9, 10, 11]


def test_a_stretch_ends_where_one_waits_and_where_another_function_begins() -> None:
    source = """\
        class C:
            async def f(self):
                await self.g()
                a = 1

                def inner():
                    return a
                try:
                    a = 2
                except OSError:
                    a = 3
                finally:
                    a = 4
                return inner
    """
    assert begin_at(source) == [3, 4, 7, 8, 9, 11, 13, 14]


def test_a_line_is_in_the_last_stretch_that_has_begun() -> None:
    stretches = ["f.py:3", "f.py:6", "f.py:10"]
    assert [stretch_at(stretches, line) for line in (1, 3, 5, 6, 11)] == ["f.py:3", "f.py:3", "f.py:3", "f.py:6", "f.py:10"]


def test_a_mutant_is_known_by_the_scenarios_that_come_to_it() -> None:
    reach = {"minray/a.py:3": [1, 2], "minray/a.py:10": [2], "minray/b.py:1": [7]}
    assert seeds_that_reach(Mutant("minray/a.py", "swap", 4, ""), reach) == [1, 2]
    assert seeds_that_reach(Mutant("minray/a.py", "swap", 12, ""), reach) == [2]
    assert seeds_that_reach(Mutant("minray/c.py", "swap", 12, ""), reach) == []


def test_scenarios_that_come_where_few_do_go_first() -> None:
    reach = {"minray/a.py:3": [1, 2, 3], "minray/a.py:10": [3], "minray/b.py:1": [2, 3], "minray/b.py:9": []}
    assert rarest_first(reach) == reach | {"minray/a.py:3": [3, 2, 1], "minray/b.py:1": [3, 2]}


def test_every_scenario_starts_a_raylet_and_none_asks_for_stacks() -> None:
    found = measure(0, 2)
    assert [0, 1] in [found[name] for name in stretches_of("minray/raylet/raylet.py")]
    assert not any(found[name] for name in stretches_of("minray/core_worker/introspection/stacks.py"))
