"""The connection to a server, frame by frame: whatever a peer may do, each call ends once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest import mock

import grpc
import pytest

from gateway.upstream.channels import Channel, ChannelOptions
from gateway.upstream.http2 import frames
from gateway.upstream.http2.call import Call, RpcError
from tests.fakes.http2 import DONE, OK, Peer, Script, grpc_message, http2_peer

OPTIONS = ChannelOptions(
    channels=1,
    connect_timeout_s=2.0,
    reconnect_backoff_min_s=0.05,
    reconnect_backoff_max_s=0.1,
    keepalive_interval_s=300.0,
    max_reply_bytes=1_000_000,
)
Code = grpc.StatusCode


class Talk:
    """A channel to a scripted peer."""

    def __init__(self, channel: Channel, peers: list[Peer]) -> None:
        self.channel = channel
        self.peers = peers
        self.ended: list[Call] = []

    def start(self, message: bytes = b"ask", **options: Any) -> "Asked":
        return Asked(self.channel, message, **options)

    async def ask(self, message: bytes = b"ask", **options: Any) -> bytes:
        return await self.start(message, **options).reply()

    async def failure(self) -> tuple[Code, str]:
        with pytest.raises(RpcError) as caught:
            await self.ask()
        return caught.value.code, caught.value.details


class Asked:
    """One call, and how often it has ended."""

    def __init__(self, channel: Channel, message: bytes, **options: Any) -> None:
        self.ends = 0
        self._ended = asyncio.Event()
        arguments: dict[str, Any] = {"metadata": (), "timeout_s": None, **options}
        self.call = channel.call("Method", [message], on_end=self._end, **arguments)

    def _end(self, _: Call) -> None:
        self.ends += 1
        self._ended.set()

    async def reply(self) -> bytes:
        async with asyncio.timeout(5):
            await self._ended.wait()
        assert self.ends == 1
        return self.call.result()


@contextlib.asynccontextmanager
async def talking(*scripts: Script, **options: Any) -> AsyncIterator[Talk]:
    identity_matters = options.pop("identity_matters", False)
    async with http2_peer(*scripts) as (address, peers):
        channel = Channel(address, replace(OPTIONS, **options), identity_matters=identity_matters)
        try:
            yield Talk(channel, peers)
        finally:
            await channel.close()


async def polite(peer: Peer) -> None:
    """Answer every request."""
    peer.settings()
    for number in range(1, 1000):
        peer.send(peer.answer(await peer.request(number)))


# --- what is sent


async def test_a_request_is_what_grpc_wants() -> None:
    async with talking(polite) as talk:
        assert await talk.ask(b"hello", metadata=(("key", "v" * 200),), timeout_s=1.5) == b"fine"
        (peer,) = talk.peers
        block = next(f.payload for f in peer.received if f.kind == frames.HEADERS)
        import hpack

        headers = dict(hpack.Decoder().decode(block))
        assert headers == {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/inference.GRPCInferenceService/Method",
            ":authority": talk.channel._target,
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "triton-gateway",
            "key": "v" * 200,
            "grpc-timeout": "1501m",
        }
        assert peer.body(1) == grpc_message(b"hello")


async def test_long_metadata_is_continued() -> None:
    async with talking(polite) as talk:
        assert await talk.ask(metadata=(("key", "v" * 40_000),)) == b"fine"
        kinds = [f.kind for f in talk.peers[0].received if f.stream == 1]
        assert kinds == [frames.HEADERS, *[frames.CONTINUATION] * 2, frames.DATA]


@pytest.mark.parametrize("window", [1, 100, 65_535])
async def test_a_message_larger_than_the_window_arrives_whole(window: int) -> None:
    size = min(window * 20, 500_000)

    async def stingy(peer: Peer) -> None:
        peer.settings(initial_window_size=window)
        peer.send(frames.window_update(0, 10_000_000))
        seen = 0
        while True:
            taken = await peer.until(lambda f: f.kind == frames.DATA, seen + 1)
            for frame in taken[seen:]:
                assert len(frame.payload) <= min(window, 16_384)
                if frame.flags & frames.END_STREAM:
                    peer.send(peer.answer(frame.stream))
                peer.send(frames.window_update(frame.stream, len(frame.payload)))
            seen = len(taken)

    async with talking(stingy) as talk:
        message = bytes(range(256)) * (size // 256 + 1)
        asked = [talk.start(message) for _ in range(3)]
        assert [await one.reply() for one in asked] == [b"fine"] * 3
        assert all(talk.peers[0].body(stream) == grpc_message(message) for stream in (1, 3, 5))


async def test_a_small_message_passes_a_large_one_that_is_held_back() -> None:
    async def stingy(peer: Peer) -> None:
        peer.settings(initial_window_size=1000)
        await polite(peer)

    async with talking(stingy) as talk:
        await talk.ask()
        large = talk.start(bytes(10_000))
        assert await talk.ask() == b"fine"
        assert not large.call.ended
        talk.peers[0].send(frames.window_update(large.call.stream, 10_000))
        assert await large.reply() == b"fine"


async def test_a_window_that_changes_counts_for_open_streams() -> None:
    async def script(peer: Peer) -> None:
        peer.settings(initial_window_size=10)
        await peer.until(lambda f: f.kind == frames.DATA)
        peer.settings(initial_window_size=10_000)
        peer.send(peer.answer(await peer.request()))

    async with talking(script) as talk:
        assert await talk.ask(bytes(5000)) == b"fine"


async def test_a_server_that_takes_one_call_at_a_time_gets_one_at_a_time() -> None:
    async def one_by_one(peer: Peer) -> None:
        peer.settings(max_concurrent_streams=1)
        for number in range(1, 4):
            stream = await peer.request(number)
            await asyncio.sleep(0.01)
            assert sum(f.kind == frames.HEADERS for f in peer.received) == number
            peer.send(peer.answer(stream))

    async with talking(one_by_one) as talk:
        asked = [talk.start() for _ in range(3)]
        cancelled = talk.start()
        cancelled.call.cancel()
        assert [await one.reply() for one in asked] == [b"fine"] * 3


async def test_cancelling_resets_the_stream_and_nothing_else() -> None:
    async def script(peer: Peer) -> None:
        peer.settings()
        await peer.request(2)
        (reset,) = await peer.until(lambda f: f.kind == frames.RST_STREAM)
        assert (reset.stream, reset.payload) == (1, (8).to_bytes(4, "big"))
        peer.send(peer.answer(1), peer.answer(3))  # the first too late

    async with talking(script) as talk:
        first, second = talk.start(), talk.start()
        await asyncio.sleep(0.05)
        first.call.cancel()
        assert await second.reply() == b"fine"
        with pytest.raises(RpcError, match="CANCELLED"):
            await first.reply()


# --- what comes


async def test_an_answer_may_come_byte_by_byte() -> None:
    async def drip(peer: Peer) -> None:
        peer.settings()
        for byte in peer.answer(await peer.request(), b"slow"):
            peer.send(bytes((byte,)))
            await peer.writer.drain()
            await asyncio.sleep(0)

    async with talking(drip) as talk:
        assert await talk.ask() == b"slow"


async def test_padding_priority_continuations_and_unknown_frames_are_taken() -> None:
    async def odd(peer: Peer) -> None:
        peer.settings()
        stream = await peer.request()
        message, first, second = grpc_message(b"odd"), peer.block(*OK), peer.block(*DONE)
        padded = frames.PADDED | frames.PRIORITY
        peer.send(
            frames.frame(0xFA, 0xFF, stream, b"whatever"),
            frames.frame(frames.HEADERS, padded, stream, b"\x03" + bytes(5) + first[:4] + bytes(3)),
            frames.frame(frames.CONTINUATION, 0, stream, first[4:6]),
            frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, first[6:]),
            frames.frame(frames.DATA, frames.PADDED, stream, b"\x02" + message[:3] + b"xx"),
            frames.frame(frames.DATA, 0, stream, message[3:]),
            frames.frame(frames.HEADERS, frames.END_STREAM, stream, b""),
            frames.frame(frames.CONTINUATION, frames.END_HEADERS, stream, second),
        )

    async with talking(odd) as talk:
        assert await talk.ask() == b"odd"


async def test_headers_may_lean_on_earlier_ones() -> None:
    """A peer that keeps a table although it was asked not to is understood all the same."""

    async def script(peer: Peer) -> None:
        peer.settings()
        for number in range(1, 5):
            stream = await peer.request(number)
            peer.send(
                peer.headers(stream, *OK, ("x-first", "1")),
                peer.headers(
                    stream,
                    ("grpc-status", "3"),
                    ("grpc-message", f"no%20{number}%25"),
                    flags=frames.END_STREAM,
                ),
            )

    async with talking(script) as talk:
        for number in range(1, 5):
            assert await talk.failure() == (Code.INVALID_ARGUMENT, f"no {number}%")


async def test_pings_are_answered() -> None:
    async def script(peer: Peer) -> None:
        peer.settings()
        peer.send(frames.frame(frames.PING, 0, 0, b"12345678"))
        await peer.until(lambda f: f.kind == frames.PING and f.flags == frames.ACK)
        peer.send(peer.answer(await peer.request()))

    async with talking(script) as talk:
        assert await talk.ask() == b"fine"


def ending(*what: str) -> Script:
    """Answer the first request with these pieces."""

    async def script(peer: Peer) -> None:
        peer.settings()
        s = await peer.request()
        end = frames.END_STREAM
        pieces = {
            "ok": lambda: peer.headers(s, *OK),
            "half": lambda: peer.data(s, grpc_message(b"fine")[:6]),
            "packed": lambda: peer.data(s, grpc_message(b"fine", compressed=1)),
            "huge": lambda: peer.data(s, b"\0" + (2_000_000).to_bytes(4, "big")),
            "end": lambda: peer.data(s, b"", end),
            "done": lambda: peer.headers(s, *DONE, flags=end),
            "no status": lambda: peer.headers(s, ("x", "y"), flags=end),
            "503": lambda: peer.headers(s, (":status", "503"), flags=end),
            "404": lambda: peer.headers(s, (":status", "404")),
            "odd status": lambda: peer.headers(s, ("grpc-status", "x"), flags=end),
            "reset": lambda: frames.reset(s, frames.ErrorCode.CANCEL),
            "calm": lambda: frames.reset(s, frames.ErrorCode.ENHANCE_YOUR_CALM),
            "unknown reset": lambda: frames.frame(frames.RST_STREAM, 0, s, b"\0\0\xff\xff"),
            "long": lambda: frames.header(1 << 20, frames.DATA, 0, s),
            "padding": lambda: frames.frame(frames.DATA, frames.PADDED, s, b"\xff"),
            "block": lambda: frames.frame(
                frames.HEADERS, frames.END_HEADERS, s, b"\xff\xff\xff\xff"
            ),
            "continuation": lambda: frames.frame(frames.CONTINUATION, 0, s, b""),
        }
        peer.send(*(pieces[name]() for name in what))

    return script


@pytest.mark.parametrize(
    ("script", "code", "text"),
    [
        (("ok", "half", "done"), Code.INTERNAL, "not one whole message"),
        (("ok", "done"), Code.INTERNAL, "not one whole message"),
        (("ok", "end"), Code.INTERNAL, "without a status"),
        (("ok", "no status"), Code.INTERNAL, "without a status"),
        (("ok", "packed", "done"), Code.RESOURCE_EXHAUSTED, "Received message larger than max"),
        (("ok", "huge"), Code.RESOURCE_EXHAUSTED, "Received message larger than max"),
        (("503",), Code.UNAVAILABLE, "http2 header with status: 503"),
        (("404",), Code.UNIMPLEMENTED, "http2 header with status: 404"),
        (("ok", "odd status"), Code.UNKNOWN, ""),
        (("reset",), Code.CANCELLED, "RST_STREAM with error code 8"),
        (("calm",), Code.RESOURCE_EXHAUSTED, "RST_STREAM with error code 11"),
        (("unknown reset",), Code.INTERNAL, "RST_STREAM with error code"),
        (("long",), Code.UNAVAILABLE, "lost the connection"),
        (("padding",), Code.UNAVAILABLE, "lost the connection"),
        (("block",), Code.UNAVAILABLE, "lost the connection"),
        (("continuation",), Code.UNAVAILABLE, "lost the connection"),
    ],
)
async def test_an_odd_answer_fails_its_call(script: tuple[str, ...], code: Code, text: str) -> None:
    async with talking(ending(*script)) as talk:
        got, details = await talk.failure()
        assert got is code
        assert text in details


# --- connections that end


async def test_a_refused_call_is_sent_once_more() -> None:
    async def script(peer: Peer) -> None:
        peer.settings()
        refused = await peer.request()
        peer.send(frames.reset(refused, frames.ErrorCode.REFUSED_STREAM))
        peer.send(peer.answer(await peer.request(2)))

    async with talking(script) as talk:
        assert await talk.ask() == b"fine"


async def test_a_call_that_is_refused_twice_is_known_not_to_have_run() -> None:
    async def script(peer: Peer) -> None:
        peer.settings()
        for number in (1, 2):
            stream = await peer.request(number)
            peer.send(frames.reset(stream, frames.ErrorCode.REFUSED_STREAM))

    async with talking(script) as talk:
        code, details = await talk.failure()
        assert code is Code.UNAVAILABLE
        assert details.startswith("the call was not taken by")


def going_away(last: int) -> Script:
    async def script(peer: Peer) -> None:
        peer.settings()
        await peer.request(2)
        peer.send(frames.frame(frames.GOAWAY, 0, 0, last.to_bytes(4, "big") + bytes(4)))
        await asyncio.sleep(0.02)
        for stream in range(1, last + 1, 2):
            peer.send(peer.answer(stream, b"old"))

    return script


@pytest.mark.parametrize(
    ("last", "answers"), [(0, [b"fine", b"fine"]), (1, [b"old", b"fine"]), (3, [b"old", b"old"])]
)
async def test_what_a_leaving_server_did_not_take_goes_over_a_new_connection(
    last: int, answers: list[bytes]
) -> None:
    async with talking(going_away(last), polite) as talk:
        asked = [talk.start(), talk.start()]
        assert [await one.reply() for one in asked] == answers
        assert await talk.ask() == b"fine"
        assert len(talk.peers) == 2
        async with asyncio.timeout(2):
            while not talk.peers[0].writer.transport.is_closing():
                await asyncio.sleep(0.01)


async def test_nothing_moves_to_a_connection_whose_other_end_is_not_known() -> None:
    async with talking(going_away(0), polite, identity_matters=True) as talk:
        asked = [talk.start(), talk.start()]
        for one in asked:
            with pytest.raises(RpcError, match="was not taken by"):
                await one.reply()
        assert len(talk.peers) == 1


async def test_a_lost_connection_tells_what_may_have_run_from_what_cannot() -> None:
    async def script(peer: Peer) -> None:
        peer.settings(initial_window_size=1000)
        await peer.until(lambda f: f.kind == frames.DATA, 2)
        peer.writer.transport.abort()

    async with talking(script) as talk:
        whole, part = talk.start(), talk.start(bytes(5000))
        with pytest.raises(RpcError, match="UNAVAILABLE: lost the connection to"):
            await whole.reply()
        with pytest.raises(RpcError, match="UNAVAILABLE: the call was not taken by"):
            await part.reply()


async def test_pings_that_come_too_often_are_told_in_words(caplog: Any) -> None:
    async def script(peer: Peer) -> None:
        peer.settings()
        await peer.request()
        code = (11).to_bytes(4, "big")
        peer.send(
            frames.frame(frames.GOAWAY, 0, 0, (1).to_bytes(4, "big") + code + b"too_many_pings")
        )
        await asyncio.sleep(0.02)
        peer.writer.transport.abort()

    async with talking(script) as talk:
        _, details = await talk.failure()
        assert "GOAWAY received; error code: 11; too_many_pings" in details
        assert "raise upstream.keepalive_interval_s" in caplog.text


async def test_a_peer_that_answers_no_ping_is_given_up() -> None:
    async def deaf(peer: Peer) -> None:
        peer.settings()
        await peer.until(lambda f: f.kind == frames.PING)

    with mock.patch("gateway.upstream.http2.connection._PING_ANSWERED_WITHIN_S", 0.05):
        async with talking(deaf, keepalive_interval_s=0.05) as talk:
            _, details = await talk.failure()
            assert "keepalive ping was not answered" in details


async def test_a_peer_that_answers_pings_is_waited_for_and_an_idle_one_gets_none() -> None:
    async def alive(peer: Peer) -> None:
        peer.settings()
        stream = await peer.request()
        for number in range(1, 4):
            await peer.until(lambda f: f.kind == frames.PING, number)
            peer.send(frames.frame(frames.PING, frames.ACK, 0, b"keepaliv"))
        peer.send(peer.answer(stream))

    with mock.patch("gateway.upstream.http2.connection._PING_ANSWERED_WITHIN_S", 0.1):
        async with talking(alive, keepalive_interval_s=0.02) as talk:
            assert await talk.ask() == b"fine"
            await asyncio.sleep(0.1)
            pings = sum(f.kind == frames.PING for f in talk.peers[0].received)
            assert pings <= 4


# --- connections that do not come about


async def test_who_does_not_speak_http2_is_no_connection() -> None:
    async def mute(_: Peer) -> None:
        await asyncio.sleep(10)

    async with talking(mute, connect_timeout_s=0.1) as talk:
        code, details = await talk.failure()
        assert code is Code.UNAVAILABLE
        assert details.startswith("no connection to")
        assert talk.channel.state() == "transient_failure"
        assert talk.channel.waits_to_reconnect()
        assert (await talk.failure())[1] == details  # at once, without another attempt
        assert len(talk.peers) == 1


async def test_after_its_pause_a_channel_connects_anew() -> None:
    async def hang_up(peer: Peer) -> None:
        peer.writer.transport.abort()

    async with talking(hang_up, polite) as talk:
        assert (await talk.failure())[1].startswith("no connection to")
        async with asyncio.timeout(2):
            while talk.channel.waits_to_reconnect():
                await asyncio.sleep(0.01)
        assert talk.channel.state() == "idle"
        assert await talk.ask() == b"fine"
        assert talk.channel.state() == "ready"


async def test_a_closed_channel_ends_its_calls_and_takes_none() -> None:
    async def silent(peer: Peer) -> None:
        peer.settings()

    async with talking(silent) as talk:
        asked = talk.start()
        await asyncio.sleep(0.05)
        await talk.channel.close()
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            await asked.reply()
        assert (await talk.failure())[0] is Code.UNAVAILABLE
