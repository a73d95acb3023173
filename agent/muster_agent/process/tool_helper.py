"""The helper process: runs the few tools that need root, for an agent that has dropped its privileges.

The kernel checks the capability at each query of a disk, so a descriptor that was opened before does not help:
CAP_SYS_ADMIN for the health log of an NVMe disk (nvme_cmd_allowed(), drivers/nvme/host/ioctl.c), CAP_SYS_RAWIO for an
ATA command (scsi_cmd_allowed(), drivers/scsi/scsi_ioctl.c). A BMC only needs the owner of /dev/ipmi0, which is root.

The helper is root with these two capabilities at most and none to gain. It serves the process that started it, over a
socket pair that nothing else can open, and ends with it. It runs :data:`COMMANDS` and nothing else: of a request, only
the name of a disk and two numbers are free. No text of a client, a tenant or the cluster reaches a command line.

It loads neither asyncio nor msgspec, because it runs on every node: 7 MB instead of 13. A fork of the agent would keep
32 MB, as the agent soon writes to every page that both share.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

_DISK = r"/dev/(?:nvme[0-9]{1,4}|sd[a-z]{1,4})"
COMMANDS = tuple(
    re.compile(" ".join(words), re.ASCII)
    for words in (
        ("smartctl", "-j", "-i", "-H", "-A", _DISK),
        ("nvme", "smart-log", "-o", "json", r"/dev/nvme[0-9]{1,4}"),
        ("ipmitool", "sel", "elist", "last", "[1-9][0-9]{0,3}"),
        ("ipmitool", "sel", "time", "get"),
        ("ipmitool", "sensor"),
    )
)
"""The command lines that the helper runs; no word of them contains a space."""
LONGEST_S = 120.0  # of one command: the upper limit of the check's parameter command_timeout_s
AT_ONCE = 64  # tools; the client waits for its turn, so that only another client is refused
OUTPUT_BYTES = 1 << 20  # of stdout and of stderr; 4,096 entries of an event log are 0.4 MB
REQUEST_BYTES = 256  # of a line

Run = Callable[[Sequence[str], float], Mapping[str, object]]


def is_allowed(argv: Sequence[str]) -> bool:
    """Whether the helper runs this command line."""
    line = " ".join(argv)
    return line.count(" ") == len(argv) - 1 and any(form.fullmatch(line) for form in COMMANDS)


def start_helper(capabilities: Collection[int]) -> socket.socket:
    """Start the helper, and return the client's end of its socket. Call it as root.

    capabilities: those that its commands need. It keeps those of them that this process has; without them, the tools
    report which disks they cannot query.
    """
    ours, its = socket.socketpair()
    with its:
        its.set_inheritable(True)  # the only descriptor that is, beside the standard ones
        arguments = [str(its.fileno()), *map(str, capabilities)]
        argv = [sys.executable, "-X", "utf8", "-P", "-m", "muster_agent.process.tool_helper", *arguments]
        # setsid: Ctrl-C is for the agent
        os.posix_spawn(sys.executable, argv, os.environ, setsid=True)
    return ours


def serve(connection: socket.socket, run: Run) -> None:
    """Run what the client requests, a JSON array ``[number, argv, timeout_s]`` on each line, until it closes its end.

    Each reply is a line too: an object with the number and what ``run`` returns. Raises ValueError for a line that no
    client sends.
    """
    slots, writing = threading.BoundedSemaphore(AT_ONCE), threading.Lock()

    def reply(number: int, found: Mapping[str, object]) -> None:
        line = json.dumps({"number": number, **found}).encode() + b"\n"
        with writing, contextlib.suppress(OSError):  # the client has ended
            connection.sendall(line)

    def answer(number: int, argv: Sequence[str], timeout_s: float) -> None:
        try:
            found = run(argv, timeout_s)
        finally:
            slots.release()
        reply(number, found)

    with connection, connection.makefile("rb") as lines:
        while line := lines.readline(REQUEST_BYTES):
            number, argv, timeout_s = _read_request(line)
            if slots.acquire(blocking=False):
                threading.Thread(target=answer, args=(number, argv, timeout_s), daemon=True).start()
            else:
                reply(number, {"exit_code": 1, "stderr": "too many tools are running already"})


def _read_request(line: bytes) -> tuple[int, list[str], float]:
    found = json.loads(line)
    match found:
        case [int() as number, [*argv], int() | float() as timeout_s] if all(isinstance(word, str) for word in argv):
            if not is_allowed(argv):
                raise ValueError(f"refused: {' '.join(argv)[:200]!r} is not one of the helper's commands")
            return number, argv, min(max(float(timeout_s), 0.0), LONGEST_S)
    raise ValueError(f"refused: {line[:200]!r} is not [number, argv, timeout_s]")


def run_tool(argv: Sequence[str], timeout_s: float) -> Mapping[str, object]:
    """The fields of :class:`muster_checks.base.commands.Output`, with bytes as Latin-1 text."""
    deadline = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except FileNotFoundError:
        return {"missing": "not found"}
    except OSError as error:
        return {"missing": str(error)}
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - requested above
    texts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    truncated = False
    with process.stdout, process.stderr, selectors.DefaultSelector() as pipes:
        for pipe in texts:
            pipes.register(pipe, selectors.EVENT_READ)
        while pipes.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, _ in pipes.select(left_s):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    pipes.unregister(key.fd)
                room = OUTPUT_BYTES - len(texts[key.fd])
                texts[key.fd] += chunk[:room]
                truncated = truncated or len(chunk) > room
        timed_out = bool(pipes.get_map())
        with contextlib.suppress(ProcessLookupError):
            if timed_out:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()  # one that waits in the kernel keeps this thread, and its slot
        stdout, stderr = (bytes(text).decode("latin-1") for text in texts.values())
    return {
        "exit_code": None if timed_out else process.returncode,
        "stdout": stdout,
        "stderr": stderr,
        "timed_out": timed_out,
        "truncated": truncated,
        "duration_s": timeout_s if timed_out else 0.0,
    }


def main(arguments: Sequence[str]) -> int:
    from muster_agent.process.capabilities import permitted, remaining_privileges, switch_user

    descriptor, *wanted = map(int, arguments)
    Path("/proc/self/comm").write_text("muster-helper")
    path = os.environ.get("PATH", os.defpath)
    os.environ.clear()  # nothing that a tool or its libraries would read
    os.environ |= {"PATH": path, "LC_ALL": "C", "LANG": "C"}
    os.set_inheritable(descriptor, False)
    kept = permitted(wanted)
    switch_user(0, 0, kept)
    left = remaining_privileges("self", 0, 0, kept)
    if left:
        print(f"muster-helper: privileges remain after dropping them: {', '.join(left)}", file=sys.stderr)
        return 1
    try:
        serve(socket.socket(fileno=descriptor), run_tool)
    except ValueError as error:
        print(f"muster-helper: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # not sys.exit: a thread may wait for a tool that does not end
    os._exit(main(sys.argv[1:]))
