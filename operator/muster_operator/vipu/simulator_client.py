"""The back end that calls ``muster vipu-sim`` over HTTP."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import quote

import httpcore2
import httpx2
import msgspec

from muster_operator.vipu.controller import (
    Capacity,
    Ipu,
    NoRoom,
    PartitionExists,
    VipuError,
    VipuPartition,
    VipuUnreachable,
)

TIMEOUT_S = 10.0
ANSWER_LIMIT = 16 << 20  # bytes; 12,800 partitions with the addresses of their IPUs need a tenth of it
T = TypeVar("T")


class _Refusal(msgspec.Struct, frozen=True):
    why: str
    message: str


class _Blocks(msgspec.Struct, frozen=True):
    blocks: int


class SimulatorController:
    """A :class:`~muster_operator.vipu.controller.VipuController` and IpuLister. timeout_s: of each whole call."""

    def __init__(self, host: str, port: int, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._timeout_s = timeout_s
        # connections are not kept, so there is nothing to close
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = httpx2.AsyncHTTPTransport(verify=False, trust_env=False, limits=limits)

    async def list_partitions(self) -> Sequence[VipuPartition]:
        status, raw = await self._call("GET", "/partitions")
        return self._decode(status, raw, tuple[VipuPartition, ...])

    async def find_partition(self, name: str) -> VipuPartition | None:
        status, raw = await self._call("GET", f"/partitions/{quote(name, safe='')}")
        if status == 404 and self._parse_refusal(raw).why == "NotThere":
            return None
        return self._decode(status, raw, VipuPartition)

    async def create(self, name: str, size: int, gcds: int) -> None:
        await self._change("POST", "/partitions", {"name": name, "size": size, "gcds": gcds})

    async def reset(self, name: str) -> None:
        await self._change("POST", f"/partitions/{quote(name, safe='')}/reset")

    async def remove(self, name: str) -> None:
        await self._change("DELETE", f"/partitions/{quote(name, safe='')}")

    async def read_capacity(self) -> Capacity:
        status, raw = await self._call("GET", "/capacity")
        return self._decode(status, raw, Capacity)

    async def count_free_blocks(self, size: int) -> int:
        status, raw = await self._call("GET", f"/free-blocks?size={size}")
        return self._decode(status, raw, _Blocks).blocks

    async def list_ipus(self) -> Sequence[Ipu]:
        status, raw = await self._call("GET", "/ipus")
        return self._decode(status, raw, tuple[Ipu, ...])

    async def _change(self, method: str, target: str, body: object = None) -> None:
        """An unreadable response to a change is VipuUnreachable: the change may or may not have happened."""
        status, raw = await self._call(method, target, body)
        if status == 202:
            return
        try:
            refusal = self._parse_refusal(raw)
        except VipuError as error:
            raise VipuUnreachable(str(error)) from error
        raise _to_vipu_error(refusal)

    def _decode(self, status: int, raw: bytes, kind: type[T]) -> T:
        if status != 200:
            raise _to_vipu_error(self._parse_refusal(raw))
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._report_nonsense(raw, str(error)) from error

    def _parse_refusal(self, raw: bytes) -> _Refusal:
        try:
            return msgspec.json.decode(raw, type=_Refusal)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._report_nonsense(raw, str(error)) from error

    def _report_nonsense(self, raw: bytes, why: str) -> VipuError:
        found = raw[:100].decode("utf-8", "replace")
        return VipuError(f"{self.address}: not the response of a simulator ({why}): {found!r}")

    async def _call(self, method: str, target: str, body: object = None) -> tuple[int, bytes]:
        """Raises VipuUnreachable."""
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {"Connection": "close", "Content-Type": "application/json"}
        url = f"http://{self.address}{target}"
        request = httpx2.Request(method, url, headers=headers, content=content)
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._transport.handle_async_request(request)
                try:
                    raw = await self._read(response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise VipuUnreachable(f"{self.address}: no answer within {self._timeout_s:g} s") from error
        except (httpx2.TransportError, httpcore2.ProtocolError, httpcore2.NetworkError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            raise VipuUnreachable(f"{self.address}: {text}") from error
        if response.status_code >= 500:
            raise VipuUnreachable(f"{self.address}: {raw[:300].decode('utf-8', 'replace')}")
        return response.status_code, raw

    async def _read(self, response: httpx2.Response) -> bytes:
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - what the async transport returns
        raw = bytearray()
        async for chunk in stream:
            raw += chunk
            if len(raw) > ANSWER_LIMIT:
                raise VipuUnreachable(f"{self.address}: a response of more than {ANSWER_LIMIT} bytes")
        return bytes(raw)


def _to_vipu_error(refusal: _Refusal) -> VipuError:
    kinds: dict[str, type[VipuError]] = {"NoRoom": NoRoom, "Exists": PartitionExists}
    return kinds.get(refusal.why, VipuError)(refusal.message)
