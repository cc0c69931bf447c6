# The life of a task: the driver asks its raylet for a lease of a worker, pushes
# the task to that worker, and gives the lease back.
import minray


@minray.remote
def double(number):
    print(f"doubling {number}")
    return 2 * number


print(minray.get(double.remote(21)))
