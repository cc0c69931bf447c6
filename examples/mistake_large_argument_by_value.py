"""Show a classic mistake: passing the same large value to many tasks by value.

Every `remote(table, ...)` serialises the table again, because minray cannot know that it is the table of the last call.
`put` it once and pass the reference: the tasks receive the same value. The table here counts its serialised bytes.
"""

import minray as ray

serialised = {"bytes": 0}  # counted in the process that serialises: this one


class Table:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def __reduce__(self) -> tuple[type["Table"], tuple[bytes]]:
        serialised["bytes"] += len(self.content)
        return Table, (self.content,)


@ray.remote
def look_up(table: Table, row: int) -> int:
    return table.content[row]


def main(tasks: int = 20, size: int = 2_000_000) -> dict[str, int]:
    table = Table(bytes(range(250)) * (size // 250))
    with ray.init(num_cpus=2):
        serialised["bytes"] = 0
        slow = ray.get([look_up.remote(table, row) for row in range(tasks)])  # the mistake
        by_value = serialised["bytes"]

        serialised["bytes"] = 0
        reference = ray.put(table)
        right = ray.get([look_up.remote(reference, row) for row in range(tasks)])
        by_reference = serialised["bytes"]
    assert slow == right
    print(f"{tasks} tasks serialise {by_value:,} bytes by value, {by_reference:,} by reference")
    return {"by value": by_value, "by reference": by_reference}


if __name__ == "__main__":
    main()
