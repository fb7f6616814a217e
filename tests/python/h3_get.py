"""Reads a whole dataset from a Forebay server with aioquic, which shares no code with us.

usage: h3_get.py HOST:PORT DATASET CA_FILE

Every field of every sample is one GET, many at once on one connection. Prints one JSON document per sample, in the order of
ordinals: "ordinal", "key", and "fields", from name to "bytes" and "sha256".
"""

import asyncio
import hashlib
import json
import ssl
import sys
import urllib.parse

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamReset

AT_ONCE = 32
PATIENCE = 60


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.waiting = {}

    async def get(self, authority, path):
        """The status, headers and body of GET path."""
        stream = self._quic.get_next_available_stream_id()
        done = asyncio.get_running_loop().create_future()
        self.waiting[stream] = ({}, bytearray(), done)
        head = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority), (b":path", path.encode())]
        self.http.send_headers(stream, head, end_stream=True)
        self.transmit()
        headers, body = await asyncio.wait_for(done, PATIENCE)
        return int(headers[b":status"]), headers, bytes(body)

    def quic_event_received(self, event):
        if isinstance(event, StreamReset) and event.stream_id in self.waiting:
            self.fail(event.stream_id, f"stream reset with {event.error_code:#x}")
        elif isinstance(event, ConnectionTerminated):
            for stream in list(self.waiting):
                self.fail(stream, f"connection closed: {event.error_code:#x} {event.reason_phrase}")
        for answer in self.http.handle_event(event):
            headers, body, done = self.waiting[answer.stream_id]
            if isinstance(answer, HeadersReceived):
                headers.update(answer.headers)
            elif isinstance(answer, DataReceived):
                body += answer.data
            if answer.stream_ended:
                del self.waiting[answer.stream_id]
                done.set_result((headers, body))

    def fail(self, stream, why):
        done = self.waiting.pop(stream)[2]
        if not done.done():
            done.set_exception(RuntimeError(why))


async def main():
    address, dataset, ca_file = sys.argv[1:]
    host, port = address.rsplit(":", 1)
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, verify_mode=ssl.CERT_REQUIRED)
    configuration.server_name = "localhost"
    configuration.load_verify_locations(ca_file)
    base = "/v1/datasets/" + urllib.parse.quote(dataset, safe="")
    async with connect(host, int(port), configuration=configuration, create_protocol=Client) as client:
        authority = address.encode()

        async def get(path):
            status, headers, body = await client.get(authority, path)
            if status != 200:
                raise SystemExit(f"{path}: {status} {body[:500]!r}")
            length = headers.get(b"content-length")
            if length is not None and int(length) != len(body):
                raise SystemExit(f"{path}: {len(body)} bytes of {length!r}")
            return body

        samples = json.loads(await get(base))["samples"]
        turns = asyncio.Semaphore(AT_ONCE)

        async def sample(ordinal):
            async with turns:
                about = json.loads(await get(f"{base}/samples/{ordinal}"))
                names = [field["name"] for field in about["fields"]]
                paths = [f"{base}/samples/{ordinal}/{urllib.parse.quote(name, safe='')}" for name in names]
                bodies = await asyncio.gather(*[get(path) for path in paths])
            fields = {
                name: {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()} for name, body in zip(names, bodies)
            }
            return {"ordinal": ordinal, "key": about["key"], "fields": fields}

        for line in await asyncio.gather(*[sample(ordinal) for ordinal in range(samples)]):
            print(json.dumps(line))

        status, _, body = await client.get(authority, f"{base}/samples/{samples}")
        problem = json.loads(body)
        if status != 404 or problem["type"] != "urn:forebay:problem:not-found":
            raise SystemExit(f"no problem document for what is not there: {status} {body!r}")


asyncio.run(main())
