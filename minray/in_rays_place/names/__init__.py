"""Modules that exist under Ray's names alone: private ones that programs import by habit, and helpers of Ray's tests.

Ray: python/ray/_private/, python/ray/_common/, python/ray/experimental/, python/ray/util/annotations.py

``names/a/b.py`` is ``ray.a.b`` for a program that runs with minray in Ray's place. Users of ``import minray`` do not see it.
Each name does what it does in Ray, or is not here. ``docs/ray_programs.md`` lists them.
"""
