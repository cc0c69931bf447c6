"""Options of remote functions, the errors they make, and what a task may know of itself."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import psutil
import pytest

import minray as ray
from minray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)
from tests.helpers import wait_for_condition
from tests.real.support import Files, echo, hold

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {
    "num_gpus": 2,
    "resources": {"token": 3, "accelerator_type:T4": 1},
    "namespace": "here",
    "labels": {"zone": "a"},
}


@ray.remote
def assigned() -> dict[str, float]:
    return dict(ray.get_runtime_context().get_assigned_resources())


def omp_threads() -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


class Omp:
    def threads(self) -> str | None:
        return omp_threads()

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.skipif("OMP_NUM_THREADS" in os.environ, reason="the user's own value would win")
@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ({}, "1"),
        ({"num_cpus": 2}, "2"),
        ({"num_cpus": 1.5}, "1"),
        ({"num_cpus": 0.5}, "1"),
        ({"num_cpus": 0}, "1"),
        ({"num_cpus": 2, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "7"}}}, "7"),
    ],
)
def test_libraries_start_as_many_threads_as_the_task_or_actor_has_cpus(options: dict[str, Any], threads: str) -> None:
    task = ray.remote(omp_threads).options(**options)
    assert ray.get([task.remote(), task.remote()]) == [threads] * 2 and omp_threads() is None
    omp = ray.remote(Omp).options(**options).remote()
    assert ray.get(omp.threads.remote()) == threads


@pytest.mark.skipif("OMP_NUM_THREADS" in os.environ, reason="the user's own value would win")
def test_a_worker_that_serves_another_lease_has_the_threads_of_that() -> None:
    for cpus in (1, 2, 1):
        assert ray.get(ray.remote(omp_threads).options(num_cpus=cpus).remote()) == str(cpus)


def title(pid: int | None = None) -> str:
    """Return the title of a process in lists of processes; by default, of this one."""
    return psutil.Process(pid).cmdline()[0]


class Titled:
    def __init__(self) -> None:
        self.born = title()

    def titles(self) -> tuple[str, str, int]:
        return self.born, title(), os.getpid()


def test_the_title_of_a_worker_says_what_it_runs() -> None:
    task = ray.remote(title)
    assert ray.get([task.remote(), task.options(name="another name").remote()]) == ["ray::title", "ray::another name"]
    actor = ray.remote(Titled).remote()
    born, called, pid = ray.get(actor.titles.remote())
    assert (born, called) == ("ray::Titled.__init__", "ray::Titled.titles")
    wait_for_condition(lambda: title(pid) == "ray::Titled")


def test_a_worker_without_a_task_is_idle() -> None:
    pid = ray.get(ray.remote(lambda: os.getpid()).remote())
    with contextlib.suppress(psutil.NoSuchProcess):  # idle workers end
        wait_for_condition(lambda: title(pid) == "ray::IDLE")


# --- errors


@pytest.mark.parametrize("name", ["num_cpu", "lifetime", "concurrency_groups", "anything"])
def test_an_unknown_option_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        ray.remote(**{name: 1})(lambda: None)  # an option of classes is known until it meets a function
    with pytest.raises(ValueError, match=name):
        echo.options(**{name: 1})


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_cpus": "1"}, TypeError),
        ({"num_cpus": True}, TypeError),
        ({"num_cpus": -1}, ValueError),
        ({"num_gpus": 1.5}, ValueError),
        ({"num_gpus": -1}, ValueError),
        ({"memory": "1GB"}, TypeError),
        ({"memory": -1}, ValueError),
        ({"num_cpus": 0.000001}, ValueError),
        ({"resources": ["token"]}, TypeError),
        ({"resources": {"token": "many"}}, TypeError),
        ({"resources": {"CPU": 1}}, ValueError),
        ({"resources": {"GPU": 1}}, ValueError),
        ({"resources": {"token": -1}}, ValueError),
        ({"accelerator_type": 4}, TypeError),
        ({"enable_task_events": "yes"}, TypeError),
        ({"num_returns": "two"}, TypeError),
        ({"num_returns": 1.0}, TypeError),
        ({"num_returns": -1}, ValueError),
        ({"num_returns": "dynamics"}, TypeError),
        ({"num_returns": 10**9}, ValueError),
        ({"_generator_backpressure_num_objects": 0}, ValueError),
        ({"_generator_backpressure_num_objects": -2}, ValueError),
        ({"_generator_backpressure_num_objects": "many"}, TypeError),
        ({"max_retries": "many"}, TypeError),
        ({"max_retries": -2}, ValueError),
        ({"retry_exceptions": ValueError}, TypeError),
        ({"retry_exceptions": ["ValueError"]}, TypeError),
        ({"name": 1}, TypeError),
        ({"scheduling_strategy": "WHEREVER"}, ValueError),
        ({"scheduling_strategy": 1}, TypeError),
        ({"runtime_env": "env"}, TypeError),
        ({"runtime_env": {"pip": ["surely-not-installed"]}}, ValueError),
        ({"runtime_env": {"env_vars": {"A": 1}}}, TypeError),
        ({"runtime_env": {"working_dir": "nowhere/at/all"}}, ValueError),
        ({"runtime_env": {"py_modules": "path"}}, TypeError),
    ],
)
def test_wrong_options_are_errors_at_once_at_both_places(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ray.remote(**options)
    with pytest.raises(error):
        echo.options(**options)


def test_max_calls_is_checked_where_it_may_stand() -> None:
    with pytest.raises(TypeError):
        ray.remote(max_calls="1")
    with pytest.raises(ValueError):
        ray.remote(max_calls=-1)


def test_what_is_no_function_cannot_be_remote() -> None:
    for wrong in (1, "text", None):
        with pytest.raises(TypeError):
            ray.remote(wrong)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="without options"):
        ray.remote()
    with pytest.raises(TypeError):
        ray.remote(echo)
    with pytest.raises(TypeError):
        ray.remote(len, num_cpus=1)  # type: ignore[call-overload]


def test_a_remote_function_cannot_be_called_directly() -> None:
    with pytest.raises(TypeError, match=r"echo\.remote"):
        echo(1)


# --- their effects


def test_options_change_a_copy_only() -> None:
    two = echo.options(num_returns=2)
    assert ray.get(two.remote((1, 2))) == [1, 2]
    assert ray.get(echo.remote((1, 2))) == (1, 2)
    assert ray.get(two.options(name="again").remote("ab")) == ["a", "b"]
    assert ray.get(two.options(num_returns=None).remote(3)) == 3


def test_a_function_keeps_its_name_documentation_and_signature() -> None:
    @ray.remote
    def documented(number: int) -> None:
        """Documented."""

    assert documented.__name__ == "documented" and documented.__doc__ == "Documented." and "documented" in repr(documented)


@pytest.mark.parametrize(
    ("options", "resources"),
    [
        ({}, {"CPU": 1}),
        ({"num_cpus": 0}, {}),
        ({"num_cpus": 0.5, "resources": {"token": 2}}, {"CPU": 0.5, "token": 2}),
        ({"num_cpus": 0, "num_gpus": 0.5, "memory": 1000}, {"GPU": 0.5, "memory": 1000}),
        ({"num_cpus": None, "resources": None}, {"CPU": 1}),
        ({"num_cpus": 0, "accelerator_type": "T4", "enable_task_events": False}, {"accelerator_type:T4": 0.001}),
    ],
)
def test_a_task_is_given_what_it_asks_for(options: dict[str, Any], resources: dict[str, float]) -> None:
    assert ray.get(assigned.options(**options).remote()) == resources


def test_gpus_are_distinct_while_they_are_held(files: Files) -> None:
    release = files.signal("release")

    @ray.remote(num_gpus=1, num_cpus=0)
    def gpus(started: Any) -> Any:
        started.set()
        release.wait()
        return ray.get_gpu_ids(), ray.get_runtime_context().get_accelerator_ids()

    started = [files.signal(f"started {number}") for number in range(2)]
    refs = [gpus.remote(signal) for signal in started]
    for signal in started:
        signal.wait()
    release.set()
    (first, names), (second, _) = ray.get(refs)
    assert sorted(first + second) == [0, 1] and names == {"GPU": [str(first[0])]}
    assert ray.get_gpu_ids() == []


def test_names_and_contexts() -> None:
    @ray.remote
    def who() -> Any:
        context = ray.get_runtime_context()
        return (
            context.get_task_name(),
            context.get_task_id(),
            context.get_job_id(),
            context.get_node_id(),
            context.get_worker_id(),
            context.namespace,
        )

    here = ray.get_runtime_context()
    reference = who.options(name="a name").remote()
    name, task_id, job_id, node_id, worker_id, namespace = ray.get(reference)
    assert name == "a name" and task_id == reference.task_id().hex()
    assert (job_id, node_id, namespace) == (here.get_job_id(), here.get_node_id(), "here")
    assert worker_id != here.get_worker_id()
    assert ray.get(who.remote())[0] == "who"
    assert here.get_task_id() is None and here.get_assigned_resources() == {}


def ids_of_context() -> tuple[list[str | None], list[str | None]]:
    """The ids as hex, from the deprecated properties and from the methods; each property warns."""
    context = ray.get_runtime_context()
    found = []
    for name in ("job_id", "node_id", "task_id", "actor_id"):
        with pytest.warns(DeprecationWarning, match=f"get_{name}"):
            value = getattr(context, name)
        found.append(None if value is None else value.hex())
    return found, [context.get_job_id(), context.get_node_id(), context.get_task_id(), context.get_actor_id()]


def test_the_deprecated_properties_of_the_context_have_the_ids() -> None:
    class Actor:
        def ids(self) -> Any:
            return ids_of_context()

    for found, expected in ray.get([ray.remote(ids_of_context).remote(), ray.remote(Actor).remote().ids.remote()]):
        assert found == expected and None not in found[:3]
    with pytest.warns(DeprecationWarning, match="get_node_id"):
        assert ray.get_runtime_context().node_id == ray.NodeID.from_hex(ray.get_runtime_context().get_node_id())
    with pytest.warns(DeprecationWarning, match="get_placement_group_id"):
        group = ray.get_runtime_context().current_placement_group_id
        assert group is None or group.is_nil()


def test_one_call_takes_arguments_and_options() -> None:
    """``_remote`` is what libraries for Ray call. As with ``options``, None is the default of a function's option."""

    @ray.remote(num_returns=2)
    def pair(first: object, second: object = "default") -> Any:
        return first, second

    @ray.remote(num_cpus=0)
    class Pairs:
        def __init__(self, first: object, second: object = "default") -> None:
            self.pair = first, second

        def named(self, *, third: object = None) -> Any:
            return *self.pair, third, ray.get_runtime_context().get_task_name()

    assert ray.get(pair._remote(args=(1,), kwargs={"second": 2}, num_returns=None, name="")) == (1, 2)
    assert ray.get(pair._remote([3], num_returns=2, max_retries=0)) == [3, "default"]
    pairs: Any = Pairs._remote(args=(4,), kwargs={"second": 5}, max_restarts=1, name=None)
    assert ray.get(pairs.named._remote(num_returns=None, name=""))[:3] == (4, 5, None)
    first, *_, name = ray.get(pairs.named._remote(kwargs={"third": 6}, num_returns=4, name="a name"))
    assert (first, name) == (4, "a name")
    assert pair._function(7) == (7, "default")


def test_the_context_as_a_dictionary_has_ids() -> None:
    @ray.remote
    def task() -> Any:
        return ray.get_runtime_context().get()

    @ray.remote
    class Actor:
        def get(self) -> Any:
            return ray.get_runtime_context().get()

    here, there, actor = ray.get_runtime_context().get(), ray.get(task.remote()), Actor.remote()
    assert set(here) == {"job_id", "node_id", "namespace"} and isinstance(here["job_id"], ray.JobID)
    assert here == {name: there[name] for name in here} and set(there) == {*here, "task_id"}
    assert isinstance(there["node_id"], ray.NodeID) and isinstance(there["task_id"], ray.TaskID)
    assert ray.get(actor.get.remote())["actor_id"].hex() == actor._actor_id.hex()


class Named:
    """Says what runs it, in its own words and in a thread's."""

    def __init__(self) -> None:
        self.made_by = self.what()

    @staticmethod
    def what() -> str | None:
        return ray.get_runtime_context().get_task_function_name()

    def in_a_thread(self) -> list[Any]:
        said: list[Any] = []
        context = ray.get_runtime_context()
        thread = threading.Thread(target=lambda: said.extend([context.get_actor_id(), context.get_actor_name()]))
        thread.start()
        thread.join()
        return [*said, context.get_actor_id(), self.made_by]


class NamedAsync(Named):
    async def coroutine(self) -> str | None:
        return self.what()


def test_what_runs_is_known_by_where_it_was_defined() -> None:
    def what() -> str | None:
        return ray.get_runtime_context().get_task_function_name()

    assert ray.get(ray.remote(what).options(name="a name").remote()) == f"{__name__}.what"
    assert ray.get_runtime_context().get_task_function_name() is None
    actor = ray.remote(NamedAsync).remote()
    assert ray.get(actor.what.remote()) == f"{__name__}.NamedAsync.what"
    assert ray.get(actor.coroutine.remote()) == f"{__name__}.NamedAsync.coroutine"


@pytest.mark.parametrize("kind", [Named, NamedAsync])
def test_an_actors_threads_know_whose_they_are(kind: Any) -> None:
    actor = ray.remote(kind).options(name=kind.__name__).remote()
    actor_id, name, own_id, made_by = ray.get(actor.in_a_thread.remote())
    assert (actor_id, name) == (own_id, kind.__name__)
    assert made_by == f"{__name__}.{kind.__name__}.__init__"


def test_nodes_and_resources() -> None:
    (node,) = ray.nodes()
    node_id = ray.get_runtime_context().get_node_id()
    assert node["Alive"] and node["NodeID"] == node_id
    own = {"zone": "a", "ray.io/node-id": node_id}
    assert own.items() <= node["Labels"].items()  # The model of a GPU may be there as well.
    assert node["Labels"] == ray.get_runtime_context().get_node_labels()
    total = ray.cluster_resources()
    assert (total["CPU"], total["GPU"], total["token"]) == (2, 2, 3)
    assert node["Resources"] == total


@pytest.mark.parametrize(
    "options",
    [
        {"label_selector": {"zone": "a"}},
        {"label_selector": {"zone": "b"}, "fallback_strategy": [{"label_selector": {"zone": "in(a,c)"}}]},
        {"label_selector": {"zone": "b"}, "fallback_strategy": [{"label_selector": {"rack": "1"}}, {"label_selector": {}}]},
        {"fallback_strategy": [{"label_selector": {"zone": "b"}}]},
        {"label_selector": {"zone": "a"}, "fallback_strategy": []},
        {"label_selector": {"zone": "!in(b,c)"}, "scheduling_strategy": "SPREAD"},
        {"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": In("a", "b"), "rack": DoesNotExist()})},
        {"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": Exists()}, soft={"zone": NotIn("a")})},
        {"scheduling_strategy": NodeLabelSchedulingStrategy({}, soft={"zone": In("b")})},
    ],
)
def test_labels_that_this_node_has(options: dict[str, Any]) -> None:
    assert ray.get(echo.options(**options).remote(1)) == 1
    assert ray.get_runtime_context().get_node_labels()["zone"] == "a"


@pytest.mark.parametrize(
    "options",
    [
        {"label_selector": {"zone": "b"}},
        {"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": NotIn("a")})},
    ],
)
def test_labels_that_no_node_has_are_waited_for(options: dict[str, Any]) -> None:
    waiting = echo.options(**options).remote(1)
    wait_for_condition(lambda: "no node has such labels" in ray.why(waiting))
    ray.cancel(waiting)


@pytest.mark.parametrize(
    ("fallback", "error"),
    [
        ({"label_selector": {"zone": "a"}}, TypeError),
        ("zone", TypeError),
        (["zone"], ValueError),
        ([{}], ValueError),
        ([{"label_selector": {"zone": "a"}, "num_cpus": 1}], ValueError),
        ([{"num_cpus": 1}], ValueError),
        ([{"label_selector": "zone=a"}], ValueError),
        ([{"label_selector": {"zone": "a"}}, {"label_selector": {"zone": "a b"}}], ValueError),
    ],
)
def test_wrong_fallbacks_are_errors(fallback: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        echo.options(fallback_strategy=fallback)
    with pytest.raises(error):
        ray.remote(Titled).options(fallback_strategy=fallback)


def test_an_actor_falls_back_too() -> None:
    actor = ray.remote(Omp).options(label_selector={"zone": "b"}, fallback_strategy=[{"label_selector": {"zone": "a"}}])
    assert ray.get(actor.remote().pid.remote()) != os.getpid()


def test_wrong_labels_are_errors() -> None:
    for wrong in ({"zone": "in("}, {"": "a"}):
        with pytest.raises(ValueError, match="label"):
            echo.options(label_selector=wrong)
    with pytest.raises(TypeError, match="label_selector"):
        echo.options(label_selector={"zone": 1})
    with pytest.raises(ValueError, match="both be empty"):
        NodeLabelSchedulingStrategy({})
    with pytest.raises(ValueError, match="maps labels to In"):
        NodeLabelSchedulingStrategy({"zone": "a"})
    with pytest.raises(ValueError, match="one or more strings"):
        In()


@pytest.mark.parametrize("strategy", ["DEFAULT", "SPREAD", "hard affinity", "soft affinity", "soft to nowhere"])
def test_scheduling_strategies_on_a_single_node(strategy: str) -> None:
    here = ray.get_runtime_context().get_node_id()
    chosen: Any = {
        "hard affinity": NodeAffinitySchedulingStrategy(here, soft=False),
        "soft affinity": NodeAffinitySchedulingStrategy(here, soft=True),
        "soft to nowhere": NodeAffinitySchedulingStrategy("0" * len(here), soft=True),
    }.get(strategy, strategy)
    assert ray.get(echo.options(scheduling_strategy=chosen).remote(1)) == 1


def test_g102_hard_affinity_to_no_node_fails() -> None:
    nowhere = NodeAffinitySchedulingStrategy("0" * len(ray.get_runtime_context().get_node_id()), soft=False)
    with pytest.raises(ray.exceptions.TaskUnschedulableError):
        ray.get(echo.options(scheduling_strategy=nowhere).remote(1))


def test_options_of_the_decorator_hold_for_tasks_of_tasks(files: Files) -> None:
    @ray.remote(resources={"token": 1}, num_cpus=0)
    def child() -> dict[str, float]:
        return dict(ray.get_runtime_context().get_assigned_resources())

    @ray.remote
    def parent() -> Any:
        return ray.get([child.remote(), child.options(resources={"token": 2}).remote()])

    assert ray.get(parent.remote()) == [{"token": 1}, {"token": 2}]


def test_the_environment_can_set_the_number_of_retries(monkeypatch: pytest.MonkeyPatch, files: Files) -> None:
    monkeypatch.setenv("RAY_TASK_MAX_RETRIES", "0")
    journal = files.journal()

    @ray.remote
    def die() -> None:
        journal.note()
        os._exit(1)

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(die.remote())
    assert len(journal.lines()) == 1


def test_hold_needs_its_tokens(files: Files) -> None:
    """Resources are taken while a task runs and free when it has ended."""
    started, release = files.signal("started"), files.signal("release")
    holder = hold.options(resources={"token": 3}).remote(started, release)
    started.wait()
    assert ray.wait([echo.options(resources={"token": 1}).remote(1)], timeout=0.1)[0] == []
    release.set()
    assert ray.get([holder, echo.options(resources={"token": 3}).remote(2)]) == [None, 2]


async def coroutine(number: int = 0) -> int:
    return number


class AsyncCallable:
    async def __call__(self) -> None: ...


class AsyncGeneratorCallable:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


class Adder:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, other: int) -> int:
        return self.number + other


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (coroutine, "^coroutine is an async function"),
        (partial(coroutine, 1), r"partial.* is an async function"),
        (AsyncCallable(), "AsyncCallable.* is an async function"),
        (AsyncGeneratorCallable(), "AsyncGeneratorCallable.* is an async generator"),
        (AsyncCallable().__call__, "__call__ is an async function"),
    ],
)
def test_what_is_async_is_no_task(function: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ray.remote(function)


def test_whatever_can_be_called_is_a_task() -> None:
    functions = [Adder(1), partial(max, 1), Adder(1).__call__]
    assert ray.get([ray.remote(function).remote(2) for function in functions]) == [3, 2, 3]


def test_attributes_of_a_function_do_not_hide_those_of_what_is_made_of_it() -> None:
    def function() -> int:
        return 1

    function.options = function._name = "mine"  # type: ignore[attr-defined]
    remote = ray.remote(function)
    assert ray.get(remote.options(num_cpus=1).remote()) == 1 and repr(remote) == "<remote function function>"


@pytest.mark.parametrize("alias", [list[int], ray.ObjectRef[int]])
def test_a_generic_alias_is_no_function(alias: Any) -> None:
    with pytest.raises(TypeError, match="takes a function or a class, not "):
        ray.remote(alias)
