"""The simulator over HTTP and JSON; routes and bodies are ours.

``GET /`` all at a glance; ``GET /partitions[/NAME]``; ``POST /partitions`` {name, size, gcds}; ``POST
/partitions/NAME/reset``; ``DELETE /partitions/NAME``; ``GET /ipus``, in the order of blocks; ``GET /capacity``; ``GET
/free-blocks?size=N``; ``GET``, ``POST`` and ``DELETE /faults`` (:mod:`muster_operator.vipu.simulator.faults`), which
answer whatever is faulty.

A refusal is {why, message}: 400 Invalid, 404 NotThere, 409 Exists, NoRoom or Busy, 503 Silent (a fault that was asked
for: the caller has to take it as no answer) or NotKept (the disk; nothing has changed).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from muster_operator.vipu.simulator.clocked_fleet import ClockedFleet
from muster_operator.vipu.simulator.faults import FaultRequest, add_faults, describe_faults, remove_faults
from muster_operator.vipu.simulator.fleet import (
    IPUS_OF_MACHINE,
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
BODY_S = 10.0  # in which it has to be here
_STATUS = {InvalidCommand: 400, UnknownPartition: 404, NameTaken: 409, NoFreeBlock: 409, PartitionBusy: 409}
T = TypeVar("T", bound=msgspec.Struct)


class NewPartition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /partitions``. size: IPUs; gcds: graph compilation domains, a divisor of the size."""

    name: str
    size: int
    gcds: int = 1


RouteHandler = Callable[[Request], Awaitable[Response]]


def make_app(clocked_fleet: ClockedFleet) -> Starlette:
    """All requests go through one event loop, so no two changes overlap."""

    async def overview(request: Request) -> Response:
        """All that is simulated."""
        _parse_query(request)
        return _json(_describe_fleet(clocked_fleet))

    async def list_all(request: Request) -> Response:
        """Every partition."""
        _parse_query(request)
        return _json(clocked_fleet.list_partitions())

    async def one(request: Request) -> Response:
        """One partition."""
        _parse_query(request)
        return _json(clocked_fleet.get_partition(request.path_params["name"]))

    async def create(request: Request) -> Response:
        """{"name", "size", "gcds"}: a partition is made; 202."""
        _parse_query(request)
        wanted = await _read_body(request, NewPartition)
        return _json(clocked_fleet.create(wanted.name, wanted.size, wanted.gcds), 202)

    async def reset(request: Request) -> Response:
        """Its IPUs are reset; 202."""
        _parse_query(request)
        return _json(clocked_fleet.reset(request.path_params["name"]), 202)

    async def remove(request: Request) -> Response:
        """It is removed; 202."""
        _parse_query(request)
        clocked_fleet.remove(request.path_params["name"])
        return _json({}, 202)

    async def ipus(request: Request) -> Response:
        """Every IPU, with its partition and state."""
        _parse_query(request)
        return _json(clocked_fleet.list_ipus())

    async def capacity(request: Request) -> Response:
        """IPUs in all, and free."""
        _parse_query(request)
        return _json(clocked_fleet.read_capacity())

    async def free_blocks(request: Request) -> Response:
        """?size=N: free blocks of N IPUs side by side."""
        size = _parse_query(request, "size").get("size", "")
        if not (size.isascii() and size.isdecimal() and len(size) <= 9):
            raise InvalidCommand(f"query: size={shorten_repr(size)}: expected a power of two")
        return _json({"size": int(size), "blocks": clocked_fleet.count_free_blocks(int(size))})

    async def show_faults(request: Request) -> Response:
        """What is broken."""
        _parse_query(request)
        return _json(describe_faults(clocked_fleet.fleet))

    async def add_fault(request: Request) -> Response:
        """Breaks an IPU, a link, or the controller itself."""
        _parse_query(request)
        asked = await _read_body(request, FaultRequest)
        faults = add_faults(clocked_fleet.fleet, asked)
        if asked.vanish is not None:
            clocked_fleet.forget(asked.vanish)
        clocked_fleet.set_faults(faults)
        return _json(describe_faults(clocked_fleet.fleet))

    async def end_faults(request: Request) -> Response:
        """Mends all, or ?ipu=, ?link=, ?stuck= alone."""
        clocked_fleet.set_faults(remove_faults(clocked_fleet.fleet, _parse_query(request, "ipu", "link", "stuck")))
        return _json(describe_faults(clocked_fleet.fleet))

    def reads(carry_out: RouteHandler) -> RouteHandler:
        return _with_faults(clocked_fleet, carry_out, changes=False)

    def changes(carry_out: RouteHandler) -> RouteHandler:
        return _with_faults(clocked_fleet, carry_out, changes=True)

    return Starlette(
        routes=[
            Route("/", reads(overview), methods=["GET"]),
            Route("/partitions", reads(list_all), methods=["GET"]),
            Route("/partitions", changes(create), methods=["POST"]),
            Route("/partitions/{name}", reads(one), methods=["GET"]),
            Route("/partitions/{name}", changes(remove), methods=["DELETE"]),
            Route("/partitions/{name}/reset", changes(reset), methods=["POST"]),
            Route("/ipus", reads(ipus), methods=["GET"]),
            Route("/capacity", reads(capacity), methods=["GET"]),
            Route("/free-blocks", reads(free_blocks), methods=["GET"]),
            Route("/faults", _with_refusals(show_faults), methods=["GET"]),
            Route("/faults", _with_refusals(add_fault), methods=["POST"]),
            Route("/faults", _with_refusals(end_faults), methods=["DELETE"]),
        ],
        exception_handlers={HTTPException: _respond_not_served},
    )


def _with_faults(clocked_fleet: ClockedFleet, carry_out: RouteHandler, *, changes: bool) -> RouteHandler:
    """As the faults will have it: not at all, late, or carried out and not answered."""
    refusable = _with_refusals(carry_out)

    @wraps(carry_out)
    async def answer(request: Request) -> Response:
        if clocked_fleet.faults.down:
            return _refuse(503, "Silent", "the controller is down (a fault that was asked for)")
        response = await refusable(request)
        slow_s = clocked_fleet.faults.slow
        if changes and response.status_code < 300 and clocked_fleet.lose_answer():
            response = _refuse(503, "Silent", "this answer is lost (a fault that was asked for)")
        if slow_s:
            await asyncio.sleep(slow_s)
        return response

    return answer


def _with_refusals(carry_out: RouteHandler) -> RouteHandler:
    @wraps(carry_out)
    async def answer(request: Request) -> Response:
        try:
            return await carry_out(request)
        except SimulatorRefusal as refused:
            return _refuse(_STATUS[type(refused)], refused.why, str(refused))
        except OSError as error:
            log.warning("the state cannot be written: %s", error)
            return _refuse(503, "NotKept", f"the state cannot be written, nothing has changed: {error}")

    return answer


async def _respond_not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    served = "GET /, /partitions, /partitions/NAME, /ipus, /capacity, /free-blocks?size=N, /faults"
    changing = "POST /partitions, /partitions/NAME/reset, /faults; DELETE /partitions/NAME, /faults"
    text = f"{request.method} {shorten_repr(request.url.path)}: not served; there are {served}; {changing}"
    return _refuse(error.status_code, "NotServed", text)


def _parse_query(request: Request, *allowed: str) -> dict[str, str]:
    given = request.query_params.multi_items()
    for key, _ in given:
        if key not in allowed:
            raise InvalidCommand(f"query: {shorten_repr(key)}: expected {', '.join(allowed) or 'no parameters'}")
    if len(dict(given)) != len(given):
        raise InvalidCommand("query: a parameter is given twice")
    return dict(given)


async def _read_body(request: Request, kind: type[T]) -> T:
    raw = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > BODY_LIMIT:
                    raise InvalidCommand(f"body: more than {BODY_LIMIT} bytes")
    except TimeoutError as error:
        raise InvalidCommand(f"body: not here within {BODY_S:g} s") from error
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise InvalidCommand(f"body: {error}; expected a JSON object of {fields}") from error


def _describe_fleet(clocked_fleet: ClockedFleet) -> dict[str, Any]:
    fleet, capacity = clocked_fleet.fleet, clocked_fleet.read_capacity()
    by_ipu = {number: held.name for held in fleet.partitions for number in held.ipus}
    machines = [
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


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _refuse(status: int, why: str, message: str) -> Response:
    return _json({"why": why, "message": message}, status)
