"""A sample of the attack that ``make attack`` makes on all sockets of a living cluster."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from minray.common.decoding import MALFORMED
from minray.protocol.base import decoder
from tests.attack import campaign
from tests.attack.messages import HARMLESS, MESSAGES, spoiled_message, true_message


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "frames"), [("stream", 400), ("grpc", 400)])
def test_a_cluster_does_not_notice_an_attack_on_its_sockets(transport: str, frames: int) -> None:
    if transport == "grpc":
        pytest.importorskip("grpc")
    figures = campaign.attack(frames, seed=7, transport=transport)
    assert figures.frames >= frames and figures.rounds > 0 and figures.endpoints >= 8


def test_spoiled_messages_are_refused_and_most_harmless_ones_are_understood() -> None:
    """A harmless message may have a time that is none, or a number below zero where that is refused."""
    chance, understood = random.Random(1), 0
    for name, request in MESSAGES.items():
        with pytest.raises(MALFORMED):
            decoder(request).decode(spoiled_message(name, chance))
    for name in HARMLESS * 10:
        with suppress(MALFORMED):
            decoder(MESSAGES[name]).decode(true_message(name, chance))
            understood += 1
    assert understood > 5 * len(HARMLESS)
