# %% [markdown]
# # minray in a notebook
#
# Everything here works in a program too. A notebook adds tables of values, bars of progress, and the output of tasks below
# the cell that submitted them. `docs/notebooks.md` says how.
#
# `init` starts a cluster on this machine. It ends with the kernel. The value of the cell is a table of the cluster.

# %%
import time

import minray as ray

context = ray.init(num_cpus=2)
context

# %% [markdown]
# ## Tasks
#
# What a task prints appears below this cell, also if another cell runs by then.

# %%
@ray.remote
def square(number: int) -> int:
    print("squaring", number)
    return number * number


ray.get([square.remote(number) for number in (2, 3)])

# %% [markdown]
# ## Progress
#
# `minray.progress` goes around a list of references. The loop gets each one when it is ready.

# %%
@ray.remote(max_retries=0)
def measure(number: int) -> int:
    time.sleep(0.05)
    if number == 7:
        raise ValueError(f"number {number} <cannot> be measured")
    return number


measurements = [measure.remote(number) for number in range(20)]
total = 0
for ref in ray.progress(measurements, desc="measure"):
    try:
        total += ray.get(ref)
    except ValueError as error:
        problem = error
print("the sum is", total)

# %% [markdown]
# A loop inside of a task has its bar here as well.

# %%
from minray.experimental import tqdm_ray


@ray.remote
def load(rows: int) -> int:
    for _ in tqdm_ray.tqdm(range(rows), desc="load", unit="rows"):
        time.sleep(0.01)
    return rows


sum(ray.get([load.remote(30), load.remote(50)]))

# %% [markdown]
# ## References
#
# The table of a reference has its state, its owner and its size. This one is ready:

# %%
ray.put(bytes(1_000_000))

# %% [markdown]
# This one has failed:

# %%
measurements[7]

# %% [markdown]
# And this one waits. The table says for what: no node has four GPUs.

# %%
waiting = square.options(num_gpus=4).remote(4)
waiting

# %% [markdown]
# A cell that waits for it can be interrupted (the stop button, or `I` twice). The cluster goes on. The task still waits, so
# it is cancelled here.

# %%
ray.cancel(waiting)
try:
    ray.get(waiting)
except ray.exceptions.TaskCancelledError:
    print("cancelled")

# %% [markdown]
# ## Actors

# %%
@ray.remote
class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value


counter = Counter.remote()
print(ray.get([counter.add.remote(1) for _ in range(3)]))
counter

# %% [markdown]
# If a cell that defines a function or a class runs again, later calls use the new definition. An actor that lives keeps the
# class that it was made from.

# %%
@ray.remote
class Counter:
    def add(self, amount: int) -> str:
        return f"not counted: {amount}"


ray.get([counter.add.remote(1), Counter.remote().add.remote(1)])

# %% [markdown]
# ## The state of the cluster
#
# The functions of `minray.util.state` return lists, which are tables here.

# %%
from minray.util.state import list_actors, list_nodes

list_nodes()

# %%
list_actors(filters=[("class_name", "=", "Counter")])

# %%
ray.shutdown()
