# An actor restart: a call kills the actor's process. The gcs starts another one,
# whose state is new, and the next call goes there.
import os
import time

import minray


@minray.remote(max_restarts=1, max_task_retries=0)
class Counter:
    def __init__(self):
        self.count = 0

    def increment(self):
        self.count += 1
        return self.count

    def crash(self):
        os._exit(1)


counter = Counter.remote()
print(minray.get([counter.increment.remote() for _ in range(3)]))
try:
    minray.get(counter.crash.remote())
except minray.exceptions.RayActorError as error:
    print(type(error).__name__)
time.sleep(1)
print(minray.get(counter.increment.remote()))
