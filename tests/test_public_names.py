"""The face of minray that a user sees: names, docstrings and signatures, in ``dir``, ``help`` and editors."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

import minray
from minray.api import option_types
from minray.api.actor_options import ACTOR_CHECKS, METHOD_CHECKS
from minray.api.task_options import CHECKS

MODULES = [
    "minray",
    "minray.actor",
    "minray.cloudpickle",
    "minray.cluster_utils",
    "minray.exceptions",
    "minray.experimental",
    "minray.experimental.tqdm_ray",
    "minray.internal",
    "minray.remote_function",
    "minray.runtime_context",
    "minray.runtime_env",
    "minray.types",
    "minray.util",
    "minray.util.actor_pool",
    "minray.util.check_serialize",
    "minray.util.debug",
    "minray.util.executor",
    "minray.util.helpers",
    "minray.util.joblib",
    "minray.util.lookup",
    "minray.util.metrics",
    "minray.util.multiprocessing",
    "minray.util.placement_group",
    "minray.util.queue",
    "minray.util.scheduling_strategies",
    "minray.util.serializers",
    "minray.util.state",
]
INSIDE = re.compile(r"\([GSLC]\d+|\bhead of this file\b|\bsee the head\b|__ray_|_minray_")
"""Matches text that tells something only to those who read the code."""


def public(module: str) -> Iterator[tuple[str, Any]]:
    """The names of a module, and those of its classes."""
    there = importlib.import_module(module)
    for name in there.__all__:
        found = getattr(there, name)
        yield f"{module}.{name}", found
        if inspect.isclass(found) and found.__module__.startswith("minray"):
            for inner, member in vars(found).items():
                if not inner.startswith("_") and callable(getattr(found, inner)) or isinstance(member, property):
                    yield f"{module}.{name}.{inner}", member


def test_dir_shows_what_a_user_may_use() -> None:
    shown = {name for name in dir(minray) if not name.startswith("__")}
    assert shown == set(minray.__all__) - {"__version__"} and "__version__" in dir(minray)
    assert not {"api", "common", "core_worker", "platform", "protocol", "rpc"} & shown
    assert {"init", "remote", "get", "DynamicObjectRefGenerator", "util", "exceptions", "runtime_context"} <= shown


@pytest.mark.parametrize("module", MODULES)
def test_a_module_names_what_is_for_users(module: str) -> None:
    there = importlib.import_module(module)
    assert len(set(there.__all__)) == len(there.__all__)
    namespace: dict[str, Any] = {}
    exec(f"from {module} import *", namespace)
    assert namespace.keys() - {"__builtins__"} == set(there.__all__)


@pytest.mark.parametrize("module", MODULES)
def test_docstrings_say_it_to_users(module: str) -> None:
    documented = [(name, inspect.getdoc(found) or "") for name, found in public(module)]
    assert [name for name, text in documented if INSIDE.search(text)] == []


def test_the_names_of_minray_are_documented() -> None:
    undocumented = [name for name, found in public("minray") if name.count(".") == 1 and not inspect.getdoc(found)]
    assert undocumented == ["minray.__version__"] or undocumented == []


def test_editors_complete_the_options() -> None:
    function, actor_class = minray.remote(lambda: None), minray.remote(type("Actor", (), {}))
    for called, names in (
        (minray.remote, CHECKS.keys() | ACTOR_CHECKS.keys()),
        (function.options, CHECKS.keys() - {"max_calls"}),
        (actor_class.options, ACTOR_CHECKS.keys() - {"concurrency_groups"}),
        (minray.method, METHOD_CHECKS.keys() - {"name"}),
        (minray.actor.ActorMethod.options, METHOD_CHECKS.keys()),
    ):
        parameters = inspect.signature(called).parameters.values()
        assert {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} == names


def test_type_checkers_know_the_options_that_are_checked() -> None:
    for options, names in (
        (option_types.OptionsOfTask, CHECKS.keys() - {"max_calls", "num_returns"}),
        (option_types.OptionsOfActorClass, ACTOR_CHECKS.keys() - {"concurrency_groups"}),
        (option_types.OptionsOfRemote, (CHECKS.keys() | ACTOR_CHECKS.keys()) - {"num_returns"}),
        (option_types.OptionsOfMethod, METHOD_CHECKS.keys() - {"num_returns"}),
    ):
        assert get_type_hints(options).keys() == names
