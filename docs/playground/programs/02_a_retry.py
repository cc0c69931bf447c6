# A retry: the first attempt kills its worker. The owner of the task hears of it
# and submits the task again, to another worker.
import os

import minray


@minray.remote
class Attempts:
    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        return self.count


@minray.remote(max_retries=2)
def fragile(attempts):
    number = minray.get(attempts.next.remote())
    if number == 1:
        os._exit(1)
    return f"attempt {number} has succeeded"


print(minray.get(fragile.remote(Attempts.remote())))
