"""A classic trap: actors that wait for each other's resources for ever.

Two trainers hold the two GPUs there are, for life, and each makes a loader that needs a GPU too. No loader can begin before
a trainer ends, and no trainer ends before its loader has begun. Nothing fails, nothing runs, nothing is printed; the machine
is idle. CPUs that a blocked task holds are lent to others meanwhile; GPUs and custom resources never are.

`why` tells who waits for what and who has it. The remedy is to ask for everything at once, or for less: here a trainer and
its loader share a GPU.
"""

import argparse

import minray as ray


@ray.remote
class Loader:
    def load(self) -> int:
        return 1


@ray.remote
class Trainer:
    def train(self, loader_gpus: float, patience_s: float) -> str:
        """Trains with a loader of its own; gives up after a while, and then says why."""
        loader = Loader.options(num_cpus=0, num_gpus=loader_gpus).remote()
        batch = loader.load.remote()
        loaded, _ = ray.wait([batch], timeout=patience_s)
        return f"trained with {ray.get(batch)} batch" if loaded else ray.why(batch)


def train(gpus_each: float, patience_s: float) -> list[str]:
    trainers = [Trainer.options(num_cpus=0, num_gpus=gpus_each).remote() for _ in range(2)]
    ray.get([trainer.__ray_ready__.remote() for trainer in trainers])
    told = ray.get([trainer.train.remote(gpus_each, patience_s) for trainer in trainers])
    for trainer in trainers:
        ray.kill(trainer)  # Left alone, it would wait for its loader, which still has a call to answer.
    return told


def main(patience_s: float = 1.0) -> dict[str, list[str]]:
    with ray.init(num_cpus=2, num_gpus=2):
        stuck = train(gpus_each=1, patience_s=patience_s)
        shared = train(gpus_each=0.5, patience_s=30)
    return {"a GPU each": stuck, "half a GPU each": shared}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patience-s", type=float, default=1.0, help="how long a trainer waits for its loader")
    for title, told in main(parser.parse_args().patience_s).items():
        print(f"{title}:", *told, sep="\n    ")
