"""A raylet's part in placement groups: it holds bundles for them, and ends the work of those that were removed.

Ray: src/ray/raylet/node_manager.cc (HandlePrepareBundleResources, HandleCommitBundleResources, HandleCancelResourceReserve,
HandleReleaseUnusedBundles)

What is held is the resource manager's business, and who works in it the lease broker's; this joins the two with the gcs.
A lease in a group is asked for before its bundles are anywhere, and waits here as one that no node can hold. So from the
first such request on the node follows the news of all groups: one that was removed ends its requests, wherever they wait.
A group that the news have not named is asked about; if the gcs does not know it, then it was removed long ago. A node that
is to leave follows the news of the groups that it has bundles of: the gcs places these anew, and has nothing more to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from minray.platform.base import Buffer, Platform, PlatformError
from minray.protocol.base import DONE, Done, decode
from minray.protocol.placement_group import (
    PLACEMENT_GROUPS,
    CommitBundles,
    CommitBundlesReply,
    GetPlacementGroup,
    PlacementGroupInfo,
    PlacementGroupReply,
    PrepareBundles,
    PrepareBundlesReply,
    ReleaseUnusedBundles,
    RemoveBundles,
    ReturnBundles,
)
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.placement_group_resource_manager import PlacementGroupResourceManager
from minray.rpc.connection import Peer
from minray.rpc.pubsub import Subscription
from minray.rpc.service import Call

REMOVED = "REMOVED"
"""The state of a group in which nothing runs any more."""


class PlacementGroups:
    """The bundles of one node, and what it knows of all groups."""

    def __init__(self, platform: Platform, gcs: Peer, broker: LeaseBroker) -> None:
        self._gcs = gcs
        self._broker = broker
        self.bundles = PlacementGroupResourceManager(broker.local.resources, platform.record)
        self._known: dict[bytes, None] = {}
        """Groups that the news have named and that are not removed."""
        self._asked: dict[bytes, None] = {}
        """Groups that the gcs was asked about, and has not answered yet."""
        self._subscription: Subscription | None = None

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    # --- Bundles

    def handle_PrepareBundles(self, request: PrepareBundles, call: Call) -> PrepareBundlesReply:
        if self._broker.leaving:
            return PrepareBundlesReply("this node is to leave the cluster")
        refused = self.bundles.prepare(request.group_id, request.attempt, request.bundles)
        self._broker.advance()
        return PrepareBundlesReply(refused)

    def handle_CommitBundles(self, request: CommitBundles, call: Call) -> CommitBundlesReply:
        missing = self.bundles.commit(request.group_id, request.bundles)
        self._broker.nodes.joined = True
        self._broker.advance()
        return CommitBundlesReply(missing)

    def handle_ReturnBundles(self, request: ReturnBundles, call: Call) -> Done:
        self.bundles.give_back(request.group_id, request.attempt)
        self._broker.advance()
        return DONE

    def handle_RemoveBundles(self, request: RemoveBundles, call: Call) -> Done:
        self._remove(request.group_id)
        return DONE

    def handle_ReleaseUnusedBundles(self, request: ReleaseUnusedBundles, call: Call) -> Done:
        removed = self.bundles.release_unused(request.generation, request.in_use)
        if not self._broker.leaving:  # There they were moved; of those that were removed it hears by the news.
            for group_id in removed:
                self._remove(group_id)
        self._broker.advance()
        return DONE

    def on_leave(self) -> None:
        """This node is to leave: what becomes of the groups in its bundles?"""
        for bundle in self.bundles.all():
            self.on_request(bundle.group_id)

    def _remove(self, group_id: bytes) -> None:
        self.bundles.remove(group_id)
        self._broker.on_group_removed(group_id)
        self._broker.advance()

    def settle(self) -> None:
        """Leases may have ended: give back what they were the last to use."""
        if self.bundles.settle(self._broker.works_in_group):
            self._broker.advance()

    # --- Groups

    def on_request(self, group_id: bytes) -> None:
        """Somebody wants a lease in this group."""
        if self._subscription is None:
            self._subscription = Subscription(self._gcs, PLACEMENT_GROUPS, self._on_group)
            self._subscription.start()
        if group_id in self._known or group_id in self._asked:
            return
        self._asked[group_id] = None

        def on_answer(reply: PlacementGroupReply | None, error: PlatformError | None, buffers: Sequence[Buffer]) -> None:
            del self._asked[group_id]
            if reply is not None and (reply.group is None or reply.group.state == REMOVED):
                self._remove(group_id)

        self._gcs.send(GetPlacementGroup(group_id), on_answer)

    def _on_group(self, key: bytes, value: bytes | None) -> None:
        if value is not None and decode(PlacementGroupInfo, value).state != REMOVED:
            self._known[key] = None
        else:
            self._known.pop(key, None)
            self._remove(key)
