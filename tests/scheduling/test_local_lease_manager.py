"""The queue and the account of one node: what is given out, to whom first, and that nothing is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minray.common.bundles import group_name
from minray.common.resources import UNIT, to_floats
from minray.scheduling.lease import Assignment, LeaseRequest
from minray.scheduling.local_lease_manager import ZERO_CPU_LEASES_MIN
from tests.scheduling.machines import Node, request

# --- Resources ---------------------------------------------------------------------------------------------------------


def test_g99_leases_never_hold_more_than_the_node_has() -> None:
    node = Node(CPU=2)
    first, second, third = request(1), request(1), request(1)
    assert node.give(first, second, third) == [first, second]
    node.end(first)
    assert node.assign() == [third]
    node.end(second, third)
    assert node.free() == 2


def test_a_thousand_small_leases_leave_nothing_over() -> None:
    node = Node(CPU=1)
    requests = [request(0.1) for _ in range(10)]
    assert node.give(*requests) == requests
    assert node.free() == 0
    node.end(*requests)
    assert node.free() == 1


def test_a_request_that_cannot_run_holds_up_nobody_with_other_needs() -> None:
    node = Node(CPU=4, GPU=1)
    gpu, other_gpu, cpu = request({"GPU": 1}), request({"GPU": 1}), request(1)
    assert node.give(gpu, other_gpu, cpu) == [gpu, cpu]


def test_gpus_have_instances_and_a_fraction_may_have_to_wait_for_one() -> None:
    node = Node(GPU=2)
    halves = [request({"GPU": 0.7}), request({"GPU": 0.7})]
    assert node.give(*halves) == halves
    assert [sorted(node.machine.leases[each.lease_id].gpus.taken) for each in halves] == [[0], [1]]
    late = request({"GPU": 0.6})  # 0.3 and 0.3 are free
    assert node.give(late) == []
    assert node.machine.lacking(late) == ["GPU"]
    node.end(halves[0])
    assert node.assign() == [late]
    assert sorted(node.machine.leases[late.lease_id].gpus.taken) == [0]


# --- Blocked workers ---------------------------------------------------------------------------------------------------


def test_g101_a_blocked_worker_lends_its_cpus_and_nothing_else() -> None:
    node = Node(CPU=1, GPU=1, spoon=1)
    parent = request({"CPU": 1, "GPU": 1, "spoon": 1})
    node.give(parent)
    node.block(parent)
    assert to_floats(node.machine.available) == {"CPU": 1, "GPU": 0, "spoon": 0}
    child, other = request(1, depth=1), request({"spoon": 1})
    assert node.give(child, other) == [child]


def test_g101_a_blocked_worker_in_a_bundle_lends_the_cpus_of_the_bundle() -> None:
    in_bundle, in_group = group_name("CPU", b"group", 0), group_name("CPU", b"group")
    node = Node(**{in_bundle: 1, in_group: 1})
    parent, child = request({in_bundle: 1, in_group: 1}), request({in_group: 1}, depth=1)
    node.give(parent)
    assert node.give(child) == []
    node.block(parent)
    assert node.assign() == [child]


def test_g101_a_worker_that_goes_on_takes_its_cpus_back_at_once() -> None:
    node = Node(CPU=1)
    parent, child, next_child = request(1), request(1, depth=1), request(1, depth=1)
    node.give(parent)
    node.block(parent)
    assert node.give(child) == [child]
    node.machine.set_blocked(parent.lease_id, False)
    assert node.free() == -1  # by exactly what was taken back (S1)
    assert node.give(next_child) == []
    node.end(child)
    assert node.assign() == []
    node.end(parent)
    assert node.assign() == [next_child]


def test_saying_twice_that_a_worker_is_blocked_lends_once() -> None:
    node = Node(CPU=2)
    parent = request(2)
    node.give(parent)
    node.block(parent, parent)
    assert node.free() == 2
    node.end(parent)
    assert node.free() == 2


def test_g101_nested_gets_of_any_depth_run_without_delay_on_one_cpu() -> None:
    node = Node(CPU=1)
    for depth in range(100):
        level = request(1, depth=depth)
        assert node.give(level) == [level]
        node.block(level)


def test_children_go_before_new_parents_while_somebody_is_blocked() -> None:
    node = Node(CPU=1)
    parent, new_parent, child = request(1), request(1), request(1, depth=1)
    node.give(parent)
    node.block(parent)
    assert node.give(new_parent, child) == [child]


def test_depth_does_not_matter_while_nobody_is_blocked() -> None:
    node = Node(CPU=1)
    first, deep = request(1), request(1, depth=5)
    assert node.give(first, deep) == [first]


# --- Large arguments ---------------------------------------------------------------------------------------------------


def test_g86_a_request_has_no_turn_before_its_arguments_are_here_and_holds_nothing_meanwhile() -> None:
    node = Node(CPU=1)
    first, second = request(arguments=[b"x"]), request(arguments=[b"y"])
    node.queue(first, second)
    assert node.assign() == [] and node.fetching == [first, second]
    assert node.assign() == node.fetching == [], "it is said once what is to be fetched"
    assert node.give(plain := request()) == [plain]
    node.end(plain)
    assert node.machine.on_arguments_here(second.lease_id) is second and node.assign() == [second]
    assert node.pinned == [second.lease_id]
    assert node.machine.on_arguments_here(b"not waiting") is None


def test_g86_who_must_wait_for_memory_or_for_arguments_that_have_gone_holds_up_nobody() -> None:
    node = Node(CPU=2)
    requests = [request(arguments=[b"x"]), request(arguments=[b"y"])]
    node.queue(*requests)
    for each in requests:
        node.machine.on_arguments_here(each.lease_id)
    node.must_wait = [requests[0]]
    assert node.assign() == [requests[1]] and node.assign() == []
    node.machine.on_arguments_gone(requests[0].lease_id)
    node.must_wait = []
    assert node.assign() == [] and node.states.get(requests[0].lease_id) == "FETCHING"
    node.machine.on_arguments_here(requests[0].lease_id)
    assert node.assign() == [requests[0]]


def test_who_waits_for_arguments_or_for_a_turn_knows_whether_there_are_resources() -> None:
    node = Node(CPU=2)
    fetched, queued, large = request(arguments=[b"x"]), request(arguments=[b"y"]), request(2, arguments=[b"z"])
    node.queue(fetched, queued, large)
    node.must_wait = [queued]
    node.machine.on_arguments_here(queued.lease_id)
    assert node.assign() == [] and all(node.machine.has_room(each.lease_id) for each in (fetched, queued, large))
    node.machine.on_arguments_here(fetched.lease_id)
    assert node.assign() == [fetched]
    assert [node.machine.has_room(each.lease_id) for each in (fetched, queued, large)] == [False, True, False]
    assert not node.machine.has_room(b"elsewhere")


def test_a_request_that_ends_before_its_arguments_are_fetched_is_not_fetched_for_and_others_are() -> None:
    node = Node(CPU=1)
    ended, other = request(arguments=[b"x"]), request(arguments=[b"y"])
    node.queue(ended, other)
    node.end(ended)
    assert node.assign() == [] and node.fetching == [other] and node.machine.waiting() == [other]
    assert node.machine.on_arguments_here(ended.lease_id) is None


# --- Fairness ----------------------------------------------------------------------------------------------------------


def test_the_owner_with_fewer_leases_goes_first() -> None:
    node = Node(CPU=4)
    greedy = [request(1, owner="greedy") for _ in range(10)]
    modest = [request(1, owner="modest") for _ in range(10)]
    given_out = node.give(*greedy, *modest)
    assert sorted(each.owner_id for each in given_out) == [b"greedy", b"greedy", b"modest", b"modest"]


def test_equal_owners_are_served_in_the_order_of_arrival() -> None:
    node = Node(CPU=1)
    first, second = request(1, owner="b"), request(1, owner="a")
    assert node.give(first, second) == [first]


# --- Worker cap --------------------------------------------------------------------------------------------------------


def blocked_siblings(node: Node, count: int) -> list[LeaseRequest]:
    """Fill the node with leases of one depth, all blocked."""
    siblings = [request(1, depth=1) for _ in range(count)]
    node.give(*siblings)
    node.block(*siblings)
    return siblings


def test_beyond_one_lease_per_cpu_granting_slows_down() -> None:
    node = Node(CPU=2)
    blocked_siblings(node, 2)
    late = [request(1, depth=1) for _ in range(4)]
    given_at: list[float] = []
    node.queue(*late)
    now = 0.0
    while len(given_at) < 4:
        given_out = node.assign(now)
        given_at += [now] * len(given_out)
        node.block(*given_out)
        if not given_out:
            assert node.wake_at is not None
            now = node.wake_at
    assert given_at == [1, 3, 7, 15]  # 1 s, doubling


def test_the_back_off_ends_at_ten_seconds() -> None:
    node = Node(CPU=1)
    siblings = blocked_siblings(node, 1)
    now = 0.0
    while len(siblings) < 10:
        late = request(1, depth=1)
        node.queue(late)
        assert node.assign(now) == []
        assert node.wake_at is not None and node.wake_at - now <= 10
        now = node.wake_at
        siblings += node.assign(now)
        node.block(late)
    late = request(1, depth=1)
    node.queue(late)
    node.assign(now)
    assert node.wake_at == now + 10


def test_a_lease_that_ends_makes_room_under_the_cap_at_once() -> None:
    node = Node(CPU=2)
    first, _ = blocked_siblings(node, 2)
    late = request(1, depth=1)
    assert node.give(late) == []
    node.end(first)
    assert node.assign(0.5) == [late]


def test_the_back_off_begins_anew_when_nobody_waits_or_the_cap_is_not_reached_any_more() -> None:
    node = Node(CPU=1)
    (sibling,) = blocked_siblings(node, 1)
    cancelled, waiting = request(1, depth=1), request(1, depth=1)
    assert node.give(cancelled) == []
    node.end(cancelled)
    node.queue(waiting)
    assert node.assign(5) == []  # not as if it had waited since 0
    node.end(sibling)
    another, late = request(1, depth=1), request(1, depth=1)
    node.queue(another, late)
    assert node.assign(5.5) == [waiting]
    node.block(waiting)
    assert (node.assign(7), node.wake_at) == ([], 8)


def test_the_cap_is_per_shape() -> None:
    node = Node(CPU=1)
    blocked_siblings(node, 1)
    other = request(1, env="/elsewhere")
    assert node.give(other) == [other]


def test_deeper_requests_pass_the_cap_whatever_else_waits_for_it() -> None:
    node = Node(CPU=1)
    blocked_siblings(node, 1)
    sibling, child = request(1, depth=1), request(1, depth=2)
    assert node.give(sibling) == []
    assert node.give(child) == [child]


def test_g101_tasks_that_the_reader_of_a_held_up_generator_waits_for_pass_the_cap_and_more_such_generators_do_not() -> None:
    node = Node(CPU=2)
    blocked_siblings(node, 2)  # the readers
    generators = [request(1, depth=2, backpressure=True) for _ in range(4)]
    assert node.give(*generators) == generators[:2], "deeper than their readers"
    node.block(*generators[:2])
    task, child = request(1, depth=2), request(1, depth=3)
    assert node.give(task) == [task], "as many tasks of these needs as there are CPUs are blocked"
    node.block(task)
    assert node.give(child) == [child], "what it waits for in turn"
    assert node.wake_at == 1, "the third generator is slowed down"


def test_tasks_without_cpus_are_many_but_not_boundless() -> None:
    node = Node(CPU=1)
    requests = [request({}, depth=1) for _ in range(ZERO_CPU_LEASES_MIN + 5)]
    assert node.give(*requests) == requests[:ZERO_CPU_LEASES_MIN]
    assert node.assign(1.0) == requests[ZERO_CPU_LEASES_MIN : ZERO_CPU_LEASES_MIN + 1]


# --- Others want it ----------------------------------------------------------------------------------------------------


def test_a_lease_is_contended_as_long_as_somebody_waits_whom_its_worker_could_not_serve() -> None:
    node = Node(CPU=1)
    (held,) = node.give(request())
    same, others = request(), [request(owner="other"), request(owner="other")]
    node.queue(same)
    assert not node.machine.is_contended(held)
    node.queue(*others)
    seen = []
    for each in (*others, same):
        seen.append(node.machine.is_contended(held))
        node.end(each)
    assert seen == [True, True, False] and not node.machine.is_contended(held)


def test_a_lease_is_contended_when_somebody_else_waits() -> None:
    node = Node(CPU=1)
    mine, my_next = request(1, owner="me"), request(1, owner="me")
    node.give(mine, my_next)
    assert not node.machine.is_contended(mine)  # more of the same is what the lease is for
    node.queue(request(1, owner="you"))
    assert node.machine.is_contended(mine)


def test_another_shape_of_the_same_owner_contends_too() -> None:
    node = Node(CPU=1)
    mine = request(1, owner="me")
    node.give(mine, request(1, owner="me", env="/other"))
    assert node.machine.is_contended(mine)


def test_owners_are_asked_for_idle_leases_while_others_wait() -> None:
    node = Node(CPU=2)
    node.give(request(1, owner="a"), request(1, owner="b"))
    assert node.machine.owners_to_revoke(0, Assignment()) == []
    waiting = request(1, owner="c")
    node.give(waiting)
    assert node.machine.owners_to_revoke(0, assignment := Assignment()) == [b"a", b"b"]
    assert assignment.wake_at == 0.1
    assert node.machine.owners_to_revoke(0.05, Assignment()) == []
    assert node.machine.owners_to_revoke(0.1, Assignment()) == [b"a", b"b"]
    node.end(waiting)
    assert node.machine.owners_to_revoke(0.15, Assignment()) == []
    node.give(request(1, owner="c"))
    assert node.machine.owners_to_revoke(0.15, assignment := Assignment()) == [] and assignment.wake_at == 0.2
    assert node.machine.owners_to_revoke(0.2, Assignment()) == [b"a", b"b"]


def test_owners_that_take_turns_are_not_asked_at_every_turn() -> None:
    """The queue is empty between two turns; an owner that was asked returns its leases at once for a while anyway."""
    node = Node(CPU=1)
    held = request(1, owner="a")
    node.give(held)
    asked: list[bytes] = []
    for turn in range(100):
        waiting = request(1, owner="ba"[turn % 2])
        node.give(waiting)
        asked += node.machine.owners_to_revoke(turn / 1000, Assignment())
        node.end(held)
        assert node.assign() == [waiting]
        held = waiting
    assert asked == [b"a", b"b"]


def test_which_owners_were_asked_is_forgotten_when_they_may_be_asked_again() -> None:
    node = Node(CPU=1)
    held, waiting = request(1, owner="a"), request(1, owner="b")
    node.give(held, waiting)
    assert node.machine.owners_to_revoke(0, Assignment()) == [b"a"]
    node.end(held, waiting)
    for now, wake_at in [(0.05, 0.1), (0.1, None)]:
        assert node.machine.owners_to_revoke(now, assignment := Assignment()) == [] and assignment.wake_at == wake_at
    assert node.machine._revoked_at == {}


# --- Any history -------------------------------------------------------------------------------------------------------

NEEDS = st.fixed_dictionaries({}, optional={"CPU": st.sampled_from([0.5, 1, 2]), "GPU": st.sampled_from([0.5, 1])})
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["queue", "end", "block", "unblock", "doom", "wait"]),
        st.integers(0, 30),
        NEEDS,
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(STEPS)
def test_resources_are_conserved_and_no_request_is_lost(steps: list[tuple[str, int, dict[str, float], int]]) -> None:
    node, alive, now = Node(CPU=2, GPU=1), [], 0.0
    for step, number, needs, depth in steps:
        held = list(node.machine.leases.values())
        if step == "queue":
            new = request(needs, depth=depth, owner=f"owner{number % 3}")
            alive.append(new)
            node.queue(new)
        elif step == "end" and alive:
            node.end(alive.pop(number % len(alive)))
        elif step in ("block", "unblock") and held:
            node.machine.set_blocked(held[number % len(held)].request.lease_id, step == "block")
        elif step == "doom" and held and node.states.get(held[number % len(held)].request.lease_id) == "GRANTED":
            node.machine.on_worker_doomed(held[number % len(held)].request.lease_id)
        elif step == "wait":
            now += number
        node.assign(now)
        check(node, alive)
    for each in alive:
        if each.lease_id in node.machine.leases:
            node.machine.set_blocked(each.lease_id, False)
    # L1: once leases end and time passes, every request is given out.
    while alive:
        ready = [each for each in alive if each.lease_id in node.machine.leases]
        assert ready
        for each in ready:
            node.end(each)
            alive.remove(each)
        now += 20
        node.assign(now)
    assert to_floats(node.machine.available) == {"CPU": 2, "GPU": 1}


def check(node: Node, alive: list[LeaseRequest]) -> None:
    machine = node.machine
    for name, total in machine.total.items():
        leases = machine.leases.values()
        held = sum(lease.request.resources.get(name, 0) for lease in leases)
        lent = sum(lease.request.resources.get(name, 0) for lease in leases if lease.blocked and name == "CPU")
        assert machine.available[name] == total - held + lent
    assert machine.available["GPU"] >= 0
    gpus: dict[int, int] = {}
    for lease in machine.leases.values():
        for index, share in lease.gpus.taken.items():
            gpus[index] = gpus.get(index, 0) + share
    assert all(share <= UNIT for share in gpus.values())
    waiting = {each.lease_id for each in machine.queued()}
    assert waiting | machine.leases.keys() == {each.lease_id for each in alive}
    assert not waiting & machine.leases.keys()
    assert len(node.states) == len(alive)
