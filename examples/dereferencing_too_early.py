"""Show a classic trap: getting the value of a reference before passing it on.

One actor loads a model, and several others use it. With `get` in between, the model travels through the driver: into its
memory, and out again for each user, and meanwhile the driver submits nothing. If the driver passes on the reference, the
users fetch the model themselves, and the driver never has it.
"""

import argparse

import numpy as np

import minray as ray


class Model:
    """A model that counts how often this process has pickled or unpickled one."""

    packed = unpacked = 0

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def __getstate__(self) -> np.ndarray:
        Model.packed += 1
        return self.weights

    def __setstate__(self, weights: np.ndarray) -> None:
        Model.unpacked += 1
        self.weights = weights


@ray.remote(num_cpus=0)
class Source:
    def load(self, size: int) -> Model:
        return Model(np.ones(size))


@ray.remote(num_cpus=0)
class User:
    def use(self, model: Model) -> float:
        return float(model.weights.sum())


def too_early(source: "ray.ActorHandle", users: "list[ray.ActorHandle]", size: int) -> list[float]:
    model = ray.get(source.load.remote(size))  # the mistake
    return ray.get([user.use.remote(model) for user in users])


def by_reference(source: "ray.ActorHandle", users: "list[ray.ActorHandle]", size: int) -> list[float]:
    model = source.load.remote(size)
    return ray.get([user.use.remote(model) for user in users])


def main(users: int = 4, size: int = 1_000_000) -> dict[str, tuple[int, int]]:
    """Return for both ways how often the driver has unpickled and pickled the model.

    By value the driver pickles it more than once for each user.
    """
    told = {}
    with ray.init(num_cpus=2):
        source, using = Source.remote(), [User.remote() for _ in range(users)]
        for title, way in {"too early": too_early, "by reference": by_reference}.items():
            before = Model.unpacked, Model.packed
            assert way(source, using, size) == [size] * users
            told[title] = (Model.unpacked - before[0], Model.packed - before[1])
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--size", type=int, default=1_000_000, help="number of weights in the model")
    arguments = parser.parse_args()
    for title, (unpacked, packed) in main(arguments.users, arguments.size).items():
        print(f"{title}: the driver has unpacked the model {unpacked} times, and turned it into bytes {packed} times")
