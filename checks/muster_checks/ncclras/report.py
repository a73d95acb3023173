"""What RAS reports about one communicator, whatever the format."""

from ipaddress import ip_address

import msgspec

COMMUNICATORS_LIMIT = 4096
RANKS_LIMIT = 1 << 16  # of the communicators of an answer
UNKNOWN_HOST = "unknown"


class MalformedReport(ValueError):
    """The answer is not in a form that RAS publishes."""


class RasRank(msgspec.Struct, frozen=True, order=True):
    """host: an IP address, or UNKNOWN_HOST. gpu: CUDA device number; -1: not given. pid: 0: not given"""

    rank: int
    host: str = UNKNOWN_HOST
    gpu: int = -1
    pid: int = 0


class RasCommunicator(msgspec.Struct, frozen=True):
    """name: NCCL's hash, in hexadecimal. size: ranks.

    silent:  the process does not answer RAS, or is considered dead
    behind:  have launched fewer operations of one sort than most
    progress: grows whenever a rank launches an operation
    first_host: of the lowest rank that has answered; empty if that is not given
    """

    name: str
    size: int
    silent: tuple[RasRank, ...] = ()
    behind: tuple[RasRank, ...] = ()
    progress: float = 0.0
    first_host: str = ""


def host_of(text: str) -> str:
    """``text`` as an IP address; UNKNOWN_HOST for anything else."""
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        return UNKNOWN_HOST
