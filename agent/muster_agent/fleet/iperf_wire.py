"""Messages between agents for measuring the network (POST /iperf/…), and their limits.

Requests are pydantic models, which FastAPI parses; answers are msgspec structs.
"""

from ipaddress import ip_address
from typing import Annotated

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from muster_agent.fleet.interfaces import DEVICE, INTERFACES_LIMIT, NodeInterface
from muster_agent.query.status_query import FIRST_PORT, SERVERS_LIMIT, Plane
from muster_checks.iperf.parse import IperfReport

PORTS = range(FIRST_PORT, FIRST_PORT + SERVERS_LIMIT)
HOLD_LIMIT_S = 600.0  # longest lifetime of a server
FIRST_S = 1.0  # how long clients try the first direction: the server listens already
REOPEN_S = 10.0  # how long clients try again while a server reopens its port after a test; normally milliseconds


def _node_address(text: str) -> str:
    """Accept only IP addresses of nodes: no DNS lookups, and no options for commands."""
    try:
        address = ip_address(text)
    except ValueError:
        raise ValueError("expected an IP address") from None
    if address.is_multicast or address.is_unspecified or "%" in text:
        raise ValueError("expected the address of a node")
    return text


def _number(value: object) -> object:
    if isinstance(value, bool | str):
        raise ValueError("expected a number")  # noqa: TRY004 - pydantic reports ValueErrors alone
    return value


Device = Annotated[str, Field(pattern=DEVICE)]
Address = Annotated[
    str,
    Field(max_length=45),
    AfterValidator(_node_address),
    WithJsonSchema(
        {
            "type": "string",
            "anyOf": [
                {"format": "ipv4", "not": {"pattern": r"^(0\.0\.0\.0$|22[4-9]\.|23[0-9]\.)"}},
                {"format": "ipv6", "not": {"pattern": r"^([0:]+$|[fF]{2}[0-9a-fA-F]{2}:)|%"}},
            ],
        }
    ),
]
Whole = Annotated[int, BeforeValidator(_number)]  # accepts 10.0, as JSON Schema does
Flag = Annotated[bool, Field(strict=True)]


class _Body(BaseModel):
    """Base of requests. Unknown fields are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, allow_inf_nan=False
    )


class InterfacesRequest(_Body):
    plane: Plane


class InterfaceList(msgspec.Struct, frozen=True, rename="camel"):
    """The interfaces of a plane.

    skipped, why: reason and message if the node has none; otherwise empty
    """

    interfaces: Annotated[tuple[NodeInterface, ...], msgspec.Meta(max_length=INTERFACES_LIMIT)] = ()
    skipped: str = ""
    why: str = ""


class ListenAddress(_Body):
    """The address of one server."""

    interface: Device
    address: Address


class ServersRequest(_Body):
    """Starts servers.

    seconds: longest lifetime of the servers
    force:   also on a busy node
    """

    servers: list[ListenAddress] = Field(min_length=1, max_length=len(PORTS))
    seconds: float = Field(gt=0, le=HOLD_LIMIT_S, strict=True)
    force: Flag = False


class IperfServer(msgspec.Struct, frozen=True):
    interface: str
    address: str
    port: int


class IperfServers(msgspec.Struct, frozen=True):
    """A line of the answer.

    servers: in the first line, the running servers in the requested order
    error:   in the last line, why they ended
    """

    servers: tuple[IperfServer, ...] = ()
    error: str = ""


class IperfTest(_Body):
    """One client, from an interface and address of the node to a server."""

    interface: Device
    address: Address
    server: Address
    port: Whole = Field(ge=PORTS.start, lt=PORTS.stop)


class ClientRequest(_Body):
    """All tests run concurrently, first in one direction, then in the other. Fields not described here are those of
    IperfParameters.

    clients: streams of each test
    force:   also on a busy node
    """

    tests: list[IperfTest] = Field(min_length=1, max_length=len(PORTS))
    clients: Whole = Field(ge=1, le=64)
    seconds: Whole = Field(ge=1, le=60)
    omit_seconds: Whole = Field(ge=0, le=10)
    force: Flag = False


class IperfOutcome(msgspec.Struct, frozen=True):
    """The outcome of one test in one direction.

    test:    index of the test in the request
    reverse: the server sends
    trouble: why there is no report
    """

    test: int
    reverse: bool
    report: IperfReport | None = None
    trouble: str = ""


class IperfOutcomes(msgspec.Struct, frozen=True):
    outcomes: Annotated[tuple[IperfOutcome, ...], msgspec.Meta(max_length=2 * len(PORTS))]
