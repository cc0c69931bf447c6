"""Explanations of a node about waiting leases and about its workers, in each state of a lease."""

from __future__ import annotations

from typing import Any

import msgspec

from minray.common.bundles import group_name
from minray.common.ids import short
from minray.common.resources import UNIT
from minray.common.task_spec import STRATEGY_AFFINITY, STRATEGY_PLACEMENT_GROUP, SchedulingStrategy
from minray.protocol.raylet import Dependency, ExplainLease, GetNodeStats, RequestWorkerLease
from minray.raylet.explanations import MAX_HOLDERS
from tests.raylet.scene import Scene, scenario

GROUP = b"g" * 18


async def why(scene: Scene, request: RequestWorkerLease) -> str:
    return (await scene.raylet().call(ExplainLease(request.lease_id))).text


async def asked(scene: Scene, request: RequestWorkerLease) -> str:
    """Make a request and return the explanation of its state."""
    scene.ask(request)
    await scene.settle(0.1)
    return await why(scene, request)


def with_arguments(request: RequestWorkerLease, sizes: dict[bytes, int], owner: Any) -> RequestWorkerLease:
    dependencies = [Dependency(name.ljust(28, b"-"), owner, size) for name, size in sizes.items()]
    return msgspec.structs.replace(request, dependencies=dependencies)


@scenario()
async def test_of_what_is_granted_or_not_known_there_is_nothing_to_say(scene: Scene) -> None:
    request = scene.request()
    assert await why(scene, request) == ""
    await scene.ask(request)
    assert await why(scene, request) == ""


# --- waiting here


@scenario(nodes={"head": {"CPU": 9, "GPU": 1}})
async def test_who_holds_what_is_lacking_is_named_and_how_many_more(scene: Scene) -> None:
    replies = [(await scene.lease({"CPU": 1.5}))[1] for _ in range(MAX_HOLDERS + 1)]
    named = ", ".join(f"a task (pid {reply.pid})" for reply in replies[:MAX_HOLDERS])
    assert await asked(scene, scene.request(1)) == f"waits for CPU on node head: 9 of 9 in use by {named} and 1 more"


@scenario(nodes={"head": {"CPU": 2, "GPU": 1}})
async def test_all_that_is_lacking_is_told(scene: Scene) -> None:
    _, reply = await scene.lease({"CPU": 2, "GPU": 1})
    held = f"in use by a task (pid {reply.pid})"
    said = await asked(scene, scene.request({"CPU": 1, "GPU": 1}))
    assert said == f"waits for CPU on node head: 2 of 2 {held}; waits for GPU on node head: 1 of 1 {held}"


@scenario(cpus=1)
async def test_an_actor_and_a_task_with_a_name_are_told_from_others(scene: Scene) -> None:
    request = msgspec.structs.replace(scene.request(), actor_id=b"actor".ljust(16))
    worker = scene.worker(await scene.ask(request))
    waiting = scene.request()
    assert (await asked(scene, waiting)).endswith(f"in use by an actor (pid {worker.pid})")
    worker.print("\x1eA.f\n")
    await scene.settle(0.1)
    assert (await why(scene, waiting)).endswith(f"in use by A.f (pid {worker.pid})")


@scenario(cpus=1, num_prestart_workers=0)
async def test_a_lease_whose_worker_starts_holds_its_resources_too(scene: Scene) -> None:
    scene.silent_starts = 1
    assert await asked(scene, scene.request()) == "waits for a worker, which is starting on node head"
    said = await asked(scene, scene.request())
    assert said == "waits for CPU on node head: 1 of 1 in use by a lease whose worker is starting"


@scenario(cpus=1)
async def test_the_worker_cap_lets_the_next_one_through_in_a_while(scene: Scene) -> None:
    _, parent = await scene.lease(depth=1)
    await scene.raylet().call(scene.worker(parent).blocked_message(True))
    request = scene.request(depth=1)
    scene.ask(request)
    await scene.nap(0.1)
    said = await why(scene, request)
    assert said.startswith("waits on node head: 1 workers or more serve tasks like it, most of them blocked in get or wait")
    assert 0 < float(said.split()[-2]) < 1


@scenario()
async def test_one_may_wait_for_memory_or_for_large_arguments(scene: Scene) -> None:
    store = scene.raylets["head"].store
    for name in (b"x", b"y"):
        copy = store.table.create(name.ljust(28, b"-"), 0, 400_000, scene.address, b"", False)
        assert copy is not None
        store.seal(copy)
    await scene.ask(with_arguments(scene.request(), {b"x": 400_000}, scene.address))
    said = await asked(scene, with_arguments(scene.request(), {b"y": 400_000}, scene.address))
    assert said == "waits for memory on node head: the large arguments of running tasks take 400000 bytes"


@scenario()
async def test_arguments_that_have_not_come_are_named(scene: Scene) -> None:
    table = scene.raylets["head"].store.table
    names = [b"x%d" % number for number in range(MAX_HOLDERS + 2)]
    for name in names:
        assert table.create(name.ljust(28, b"-"), 0, 1000, scene.address, b"", False) is not None
    request = with_arguments(scene.request(), dict.fromkeys(names, 1000), scene.address)
    named = ", ".join(short(name.ljust(28, b"-")) for name in names[:MAX_HOLDERS])
    assert await asked(scene, request) == f"waits for {len(names)} large arguments to come to node head: {named}"


@scenario(cpus=1)
async def test_what_has_all_that_it_needs_waits_for_its_turn(scene: Scene) -> None:
    """The resources are free, the arguments are here, and another lease is being decided about."""
    request = scene.request()
    await scene.ask(request)
    broker = scene.raylets["head"]._broker
    waiting = scene.request()
    scene.ask(waiting)
    await scene.settle(0.1)
    broker.local.available["CPU"] += UNIT
    assert await why(scene, waiting) == "waits for its turn on node head"
    broker.local.available["CPU"] -= UNIT


# --- waiting for another node


@scenario(cpus=1)
async def test_what_no_node_can_ever_hold_says_what_it_needs(scene: Scene) -> None:
    assert await asked(scene, scene.request({"GPU": 1})) == "needs {GPU: 1}; no node has GPU"


@scenario(cpus=1)
async def test_a_bundle_that_nobody_has_is_waited_for(scene: Scene) -> None:
    scene.kill("gcs")
    strategy = SchedulingStrategy(STRATEGY_PLACEMENT_GROUP, group_id=GROUP)
    said = await asked(scene, scene.request({group_name("CPU", GROUP): 1}, strategy=strategy))
    assert said == "waits for a node that holds such a bundle: none is known (yet)"


@scenario(cpus=1)
async def test_what_is_lacking_of_a_bundle_is_told_as_such(scene: Scene) -> None:
    resources, bundle = scene.raylets["head"]._broker.local.resources, {"CPU": UNIT}
    gpus = resources.reserve(bundle)
    assert gpus is not None
    resources.open_bundle(GROUP, 0, bundle, gpus)
    _, reply = await scene.lease({group_name("CPU", GROUP): 1})
    said = await asked(scene, scene.request({group_name("CPU", GROUP): 1}))
    assert said == f"waits for CPU of its placement group on node head: 1 of 1 in use by a task (pid {reply.pid})"


@scenario(cpus=1)
async def test_a_node_that_nobody_has_named_is_asked_for(scene: Scene) -> None:
    scene.kill("gcs")
    nobody = b"nobody".ljust(16)
    said = await asked(scene, scene.request(strategy=SchedulingStrategy(STRATEGY_AFFINITY, nobody)))
    assert said == f"asks whether node {nobody.hex()} exists"


@scenario(cpus=1)
async def test_what_has_come_this_moment_waits_for_a_choice(scene: Scene) -> None:
    request = scene.request({"GPU": 1})
    await asked(scene, request)
    broker = scene.raylets["head"]._broker
    broker.cluster.withdraw(request.lease_id)
    broker.cluster.submit(broker.entries[request.lease_id].request)
    assert await why(scene, request) == "waits for a node to be chosen"


# --- the node


@scenario(cpus=2)
async def test_workers_are_told_with_what_they_do(scene: Scene) -> None:
    lease_id, reply = await scene.lease()
    other_id, other = await scene.lease()
    await scene.raylet().call(scene.worker(reply).blocked_message(True))
    await scene.give_back(other_id)
    stats = await scene.raylet().call(GetNodeStats())
    told = {worker.pid: (worker.state, worker.job_id, worker.lease_id, worker.blocked) for worker in stats.workers}
    assert told[reply.pid] == ("LEASED", scene.job_id, lease_id, True)
    assert told[other.pid] == ("IDLE", scene.job_id, b"", False)
    assert {worker.address for worker in stats.workers} >= {reply.worker, other.worker}


@scenario(cpus=1, num_prestart_workers=0)
async def test_a_worker_that_starts_is_told_too_and_nobody_has_it(scene: Scene) -> None:
    scene.silent_starts = 1
    scene.ask(scene.request())
    await scene.settle(0.1)
    (worker,) = (await scene.raylet().call(GetNodeStats())).workers
    assert (worker.state, worker.lease_id, worker.blocked, worker.address) == ("STARTING", b"", False, None)


@scenario(cpus=1)
async def test_each_request_that_waits_has_a_line(scene: Scene) -> None:
    await scene.lease()
    first, second = scene.request(), scene.request({"GPU": 1})
    for request in (first, second):
        await asked(scene, request)
    owner = short(scene.address.worker_id)
    assert (await scene.raylet().call(GetNodeStats())).pending_leases == [
        f"{{CPU: 1}} for {owner}: {await why(scene, first)}",
        f"{{GPU: 1}} for {owner}: needs {{GPU: 1}}; no node has GPU",
    ]
