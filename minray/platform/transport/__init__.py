"""How messages travel between real processes: sockets and frames, or gRPC.

Ray: src/ray/rpc/, src/ray/common/network_util.h

``handshake`` comes first on every connection. ``sockets`` and ``stream_connection`` are the stream transport,
``grpc_*`` the other one. At a first reading skip ``chunk_writer`` and ``lanes``: they are there for the speed of large
buffers, and nothing above knows them.
"""
