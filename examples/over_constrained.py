"""Show a classic trap: actors that wait for each other's resources for ever.

Two trainers hold the cluster's two GPUs as long as they live, and each makes a loader that needs a GPU too. No loader can
start before a trainer ends, and no trainer ends before its loader has started. Nothing fails, nothing runs, nothing is
printed, and the machine is idle. The CPUs of a blocked task are lent to other tasks; GPUs and custom resources never are.

`why` names the resource that an actor waits for, and the actors that hold it. The remedy is to request all resources at
once, or fewer: here a trainer and its loader share a GPU.
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
        """Train with a loader of its own; after ``patience_s`` seconds give up and return the reason."""
        loader = Loader.options(num_cpus=0, num_gpus=loader_gpus).remote()
        batch = loader.load.remote()
        loaded, _ = ray.wait([batch], timeout=patience_s)
        return f"trained with {ray.get(batch)} batch" if loaded else ray.why(batch)


def train(gpus_each: float, patience_s: float) -> list[str]:
    trainers = [Trainer.options(num_cpus=0, num_gpus=gpus_each).remote() for _ in range(2)]
    ray.get([trainer.__ray_ready__.remote() for trainer in trainers])
    told = ray.get([trainer.train.remote(gpus_each, patience_s) for trainer in trainers])
    for trainer in trainers:
        ray.kill(trainer)  # Otherwise it would wait for its loader, which still has a call to answer.
    return told


def main(patience_s: float = 1.0) -> dict[str, list[str]]:
    with ray.init(num_cpus=2, num_gpus=2):
        stuck = train(gpus_each=1, patience_s=patience_s)
        shared = train(gpus_each=0.5, patience_s=30)
    return {"a GPU each": stuck, "half a GPU each": shared}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patience-s", type=float, default=1.0, help="seconds that a trainer waits for its loader")
    for title, told in main(parser.parse_args().patience_s).items():
        print(f"{title}:", *told, sep="\n    ")
