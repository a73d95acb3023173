"""``muster-sim-vipu``: replaces the ``vipu`` program for the simulator; install it on PATH as ``vipu``.

Arguments, tables and the success message are the published ones (muster_operator.vipu.tables; `create agent (ag1):
success.`). Muster's own, because nothing is published: failure messages (exit code 1), the states other than ACTIVE,
and that commands return when the change has begun. It imports only the standard library, because a proxy may run it
often.
"""

import argparse
import http.client
import json
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

TIMEOUT_S = 20.0
IPUS_OF_LINK_DOMAIN = 64
EXIT_FAILED, EXIT_USAGE = 1, 2


class CommandFailed(Exception):
    """The controller's message."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _create_parser().parse_args(argv)
    # the options are valid before and after the verb, so neither parser may have a default that overrides the other
    call = _SimulatorCall(getattr(arguments, "api_host", "127.0.0.1"), getattr(arguments, "api_port", 8090))
    try:
        if arguments.verb == "list":
            print(_format_allocations(call) if arguments.kind == "allocations" else _format_partitions(call))
        else:
            _change(call, arguments)
            print(f"{arguments.verb} partition ({arguments.name}): success.")
    except (CommandFailed, OSError, ValueError, http.client.HTTPException) as error:
        what = arguments.kind if arguments.verb == "list" else f"partition ({arguments.name})"
        print(f"{arguments.verb} {what}: failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


class _SimulatorCall:
    """Sends one request to the simulator. Raises CommandFailed, OSError, ValueError, HTTPException."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    def __call__(self, method: str, target: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request(method, target, None if body is None else json.dumps(body).encode())
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status >= 300:
            raise CommandFailed(answer["message"] if isinstance(answer, dict) and "message" in answer else f"{answer}")
        return answer


def _change(call: _SimulatorCall, arguments: argparse.Namespace) -> None:
    target = f"/partitions/{quote(arguments.name, safe='')}"
    if arguments.verb == "create":
        call("POST", "/partitions", {"name": arguments.name, "size": arguments.size, "gcds": arguments.num_gcds})
    elif arguments.verb == "reset":
        call("POST", f"{target}/reset")
    else:
        call("GET", target)  # the simulator's own removal is idempotent
        call("DELETE", target)


def _format_partitions(call: _SimulatorCall) -> str:
    glance = call("GET", "/")
    head = ("Partition", "Cluster", "ILDs", "GW Routing", "ILD Routing", "Size", "GCDs", "State")
    rows = []
    for each in glance["partitions"]:
        domains = -(-each["size"] // IPUS_OF_LINK_DOMAIN)
        routing = "RINGSWNC" if each["size"] >= IPUS_OF_LINK_DOMAIN else "DNC"
        cells = (each["name"], f"c{glance['ipus']}", domains, "DEFAULT", routing, each["size"], each["gcds"])
        rows.append((*map(str, cells), each["state"]))
    header, dashes, *lines = _format_table(head, rows)
    return "\n".join([header, dashes, *lines, dashes])


def _format_allocations(call: _SimulatorCall) -> str:
    agents = " ".join(f"ag{number}" for number in range(len(call("GET", "/")["machines"])))
    header, dashes, *lines = _format_table(("Allocation ID", "Agents"), [("alloc-1", agents)])
    return "\n".join([dashes, header, dashes, *lines, dashes])


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Header, dashes, rows."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [
        " " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return [lines[0], "-" * (max(map(len, lines)) + 1), *lines[1:]]


def _create_parser() -> argparse.ArgumentParser:
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument("--api-host", "-H", default=argparse.SUPPRESS, metavar="HOST")
    server.add_argument("--api-port", type=int, default=argparse.SUPPRESS, metavar="PORT")
    parser = argparse.ArgumentParser(prog="muster-sim-vipu", description=__doc__, parents=[server])
    verbs = parser.add_subparsers(dest="verb", required=True)
    listing = verbs.add_parser("list", parents=[server], help="list partitions or allocations")
    listing.add_argument("kind", choices=("partitions", "partition", "allocations"))
    for verb in ("create", "reset", "remove"):
        change = verbs.add_parser(verb, parents=[server], help=f"{verb} a partition")
        change.add_argument("kind", choices=("partition",))
        change.add_argument("name", metavar="NAME")
        if verb == "create":
            change.add_argument("--size", type=int, required=True, metavar="IPUS")
            change.add_argument("--num-gcds", type=int, default=1, metavar="N")
            change.add_argument("--reconfigurable", action="store_true", help="accepted and ignored")
        if verb == "remove":
            change.add_argument("--force", action="store_true", help="accepted and ignored")
    return parser


if __name__ == "__main__":
    sys.exit(main())
