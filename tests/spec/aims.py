"""Aims: worlds whose faults strike one conversation often, or a process at its last messages.

Each step leaves most worlds as they are, and worlds that are made for other faults too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

import msgspec

from minray.simulation.faults import LOUD
from tests.spec.conversations import CONVERSATIONS
from tests.spec.scenario import World

LATE_FREES = (
    "FreeObjects", "ReleasePins", "RemoveBorrower", "DeleteObjects", "EvictObjects", "AbortObject", "ReturnWorkerLease",
    "CancelWorkerLease", "RemovePlacementGroup", "EndActor",
)  # fmt: skip
"""Requests that give something back, and find it given back already when they come after their sender's death."""
LATE_REQUESTS = (
    "RequestWorkerLease", "PushTask", "PushActorTask", "RegisterActor", "CreateActor", "AddBorrower", "PinObjects",
    "CreateObject", "GetObject", "GetObjects", "GetObjectLocations", "CreatePlacementGroup", "CancelTask", "KillActor",
    "KvPut",
)  # fmt: skip
"""Requests of something that no process gives back if they come after their sender's death."""
TALK: Mapping[str, tuple[str, ...]] = {
    "Held": ("store", "value", "borrowing", "freeing"),
    "Stopped": ("task", "cancellation", "call of an actor", "end of an actor", "generator"),
    "Poured": ("generator", "freeing", "borrowing"),
    "Crowd": ("birth of a placement group", "end of a placement group", "lease"),
    "Rush": ("lease", "task", "cancellation"),
    "Brief": ("birth of an actor", "end of an actor"),
    "Remade": ("store", "value", "freeing"),
    "Census": ("introspection", "call of an actor"),
}
"""Story -> the conversations that it holds."""
ALL_QUIET = ("duplicate", "break", "delay")
OFTEN = {"duplicate": (0.1, 0.4), "break": (0.02, 0.1, 0.4), "delay": (0.1, 0.4)}
"""Kind of fault -> its rates in an aimed conversation."""
HEAVY = ("PushActorTask", "PushTask")
"""Requests with heavy answers."""
SENDERS = ("worker/", "worker/", "driver/", "raylet/n", "gcs")
"""Roles whose last messages come late."""


def quiet_rates(world: World) -> dict[str, float]:
    """Rates of all kinds of faults that are not loud."""
    return {kind: rate for kind, rate in world.rates.items() if kind not in LOUD}


def is_aimed(world: World) -> bool:
    """Whether a world is made for certain faults, which others would keep from striking."""
    return bool(world.moves) or _strikes_certain_steps(world)


def is_taken(world: World) -> bool:
    """Whether a world is made for certain faults, or has faults that need all of its budget."""
    return is_aimed(world) or not world.rates.keys().isdisjoint(("memory", "spawn"))


def _strikes_certain_steps(world: World) -> bool:
    return bool(world.struck_tasks) or not world.rates.keys().isdisjoint(("last_words", "rift"))


def _strikes_elsewhere(world: World) -> bool:
    """Whether faults of a world strike certain steps or messages. Nodes may come and go all the same."""
    return bool(world.aimed) or _strikes_certain_steps(world)


def with_conversations(world: World, random: Random) -> World:
    """In a third of the worlds with duplicates or breaks, aim them at any one conversation; in half of these, delays too."""
    has_any = not world.rates.keys().isdisjoint(("duplicate", "break"))
    if is_taken(world) or not has_any or random.random() >= 0.33:
        return world
    rates = world.rates | {kind: random.choice(OFTEN[kind]) for kind in ("duplicate", "break")}
    further = random.choice(((), (), ("delay",), ("delay", "reset")))
    rates |= {"delay": 0.4} if further else {}
    rates |= {"reset": random.choice((0.02, 0.1))} if "reset" in further else {}
    budget = world.budget + ("reset" in further)
    return msgspec.structs.replace(world, rates=rates, budget=budget, aims=_any_conversation(random), aimed=further)


def with_talk_of_stories(world: World, stories: Collection[str], random: Random) -> World:
    """In half of the worlds without other aims, aim quiet faults at a conversation that the program's stories hold.

    Nodes may come and go meanwhile, or processes lack memory: these faults take nothing from the budget.
    """
    talk = [conversation for story in sorted(stories) for conversation in TALK.get(story, ())]
    if _strikes_elsewhere(world) or not world.rates or not talk or random.random() < 0.5:
        return world
    kinds = random.choice((("duplicate",), ("break",), ("duplicate", "break"), ("delay",), ("break", "delay"), ALL_QUIET))
    rates = world.rates | {kind: random.choice(OFTEN[kind]) for kind in kinds}
    aimed = ("delay",) if "delay" in kinds else ()
    return msgspec.structs.replace(world, rates=rates, aims=CONVERSATIONS[random.choice(talk)], aimed=aimed)


def with_late_messages(world: World, random: Random) -> World:
    """In a tenth of the worlds, delay some messages of one conversation for longer than most processes wait."""
    if is_taken(world) or random.random() >= 0.1:
        return world
    rates = quiet_rates(world) | {"long_delay": random.choice((0.03, 0.1, 0.4))}
    return msgspec.structs.replace(
        world, rates=rates, budget=random.randint(1, 3), aims=_any_conversation(random), aimed=("long_delay",)
    )


def with_posthumous_messages(world: World, random: Random) -> World:
    """In an eighth of the worlds, let a process die when it sends a message, which arrives after the news of its death.

    These are requests that give something back, requests of something, or all messages of one conversation.
    """
    senders = [role for role in SENDERS if role != "raylet/n" or len(world.nodes) > 1]
    if is_taken(world) or random.random() >= 0.125:
        return world
    role = random.choice(senders)
    rates = quiet_rates(world) | {"posthumous": random.choice((0.02, 0.1, 0.4))}
    rates.pop("crash_prefix", None)  # It would lose the last messages.
    return msgspec.structs.replace(
        world,
        rates=rates,
        budget=random.choice((1, 1, 2)),
        targets=(role,),
        aims=random.choice((LATE_FREES, LATE_REQUESTS, _any_conversation(random))),
        inline_limit=world.inline_limit or random.choice((0, 1)),
        durable=role == "gcs" or world.durable,
    )


def with_instants(world: World, random: Random) -> World:
    """In an eighth of the worlds, strike processes before they send, receive or handle messages of a conversation."""
    if is_taken(world) or "posthumous" in world.rates or random.random() >= 0.125:
        return world
    words = _any_conversation(random)
    words = random.choice((words, tuple(random.sample(words, 1))))
    sides = random.choice((("send ",), ("receive ",), ("",), ("send ", "receive ", "")))
    roles = tuple(random.sample(SENDERS, random.choice((1, 2))))
    kind = random.choice(("crash", "crash", "crash", "node_loss", "long_stall"))
    return msgspec.structs.replace(
        world,
        rates=quiet_rates(world) | {kind: random.choice((0.03, 0.1, 0.4))},
        budget=random.choice((1, 1, 2)),
        targets=roles,
        struck_tasks=tuple(f"{side}{word}" for side in sides for word in words),
        at_messages=True,
        inline_limit=world.inline_limit or random.choice((0, 1)),
        durable=world.durable or "gcs" in roles,
    )


def with_silence(world: World, words: tuple[str, ...], random: Random) -> World:
    """In half of the worlds, cut nodes off for long while these messages travel between them."""
    if _strikes_elsewhere(world) or len(world.nodes) == 1 or random.random() < 0.5:
        return world
    rates = quiet_rates(world) | {"cut": random.choice((0.03, 0.1, 0.3))}
    return msgspec.structs.replace(world, rates=rates, budget=random.randint(1, 3), aims=words, aimed=("cut",))


def _any_conversation(random: Random) -> tuple[str, ...]:
    return CONVERSATIONS[random.choice(list(CONVERSATIONS))]
