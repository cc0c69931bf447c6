"""Sort more data than fits into memory: objects for which the object store has no room are spilled to disk and restored.

    python examples/external_sort.py --gibibytes 10 --store-gibibytes 1 --partitions 50

There are two stages of tasks, as in every shuffle. `split` makes one part of the input and cuts it by value into one piece
for each partition. `merge` takes one piece of every part, all of the same range of values, and sorts them. Every `merge`
needs a piece of every `split`, so all pieces exist at once, in the object store or on disk.

This program gets only small summaries. Each `merge` returns the number of its keys, the smallest, the largest, and a
checksum. The data is sorted if the ranges do not overlap, counts and checksums equal those of the input, and each partition
is in order. The sorted keys themselves are dropped; a job that needs them would write them in `merge`.
"""

import argparse
import sys
import time

import numpy as np

import minray as ray

KEY_BYTES = 8


@ray.remote
def split(part: int, keys: int, partitions: int) -> list[np.ndarray]:
    """Return the pieces of one part of the input, followed by the part's checksum."""
    values = np.random.default_rng(part).integers(0, 1 << 63, keys, dtype=np.uint64)
    width = -(-(1 << 63) // partitions)
    targets = (values // np.uint64(width)).astype(np.int64)
    order = np.argsort(targets, kind="stable")
    ends = np.searchsorted(targets[order], np.arange(1, partitions))
    return [*np.split(values[order], ends), np.array([np.bitwise_xor.reduce(values)])]


@ray.remote
def merge(*pieces: np.ndarray) -> tuple[int, int, int, int]:
    """Sort the pieces; return the number of keys, the smallest, the largest, and their checksum."""
    values = np.sort(np.concatenate(pieces))
    assert bool(np.all(values[:-1] <= values[1:]))
    return len(values), int(values[0]), int(values[-1]), int(np.bitwise_xor.reduce(values))


@ray.remote
def checksum_of(*sums: np.ndarray) -> int:
    return int(np.bitwise_xor.reduce(np.concatenate(sums)))


def show_progress(stage: str, refs: list[ray.ObjectRef], is_shown: bool) -> None:
    """Wait for all tasks, and show a progress bar on standard error."""
    pending, width = refs, 40
    while pending:
        _, pending = ray.wait(pending, num_returns=1, fetch_local=False)
        if is_shown:
            done = len(refs) - len(pending)
            bar = "#" * (width * done // len(refs))
            print(f"\r{stage:6} [{bar:{width}}] {done}/{len(refs)}", end="" if pending else "\n", file=sys.stderr)


def main(
    data_bytes: int = 64 << 20, store_bytes: int = 32 << 20, partitions: int = 8, is_shown: bool = False
) -> dict[str, object]:
    keys = max(1, data_bytes // KEY_BYTES // partitions)
    with ray.init(num_cpus=2, object_store_memory=store_bytes):
        begin = time.perf_counter()
        splitting = split.options(num_returns=partitions + 1)
        parts = [splitting.remote(part, keys, partitions) for part in range(partitions)]
        show_progress("split", [pieces[-1] for pieces in parts], is_shown)
        expected = checksum_of.remote(*(pieces[-1] for pieces in parts))
        merged = [merge.remote(*(pieces[index] for pieces in parts)) for index in range(partitions)]
        del parts
        show_progress("merge", merged, is_shown)
        results = ray.get(merged)
        seconds = time.perf_counter() - begin
        checksum = 0
        for *_, one in results:
            checksum ^= one
        in_order = all(left[2] <= right[1] for left, right in zip(results[:-1], results[1:], strict=True))
        store = ray.internal.memory_summary(units="MB", stats_only=True).splitlines()
        return {
            "sorted": in_order and sum(result[0] for result in results) == keys * partitions,
            "checksum is right": checksum == ray.get(expected),
            "seconds": round(seconds, 2),
            "store": next((line for line in store if line.startswith("Spilled")), "Nothing was spilled."),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sort more data than fits into memory.")
    parser.add_argument("--gibibytes", type=float, default=1.0, help="size of the data")
    parser.add_argument("--store-gibibytes", type=float, default=0.25, help="size of the object store")
    parser.add_argument("--partitions", type=int, default=20, help="number of parts of the data")
    arguments = parser.parse_args()
    if min(arguments.gibibytes, arguments.store_gibibytes, arguments.partitions) <= 0:
        parser.error("sizes and the number of partitions must be positive")
    sizes = int(arguments.gibibytes * (1 << 30)), int(arguments.store_gibibytes * (1 << 30))
    for name, value in main(*sizes, arguments.partitions, is_shown=True).items():
        print(f"{name}: {value}")
