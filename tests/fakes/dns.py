"""A scripted nameserver: real packets over UDP on the loopback interface."""

import asyncio
from collections import Counter
from typing import Any, Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

HOST = "127.0.0.1"


class FakeDns(asyncio.DatagramProtocol):
    """Answers from `records`: (name, type) to values. What is not there is NXDOMAIN or no data."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 1
        self.broken: set[str] = set()
        """Names that are answered SERVFAIL."""
        self.silent = False
        self.asked: Counter[tuple[str, str]] = Counter()
        self._transport: Any = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(HOST, 0))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()

    @property
    def address(self) -> str:
        """`ip:port`."""
        return f"{HOST}:{self._transport.get_extra_info('sockname')[1]}"

    def has(self, name: str, kind: str, *values: str) -> None:
        """Let a name have these records."""
        self.records[name, kind] = list(values)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = str(question.name).rstrip(".")
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        if not self.silent:
            self._transport.sendto(self._reply(query, name, kind).to_wire(), addr)

    def _reply(self, query: dns.message.Message, name: str, kind: str) -> dns.message.Message:
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        if name in self.broken:
            reply.set_rcode(dns.rcode.SERVFAIL)
        elif (name, kind) in self.records:
            values = self.records[name, kind]
            if values:
                reply.answer.append(
                    dns.rrset.from_text_list(f"{name}.", self.ttl_s, "IN", kind, values)
                )
        elif name not in {known for known, _ in self.records}:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply
