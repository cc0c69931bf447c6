"""Two actors on one pod, on two pods of one machine, and on two machines.

    kubectl exec -i deploy/minray-worker -- python - < deploy/kubernetes/two_actors.py

Each worker pod is a node, whose labels name its pod and its machine (base/worker.yaml). With ``import ray`` instead of
minray the program runs on KubeRay, if its nodes have these labels.
"""

import json

import minray as ray

POD, MACHINE = "minray.io/pod", "minray.io/machine"


@ray.remote(num_cpus=0.5)
class Place:
    """An actor that knows where it is."""

    def labels(self):
        node_id = ray.get_runtime_context().get_node_id()
        (labels,) = (node["Labels"] for node in ray.nodes() if node["NodeID"] == node_id)
        return {"pod": labels[POD], "machine": labels[MACHINE]}


def where(actor):
    return ray.get(actor.labels.remote())


def beside(place, selector):
    """Start an actor where the labels satisfy the selector; return the places of both."""
    other = Place.options(label_selector=selector).remote()
    return [place, where(other)]


def main():
    ray.init(log_to_driver=False)
    machines = {}
    for node in ray.nodes():
        if node["Alive"] and MACHINE in node["Labels"]:
            machines.setdefault(node["Labels"][MACHINE], []).append(node["Labels"][POD])
    crowded = max(machines, key=lambda machine: len(machines[machine]))
    first = Place.options(label_selector={MACHINE: crowded}).remote()
    here = where(first)
    print(json.dumps({"one pod": beside(here, {POD: here["pod"]})}))
    if len(machines[crowded]) > 1:
        print(json.dumps({"one machine": beside(here, {MACHINE: here["machine"], POD: f"!{here['pod']}"})}))
    if len(machines) > 1:
        print(json.dumps({"two machines": beside(here, {MACHINE: f"in({','.join(sorted({*machines} - {crowded}))})"})}))


if __name__ == "__main__":
    main()
