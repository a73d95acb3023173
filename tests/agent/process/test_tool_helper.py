"""The helper that runs tools as root for an agent without privileges: what it runs, and with which rights."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import yaml
from tests.agent.process.test_privileges import GUARD_S, NO_CAPABILITY, NOBODY, Answering, environment, place, staged
from tests.machine import needs
from tests.polling import thread_did

from muster_agent.process import helper_client
from muster_agent.process.capabilities import SYS_ADMIN, SYS_RAWIO
from muster_agent.process.helper_client import HelperCommands, HelperLost
from muster_agent.process.tool_helper import AT_ONCE, LONGEST_S, OUTPUT_BYTES, Run, is_allowed, run_tool, serve
from muster_checks.base.commands import OUTPUT_LIMIT_BYTES, Output
from muster_checks.base.declaration import NodeView
from muster_checks.disk import DISK, DiskParameters
from muster_checks.ipmi import IPMI, IpmiParameters
from muster_checks.registry import load_registry
from muster_checks.testing.recorded import lay_out

SAMPLE = Path(__file__).parents[2] / "checks/disk/samples/smartctl_nvme.json"
SMARTCTL = ("smartctl", "-j", "-i", "-H", "-A", "/dev/nvme0")
_ = place  # the fixture


class Recording:
    """Runs nothing; keeps what it was asked to run, and answers once ``gate`` is open."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, ...]] = []
        self.timeouts: list[float] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, argv: Sequence[str], timeout_s: float) -> Mapping[str, object]:
        self.ran.append(tuple(argv))
        self.timeouts.append(timeout_s)
        assert self.gate.wait(GUARD_S)
        return {"exit_code": 0, "stdout": " ".join(argv)}

    async def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> Output:
        self(argv, timeout_s)
        return Output(argv=tuple(argv), exit_code=0, stdout=" ".join(argv).encode())

    def which(self, name: str) -> str | None:
        return name


@contextlib.asynccontextmanager
async def helped(by: Run, local: Recording) -> AsyncIterator[HelperCommands]:
    """A client, with its helper in a thread of this process."""
    ours, its = socket.socketpair()
    serving = threading.Thread(target=serve, args=(its, by))
    serving.start()
    client = HelperCommands(ours, local)
    watching = asyncio.create_task(client.watch())
    try:
        yield client
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await asyncio.to_thread(serving.join)


def asked(number: int, argv: Sequence[str], timeout_s: float = 1.0) -> bytes:
    return json.dumps([number, list(argv), timeout_s]).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        "smartctl -j -i -H -A /dev/nvme0",
        "smartctl -j -i -H -A /dev/nvme10",
        "smartctl -j -i -H -A /dev/sdaa",
        "nvme smart-log -o json /dev/nvme3",
        "ipmitool sel elist last 256",
        "ipmitool sel time get",
        "ipmitool sensor",
    ],
)
def test_what_the_helper_runs(line: str) -> None:
    assert is_allowed(line.split())


@pytest.mark.parametrize(
    "argv",
    [
        ("smartctl", "-j", "-i", "-H", "-A", "/dev/../etc/shadow"),
        ("smartctl", "-j", "-i", "-H", "-A", "/dev/nvme0/../sda"),
        ("smartctl", "-j", "-i", "-H", "-A", "/dev/nvme0\n"),
        ("smartctl", "-j", "-i", "-H", "-A", "/dev/nvme٣"),
        ("smartctl", "-j", "-i", "-H", "-A", "/dev/nvme0", "-t", "long"),
        ("smartctl", "-j", "-i", "-H -A", "/dev/nvme0"),
        ("smartctl", "-t", "long", "/dev/sda"),
        ("smartctl", "-j", "-i", "-H", "-A", "-d", "/dev/sda"),
        ("/tmp/smartctl", "-j", "-i", "-H", "-A", "/dev/sda"),
        ("nvme", "format", "/dev/nvme0"),
        ("nvme", "smart-log", "-o", "json", "/dev/sda"),
        ("ipmitool", "chassis", "power", "off"),
        ("ipmitool", "sel", "clear"),
        ("ipmitool", "sel", "elist", "last", "99999"),
        ("ipmitool", "sel", "elist", "last", "-1"),
        ("sh", "-c", "id"),
        (),
        ("",),
    ],
)
def test_everything_else_ends_the_helper_before_it_runs_anything(argv: tuple[str, ...]) -> None:
    assert not is_allowed(argv)
    assert_refused(asked(1, argv))


def assert_refused(message: bytes) -> None:
    runner = Recording()
    ours, its = socket.socketpair()
    with ours:
        ours.send(message)
        with pytest.raises(ValueError):
            serve(its, runner)
    assert runner.ran == []


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\n",
        b"smartctl\n",
        b"[]\n",
        b"{}\n",
        b'["1", ["ipmitool", "sensor"], 1]\n',
        b'[1, "ipmitool sensor", 1]\n',
        b'[1, ["ipmitool", ["sensor"]], 1]\n',
        b'[1, ["ipmitool", "sensor"], "1"]\n',
        b'[1, ["ipmitool", "sensor"], 1, 1]\n',
        b"[" * 300 + b"\n",
    ],
)
def test_a_message_that_is_no_request_ends_the_helper(message: bytes) -> None:
    assert_refused(message)


async def test_the_helper_runs_what_needs_root_and_the_agent_the_rest() -> None:
    root, local = Recording(), Recording()
    async with helped(root, local) as client:
        answers = await asyncio.gather(
            client.run(SMARTCTL, timeout_s=15.0), client.run(["ipmitool", "sensor"], timeout_s=1e9)
        )
        await client.run(["iperf3"], timeout_s=1.0)
    assert [answer.stdout.split()[0] for answer in answers] == [b"smartctl", b"ipmitool"]
    assert dict(zip(root.ran, root.timeouts, strict=True)) == {SMARTCTL: 15.0, ("ipmitool", "sensor"): LONGEST_S}
    assert local.ran == [("iperf3",)]


async def test_of_more_disks_than_the_helper_has_places_each_gets_its_turn() -> None:
    root = Recording()
    root.gate.clear()
    async with helped(root, Recording()) as client:
        disks = [f"/dev/nvme{number}" for number in range(2 * AT_ONCE)]
        answers = asyncio.gather(*(client.run([*SMARTCTL[:-1], disk], timeout_s=GUARD_S) for disk in disks))
        await thread_did(lambda: len(root.ran) >= AT_ONCE)
        root.gate.set()
        assert [answer.stdout.split()[-1].decode() for answer in await answers] == disks


async def test_a_tool_that_does_not_end_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_client, "_SLACK_S", 0.0)
    root = Recording()
    root.gate.clear()
    async with helped(root, Recording()) as client:
        try:
            for _ in range(3):
                assert (await client.run(SMARTCTL, timeout_s=0.2)).timed_out
            await thread_did(lambda: root.ran)
            assert root.ran == [SMARTCTL]
            both = asyncio.gather(*(client.run(SMARTCTL, timeout_s=GUARD_S) for _ in range(2)))
            await asyncio.sleep(0)
        finally:
            root.gate.set()
        assert [answer.exit_code for answer in await both] == [0, 0]
        assert root.ran == [SMARTCTL]
        assert (await client.run(SMARTCTL, timeout_s=GUARD_S)).ok
        assert root.ran == [SMARTCTL] * 2


def test_the_number_of_tools_at_once_is_limited() -> None:
    runner = Recording()
    runner.gate.clear()
    ours, its = socket.socketpair()
    serving = threading.Thread(target=serve, args=(its, runner))
    serving.start()
    with ours, ours.makefile("rb") as replies:
        for number in range(AT_ONCE + 1):
            ours.send(asked(number, SMARTCTL))
        first = json.loads(replies.readline())
        assert (first["number"], first["exit_code"]) == (AT_ONCE, 1)
        runner.gate.set()
        assert {json.loads(replies.readline())["number"] for _ in range(AT_ONCE)} == set(range(AT_ONCE))
    serving.join()
    assert len(runner.ran) == AT_ONCE


@pytest.mark.parametrize(
    ("script", "timeout_s", "expected"),
    [
        ("printf 'a\\377'; printf b >&2; exit 3", GUARD_S, Output(argv=(), exit_code=3, stdout=b"a\xff", stderr=b"b")),
        ("kill -9 $$", GUARD_S, Output(argv=(), exit_code=-9)),
        ("exec sleep 1000", 0.5, Output(argv=(), timed_out=True, duration_s=0.5)),
        ("sleep 1000 & exit 0", 0.5, Output(argv=(), timed_out=True, duration_s=0.5)),
        (
            f"yes | head -c {2 * OUTPUT_BYTES}",
            GUARD_S,
            Output(argv=(), exit_code=0, truncated=True, stdout=b"y\n" * (OUTPUT_BYTES // 2)),
        ),
    ],
)
async def test_whatever_a_tool_does_has_an_output(script: str, timeout_s: float, expected: Output) -> None:
    async with helped(lambda _, timeout_s: run_tool(("sh", "-c", script), timeout_s), Recording()) as client:
        found = await client.run(SMARTCTL, timeout_s=timeout_s)
    assert found == msgspec.structs.replace(expected, argv=SMARTCTL)


async def test_a_tool_that_is_not_installed_is_missing() -> None:
    async with helped(lambda _, timeout_s: run_tool(("no-such-tool",), timeout_s), Recording()) as client:
        assert (await client.run(SMARTCTL, timeout_s=GUARD_S)).missing == "not found"


async def test_a_client_whose_helper_has_ended_ends_too() -> None:
    ours, its = socket.socketpair()
    client = HelperCommands(ours, Recording())
    its.close()
    with pytest.raises(HelperLost):
        await client.watch()


@pytest.mark.parametrize(
    ("check", "parameters", "files"),
    [
        (DISK, DiskParameters(), {"/sys/class/nvme/nvme0/state": "live", "/sys/block/sda/device/state": "running"}),
        (IPMI, IpmiParameters(entries=4096), {"/dev/ipmi0": ""}),
    ],
)
async def test_the_checks_run_nothing_else_of_these_tools(tmp_path, check, parameters, files) -> None:
    runner = Recording()
    await check.probe(NodeView(lay_out(tmp_path, files), commands=runner), parameters)
    assert runner.ran
    assert [argv for argv in runner.ran if not is_allowed(argv)] == []


# --- the real process

# prints the sample only with exactly the rights, and without anything of the agent's environment
STUB = f"""#!{sys.executable}
import json, os, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
found = {{name: status[name].strip() for name in ("Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs")}}
open(os.path.join(os.path.dirname(__file__), "seen.json"), "w").write(json.dumps(
    found | {{"argv": sys.argv[1:], "environment": sorted(os.environ), "files": sorted(os.listdir("/proc/self/fd"))}}))
print(open({str(SAMPLE)!r}).read())
"""


def node_with_a_disk(folder: Path, **settings: object) -> tuple[list[str], Path]:
    """The command line of an agent whose one check is ``disk``, and the folder of its tools."""
    lay_out(folder / "root", {"/sys/class/nvme/nvme0/state": "live", "/sys/class/nvme/nvme0/transport": "pcie"})
    checks: dict[str, object] = {name: {"enabled": False} for name in load_registry()} | {"disk": {}}
    config = folder / "agent.yaml"
    config.write_text(yaml.safe_dump({"root": str(folder / "root"), "checks": checks, **settings}))
    tools = folder / "tools"
    tools.mkdir()
    (tools / "smartctl").write_text(STUB)
    (tools / "smartctl").chmod(0o755)
    agent = [sys.executable, "-m", "muster_agent", "--config", str(config), "--node", "disk-test"]
    return [*agent, "--host", "127.0.0.1", "--port", "0", "--state-dir", str(folder / "state")], tools


@needs("root")
def test_an_agent_that_became_nobody_reads_smart_by_a_helper_with_two_capabilities(place: Path) -> None:
    command, tools = node_with_a_disk(place, run_as=str(NOBODY))
    variables = environment() | {"PATH": f"{tools}:{os.environ['PATH']}", "SMARTCTL_SECRET": "x"}
    log = place / "agent.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(staged(*command), stdout=subprocess.PIPE, stderr=errors, env=variables, cwd="/")
    try:
        agent = Answering(process, log)
        disk = json.loads(agent.get("/status?check=disk&format=json"))
        assert "NotReadable" not in json.dumps(disk)
        seen = json.loads((tools / "seen.json").read_text())
        rights = f"{1 << SYS_RAWIO | 1 << SYS_ADMIN:016x}"
        assert seen["argv"] == [*SMARTCTL[1:]]
        assert (seen["Uid"], seen["Gid"], seen["Groups"]) == ("\t".join("0" * 4), "\t".join("0" * 4), "")
        assert {seen["CapPrm"], seen["CapEff"], seen["CapBnd"]} == {rights}
        assert seen["NoNewPrivs"] == "1"
        assert set(seen["environment"]) <= {"PATH", "LC_ALL", "LANG", "LANGUAGE", "LC_CTYPE"}
        assert {each["CapPrm"] for each in agent.rights().values()} == {NO_CAPABILITY}
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (helper,) = (pid for pid in children if "muster-helper" in Path(f"/proc/{pid}/comm").read_text())
        os.kill(int(helper), 9)  # the next start of the agent starts it again
        assert process.wait(GUARD_S) == 1, agent.log
    finally:
        process.kill()
        process.wait(GUARD_S)
        assert process.stdout is not None
        process.stdout.close()


@needs("root")
def test_without_a_check_that_needs_it_no_process_keeps_root(place: Path) -> None:
    command, _ = node_with_a_disk(place, run_as=str(NOBODY), checks={"disk": {"parameters": {"smart": False}}})
    config = place / "agent.yaml"
    settings = yaml.safe_load(config.read_text())
    disabled = {name: {"enabled": False} for name in load_registry() if name != "disk"}
    config.write_text(yaml.safe_dump(settings | {"checks": disabled | settings["checks"]}))
    log = place / "agent.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(staged(*command), stdout=subprocess.PIPE, stderr=errors, env=environment(), cwd="/")
    try:
        agent = Answering(process, log)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        uids = [Path(f"/proc/{pid}").stat().st_uid for pid in (str(process.pid), *children)]
        assert set(uids) == {NOBODY}, agent.log
    finally:
        process.kill()
        process.wait(GUARD_S)
        assert process.stdout is not None
        process.stdout.close()
