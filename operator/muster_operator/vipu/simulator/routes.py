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

from muster_operator.vipu.simulator import fleet as core
from muster_operator.vipu.simulator.clocked_fleet import Keeper
from muster_operator.vipu.simulator.faults import Asked, added, told, without
from muster_operator.vipu.simulator.fleet import Busy, Exists, Full, Invalid, NotThere, Refused, shown

log = logging.getLogger(__name__)

BODY_LIMIT = 4096  # bytes of a request
BODY_S = 10.0  # in which it has to be here
_STATUS = {Invalid: 400, NotThere: 404, Exists: 409, Full: 409, Busy: 409}
T = TypeVar("T", bound=msgspec.Struct)


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of ``POST /partitions``. size: IPUs; gcds: graph compilation domains, a divisor of the size."""

    name: str
    size: int
    gcds: int = 1


Carry = Callable[[Request], Awaitable[Response]]


def make_app(keeper: Keeper) -> Starlette:
    """All requests go through one event loop, so no two changes overlap."""

    async def overview(request: Request) -> Response:
        """All that is simulated."""
        _query(request)
        return _json(_overview(keeper))

    async def list_all(request: Request) -> Response:
        """Every partition."""
        _query(request)
        return _json(keeper.partitions())

    async def one(request: Request) -> Response:
        """One partition."""
        _query(request)
        return _json(keeper.partition(request.path_params["name"]))

    async def create(request: Request) -> Response:
        """{"name", "size", "gcds"}: a partition is made; 202."""
        _query(request)
        wanted = await _body(request, Wanted)
        return _json(keeper.create(wanted.name, wanted.size, wanted.gcds), 202)

    async def reset(request: Request) -> Response:
        """Its IPUs are reset; 202."""
        _query(request)
        return _json(keeper.reset(request.path_params["name"]), 202)

    async def remove(request: Request) -> Response:
        """It is removed; 202."""
        _query(request)
        keeper.remove(request.path_params["name"])
        return _json({}, 202)

    async def ipus(request: Request) -> Response:
        """Every IPU, with its partition and state."""
        _query(request)
        return _json(keeper.ipus())

    async def capacity(request: Request) -> Response:
        """IPUs in all, and free."""
        _query(request)
        return _json(keeper.capacity())

    async def free_blocks(request: Request) -> Response:
        """?size=N: free blocks of N IPUs side by side."""
        size = _query(request, "size").get("size", "")
        if not (size.isascii() and size.isdecimal() and len(size) <= 9):
            raise Invalid(f"query: size={shown(size)}: expected a power of two")
        return _json({"size": int(size), "blocks": keeper.free_blocks(int(size))})

    async def show_faults(request: Request) -> Response:
        """What is broken."""
        _query(request)
        return _json(told(keeper.fleet))

    async def add_fault(request: Request) -> Response:
        """Breaks an IPU, a link, or the controller itself."""
        _query(request)
        asked = await _body(request, Asked)
        faults = added(keeper.fleet, asked)
        if asked.vanish is not None:
            keeper.vanish(asked.vanish)
        keeper.set_faults(faults)
        return _json(told(keeper.fleet))

    async def end_faults(request: Request) -> Response:
        """Mends all, or ?ipu=, ?link=, ?stuck= alone."""
        keeper.set_faults(without(keeper.fleet, _query(request, "ipu", "link", "stuck")))
        return _json(told(keeper.fleet))

    def reads(carry_out: Carry) -> Carry:
        return _answered(keeper, carry_out, changes=False)

    def changes(carry_out: Carry) -> Carry:
        return _answered(keeper, carry_out, changes=True)

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
            Route("/faults", _refusable(show_faults), methods=["GET"]),
            Route("/faults", _refusable(add_fault), methods=["POST"]),
            Route("/faults", _refusable(end_faults), methods=["DELETE"]),
        ],
        exception_handlers={HTTPException: _not_served},
    )


def _answered(keeper: Keeper, carry_out: Carry, *, changes: bool) -> Carry:
    """As the faults will have it: not at all, late, or carried out and not answered."""
    refusable = _refusable(carry_out)

    @wraps(carry_out)
    async def answer(request: Request) -> Response:
        if keeper.faults.down:
            return _refusal(503, "Silent", "the controller is down (a fault that was asked for)")
        response = await refusable(request)
        slow_s = keeper.faults.slow
        if changes and response.status_code < 300 and keeper.loses_answer():
            response = _refusal(503, "Silent", "this answer is lost (a fault that was asked for)")
        if slow_s:
            await asyncio.sleep(slow_s)
        return response

    return answer


def _refusable(carry_out: Carry) -> Carry:
    @wraps(carry_out)
    async def answer(request: Request) -> Response:
        try:
            return await carry_out(request)
        except Refused as refused:
            return _refusal(_STATUS[type(refused)], refused.why, str(refused))
        except OSError as error:
            log.warning("the state cannot be written: %s", error)
            return _refusal(503, "NotKept", f"the state cannot be written, nothing has changed: {error}")

    return answer


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    served = "GET /, /partitions, /partitions/NAME, /ipus, /capacity, /free-blocks?size=N, /faults"
    changing = "POST /partitions, /partitions/NAME/reset, /faults; DELETE /partitions/NAME, /faults"
    text = f"{request.method} {shown(request.url.path)}: not served; there are {served}; {changing}"
    return _refusal(error.status_code, "NotServed", text)


def _query(request: Request, *allowed: str) -> dict[str, str]:
    given = request.query_params.multi_items()
    for key, _ in given:
        if key not in allowed:
            raise Invalid(f"query: {shown(key)}: expected {', '.join(allowed) or 'no parameters'}")
    if len(dict(given)) != len(given):
        raise Invalid("query: a parameter is given twice")
    return dict(given)


async def _body(request: Request, kind: type[T]) -> T:
    raw = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > BODY_LIMIT:
                    raise Invalid(f"body: more than {BODY_LIMIT} bytes")
    except TimeoutError as error:
        raise Invalid(f"body: not here within {BODY_S:g} s") from error
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fields = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
        raise Invalid(f"body: {error}; expected a JSON object of {fields}") from error


def _overview(keeper: Keeper) -> dict[str, Any]:
    fleet, capacity = keeper.fleet, keeper.capacity()
    by_ipu = {number: held.name for held in fleet.partitions for number in held.ipus}
    machines = [
        {
            "address": core.address(fleet, machine),
            "partitions": [by_ipu.get(machine * core.IPUS_OF_MACHINE + at, "") for at in range(core.IPUS_OF_MACHINE)],
        }
        for machine in core.machines(fleet)
    ]
    return {
        "ipus": capacity.total,
        "free": capacity.free,
        "delayS": fleet.delay_s,
        "machines": machines,
        "partitions": keeper.partitions(),
        "faults": told(fleet),
    }


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _refusal(status: int, why: str, message: str) -> Response:
    return _json({"why": why, "message": message}, status)
