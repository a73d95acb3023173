"""A RAS service that answers as NCCL's source and user guide describe. There is no real NCCL here."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

HASH = "0x5a1e77c0ffee0042"
OWN, OTHER = "127.0.0.1", "192.0.2.7"


def rank(number: int, host: str = OWN, reduced: int = 100, **counts: int) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    return {
        "rank": number, "host": host, "pid": 7000 + number, "cuda_dev": number % 8, "nvml_dev": number % 8,
        "status": status, "collective_counts": {"Broadcast": 1, "AllReduce": reduced, **counts},
    }  # fmt: skip


def missing(number: int, host: str = OTHER, *, unresponsive: bool = True, dead: bool = False) -> dict[str, Any]:
    status = {"unresponsive": unresponsive, "considered_dead": dead}
    return {"rank": number, "host": host, "pid": 7000 + number, "cuda_dev": number % 8, "nvml_dev": number % 8,
            "status": status}  # fmt: skip


def communicator(
    ranks: Sequence[Mapping[str, Any]], absent: Sequence[Mapping[str, Any]] = (), name: str = HASH
) -> dict[str, Any]:
    return {
        "hash": name, "secondary_hash": "0x1:0x2", "size": len(ranks) + len(absent), "ranks_count": len(ranks),
        "missing_ranks_count": len(absent), "ranks": ranks, "missing_ranks": absent,
    }  # fmt: skip


def report(*communicators: Mapping[str, Any]) -> bytes:
    head = {"nccl_version": "2.28.9", "cuda_runtime_version": 13000, "cuda_driver_version": 13000,
            "timestamp": "2026-11-24 02:00:00", "communicators_count": len(communicators)}  # fmt: skip
    ras = {"collection_time_sec": 0.001, "timeouts_count": 0}
    return json.dumps({**head, "communicators": communicators, "ras": ras}, indent=2).encode()


HEAD = """NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          8            1         16       16

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""
ALL_WELL = HEAD + "    0         1         2         8        16        16   RUNNING      OK\n"
# the form of NCCL's source
MISSING = (
    HEAD
    + """    0         1         2       7-8        16        16   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 7011 on node 192.0.2.7 managing GPU 3

#0-0 (5a1e77c0ffee0042) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 11 -- GPU 3 (NVML 5) managed by process 7011 on node 192.0.2.7

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
)
# the form of NCCL's user guide
DEAD = (
    HEAD
    + """    0         1         2       7-8        16        16   RUNNING  INCOMPLETE

Errors
======

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 7011 on node 192.0.2.7 managing GPU 3

#0-0 (5a1e77c0ffee0042) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 11
"""
)


def behind(most: int = 6650, late: int = 6649) -> str:
    return (
        HEAD
        + f"""    0         1         2         8        16        16   RUNNING  MISMATCH

Warnings
========

#0-0 (5a1e77c0ffee0042) MISMATCH
  Communicator ranks have different AllReduce operation counts
  14 ranks have launched up to operation {most}
  2 ranks have launched up to operation {late}
  Rank 3 -- GPU 3 managed by process 7003 on node 127.0.0.1
  Rank 12 -- GPU 4 managed by process 7012 on node 192.0.2.7
  Communicator ranks have different Broadcast operation counts
  15 ranks have launched up to operation 2
  Rank 12 has not launched any operations -- GPU 4 managed by process 7012 on node 192.0.2.7

"""
    )


class RasService:
    """answers: one for each query, the last one for all further. knows_json: NCCL 2.28.7 or later"""

    def __init__(self, *answers: bytes, knows_json: bool = True, text: bytes = b"") -> None:
        self.answers = list(answers)
        self.knows_json = knows_json
        self.text = text
        self.commands: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        as_json = False
        try:
            while line := await reader.readline():
                command = line.strip()
                self.commands.append(command)
                if command.startswith(b"CLIENT PROTOCOL"):
                    writer.write(b"SERVER PROTOCOL 2\n")
                elif command.startswith(b"SET FORMAT"):
                    as_json = self.knows_json
                    writer.write(b"OK\n" if as_json else b"ERROR: Unknown command " + command + b"\n")
                else:
                    answer = self.text if self.text and not as_json else self.answers[0]
                    if len(self.answers) > 1:
                        del self.answers[0]
                    writer.write(answer)
                    break
            await writer.drain()
        except OSError:
            pass  # the client has had enough
        finally:
            writer.close()


@asynccontextmanager
async def listening(service: Any) -> AsyncIterator[int]:
    server = await asyncio.start_server(service, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
