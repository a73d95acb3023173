"""What agents tell each other to measure the network (POST /iperf/…): shapes and bounds."""

from typing import Annotated

import msgspec

from muster_agent.fleet.interfaces import INTERFACES_LIMIT, NodeInterface
from muster_checks.iperf.parse import IperfReport

PORTS = range(5201, 5265)  # 5201 is iperf3's own
HOLD_LIMIT_S = 600.0  # no server lives longer

# Linux allows neither a slash nor more than 15 characters; a per cent sign would end the address before it
Device = Annotated[str, msgspec.Meta(pattern=r"^[^/%\s]{1,15}\Z")]
Address = Annotated[str, msgspec.Meta(max_length=45)]


class _Body(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What is asked: unknown names are errors."""


class InterfacesRequest(_Body, frozen=True):
    plane: Annotated[str, msgspec.Meta(pattern=r"^(data|mgmt)\Z")]


class InterfaceList(msgspec.Struct, frozen=True, rename="camel"):
    """skipped: why there are none of that plane here (reason and message), empty where there are."""

    interfaces: Annotated[tuple[NodeInterface, ...], msgspec.Meta(max_length=INTERFACES_LIMIT)] = ()
    skipped: str = ""
    why: str = ""


class ListenAddress(_Body, frozen=True):
    """Where one server is to listen."""

    interface: Device
    address: Address


class ServersRequest(_Body, frozen=True):
    """seconds: how long at most; force: beside somebody's work, too."""

    servers: Annotated[tuple[ListenAddress, ...], msgspec.Meta(min_length=1, max_length=len(PORTS))]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=HOLD_LIMIT_S)]
    force: bool = False


class IperfServer(msgspec.Struct, frozen=True):
    interface: str
    address: str
    port: int


class IperfServers(msgspec.Struct, frozen=True):
    """The first line: they listen, in the order asked for. error: the last line, why they have ended."""

    servers: tuple[IperfServer, ...] = ()
    error: str = ""


class IperfTest(_Body, frozen=True):
    """One client: from an own interface and address to a server."""

    interface: Device
    address: Address
    server: Address
    port: Annotated[int, msgspec.Meta(ge=PORTS.start, lt=PORTS.stop)]


class ClientRequest(_Body, frozen=True):
    """All tests at once; each way in turn. clients: streams of each; the rest as in IperfParameters."""

    tests: Annotated[tuple[IperfTest, ...], msgspec.Meta(min_length=1, max_length=len(PORTS))]
    clients: Annotated[int, msgspec.Meta(ge=1, le=64)]
    seconds: Annotated[int, msgspec.Meta(ge=1, le=60)]
    omit_seconds: Annotated[int, msgspec.Meta(ge=0, le=10)]
    force: bool = False


class IperfOutcome(msgspec.Struct, frozen=True):
    """Of one test one way. trouble: why there is no report."""

    test: int
    reverse: bool
    report: IperfReport | None = None
    trouble: str = ""


class IperfOutcomes(msgspec.Struct, frozen=True):
    outcomes: Annotated[tuple[IperfOutcome, ...], msgspec.Meta(max_length=2 * len(PORTS))]
