"""Train one network on handwritten digits with a parameter server: workers do not wait for each other.

The server is an actor that holds the weights. Each worker is an actor with a part of the images. In each step it fetches
the weights, computes a gradient on a few images, and sends the gradient. When it arrives, its weights may be old; the server
applies it all the same, and records their age. So no worker waits for the slowest one.

The network (64 inputs, one hidden layer, 10 outputs) and its gradient are written in numpy. The images are scikit-learn's
bundled digits: 1,797 of 8 by 8 pixels, every fifth of which is kept back for the test.
"""

import argparse
from typing import NamedTuple

import numpy as np

import minray as ray

Weights = list[np.ndarray]
LEARNING_RATE = 0.1
BATCH = 32


class Digits(NamedTuple):
    images: np.ndarray
    labels: np.ndarray


def load() -> tuple[Digits, Digits]:
    """Return the digits for training and those for testing."""
    try:
        from sklearn.datasets import load_digits  # imported here, because workers do not need it
    except ModuleNotFoundError:
        raise SystemExit('this example needs scikit-learn: pip install "minray[demo]"') from None

    bunch = load_digits()
    images, is_test = bunch.data / 16.0, np.arange(len(bunch.data)) % 5 == 0
    return Digits(images[~is_test], bunch.target[~is_test]), Digits(images[is_test], bunch.target[is_test])


def initial_weights(hidden: int, seed: int) -> Weights:
    dice = np.random.default_rng(seed)
    return [dice.normal(0, 0.1, (64, hidden)), np.zeros(hidden), dice.normal(0, 0.1, (hidden, 10)), np.zeros(10)]


def forward(weights: Weights, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden layer, and the probabilities of the ten digits, for each image."""
    hidden = np.maximum(images @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def gradient(weights: Weights, batch: Digits) -> Weights:
    """Return the gradient of the mean cross entropy of a batch."""
    hidden, error = forward(weights, batch.images)
    error[np.arange(len(error)), batch.labels] -= 1
    error /= len(error)
    behind = (error @ weights[2].T) * (hidden > 0)
    return [batch.images.T @ behind, behind.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def accuracy(weights: Weights, digits: Digits) -> float:
    return float((forward(weights, digits.images)[1].argmax(axis=1) == digits.labels).mean())


@ray.remote(num_cpus=0)
class ParameterServer:
    def __init__(self, weights: Weights) -> None:
        self.weights = [array.copy() for array in weights]
        self.version = 0
        self.ages: list[int] = []

    def pull(self) -> tuple[int, Weights]:
        """Return the version of the weights, which is the number of applied gradients, and the weights."""
        return self.version, self.weights

    def push(self, version: int, gradient: Weights) -> None:
        """Apply a gradient that was computed for an earlier version."""
        self.ages.append(self.version - version)
        self.version += 1
        for array, slope in zip(self.weights, gradient, strict=True):
            array -= LEARNING_RATE * slope

    def mean_age(self) -> float:
        return float(np.mean(self.ages))


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, server: "ray.ActorHandle", digits: Digits, seed: int) -> None:
        self.server, self.digits, self.dice = server, digits, np.random.default_rng(seed)

    def train(self, steps: int) -> int:
        """Train for some steps. A step waits for the weights, but not until its gradient has been applied."""
        for _ in range(steps):
            version, weights = ray.get(self.server.pull.remote())
            chosen = self.dice.integers(len(self.digits.labels), size=BATCH)
            batch = Digits(self.digits.images[chosen], self.digits.labels[chosen])
            self.server.push.remote(version, gradient(weights, batch))
        return steps


def main(workers: int = 4, steps: int = 300, hidden: int = 32) -> dict[str, float]:
    training, testing = load()
    with ray.init(num_cpus=2):
        server = ParameterServer.remote(initial_weights(hidden, seed=0))
        parts = [Digits(training.images[part::workers], training.labels[part::workers]) for part in range(workers)]
        crew = [Worker.remote(server, part, seed) for seed, part in enumerate(parts)]
        before = accuracy(ray.get(server.pull.remote())[1], testing)
        for portion in range(1, 6):
            ray.get([worker.train.remote(steps // 5) for worker in crew])
            version, weights = ray.get(server.pull.remote())
            print(f"after {version:5} gradients ({portion * 20} %): {accuracy(weights, testing):.1%} of the test images")
        mean_age = ray.get(server.mean_age.remote())
    return {"before": before, "accuracy": accuracy(weights, testing), "gradients": version, "mean age": mean_age}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300, help="number of steps of each worker")
    parser.add_argument("--hidden", type=int, default=32, help="number of neurons in the hidden layer")
    arguments = parser.parse_args()
    told = main(arguments.workers, arguments.steps, arguments.hidden)
    print(f"{told['before']:.1%} before, {told['accuracy']:.1%} after {told['gradients']:,} gradients,", end=" ")
    print(f"which were {told['mean age']:.1f} versions old on average")
