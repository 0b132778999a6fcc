"""Calls with many replies, frame by frame: in order, no faster than they are taken, ended once."""

import asyncio
from typing import Any

import grpc
import hpack
import pytest

from gateway.upstream.channels import Channel
from gateway.upstream.http2 import frames
from gateway.upstream.http2.call import REPLY_WINDOW, Call, RpcError
from tests.fakes.http2 import DONE, OK, Peer, grpc_message
from tests.wire.test_http2 import Talk, talking

PATIENCE_S = 5
MIB = 1024 * 1024


class Streamed:
    """One call with many replies, and how often it has ended."""

    def __init__(self, channel: Channel) -> None:
        self.ends = 0
        self._news = asyncio.Event()
        self.call = channel.stream(
            "Method", [b"ask"], metadata=(), on_news=self._news.set, on_end=self._end
        )

    def _end(self, _: Call) -> None:
        self.ends += 1

    async def next(self) -> bytes | None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self._news.clear()
                message = self.call.take()
                if message is not None or self.call.ended:
                    return message
                await self._news.wait()

    async def rest(self) -> list[bytes]:
        found = []
        while (message := await self.next()) is not None:
            found.append(message)
        assert self.ends == 1
        return found

    def error(self) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(RpcError) as caught:
            self.call.result()
        return caught.value.code, caught.value.details


def room_made(peer: Peer) -> int:
    """The bytes the peer was told there is room for, on streams."""
    updates = [f for f in peer.received if f.kind == frames.WINDOW_UPDATE and f.stream]
    return sum(frames.uint31(update.payload) for update in updates)


def replies(peer: Peer, stream: int, *pieces: bytes, end: bool = True) -> bytes:
    framed = [peer.headers(stream, *OK), *(peer.data(stream, piece) for piece in pieces)]
    if end:
        framed.append(peer.headers(stream, *DONE, flags=frames.END_STREAM))
    return b"".join(framed)


async def asked(talk: Talk) -> tuple[Streamed, Peer, int]:
    """Start a call and wait until the peer has the request."""
    streamed = Streamed(talk.channel)
    async with asyncio.timeout(PATIENCE_S):
        while not talk.peers:
            await asyncio.sleep(0.001)
    peer = talk.peers[-1]
    return streamed, peer, await peer.request()


async def taken_in(peer: Peer, pings: int) -> None:
    """Wait until the other end has taken in everything sent so far."""
    peer.send(frames.frame(frames.PING, 0, 0, b"have it?"))
    await peer.until(lambda f: f.kind == frames.PING, pings)


async def silent(peer: Peer) -> None:
    peer.settings()


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_replies_are_the_same_however_they_are_cut(size: int) -> None:
    messages = [b"one", b"", b"three" * 50, b"\0\0\0\0\0"]
    whole = b"".join(map(grpc_message, messages))
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    async with talking(silent) as talk:
        streamed, peer, stream = await asked(talk)
        peer.send(replies(peer, stream, *pieces))
        assert await streamed.rest() == messages
        assert streamed.call.result() == b""


async def test_a_request_has_the_headers_of_its_server_and_its_own() -> None:
    async with talking(silent) as talk:
        sent = {"metadata": (("key", "k"),), "forwarded": (("traceparent", "t"),)}
        talk.channel.stream("Method", [b"ask"], on_news=list, on_end=lambda _: None, **sent)
        async with asyncio.timeout(PATIENCE_S):
            while not talk.peers:
                await asyncio.sleep(0.001)
        (peer,) = talk.peers
        stream = await peer.request()
        block = next(f.payload for f in peer.received if f.kind == frames.HEADERS)
        headers = dict(hpack.Decoder().decode(block))
        assert headers[":path"] == "/inference.GRPCInferenceService/Method"
        assert (headers["key"], headers["traceparent"]) == ("k", "t")
        assert "grpc-timeout" not in headers
        assert peer.body(stream) == grpc_message(b"ask")


async def test_a_call_without_replies_ends() -> None:
    async with talking(silent) as talk:
        streamed, peer, stream = await asked(talk)
        peer.send(peer.headers(stream, *OK, *DONE, flags=frames.END_STREAM))
        assert await streamed.rest() == []


async def test_what_nobody_takes_gets_no_room() -> None:
    message = bytes(REPLY_WINDOW - 5)
    async with talking(silent, max_reply_bytes=MIB) as talk:
        streamed, peer, stream = await asked(talk)
        framed = grpc_message(message)
        pieces = [framed[at : at + 16_384] for at in range(0, len(framed), 16_384)]
        assert streamed.call.take() is None
        peer.send(replies(peer, stream, *pieces, end=False))
        assert await streamed.next() == message
        await taken_in(peer, 1)
        half = room_made(peer)
        assert half == REPLY_WINDOW // 2  # while it was waited for
        peer.send(*(peer.data(stream, piece) for piece in pieces[: len(pieces) // 2]))
        await taken_in(peer, 2)
        assert room_made(peer) == half
        peer.send(*(peer.data(stream, piece) for piece in pieces[len(pieces) // 2 :]))
        assert await streamed.next() == message
        assert streamed.call.take() is None
        await taken_in(peer, 3)
        assert room_made(peer) > REPLY_WINDOW
        streamed.call.cancel()


async def test_a_reply_larger_than_the_window_comes_through() -> None:
    message = bytes(3 * MIB)
    options: dict[str, Any] = {"max_reply_bytes": 4 * MIB}

    async def within_window(peer: Peer) -> None:
        peer.settings()
        stream = await peer.request()
        peer.send(peer.headers(stream, *OK))
        sent, framed = 0, grpc_message(message)
        while sent < len(framed):
            room = REPLY_WINDOW + room_made(peer) - sent
            piece = framed[sent : sent + min(room, 16_384)]
            peer.send(peer.data(stream, piece))
            sent += len(piece)
            await asyncio.sleep(0)
        peer.send(peer.headers(stream, *DONE, flags=frames.END_STREAM))

    async with talking(within_window, **options) as talk:
        assert await Streamed(talk.channel).rest() == [message]
    async with talking(within_window, **options) as talk:
        assert await talk.ask() == message  # and so does a unary call's


async def test_a_reply_that_is_too_large_ends_the_call() -> None:
    async with talking(silent, max_reply_bytes=10) as talk:
        streamed, peer, stream = await asked(talk)
        peer.send(replies(peer, stream, grpc_message(b"x" * 10), grpc_message(b"x" * 11)[:6]))
        assert await streamed.rest() == [b"x" * 10]
        assert streamed.error()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        await peer.until(lambda f: f.kind == frames.RST_STREAM)


async def test_an_end_in_the_middle_of_a_reply_is_an_error() -> None:
    async with talking(silent) as talk:
        streamed, peer, stream = await asked(talk)
        peer.send(replies(peer, stream, grpc_message(b"one") + grpc_message(b"two")[:-1]))
        assert await streamed.rest() == [b"one"]
        assert streamed.error()[0] is grpc.StatusCode.INTERNAL


async def test_an_error_comes_behind_the_replies() -> None:
    async with talking(silent) as talk:
        streamed, peer, stream = await asked(talk)
        peer.send(replies(peer, stream, grpc_message(b"one"), end=False))
        failed = (("grpc-status", "13"), ("grpc-message", "it raised"))
        peer.send(peer.headers(stream, *failed, flags=frames.END_STREAM))
        assert await streamed.rest() == [b"one"]
        assert streamed.error() == (grpc.StatusCode.INTERNAL, "it raised")


async def test_a_lost_connection_ends_the_call_behind_the_replies() -> None:
    async with talking(silent) as talk:
        streamed, peer, stream = await asked(talk)
        peer.send(replies(peer, stream, grpc_message(b"one"), end=False))
        assert await streamed.next() == b"one"
        peer.writer.transport.abort()
        assert await streamed.rest() == []
        code, details = streamed.error()
        assert code is grpc.StatusCode.UNAVAILABLE
        assert details.startswith("lost the connection to ")


async def test_a_cancelled_call_ends_at_once_and_on_the_server() -> None:
    async with talking(silent) as talk:
        streamed, peer, stream = await asked(talk)
        streamed.call.cancel()
        streamed.call.cancel()
        assert streamed.ends == 1
        (reset,) = await peer.until(lambda f: f.kind == frames.RST_STREAM)
        assert reset.stream == stream
        peer.send(replies(peer, stream, grpc_message(b"late")))
        assert await streamed.rest() == []


async def test_a_call_that_was_refused_is_begun_anew() -> None:
    async def refuse(peer: Peer) -> None:
        peer.settings()
        stream = await peer.request()
        peer.send(frames.reset(stream, frames.ErrorCode.REFUSED_STREAM))
        stream = await peer.request(2)
        peer.send(replies(peer, stream, grpc_message(b"one"), grpc_message(b"two")))

    async with talking(refuse) as talk:
        assert await Streamed(talk.channel).rest() == [b"one", b"two"]
