# Spillback: eight tasks of a second, and two CPUs on each node. The raylet of the
# driver has no room for all of them, and sends requests for leases to other nodes.
import time

import minray


@minray.remote
def busy(number):
    time.sleep(1)
    return minray.get_runtime_context().get_node_id()[:4]


places = minray.get([busy.remote(number) for number in range(8)])
for place in sorted(set(places)):
    print(f"node {place} has run {places.count(place)} tasks")
