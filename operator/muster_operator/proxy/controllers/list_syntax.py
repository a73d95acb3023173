"""Parses the list of V-IPU controllers, ``host:port:key=value,…``, in the format of the original's ConfigMap. Pure.

Controllers are tried in the order of the list. An invalid entry is reported with its number and skipped; the others
count.
"""

import re
from dataclasses import dataclass

LIST_LIMIT = 64 << 10  # characters
ENTRIES_LIMIT = 256
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?", re.ASCII)
_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.%]{2,60}\]", re.ASCII)
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
EXPECTED = "expected host:port:key=value"


@dataclass(frozen=True)
class ControllerEndpoint:
    """The address of a controller. selector: ``key=value`` of the nodes that reach its IPUs; ``""``: any node."""

    host: str
    port: int
    selector: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class InvalidEndpoint(ValueError):
    pass


def parse_controller_list(text: str) -> tuple[tuple[ControllerEndpoint, ...], tuple[str, ...]]:
    """The valid entries in order, and a message for each invalid one."""
    if len(text) > LIST_LIMIT:
        return (), (f"the list of controllers is longer than {LIST_LIMIT} characters",)
    endpoints: list[ControllerEndpoint] = []
    complaints: list[str] = []
    # a list may have one entry per line, and an editor adds a line feed
    words = [word.strip() for word in text.replace("\n", ",").split(",")]
    for number, word in enumerate((word for word in words if word), 1):
        try:
            endpoints.append(_check_addition(endpoints, parse_endpoint(word)))
        except InvalidEndpoint as error:
            complaints.append(f"entry {number}, {word[:120]!r}: {error}")
    return tuple(endpoints), tuple(complaints)


def _check_addition(endpoints: list[ControllerEndpoint], endpoint: ControllerEndpoint) -> ControllerEndpoint:
    if any(endpoint.address == other.address for other in endpoints):
        raise InvalidEndpoint(f"{endpoint.address} is listed twice: expected each controller once")
    if len(endpoints) == ENTRIES_LIMIT:
        raise InvalidEndpoint(f"more than {ENTRIES_LIMIT} controllers")
    return endpoint


def parse_endpoint(word: str) -> ControllerEndpoint:
    """Parses one entry. Raises InvalidEndpoint."""
    if word.startswith("["):  # IPv6
        host, bracket, rest = word.partition("]")
        host, rest = host + bracket, rest.removeprefix(":")
        good = _BRACKETED.fullmatch(host) is not None
    else:
        host, _, rest = word.partition(":")
        good = _HOST.fullmatch(host) is not None
    port, colon, selector = rest.partition(":")
    if not good:
        raise InvalidEndpoint(f"host: {host[:80]!r}: expected a name or an address; {EXPECTED}")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    if not 1 <= number <= 65535:
        raise InvalidEndpoint(f"port: {port[:20]!r}: expected 1 to 65535; {EXPECTED}")
    if not colon or not is_label(selector):
        raise InvalidEndpoint(f"label: {selector[:120]!r}: expected key=value, a node label; {EXPECTED}")
    return ControllerEndpoint(host, number, selector)


def is_label(text: str) -> bool:
    key, equals, value = text.partition("=")
    prefix, slash, name = key.rpartition("/")
    good_prefix = not slash or _PREFIX.fullmatch(prefix) is not None
    return bool(equals and name and good_prefix and _LABEL.fullmatch(name) and _LABEL.fullmatch(value))


def parse_address(address: str) -> ControllerEndpoint | None:
    """The controller of a tracker entry, which may no longer be in the list; None if the address is invalid."""
    host, colon, port = address.rpartition(":")
    if not colon or not (_HOST.fullmatch(host) or _BRACKETED.fullmatch(host)):
        return None
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= 5 else 0
    return ControllerEndpoint(host, number) if 1 <= number <= 65535 else None
