"""Programs that the tests of the manifests run inside pods; each joins the node of its pod, and prints one line of JSON."""

from __future__ import annotations

JOB = """
import json, os, minray
minray.init(log_to_driver=False)
@minray.remote
def square(number):
    return number * number, os.uname().nodename
found = minray.get([square.remote(number) for number in range(40)])
print(json.dumps({
    "sum": sum(value for value, _ in found),
    "pods": sorted({pod for _, pod in found}),
    "nodes": [
        {"name": node["NodeName"], "alive": node["Alive"], "ip": node["NodeManagerAddress"],
         "cpus": node["Resources"].get("CPU", 0), "memory": node["Resources"].get("memory", 0), "labels": node["Labels"]}
        for node in minray.nodes()
    ],
}))
"""

MAKE_ACTORS = """
import json, minray
minray.init(namespace="shop", log_to_driver=False)
@minray.remote(max_restarts=-1, max_task_retries=-1)
class Counter:
    def __init__(self):
        self.count = 0
    def add(self):
        self.count += 1
        return self.count
    def ask(self, name):
        return minray.get(minray.get_actor(name).add.remote())
actors = [Counter.options(name=f"counter-{i}", lifetime="detached").remote() for i in range(4)]
print(json.dumps(minray.get([actor.add.remote() for actor in actors])))
"""

CALL_ACTORS = """
import json, minray
minray.init(namespace="shop", log_to_driver=False)
actors = [minray.get_actor(f"counter-{i}") for i in range(4)]
print(json.dumps([minray.get(actor.ask.remote(f"counter-{(i + 1) % 4}")) for i, actor in enumerate(actors)]))
"""

LASTING_DRIVER = """
import json, pathlib, sys, time, minray
minray.init(namespace="lasting", log_to_driver=False)
@minray.remote
class Own:
    def same(self, value):
        return value
@minray.remote
def add(one, other):
    return one + other
own, kept = Own.remote(), minray.put(bytes(1_000_000))
minray.get(own.same.remote(1))
pathlib.Path("/tmp/begun").touch()
while not pathlib.Path("/tmp/go").exists():
    time.sleep(0.05)
newer = Own.remote()
print(json.dumps([
    minray.get(own.same.remote(2)), minray.get(add.remote(1, 2)), minray.get(newer.same.remote(4)), len(minray.get(kept)),
]))
"""
