"""The simulator's HTTP and JSON interface, which is Muster's own.

A refusal is {why, message}: 400 Invalid, 404 NotThere, 409 Exists, NoRoom or Busy, 503 Silent (an injected fault, which
clients treat as no answer) or NotKept (the disk; nothing has changed).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Annotated, Any, ParamSpec, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.exceptions import HTTPException as StarletteHTTPException
from typing_extensions import TypedDict  # pydantic reads the standard library's from Python 3.12 on

from muster_kube.http.bad_request import check_query
from muster_kube.http.not_served import list_routes
from muster_kube.http.responses import StructResponse
from muster_kube.http.service import Service
from muster_kube.process.lifetime import package_version
from muster_operator.vipu.controller import Capacity, Ipu, VipuPartition
from muster_operator.vipu.simulator.clocked_fleet import ClockedFleet
from muster_operator.vipu.simulator.faults import (
    DescribedFaults,
    FaultRequest,
    add_faults,
    describe_faults,
    remove_faults,
)
from muster_operator.vipu.simulator.fleet import (
    IPUS_OF_MACHINE,
    NAME_PATTERN,
    SIZE_LIMIT,
    InvalidCommand,
    NameTaken,
    NoFreeBlock,
    PartitionBusy,
    SimulatorRefusal,
    UnknownPartition,
    machine_address,
    number_machines,
    shorten_repr,
)

log = logging.getLogger(__name__)

BODY_LIMIT = 4096  # bytes of a request
BODY_S = 10.0  # within which it must arrive
_STATUS = {InvalidCommand: 400, UnknownPartition: 404, NameTaken: 409, NoFreeBlock: 409, PartitionBusy: 409}
SIZES: list[JsonValue] = [1 << power for power in range(SIZE_LIMIT.bit_length())]
_WHY = {400: "Invalid", 408: "Invalid", 413: "Invalid"}
P = ParamSpec("P")
T = TypeVar("T")


class NewPartition(BaseModel):
    """The body of ``POST /partitions``."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
    name: str = Field(json_schema_extra={"pattern": f"^{NAME_PATTERN}$"})
    size: int = Field(description="IPUs: a power of two", json_schema_extra={"enum": SIZES})
    gcds: int = Field(default=1, description="graph compilation domains, a divisor of the size")


class Refusal(BaseModel):
    """Why a request was refused: for programs, and for people."""

    why: str
    message: str


def _described(description: str) -> dict[str, Any]:
    return {"description": description, "model": Refusal}


_NOT_THERE: dict[int | str, dict[str, Any]] = {404: _described("there is no such partition")}


class FreeBlocks(TypedDict):
    size: int
    blocks: int


class DescribedMachine(TypedDict):
    """partitions: of each of its IPUs, empty if it is in none."""

    address: str
    partitions: list[str]


class DescribedFleet(TypedDict):
    ipus: int
    free: int
    delayS: float
    machines: list[DescribedMachine]
    partitions: Sequence[VipuPartition]
    faults: DescribedFaults


class _Silent(Exception):
    """An injected fault: the controller does not answer."""


def make_app(clocked_fleet: ClockedFleet) -> Service:
    """All requests go through one event loop, so no two changes overlap."""

    async def answers_at_all() -> None:
        if clocked_fleet.faults.down:
            raise _Silent("the controller is down (injected fault)")

    reads = _with_faults(clocked_fleet, changes=False)
    changes = _with_faults(clocked_fleet, changes=True)
    controller = APIRouter(
        dependencies=[Depends(answers_at_all), Depends(check_query)],
        responses={503: _described("no answer because of an injected fault, or the disk cannot be written")},
    )
    faults = APIRouter(dependencies=[Depends(check_query)])

    @controller.get("/")
    @reads
    async def overview() -> DescribedFleet:
        """The whole simulated fleet."""
        return _describe_fleet(clocked_fleet)

    @controller.get("/partitions")
    @reads
    async def list_all() -> Sequence[VipuPartition]:
        """All partitions."""
        return clocked_fleet.list_partitions()

    @controller.get("/partitions/{name}", responses=_NOT_THERE)
    @reads
    async def one(name: str) -> VipuPartition:
        """One partition."""
        return clocked_fleet.get_partition(name)

    @controller.post(
        "/partitions", status_code=202, responses={409: _described("the name is taken, or there is no room")}
    )
    @changes
    async def create(wanted: NewPartition) -> VipuPartition:
        """{"name", "size", "gcds"}: creates a partition; 202."""
        return clocked_fleet.create(wanted.name, wanted.size, wanted.gcds)

    @controller.post(
        "/partitions/{name}/reset", status_code=202, responses={**_NOT_THERE, 409: _described("it is being removed")}
    )
    @changes
    async def reset(name: str) -> VipuPartition:
        """Resets its IPUs; 202."""
        return clocked_fleet.reset(name)

    @controller.delete("/partitions/{name}", status_code=202)
    @changes
    async def remove(name: str) -> dict[str, str]:
        """Removes it; 202."""
        clocked_fleet.remove(name)
        return {}

    @controller.get("/ipus")
    @reads
    async def ipus() -> Sequence[Ipu]:
        """All IPUs, in the order of aligned blocks."""
        return clocked_fleet.list_ipus()

    @controller.get("/capacity")
    @reads
    async def capacity() -> Capacity:
        """Total and free IPUs."""
        return clocked_fleet.read_capacity()

    @controller.get("/free-blocks")
    @reads
    async def free_blocks(
        size: Annotated[int, Query(ge=1, description="IPUs: a power of two", json_schema_extra={"enum": SIZES})],
    ) -> FreeBlocks:
        """?size=N: number of free blocks of N adjacent IPUs."""
        return {"size": size, "blocks": clocked_fleet.count_free_blocks(size)}

    @faults.get("/faults")
    async def show_faults() -> DescribedFaults:
        """Injected faults."""
        return describe_faults(clocked_fleet.fleet)

    @faults.post("/faults", responses={**_NOT_THERE, 503: _described("the disk cannot be written")})
    async def add_fault(request: FaultRequest) -> DescribedFaults:
        """Injects faults into an IPU, a link or the controller; returns all faults."""
        found = add_faults(clocked_fleet.fleet, request)
        if request.vanish is not None:
            clocked_fleet.forget(request.vanish)
        clocked_fleet.set_faults(found)
        return describe_faults(clocked_fleet.fleet)

    @faults.delete("/faults", responses={503: _described("the disk cannot be written")})
    async def end_faults(
        ipu: Annotated[str | None, Query(description="MACHINE/INDEX")] = None,
        link: Annotated[str | None, Query(description="MACHINE-MACHINE")] = None,
        stuck: Annotated[str | None, Query(description="a partition")] = None,
    ) -> DescribedFaults:
        """Removes all faults, or only ?ipu=, ?link=, ?stuck=; returns the remaining ones."""
        named = {"ipu": ipu, "link": link, "stuck": stuck}
        ended = {key: text for key, text in named.items() if text is not None}
        clocked_fleet.set_faults(remove_faults(clocked_fleet.fleet, ended))
        return describe_faults(clocked_fleet.fleet)

    service = Service(
        "muster vipu-sim",
        package_version(),
        description="A simulated V-IPU controller. A refused request is answered with JSON: why, message.",
        refuse=_refuse_request,
        body_limit=BODY_LIMIT,
        body_s=BODY_S,
        responses={400: _described("what is wrong, and what is allowed")},
    )

    async def not_served(request: Request, error: Exception) -> Response:
        assert isinstance(error, StarletteHTTPException)  # noqa: S101 - registered for it
        if error.status_code in (404, 405):
            text = f"{request.method} {shorten_repr(request.url.path)}: not found; available: {list_routes(service)}"
            error = StarletteHTTPException(error.status_code, text, error.headers)
        return await service.http_error(request, error)

    @service.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        """The simulator is running. Injected faults do not change this answer."""
        return "ok\n"

    service.include_router(controller)
    service.include_router(faults)
    service.add_exception_handler(SimulatorRefusal, _refused)
    service.add_exception_handler(_Silent, _silent)
    service.add_exception_handler(OSError, _not_kept)
    service.add_exception_handler(StarletteHTTPException, not_served)
    return service


def _with_faults(
    clocked_fleet: ClockedFleet, *, changes: bool
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Applies injected faults: answer late, or carry out the change and do not answer."""

    def decorate(carry_out: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @wraps(carry_out)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                made = await carry_out(*args, **kwargs)
                if changes and clocked_fleet.lose_answer():
                    raise _Silent("this answer is lost (injected fault)")
                return made
            finally:
                if slow_s := clocked_fleet.faults.slow:
                    await asyncio.sleep(slow_s)

        return answer

    return decorate


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, SimulatorRefusal)  # noqa: S101 - registered for it
    return _refuse(_STATUS[type(error)], error.why, str(error))


async def _silent(_: Request, error: Exception) -> Response:
    return _refuse(503, "Silent", str(error))


async def _not_kept(_: Request, error: Exception) -> Response:
    log.warning("cannot save the state: %s", error)
    return _refuse(503, "NotKept", f"cannot save the state, so nothing has changed: {error}")


def _describe_fleet(clocked_fleet: ClockedFleet) -> DescribedFleet:
    fleet, capacity = clocked_fleet.fleet, clocked_fleet.read_capacity()
    by_ipu = {number: held.name for held in fleet.partitions for number in held.ipus}
    machines: list[DescribedMachine] = [
        {
            "address": machine_address(fleet, machine),
            "partitions": [by_ipu.get(machine * IPUS_OF_MACHINE + at, "") for at in range(IPUS_OF_MACHINE)],
        }
        for machine in number_machines(fleet)
    ]
    return {
        "ipus": capacity.total,
        "free": capacity.free,
        "delayS": fleet.delay_s,
        "machines": machines,
        "partitions": clocked_fleet.list_partitions(),
        "faults": describe_faults(fleet),
    }


def _refuse_request(status: int, message: str, headers: Mapping[str, str]) -> Response:
    return _refuse(status, _WHY.get(status, "NotServed"), message, headers)


def _refuse(status: int, why: str, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    return StructResponse({"why": why, "message": message}, status, headers=dict(headers))
