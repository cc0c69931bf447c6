# A broadcast: one value of a megabyte is read on every node. It travels from the
# object store of the driver's node to the stores of the others.
import minray


@minray.remote(num_cpus=2)
def size_of(value):
    return len(value)


value = minray.put(bytes(1 << 20))
print(minray.get([size_of.remote(value) for _ in minray.nodes()]))
