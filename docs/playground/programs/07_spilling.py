# Spilling: twelve values of a megabyte do not fit into a store of eight. The
# raylet writes some to disk, and restores them when they are read.
import minray

values = [minray.put(bytes([number]) * (1 << 20)) for number in range(12)]
print([minray.get(value)[0] for value in values])
