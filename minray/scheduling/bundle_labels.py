"""Label selectors of bundles as resources, so that the placement of bundles knows amounts only.

Ray: src/ray/raylet/scheduling/policy/bundle_scheduling_policy.cc asks the labels beside the resources

A bundle that wants a node in zone ``a`` needs one of ``node with labels {zone: in(a)}``. A node in that zone offers as many
as there are bundles, so that labels never run short; every other node offers none.
"""

from __future__ import annotations

from collections.abc import Mapping

from minray.common.labels import Term, describe_terms, matches
from minray.common.resources import UNIT, ResourceSet

Selectors = Mapping[int, tuple[Term, ...]]
"""Terms of each bundle that has some, by the bundle's index."""


def _name(terms: tuple[Term, ...]) -> str:
    return f"node with labels {describe_terms(terms)}"


def needs_with_labels(bundles: Mapping[int, Mapping[str, int]], selectors: Selectors) -> dict[int, ResourceSet]:
    """Add to the needs of each bundle that of its labels."""
    labels = {index: {_name(terms): UNIT} for index, terms in selectors.items()}
    return {index: {**needs, **labels.get(index, {})} for index, needs in bundles.items()}


def offers_with_labels(
    nodes: Mapping[bytes, Mapping[str, int]], labels: Mapping[bytes, Mapping[str, str]], selectors: Selectors
) -> dict[bytes, ResourceSet]:
    """Add to the resources of each node the labels of these bundles that it satisfies."""
    offers: dict[bytes, ResourceSet] = {}
    for node_id, resources in nodes.items():
        satisfied = {_name(terms) for terms in selectors.values() if matches(terms, labels[node_id])}
        offers[node_id] = {**resources, **dict.fromkeys(satisfied, len(selectors) * UNIT)}
    return offers
