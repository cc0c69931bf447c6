# A placement group: two bundles on two nodes. The gcs reserves both in two
# phases, and a task then runs in each.
import minray
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@minray.remote(num_cpus=1)
def where():
    return minray.get_runtime_context().get_node_id()[:4]


group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
minray.get(group.ready())
strategies = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index) for index in range(2)]
nodes = minray.get([where.options(scheduling_strategy=strategy).remote() for strategy in strategies])
print(f"{len(set(nodes))} nodes")
remove_placement_group(group)
