"""Request/reply, retries and publish/subscribe, over whatever transport the platform has.

Ray: src/ray/rpc/, src/ray/pubsub/

``service`` is the receiving side, ``connection`` the asking side, and ``pubsub`` has both sides of a polled channel. They
turn records into bytes and back; the platform moves the bytes.
"""
