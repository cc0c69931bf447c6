"""Which node a request goes to, as one node sees the cluster."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from minray.common.labels import parse_selector
from minray.common.resources import fits
from minray.common.task_spec import LabelSelector
from minray.scheduling import policy
from minray.scheduling.cluster_resource_scheduler import PROMISE_S
from minray.scheduling.lease import LeaseRequest
from tests.scheduling.machines import SPREAD, Cluster, request, to_node

# --- Here or elsewhere -------------------------------------------------------------------------------------------------


def test_g103_work_stays_here_while_less_than_half_is_in_use() -> None:
    cluster = Cluster(CPU=4)
    cluster.join(b"other", CPU=4)
    assert cluster.submit(request(1), request(1)) == ["here", "here"]
    assert cluster.submit(request(1)) == ["SPILLBACK other"]


def test_g103_above_the_threshold_the_emptier_node_is_better() -> None:
    cluster = Cluster(CPU=4)
    cluster.join(b"full", CPU=10)
    cluster.join(b"half", CPU=10)
    cluster.report(b"full", CPU=2)
    cluster.report(b"half", CPU=4)
    cluster.submit(request(3))
    assert cluster.submit(request(1)) == ["SPILLBACK half"]


def test_when_nobody_has_room_a_request_waits_here() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.report(b"other")
    assert cluster.submit(request(1), request(1)) == ["here", "queued"]


def test_it_waits_here_also_when_another_node_is_less_full() -> None:
    cluster = Cluster(CPU=2)
    cluster.join(b"other", CPU=4)
    cluster.report(b"other", CPU=1)
    assert cluster.submit(request(2), request(2)) == ["here", "queued"]


def test_when_only_a_busy_node_can_ever_hold_it_a_request_waits_there() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"gpu", CPU=1, GPU=1)
    cluster.report(b"gpu", CPU=1)
    assert cluster.submit(request({"GPU": 1})) == ["SPILLBACK gpu"]


def test_one_free_cpu_elsewhere_is_promised_once() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.submit(request(1))
    first, second = request(1), request(1)
    assert cluster.submit(first, second) == ["SPILLBACK other", "queued"]
    assignment = cluster.assign(0.1)
    assert cluster.fate(second) == "queued"
    assert assignment.wake_at == PROMISE_S
    cluster.assign(PROMISE_S)  # it came to nothing, and nobody has reported anything
    assert cluster.fate(second) == "SPILLBACK other"


def test_a_promise_ends_in_time_although_no_request_waits() -> None:
    """The other node's report would say nothing new if the request came to nothing, so the gcs would not pass it on."""
    cluster = Cluster()
    cluster.join(b"other", CPU=1)
    cluster.submit(request(1), now=1.0)
    view = cluster.nodes.get(b"other")
    assert view is not None and view.available["CPU"] == 0
    assert cluster.assign(1.1).wake_at == 1.0 + PROMISE_S
    assert cluster.assign(1.0 + PROMISE_S).wake_at is None
    assert view.available == view.total == {"CPU": 10_000}


def test_a_request_that_waits_here_goes_where_room_is_reported() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.report(b"other")
    first, second, third = request(1), request(1), request(1)
    assert cluster.submit(first, second, third) == ["here", "queued", "queued"]
    cluster.report(b"other", CPU=1)
    cluster.assign()
    assert [cluster.fate(each) for each in (second, third)] == ["SPILLBACK other", "queued"]


def test_an_old_report_changes_nothing() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.nodes.on_resources(b"other", 5, {"CPU": 10_000}, {})
    cluster.nodes.on_resources(b"other", 4, {"CPU": 10_000}, {"CPU": 10_000})
    cluster.submit(request(1))
    assert cluster.submit(request(1)) == ["queued"]


def test_a_report_may_come_before_the_node_is_named() -> None:
    cluster = Cluster(CPU=1)
    cluster.report(b"other")
    cluster.join(b"other", CPU=1)
    cluster.submit(request(1))
    assert cluster.submit(request(1)) == ["queued"]


def test_a_dead_node_gets_nothing_even_if_it_is_named_again() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=8)
    cluster.die(b"other")
    cluster.join(b"other", CPU=8)
    assert cluster.submit(request(1), request(1), request(8)) == ["here", "queued", "waiting"]


def test_one_that_waits_for_the_worker_cap_is_offered_to_others_at_once() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    first = request(1)
    cluster.submit(first)
    cluster.local.on_worker_found(first.lease_id)
    cluster.local.set_blocked(first.lease_id, True)
    assert cluster.submit(request(1)) == ["SPILLBACK other"]


# --- The second hop ----------------------------------------------------------------------------------------------------


def test_a_spilled_request_is_granted_or_rejected() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    assert cluster.submit(request(1, second_hop=True), request(1, second_hop=True)) == ["here", "REJECT"]


def test_a_spilled_request_waits_where_nobody_has_room() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.report(b"other")
    cluster.submit(request(1))
    spilled = request(1, second_hop=True)
    assert cluster.submit(spilled) == ["queued"]
    cluster.report(b"other", CPU=1)
    cluster.assign()
    assert cluster.fate(spilled) == "REJECT"


def test_a_spilled_request_that_can_never_run_here_is_rejected() -> None:
    assert Cluster(CPU=1).submit(request(2, second_hop=True)) == ["REJECT"]


# --- Nowhere -----------------------------------------------------------------------------------------------------------


def test_g100_infeasible_work_waits_until_a_feasible_node_joins() -> None:
    cluster = Cluster(CPU=1)
    impossible = request({"GPU": 1})
    assert cluster.submit(impossible) == ["waiting"]
    cluster.join(b"small", CPU=64)
    assert cluster.assign().infeasible == [impossible]
    cluster.join(b"large", CPU=1, GPU=1)
    cluster.assign()
    assert cluster.fate(impossible) == "SPILLBACK large"
    assert cluster.machine.infeasible() == []


def test_g100_infeasible_work_says_what_is_missing() -> None:
    cluster = Cluster(CPU=4)
    cluster.join(b"other", CPU=2, GPU=1)
    why = cluster.machine.why_infeasible
    assert why(request({"spoon": 1})) == "needs {spoon: 1}; no node has spoon"
    assert why(request(8)) == "needs {CPU: 8}; the most that a node has is {CPU: 4}"
    assert why(request({"CPU": 3, "GPU": 1})) == "needs {CPU: 3, GPU: 1}; no single node has all of it"


def labelled(hard: dict[str, str], soft: dict[str, str] | None = None, cpus: float = 1) -> LeaseRequest:
    return request(cpus, labels=LabelSelector(parse_selector(hard), parse_selector(soft or {})))


def test_labels_that_a_node_must_have_are_needs_like_resources() -> None:
    cluster = Cluster(CPU=4)
    cluster.join_with(b"blue", {"colour": "blue"}, CPU=1)
    assert cluster.submit(labelled({"colour": "blue"}), labelled({"colour": "!blue"})) == ["SPILLBACK blue", "here"]
    assert cluster.submit(busy := labelled({"colour": "blue"})) == ["SPILLBACK blue"], "it is waited for there"
    assert busy is not None
    red = labelled({"colour": "in(red,green)"})
    assert cluster.submit(red) == ["waiting"]
    why = cluster.machine.why_infeasible
    assert why(red) == "needs {CPU: 1} on a node with labels {colour: in(green,red)}; no node has such labels"
    assert "the most that a node has is {CPU: 1}" in why(labelled({"colour": "blue"}, cpus=2))
    cluster.join_with(b"red", {"colour": "red"}, CPU=1)
    cluster.assign()
    assert cluster.fate(red) == "SPILLBACK red"


def test_labels_that_are_better_are_only_better() -> None:
    cluster = Cluster(CPU=4)
    cluster.join_with(b"fast", {"disk": "fast"}, CPU=1)
    preferring = [labelled({}, {"disk": "fast"}) for _ in range(2)]
    assert cluster.submit(*preferring) == ["SPILLBACK fast", "here"]


def test_what_waits_here_is_offered_to_others_with_its_labels_alone() -> None:
    cluster = Cluster(CPU=1)
    cluster.nodes.local.labels = {"colour": "blue"}
    cluster.submit(request(1), bound := labelled({"colour": "blue"}), free := request(1))
    cluster.join(b"plain", CPU=2)
    cluster.assign()
    assert [cluster.fate(bound), cluster.fate(free)] == ["queued", "SPILLBACK plain"]


def falling_back(cpus: int, *selectors: dict[str, str]) -> LeaseRequest:
    """One that has these selectors, the best first."""
    hard, *fallbacks = map(parse_selector, selectors)
    return request(cpus, labels=LabelSelector(hard, (), tuple(fallbacks)))


BLUE, GREEN, RED = ({"colour": colour} for colour in ("blue", "green", "red"))


def test_fallbacks_are_tried_in_order_and_the_first_that_has_room_is_taken() -> None:
    cluster = Cluster(CPU=8)
    cluster.join_with(b"green", GREEN, CPU=1)
    cluster.join_with(b"red", RED, CPU=2)
    asked = [falling_back(1, BLUE, GREEN, RED) for _ in range(4)]
    assert cluster.submit(*asked[:3]) == ["SPILLBACK green", "SPILLBACK red", "SPILLBACK red"]
    assert cluster.submit(asked[3]) == ["SPILLBACK green"], "nobody has room, so it waits at the best that could hold it"
    assert cluster.submit(falling_back(1, RED, GREEN, {})) == ["here"]
    assert cluster.submit(falling_back(2, GREEN, RED)) == ["SPILLBACK red"], "the first can never hold it"


def test_a_fallback_that_waits_here_goes_on_to_the_node_it_wants_more() -> None:
    cluster = Cluster(CPU=1)
    cluster.nodes.local.labels = GREEN
    cluster.submit(request(1), waits := falling_back(1, BLUE, GREEN))
    assert cluster.fate(waits) == "queued"
    cluster.join_with(b"red", RED, CPU=1)
    cluster.assign()
    assert cluster.fate(waits) == "queued"
    cluster.join_with(b"blue", BLUE, CPU=1)
    cluster.assign()
    assert cluster.fate(waits) == "SPILLBACK blue"


def test_a_second_hop_by_a_fallback_is_taken_or_rejected_as_any_other() -> None:
    cluster = Cluster(CPU=1)
    cluster.nodes.local.labels = GREEN
    selectors = [parse_selector(BLUE), (parse_selector(GREEN),)]
    here, full = (request(1, labels=LabelSelector(selectors[0], (), selectors[1]), second_hop=True) for _ in range(2))
    assert cluster.submit(here, full) == ["here", "queued"]
    cluster.join_with(b"blue", BLUE, CPU=1)
    cluster.assign()
    assert cluster.fate(full) == "REJECT"


def test_nobody_of_any_fallback_is_waited_for() -> None:
    cluster = Cluster(CPU=1)
    nowhere = falling_back(1, BLUE, {"colour": "in(red,green)"})
    assert cluster.submit(nowhere) == ["waiting"]
    where = "on a node with labels {colour: in(blue)}, or {colour: in(green,red)}"
    assert cluster.machine.why_infeasible(nowhere) == f"needs {{CPU: 1}} {where}; no node has such labels"
    cluster.join_with(b"red", RED, CPU=1)
    cluster.assign()
    assert cluster.fate(nowhere) == "SPILLBACK red"


def test_infeasible_work_can_be_withdrawn() -> None:
    cluster = Cluster(CPU=1)
    impossible = request(8)
    cluster.submit(impossible)
    cluster.machine.withdraw(impossible.lease_id)
    cluster.join(b"large", CPU=8)
    assert cluster.assign().placed == []


def test_infeasible_work_holds_up_nobody() -> None:
    cluster = Cluster(CPU=1)
    assert cluster.submit(request({"GPU": 1}), request(1)) == ["waiting", "here"]


# --- Strategies --------------------------------------------------------------------------------------------------------


def test_spread_goes_round_the_nodes_with_room() -> None:
    cluster = Cluster(CPU=8)
    for node_id in (b"a", b"x", b"full"):
        cluster.join(node_id, CPU=8)
    cluster.report(b"full")
    fates = cluster.submit(*(request(1, strategy=SPREAD) for _ in range(6)))
    assert fates == ["SPILLBACK a", "here", "SPILLBACK x", "SPILLBACK a", "here", "SPILLBACK x"]


def test_g102_a_busy_node_is_waited_for_in_both_cases() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.report(b"other")
    for soft in (False, True):
        assert cluster.submit(request(1, strategy=to_node(b"other", soft))) == ["SPILLBACK other"]
    cluster.submit(request(1))
    cluster.report(b"other", CPU=1)
    hard, soft_one = (request(1, strategy=to_node(b"here", soft), second_hop=True) for soft in (False, True))
    assert cluster.submit(hard, soft_one) == ["queued", "queued"]
    cluster.report(b"other", CPU=1)
    cluster.assign()
    assert [cluster.fate(hard), cluster.fate(soft_one)] == ["queued", "queued"]


def test_g102_hard_affinity_to_a_dead_node_fails_and_soft_goes_elsewhere() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.die(b"other")
    hard, soft = request(1, strategy=to_node(b"other")), request(1, strategy=to_node(b"other", soft=True))
    reason = f"node affinity: node other ({b'other'.hex()}) is dead (it fell)"
    assert cluster.submit(hard, soft) == [f"UNSCHEDULABLE {reason}", "here"]


def test_g102_hard_affinity_to_an_infeasible_node_fails_and_soft_goes_elsewhere() -> None:
    cluster = Cluster(CPU=4)
    cluster.join(b"other", CPU=1)
    hard, soft = request(2, strategy=to_node(b"other")), request(2, strategy=to_node(b"other", soft=True))
    reason = "node affinity: node other can never hold {CPU: 2}; it has {CPU: 1} in all"
    assert cluster.submit(hard, soft) == [f"UNSCHEDULABLE {reason}", "here"]


def test_g102_hard_affinity_to_a_node_with_other_labels_says_so() -> None:
    cluster = Cluster(CPU=4)
    cluster.join(b"other", CPU=4)
    wanted = LabelSelector(hard=parse_selector({"zone": "b"}))
    (fate,) = cluster.submit(request(1, strategy=to_node(b"other"), labels=wanted))
    assert fate.startswith("UNSCHEDULABLE node affinity: the labels of node other are not") and "zone" in fate


def test_g102_a_node_that_nobody_has_named_is_asked_about_first() -> None:
    cluster = Cluster(CPU=1)
    hard, late = request(1, strategy=to_node(b"ghost")), request(1, strategy=to_node(b"late"))
    assert cluster.submit(hard, late) == ["waiting", "waiting"]
    assert cluster.machine.unknown_nodes() == [b"ghost", b"late"]
    cluster.join(b"late", CPU=1)
    cluster.machine.on_nodes_confirmed([b"ghost", b"late"])
    assert cluster.machine.unknown_nodes() == []
    cluster.assign()
    assert cluster.fate(hard) == f"UNSCHEDULABLE node affinity: there is no node {b'ghost'.hex()}"
    assert cluster.fate(late) == "SPILLBACK late"


def test_g102_hard_affinity_to_a_node_that_is_to_leave_says_so() -> None:
    cluster = Cluster(CPU=1)
    cluster.nodes.on_node(b"other", "other", {"CPU": 10_000}, True, "", {}, draining=True)
    (fate,) = cluster.submit(request(1, strategy=to_node(b"other")))
    assert fate.startswith("UNSCHEDULABLE node affinity: node other") and "is to leave the cluster" in fate


def test_g100_infeasible_work_goes_where_there_is_more_than_before() -> None:
    """As when a bundle of a placement group is there."""
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.report(b"other", CPU=1)
    large = request({"bundle": 1})
    assert cluster.submit(large) == ["waiting"]
    more = {"CPU": 10_000, "bundle": 10_000}
    cluster.nodes.on_resources(b"other", 5, more, more)
    cluster.assign()
    assert cluster.fate(large) == "SPILLBACK other"


def test_a_node_that_is_forgotten_gets_nothing() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.nodes.on_node_forgotten(b"other")
    cluster.nodes.on_node_forgotten(b"here")  # a restarted gcs has not heard of us yet
    assert cluster.submit(request(1), request(1)) == ["here", "queued"] and cluster.nodes.get(b"other") is None


# --- Large arguments, leaving ------------------------------------------------------------------------------------------


def test_a_request_whose_arguments_have_come_too_late_for_its_node_is_offered_to_others() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    large = request(1, arguments=[b"x"])
    assert cluster.submit(large, request(1)) == ["waiting", "here"]
    cluster.machine.on_arguments_here(large.lease_id)
    cluster.assign()
    assert cluster.fate(large) == "SPILLBACK other"


def test_what_waits_on_a_node_that_is_to_leave_goes_elsewhere() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    cluster.report(b"other")
    plain, large, hopped = request(1), request(1, arguments=[b"x"]), request(1, second_hop=True)
    assert cluster.submit(request(1), plain, large, hopped) == ["here", "queued", "waiting", "queued"]
    cluster.machine.on_arguments_here(large.lease_id)
    cluster.machine.drain()
    cluster.assign()
    assert [cluster.fate(each) for each in (plain, large, hopped)] == ["SPILLBACK other", "SPILLBACK other", "REJECT"]
    assert cluster.local.waiting() == [] and len(cluster.local.leases) == 1


def test_a_spilled_request_that_wants_another_node_is_rejected() -> None:
    cluster = Cluster(CPU=1)
    cluster.join(b"other", CPU=1)
    assert cluster.submit(request(1, second_hop=True, strategy=to_node(b"other"))) == ["REJECT"]


# --- Policies ----------------------------------------------------------------------------------------------------------


def test_g103_among_equals_the_own_node_is_taken() -> None:
    nodes = [(bytes([number]), used) for number, used in enumerate((0.0, 0.4, 0.6))]
    assert policy.hybrid(nodes, b"\1", 0.5, 3, lambda: 0.99) == b"\1", "under the threshold all are equal"
    assert policy.hybrid(nodes, b"\2", 0.5, 2, lambda: 0.99) == b"\1"


LOADS = st.lists(st.floats(0, 1), min_size=1, max_size=20)


@given(LOADS, st.floats(0, 1, exclude_max=True), st.integers(1, 5))
def test_hybrid_never_prefers_a_fuller_node_by_more_than_the_candidates(
    loads: list[float], chance: float, candidates: int
) -> None:
    nodes = [(bytes([number]), used) for number, used in enumerate(loads)]
    chosen = policy.hybrid(nodes, b"\0", 0.5, candidates, lambda: chance)
    scores = sorted(0 if used < 0.5 else used for used in loads)
    used = dict(nodes)[chosen]
    assert (0 if used < 0.5 else used) <= scores[min(candidates, len(scores)) - 1]


@given(st.lists(st.binary(min_size=1, max_size=2), min_size=1, unique=True), st.binary(max_size=2))
def test_spread_visits_every_node_before_any_twice(ring: list[bytes], last: bytes) -> None:
    visited = []
    for _ in ring:
        last = policy.spread(ring, last)
        visited.append(last)
    assert sorted(visited) == sorted(ring)


# --- Any history -------------------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "spilled", "end", "join", "report", "die", "tick"]), st.integers(0, 9), st.integers(0, 4)
    ),
    max_size=50,
)


@given(EVENTS)
def test_every_request_ends_once_or_is_still_somewhere(events: list[tuple[str, int, int]]) -> None:
    cluster, now = Cluster(CPU=2), 0.0
    submitted, ended, numbers = {}, [], count(1)
    for event, number, amount in events:
        node_id = f"node{number % 3}".encode()
        if event in ("submit", "spilled"):
            new = request(amount, second_hop=event == "spilled", owner=f"owner{number % 2}")
            submitted[new.lease_id] = new
            cluster.machine.submit(new)
        elif event == "end" and cluster.local.leases:
            lease_id = list(cluster.local.leases)[number % len(cluster.local.leases)]
            cluster.local.end(lease_id)
            ended.append(lease_id)
        elif event == "join":
            cluster.join(node_id, CPU=1 + number % 3)
        elif event == "report" and (node := cluster.nodes.get(node_id)) is not None:
            free = {"CPU": min(amount * 10_000, node.total.get("CPU", 0))}
            cluster.nodes.on_resources(node_id, next(numbers), node.total, free)
        elif event == "die" and cluster.nodes.get(node_id):
            cluster.die(node_id)
        elif event == "tick":
            now += amount
        assignment = cluster.assign(now)
        ended += [placement.request.lease_id for placement in assignment.placed]
        for placement in assignment.placed:
            if placement.kind == "SPILLBACK":
                assert not placement.request.grant_or_reject
                view = cluster.nodes.get(placement.node_id)
                assert view is not None and view.alive and fits(placement.request.resources, view.total)
        here = [*cluster.local.leases, *(each.lease_id for each in cluster.local.queued())]
        somewhere = here + [each.lease_id for each in cluster.machine.waiting()]
        assert sorted(somewhere + ended) == sorted(submitted)
