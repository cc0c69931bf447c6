"""Lease requests of a raylet whose configuration names a scheduling policy: where they go, and where they wait."""

from __future__ import annotations

from minray.policies.guards import GuardedScheduling
from minray.policies.schedulers import SCHEDULERS
from tests.policies.questions import Broken, Lost, Patient, Undecided, host
from tests.scheduling.machines import SPREAD, Cluster, request


def test_requests_wait_at_a_full_node_if_the_policy_says_so() -> None:
    cluster = Cluster(own_policy=Patient(host()), CPU=4)
    cluster.join(b"other", CPU=1)
    cluster.report(b"other", CPU=0)
    assert cluster.submit(request(1)) == ["SPILLBACK other"]
    there = Cluster(own_policy=Patient(host()), CPU=1)
    there.join(b"another", CPU=4)
    first, second = request(1, second_hop=True), request(1, second_hop=True)
    assert there.submit(first, second) == ["here", "queued"], "though another node has room"
    there.report(b"another", CPU=3)
    there.assign()
    assert there.fate(second) == "queued"
    there.local.end(first.lease_id)
    there.assign()
    assert there.fate(second) == "here"


def test_the_default_policy_would_have_moved_them() -> None:
    there = Cluster(CPU=1)
    there.join(b"another", CPU=4)
    assert there.submit(*(request(1, second_hop=True) for _ in range(2))) == ["here", "REJECT"]


def test_a_policy_that_fails_changes_no_decision() -> None:
    fates = []
    for policy in (None, Broken, Lost, Undecided):
        own_policy = None if policy is None else GuardedScheduling("scheduling_policy", "mine", policy(host()))
        cluster = Cluster(own_policy=own_policy, CPU=2)
        cluster.join(b"other", CPU=2)
        cluster.report(b"other", CPU=1)
        requests = [request(1) for _ in range(5)] + [request(1, second_hop=True), request(9), request(1, strategy=SPREAD)]
        cluster.submit(*requests)
        cluster.report(b"other", CPU=2)
        cluster.assign()
        fates.append([cluster.fate(each) for each in requests])
    assert fates[0] == fates[1] == fates[2] == fates[3]
    assert {"here", "SPILLBACK other", "waiting"} < set(fates[0])


def test_round_robin_sends_requests_around_though_this_node_has_room() -> None:
    cluster = Cluster(own_policy=SCHEDULERS["round_robin"](host()), CPU=4)
    cluster.join(b"a", CPU=4)
    cluster.join(b"z", CPU=4)
    assert cluster.submit(*(request(1) for _ in range(4))) == ["SPILLBACK a", "here", "SPILLBACK z", "SPILLBACK a"]
