# A gcs restart: the driver kills the gcs, the first process of the head. Calls go
# on without it. A new gcs loads the tables; only then can an actor be created.
import os

import minray


@minray.remote
class Counter:
    def __init__(self):
        self.count = 0

    def increment(self):
        self.count += 1
        return self.count


before = Counter.remote()
print(minray.get(before.increment.remote()))
os.kill(1001, 9)
print(minray.get(before.increment.remote()), "without a gcs")
after = Counter.remote()
print(minray.get(after.increment.remote()), "with the next gcs")
