"""Learn to balance a pole with evolution strategies: try random changes of a policy, with an actor for each environment.

Each actor has a CartPole of its own (gymnasium). In each generation the driver draws directions in the space of policies.
The actors try each direction forwards and backwards, and the driver moves the policy towards the directions that balanced
the pole longer. Only the seed of a direction is sent, not the direction: each process draws the noise again from the seed.

The policy is linear (4 observations, 2 actions). The learning curve is drawn into a file if matplotlib is installed, and as
text otherwise. Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (2017).
"""

import argparse
import importlib.util
from functools import partial

import numpy as np

import minray as ray
from minray.util import ActorPool

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise SystemExit(f'this example needs {error.name}: pip install "minray[demo]"') from None

SIGMA = 0.5
"""Standard deviation of a trial's change of the policy."""
LEARNING_RATE = 0.3
MOST = 500
"""Most steps of an episode."""


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, 2))


@ray.remote(num_cpus=0)
class Environment:
    def __init__(self) -> None:
        self.game = gymnasium.make("CartPole-v1", max_episode_steps=MOST)

    def play(self, policy: np.ndarray, seed: int) -> float:
        """Return for how many steps a policy balances the pole."""
        observation, _ = self.game.reset(seed=seed)
        total, is_over = 0.0, False
        while not is_over:
            observation, reward, fell, is_late, _ = self.game.step(int((observation @ policy).argmax()))
            total += float(reward)
            is_over = fell or is_late
        return total

    def compare(self, policy: np.ndarray, seed: int) -> tuple[int, float, float]:
        """Return a direction's seed, and the steps with the policy moved forwards and backwards."""
        step = SIGMA * noise(seed)
        return seed, self.play(policy + step, seed), self.play(policy - step, seed)


def compare(policy: "ray.ObjectRef", actor: "ray.ActorHandle", seed: int) -> "ray.ObjectRef":
    return actor.compare.remote(policy, seed)


def play(policy: "ray.ObjectRef", actor: "ray.ActorHandle", seed: int) -> "ray.ObjectRef":
    return actor.play.remote(policy, seed)


def improved(policy: np.ndarray, trials: list[tuple[int, float, float]]) -> np.ndarray:
    """Return the policy, moved along each direction by the difference between forwards and backwards."""
    differences = np.array([forwards - backwards for _, forwards, backwards in trials])
    scale = differences.std() or 1.0
    slope = sum(difference / scale * noise(seed) for difference, (seed, _, _) in zip(differences, trials, strict=True))
    return policy + LEARNING_RATE / len(trials) / SIGMA * np.asarray(slope)


def main(environments: int = 4, directions: int = 16, generations: int = 12, seed: int = 1) -> list[float]:
    """Return the mean number of steps of the policy after each generation."""
    curve = []
    with ray.init(num_cpus=2):
        pool: ActorPool[int] = ActorPool([Environment.remote() for _ in range(environments)])
        policy = np.zeros((4, 2))
        for generation in range(generations):
            seeds = range(seed * 1_000_000 + generation * directions, seed * 1_000_000 + (generation + 1) * directions)
            trials = pool.map_unordered(partial(compare, ray.put(policy)), seeds)
            policy = improved(policy, sorted(trials))
            played = pool.map(partial(play, ray.put(policy)), range(8))
            curve.append(float(np.mean(list(played))))
            print(f"generation {generation + 1:3}: {curve[-1]:5.0f} of {MOST} steps")
    return curve


def draw(curve: list[float], path: str) -> str:
    """Draw the learning curve into a picture, or as lines of text; return the text to print."""
    if importlib.util.find_spec("matplotlib") is None:
        return "\n".join("#" * max(1, round(60 * value / MOST)) for value in curve)
    from matplotlib import pyplot

    pyplot.plot(range(1, len(curve) + 1), curve)
    pyplot.xlabel("generation")
    pyplot.ylabel("steps for which the pole stands")
    pyplot.savefig(path)
    return f"the learning curve is in {path}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environments", type=int, default=4)
    parser.add_argument("--directions", type=int, default=16, help="number of directions tried in a generation")
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--picture", default="learning_curve.png", metavar="FILE")
    arguments = parser.parse_args()
    learnt = main(arguments.environments, arguments.directions, arguments.generations, arguments.seed)
    print(draw(learnt, arguments.picture))
