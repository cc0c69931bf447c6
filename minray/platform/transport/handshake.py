"""How two processes prove to each other that they know the cluster token, before anything else is said.

Ray: src/ray/rpc/authentication/ sends the token itself with each call; here it never leaves a process

    client                                          server
    Hello(nonce, target, identity)   ------------>
                                     <------------  Challenge(nonce)
    Proof(HMAC of both, as client)   ------------>
                                     <------------  Welcome(identity, HMAC as server)   or   Refusal(reason, HMAC)

Rules
  * No IO: bytes in, bytes out. Every transport carries these messages in its own way, and nothing else before they end.
  * Every message is magic, protocol version, length and a small MessagePack record. All versions share that layout, so that
    two versions can tell each other apart. Anything else is refused at its first wrong byte.
  * The server answers a ``Hello`` with nothing but a nonce. A client that does not know the token learns nothing about the
    process, not even whether it is the incarnation that the client wants.
  * The server's proof covers what a client acts upon: the server's identity, or that the incarnation is gone for good. A
    wrong token or version cannot be proven, and is only an error.
  * Inside TLS every digest covers the certificate of the client as well (``binding``, see ``tls.py``). Otherwise a process
    in the middle, with a certificate of its own, could pass the messages on and then read and change what follows.

Left out: encryption. Without TLS an attacker who can change bytes between the two takes over the connection after the
handshake.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Annotated

import msgspec

from minray.common.decoding import MALFORMED
from minray.platform.base import PROTOCOL_VERSION, AuthenticationFailed, PlatformError, WrongIncarnation

HANDSHAKE_TIMEOUT_S = 10.0
MAX_MESSAGE_BYTES = 300
NONCE_BYTES = 32
MAX_IDENTITY_BYTES = 64

TLS_RECORDS = (b"\x16\x03", b"\x15\x03")
"""First bytes of a peer that speaks TLS: those of a handshake and of an alert."""
OTHER_TRANSPORT = "set MINRAY_TRANSPORT (remote clients: MINRAY_CLIENT_TRANSPORT) to the transport of the other side"
"""Advice for a side that meets HTTP/2 and speaks streams, or the other way round."""

_MAGIC = b"minray"
_HEADER = struct.Struct("<6sHH")
"""Magic, protocol version, length of the record."""

_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Identity = Annotated[bytes, msgspec.Meta(max_length=MAX_IDENTITY_BYTES)]
_Digest = Annotated[bytes, msgspec.Meta(max_length=32)]


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    nonce: _Nonce
    target: _Identity
    """The incarnation that the client wants; empty: any."""
    identity: _Identity


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    nonce: _Nonce


class Proof(msgspec.Struct, frozen=True, array_like=True, tag="proof"):
    digest: _Digest


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    identity: _Identity
    digest: _Digest


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    reason: Annotated[str, msgspec.Meta(max_length=32)]
    """``version``, ``token``, ``incarnation``, ``tls`` or ``garbage``."""
    digest: _Digest = b""
    """Proves an ``incarnation`` refusal; empty otherwise."""


Message = Hello | Challenge | Proof | Welcome | Refusal
_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


class HandshakeRefused(Exception):
    """The server refuses the client: the text is for the log, ``answer`` is sent before closing."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.answer = encode(Refusal(code))


class _Malformed(Exception):
    """Bytes that are not a message of this handshake; ``code`` is the matching refusal."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code


def encode(message: Message) -> bytes:
    record = _encoder.encode(message)
    return _HEADER.pack(_MAGIC, PROTOCOL_VERSION, len(record)) + record


def speaks_http_2(start: bytes) -> bool:
    """Return whether the first bytes of a peer are those of HTTP/2: its preface, or a short frame SETTINGS or GOAWAY."""
    return start.startswith(b"PRI * ") or (start[:1] == b"\0" and start[3:5] in (b"\x04\0", b"\x07\0"))


def _take(received: bytearray) -> tuple[Message, bytes] | None:
    """Remove one message from the front of ``received``, and return it with its bytes; None if more must come first."""
    start = bytes(received[: len(_MAGIC)])
    if start[:2] in TLS_RECORDS:
        from minray.platform.transport.tls import ENCRYPTED_PEER  # Few processes meet TLS without speaking it.

        raise _Malformed(ENCRYPTED_PEER, "garbage")
    if speaks_http_2(start):
        raise _Malformed(f"it speaks HTTP/2; if it is minray over gRPC, {OTHER_TRANSPORT}", "garbage")
    if start != _MAGIC[: len(start)]:
        raise _Malformed(f"not a minray peer: it begins with {start!r}", "garbage")
    if len(received) < _HEADER.size:
        return None
    _, version, length = _HEADER.unpack_from(received)
    if version != PROTOCOL_VERSION:
        raise _Malformed(f"it speaks protocol version {version}, this process {PROTOCOL_VERSION}", "version")
    if _HEADER.size + length > MAX_MESSAGE_BYTES:
        raise _Malformed(f"a handshake message of {length} bytes", "garbage")
    if len(received) < _HEADER.size + length:
        return None
    message = bytes(received[: _HEADER.size + length])
    del received[: _HEADER.size + length]
    try:
        return _decoder.decode(message[_HEADER.size :]), message
    except MALFORMED as error:
        raise _Malformed(f"a malformed handshake message ({error})", "garbage") from None


def _digest(token: bytes, role: bytes, transcript: bytes, outcome: bytes = b"") -> bytes:
    """Return the HMAC that proves knowledge of the token.

    The transcript is hashed to a fixed length and the outcome comes last, so that no two meanings have the same bytes.
    """
    return hmac.digest(token, b"minray " + role + b"\0" + hashlib.sha256(transcript).digest() + outcome, "sha256")


class ServerHandshake:
    """The listening side of one handshake."""

    def __init__(self, token: bytes, identity: bytes, nonce: bytes, binding: bytes = b"") -> None:
        """``binding`` stands for the client's certificate; empty without TLS."""
        assert len(identity) <= MAX_IDENTITY_BYTES and len(nonce) == NONCE_BYTES
        self._token = token
        self._binding = binding
        self._identity = identity
        self._nonce = nonce
        self._hello: Hello | None = None
        """The client's first message; None until it has come."""
        self._transcript = b""
        """The bytes of ``Hello`` and ``Challenge``, and the binding, all of which every digest covers."""
        self.peer: bytes | None = None
        """The client's identity; None until the client has proven that it knows the token, which ends the handshake."""

    def receive(self, received: bytearray) -> bytes:
        """Take one message, if complete, from ``received`` and return the answer to send; raises ``HandshakeRefused``."""
        assert self.peer is None, "the handshake is over"
        try:
            taken = _take(received)
        except _Malformed as error:
            raise HandshakeRefused(str(error), error.code) from None
        if taken is None:
            return b""
        message, text = taken
        if isinstance(message, Hello) and self._hello is None:
            self._hello = message
            answer = encode(Challenge(self._nonce))
            self._transcript = text + answer + self._binding
            return answer
        if isinstance(message, Proof) and self._hello is not None:
            return self._judge(self._hello, message)
        raise HandshakeRefused(f"an unexpected handshake message ({type(message).__name__})", "garbage")

    def _judge(self, hello: Hello, proof: Proof) -> bytes:
        if not hmac.compare_digest(proof.digest, _digest(self._token, b"client", self._transcript)):
            raise HandshakeRefused("it does not know the cluster token", "token")
        if hello.target not in (b"", self._identity):
            refused = HandshakeRefused(f"it means incarnation {hello.target.hex()}, which is not here", "incarnation")
            refused.answer = encode(Refusal("incarnation", _digest(self._token, b"refusal", self._transcript)))
            raise refused
        self.peer = hello.identity
        return encode(Welcome(self._identity, _digest(self._token, b"server", self._transcript, self._identity)))


class ClientHandshake:
    """The connecting side of one handshake."""

    def __init__(self, token: bytes, target: bytes, identity: bytes, nonce: bytes, binding: bytes = b"") -> None:
        """``binding`` stands for this side's certificate; empty without TLS."""
        assert max(len(identity), len(target)) <= MAX_IDENTITY_BYTES and len(nonce) == NONCE_BYTES
        self._token = token
        self._target = target
        self._binding = binding
        self.hello = encode(Hello(nonce, target, identity))
        """The first message to send."""
        self._transcript = b""
        """The bytes of ``Hello``, ``Challenge`` and the binding, as in ``ServerHandshake``; empty until the challenge has
        come."""
        self.peer: bytes | None = None
        """The server's identity; None until the server has proven that it knows the token, which ends the handshake."""

    def receive(self, received: bytearray) -> bytes:
        """Take one message, if complete, from ``received`` and return the answer to send.

        Raises ``AuthenticationFailed`` or ``WrongIncarnation``.
        """
        assert self.peer is None, "the handshake is over"
        try:
            taken = _take(received)
        except _Malformed as error:
            raise AuthenticationFailed(str(error)) from None
        if taken is None:
            return b""
        message, text = taken
        if isinstance(message, Challenge) and not self._transcript:
            self._transcript = self.hello + text + self._binding
            return encode(Proof(_digest(self._token, b"client", self._transcript)))
        if isinstance(message, Welcome) and self._transcript:
            self._check(message.digest, b"server", message.identity)
            self.peer = message.identity
            return b""
        if isinstance(message, Refusal):
            raise self._refused(message)
        raise AuthenticationFailed(f"an unexpected handshake message ({type(message).__name__})")

    def _check(self, digest: bytes, role: bytes, outcome: bytes = b"") -> None:
        if not hmac.compare_digest(digest, _digest(self._token, role, self._transcript, outcome)):
            raise AuthenticationFailed("it does not know the cluster token")

    def _refused(self, refusal: Refusal) -> PlatformError:
        if refusal.reason == "incarnation" and self._transcript:
            self._check(refusal.digest, b"refusal")
            return WrongIncarnation(f"incarnation {self._target.hex()} is gone: another process listens there now")
        from minray.platform.transport.tls import ADVICE  # Processes without TLS do not need it otherwise.

        reasons = {
            "token": "it refused: this process does not know its cluster token",
            "version": "it refused: it speaks another protocol version",
            "tls": f"it refused: this cluster speaks TLS; {ADVICE}",
        }
        return AuthenticationFailed(reasons.get(refusal.reason, f"it refused the handshake ({refusal.reason})"))
