"""Asks NCCL's RAS service: a line for each command, and an answer that ends with the connection.

    CLIENT PROTOCOL 2        -> SERVER PROTOCOL 2
    SET FORMAT json          -> OK, or ERROR before NCCL 2.28.7, which knows only text
    STATUS                   -> the report

Source: NCCL, src/ras/client.cc and client_support.cc. Whoever listens on the port answers: time and size are bounded.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from muster_checks.base.execution import CannotTell, NotHere
from muster_checks.ncclras.parse_json import parse_json
from muster_checks.ncclras.parse_text import parse_text
from muster_checks.ncclras.report import MalformedReport, RasCommunicator

CONNECT_S = 2.0
LINE_BYTES = 1024
BODY_BYTES = 2 << 20  # JSON of 4,000 ranks
_PROTOCOL = b"SERVER PROTOCOL "
NOBODY = (
    "no NCCL job answers at {0}: there is none, it has no host network, its NCCL is older than 2.24, or it has set "
    "NCCL_RAS_ADDR or NCCL_RAS_ENABLE. Jobs without host network cannot be asked from outside their pods"
)


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _TooLarge(Exception):
    """The report is longer than BODY_BYTES."""


async def ask(address: str, port: int, *, timeout_s: float, body_bytes: int = BODY_BYTES) -> list[RasCommunicator]:
    """body_bytes: of an answer. JSON that is longer is asked for again as text, a summary.

    Raises NotHere if nobody listens, CannotTell if the answer is not RAS's.
    """
    place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        for json in (True, False):
            with contextlib.suppress(_TooLarge):
                async with _connected(address, port, place) as (reader, writer), asyncio.timeout(timeout_s):
                    return await _exchange(reader, writer, body_bytes, json=json)
    except TimeoutError:
        raise CannotTell(f"{place}: no whole answer within {timeout_s:g} s", "NoAnswer") from None
    except MalformedReport as error:
        raise CannotTell(f"{place}: {error}", "Unparsable") from None
    except OSError as error:
        raise CannotTell(f"{place}: {error.strerror or error}", "NoAnswer") from None
    raise CannotTell(f"{place}: the answer is longer than {body_bytes} bytes", "TooLarge")


@contextlib.asynccontextmanager
async def _connected(address: str, port: int, place: str) -> AsyncIterator[_Connection]:
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(address, port, limit=LINE_BYTES)
    except (ConnectionRefusedError, TimeoutError):
        raise NotHere(NOBODY.format(place), "NoNcclJob") from None
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_S):
                await writer.wait_closed()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body_bytes: int, *, json: bool
) -> list[RasCommunicator]:
    if not (await _command(reader, writer, b"CLIENT PROTOCOL 2")).startswith(_PROTOCOL):
        raise MalformedReport("expected SERVER PROTOCOL: this is not NCCL's RAS service")
    json = json and await _command(reader, writer, b"SET FORMAT json") == b"OK"
    writer.write(b"STATUS\n" if json else b"VERBOSE STATUS\n")
    await writer.drain()
    body = await _body(reader, body_bytes)
    return parse_json(body) if json else parse_text(body)


async def _command(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: bytes) -> bytes:
    writer.write(command + b"\n")
    await writer.drain()
    try:
        line = await reader.readline()
    except ValueError:  # longer than LINE_BYTES
        raise MalformedReport("a line without end") from None
    if not line.endswith(b"\n"):
        raise MalformedReport("the connection was closed early")
    return line.strip()


async def _body(reader: asyncio.StreamReader, limit: int) -> bytes:
    body = bytearray()
    while chunk := await reader.read(1 << 16):
        body += chunk
        if len(body) > limit:
            raise _TooLarge
    return bytes(body)
