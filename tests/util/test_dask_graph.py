"""Dask graphs before anything runs: how they are made into tasks."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Alias, DataNode, List, Task, TaskRef

from minray.util.dask.futures import Future, FutureKey, given
from minray.util.dask.graph import Graph, prepare, takes_item
from minray.util.dask.shipping import Luggage


class Ref:
    """The part of a reference that a future needs."""

    def hex(self) -> str:
        return "1234"


def prepared(dsk: Any, keys: Any, **remote_args: Any) -> Graph:
    return prepare(dsk, keys, remote_args)


def test_only_what_is_needed_is_kept_and_dependencies_come_first() -> None:
    dsk = {"a": 1, "b": (abs, "a"), "c": (operator.add, "b", "a"), "other": (abs, "a")}
    graph = prepared(dsk, [["c"], "b"])
    assert graph.wanted == {"b", "c"}
    assert set(graph.order) == {"a", "b", "c"} and graph.order.index("b") < graph.order.index("c")
    assert graph.uses == {"a": 2, "b": 1}


def test_expressions_layers_and_dictionaries_are_all_graphs() -> None:
    array = da.ones(4, chunks=2) + 1
    for dsk in (array.dask, dict(array.dask), dask.base.collections_to_expr(array)):
        graph = prepared(dsk, array.__dask_keys__())
        assert graph.wanted == {(array.name, 0), (array.name, 1)}
        assert all(key in graph.nodes for key in graph.wanted)


def test_a_wanted_key_that_is_missing_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="'b'"):
        prepared({"a": 1}, ["a", ["b"]])


def test_a_missing_dependency_is_named_with_those_that_need_it() -> None:
    with pytest.raises(ValueError, match=r"Missing dependency 'x' for dependents \{'y'\}"):
        prepared({"y": Task("y", abs, TaskRef("x"))}, "y")


@pytest.mark.parametrize("dsk", [{"a": (abs, "b"), "b": (abs, "a")}, {"a": Task("a", abs, TaskRef("a"))}])
def test_a_cycle_is_named(dsk: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Cycle detected[^$]*-> a"):
        prepared(dsk, "a")


# -- options --


def layered(**annotations: Any) -> HighLevelGraph:
    first = MaterializedLayer({"a": Task("a", abs, 1)}, annotations=annotations)
    second = {"b": Task("b", abs, TaskRef("a"))}
    return HighLevelGraph({"first": first, "second": second}, {"first": set(), "second": {"first"}})


def test_annotations_of_a_layer_come_before_those_around_the_call_and_its_arguments() -> None:
    dsk = layered(ray_remote_args={"num_cpus": 3})
    with dask.annotate(ray_remote_args={"num_cpus": 2, "max_retries": 1}):
        graph = prepared(dsk, "b", num_cpus=0, num_gpus=1)
    assert graph.options == {
        "a": {"num_gpus": 1, "num_cpus": 3, "max_retries": 1},
        "b": {"num_gpus": 1, "num_cpus": 2, "max_retries": 1},
    }
    assert prepared(layered(), "b").options == {}


def test_annotations_survive_in_collections() -> None:
    with dask.annotate(ray_remote_args={"num_cpus": 2}):
        value = dask.delayed(abs)(-1)
    graph = prepared(dask.base.collections_to_expr([value]).optimize(), [value.key])
    assert graph.options == {value.key: {"num_cpus": 2}}


def test_an_annotation_may_depend_on_the_key() -> None:
    graph = prepared(layered(ray_remote_args=lambda key: {"name": f"my {key}"}), "b")
    assert graph.options["a"] == {"name": "my a"}


def test_the_resources_of_other_schedulers_are_refused() -> None:
    with dask.annotate(resources={"GPU": 1}), pytest.raises(ValueError, match="use ray_remote_args"):
        prepared({"a": (abs, 1)}, "a")
    with pytest.raises(ValueError, match="use ray_remote_args"):
        prepared(layered(resources={"GPU": 1}), "b")


def test_a_number_of_results_is_refused_with_the_key() -> None:
    with pytest.raises(ValueError, match="the Dask key 'a' has num_returns"):
        prepared({"a": (abs, 1)}, "a", num_returns=2)


# -- splits --


def shuffle(**more: Any) -> dict[str, Any]:
    dsk = {"all": (dict, [[0, "x"], [1, "y"]]), "p": (operator.getitem, "all", 0), "q": (operator.getitem, "all", 1)}
    return {**dsk, "end": Task("end", operator.add, TaskRef("p"), TaskRef("q")), **more}


def test_a_result_that_is_only_taken_apart_is_split() -> None:
    graph = prepared(shuffle(), "end")
    assert {key: set(pieces) for key, pieces in graph.splits.items()} == {"all": {"p", "q"}}


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, ["end", "all"]),  # somebody wants the whole
        ({"r": (len, "all")}, ["end", "r"]),  # somebody uses the whole
        ({"q": (operator.getitem, "all", "index"), "index": (abs, 1)}, ["end"]),  # which piece is not known yet
        ({"all": {0: "x", 1: "y"}}, ["end"]),  # there is no task to split
    ],
)
def test_a_result_that_is_needed_whole_is_not_split(more: Any, wanted: Any) -> None:
    assert prepared(shuffle(**more), wanted).splits == {}


class Annotated(dict[Any, Any]):
    """A graph in which one taker needs more than the others."""

    def __dask_annotations__(self) -> Any:
        return {"ray_remote_args": {"q": {"num_cpus": 2}}}


def test_a_result_with_one_taker_or_with_other_options_is_not_split() -> None:
    assert prepared(shuffle(), ["p"]).splits == {}
    assert prepared(Annotated(shuffle()), "end").splits == {}


def test_rechunking_and_shuffling_have_splits() -> None:
    array = da.ones((8, 8), chunks=(2, 8)).rechunk((8, 2))
    graph = prepared(array.dask, array.__dask_keys__())
    assert len(graph.splits) == 4 and all(len(pieces) == 4 for pieces in graph.splits.values())


@pytest.mark.parametrize(
    "node",
    [
        Task("k", operator.add, TaskRef("a"), 1),
        Task("k", operator.getitem, [1, 2], 1),
        Task("k", operator.getitem, TaskRef("a"), TaskRef("b")),
        Alias("k", "a"),
        DataNode("k", 1),
    ],
)
def test_other_nodes_take_no_item(node: Any) -> None:
    assert not takes_item(node)
    for whole in (TaskRef("a"), Alias("a")):
        assert takes_item(Task("k", operator.getitem, whole, 1))


# -- chains --


def row(*functions: Any) -> dict[Any, Any]:
    """A graph of tasks that each need the one before: ``("x", 0)``, ``("x", 1)``, ..."""
    keys = [("x", number) for number in range(len(functions))]
    tasks = {keys[0]: Task(keys[0], functions[0], 1)}
    for before, key, function in zip(keys, keys[1:], functions[1:], strict=False):
        tasks[key] = Task(key, function, TaskRef(before))
    return tasks


def double(value: int) -> int:
    return 2 * value


def test_a_chain_becomes_one_task_with_the_key_of_its_last_link() -> None:
    graph = prepared(row(double, double, double), [("x", 2)])
    assert graph.order == [("x", 2)] and graph.uses == {} and graph.nodes[("x", 2)]() == 8


def test_a_chain_may_begin_with_many_dependencies_and_end_with_a_delayed_task() -> None:
    parts = {("p", number): DataNode(("p", number), number) for number in range(3)}
    first = Task(("x", 0), max, *(TaskRef(key) for key in parts))
    graph = prepared({**parts, **row(double, double), ("x", 0): first, "end": Task("end", double, TaskRef(("x", 1)))}, "end")
    assert set(graph.order) == {*parts, "end"} and graph.uses == dict.fromkeys(parts, 1)
    assert graph.nodes["end"](dict(zip(parts, range(3), strict=True))) == 8


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, [("x", 0), ("x", 1)]),  # somebody wants the first
        ({"y": Task("y", double, TaskRef(("x", 0)))}, ["y", ("x", 1)]),  # somebody else uses the first
        ({("x", 0): Alias(("x", 0), "y"), "y": Task("y", double, 1)}, [("x", 1)]),  # the user made the first a task
        ({("x", 0): DataNode(("x", 0), 1)}, [("x", 1)]),  # there is no first task
        ({("x", 0): Task(("x", 0), abs, np.ones(100_000))}, [("x", 1)]),  # a large array, which others may have, too
    ],
)
def test_what_is_needed_itself_is_in_no_chain(more: Any, wanted: Any) -> None:
    assert {("x", 0), ("x", 1)} <= set(prepared({**row(double, double), **more}, wanted).order)


def test_tasks_with_other_options_are_in_no_chain() -> None:
    class OfOne(dict[Any, Any]):
        def __dask_annotations__(self) -> Any:
            return {"ray_remote_args": {("x", 1): {"num_cpus": 2}}}

    assert prepared(OfOne(row(double, double, double)), [("x", 2)]).order == [("x", 0), ("x", 1), ("x", 2)]
    assert prepared(row(double, double, double), [("x", 2)], num_cpus=2).order == [("x", 2)]


def test_pieces_of_a_split_are_in_no_chain() -> None:
    pieces = {("p", item): Task(("p", item), operator.getitem, TaskRef(("x", 1)), item) for item in range(2)}
    ends = {("e", item): Task(("e", item), double, TaskRef(("p", item))) for item in range(2)}
    graph = prepared({**row(double, lambda n: [n, n]), **pieces, **ends}, list(ends))
    assert set(graph.order) == {("x", 1), *pieces, *ends} and set(graph.splits[("x", 1)]) == set(pieces)


def test_a_graph_may_be_left_without_chains() -> None:
    assert len(prepare(row(double, double), [("x", 1)], {}, may_chain=False).order) == 2


# -- futures --


def test_a_future_in_a_graph_becomes_data() -> None:
    future, ref = Future("x", Ref()), Ref()
    future.key.ref = ref
    graph = prepared({"x": future, "y": (abs, "x"), "z": Task("z", abs, future)}, ["y", "z"])
    (key,) = {key for key in graph.nodes if str(key).startswith("x-future-")}
    assert graph.nodes[key].value is ref
    assert graph.nodes["x"].target == key and graph.nodes["z"].dependencies == {key}


def test_futures_of_the_same_key_are_different_and_travel_as_names_where_their_values_are_given() -> None:
    first, second = Future("x", Ref()), Future("x", Ref())
    assert first.key != second.key
    with given({first.key}):
        for copy in (pickle.loads(pickle.dumps(first.key)), pickle.loads(pickle.dumps(first)).key):
            assert type(copy) is str and copy == first.key
        elsewhere = pickle.loads(pickle.dumps(second))
    for copy in (elsewhere.key, pickle.loads(pickle.dumps(second.key))):
        assert type(copy) is FutureKey and copy == second.key
        assert (copy.ref.hex(), copy.task_key) == (second.ref.hex(), "x") and type(elsewhere) is Future
    assert dask.base.tokenize(first) == dask.base.tokenize(first) != dask.base.tokenize(second)


# -- luggage --


class Counted:
    """A function that knows how often it was pickled."""

    def __init__(self, content: str = "") -> None:
        self.content = content
        self.pickled = 0

    def __call__(self, *values: Any) -> Any:
        return values

    def __reduce__(self) -> Any:
        self.pickled += 1
        return Counted, (self.content,)


def test_a_function_is_pickled_once_for_many_tasks() -> None:
    function, luggage = Counted("x" * 500), Luggage()
    calls = [luggage.call(Task(key, function, TaskRef("a"), key), {"a": 5}) for key in range(20)]
    assert function.pickled == 1
    assert calls[7][1:] == ((5, 7), {})
    sent = pickle.loads(pickle.dumps(calls[7][0]))
    assert isinstance(sent, Counted) and sent.content == "x" * 500
    assert sent is pickle.loads(pickle.dumps(calls[8][0]))  # a worker unpickles it once


def test_functions_with_short_names_travel_as_they_are() -> None:
    assert Luggage().function(np.sum) is np.sum
    assert Luggage().function(operator.add) is operator.add


def test_functions_within_fused_tasks_are_pickled_once_too() -> None:
    function, luggage = Counted("x" * 500), Luggage()
    for number in range(10):
        fused = Task.fuse(Task("a", function, number), Task(f"b{number}", function, TaskRef("a")))
        sent, args, _ = luggage.call(fused, {})
        assert sent(*pickle.loads(pickle.dumps(args))) == ((number,),)
    assert function.pickled == 1


def test_functions_within_fused_tasks_of_a_chain_are_pickled_once_too() -> None:
    function, luggage = Counted("x" * 500), Luggage()
    for number in range(10):
        fused = Task.fuse(Task("a", function, number), Task("b", function, TaskRef("a")))
        chain = Task.fuse(fused, Task(f"c{number}", function, TaskRef("b")))
        sent, args, _ = luggage.call(chain, {})
        assert sent(*pickle.loads(pickle.dumps(args))) == (((number,),),)
    assert function.pickled == 1


def test_nested_nodes_are_sent_with_the_names_of_what_they_need() -> None:
    node = Task("k", list, List(TaskRef("a"), 3, TaskRef("b")))
    function, args, kwargs = Luggage().call(node, {"a": 1, "b": 2})
    assert function(*args, **kwargs) == [1, 3, 2]


def test_what_cannot_be_pickled_here_is_left_as_it_is() -> None:
    function = Counted(i for i in range(3))  # type: ignore[arg-type]
    assert Luggage().function(function) is function
