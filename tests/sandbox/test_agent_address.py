"""The address under which a sandbox publishes its agents."""

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.machine import require

# In a network namespace of its own: the addresses exist nowhere else.
NAMESPACE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
SETUP = """
import asyncio, json, os, signal, socket, subprocess, sys, time
from contextlib import closing
from pathlib import Path
from muster_sandbox.processes import ProcessReaper, spawn
from muster_sandbox.session.agent_address import NoAddress, add_address, relay_agents

A, B = (Path(each) for each in sys.argv[1:])

def addresses():
    listed = json.loads(subprocess.run(["ip", "-j", "-4", "address"], capture_output=True).stdout)
    return sorted(each["local"] for device in listed for each in device["addr_info"] if each["local"] != "127.0.0.1")

def owner(folder):
    script = f'''
import sys, time
from pathlib import Path
from muster_sandbox.processes import ProcessReaper
from muster_sandbox.session.agent_address import add_address
reaper = ProcessReaper()
print(reaper.pid, add_address(reaper, Path({str(folder)!r})), flush=True)
time.sleep(60)
'''
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    reaper, address = process.stdout.readline().split()
    return process, int(reaper), address

def until(done):
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
"""


def run(script: str, tmp_path: Path, *, enter: tuple[str, ...] = NAMESPACE) -> list[str]:
    """The lines that ``script`` prints in a network namespace; A and B are folders of two sandboxes."""
    require("root", "unshare", "nsenter", "setpriv", "ip")
    folders = (tmp_path / "a", tmp_path / "b")
    for folder in folders:
        folder.mkdir()
    done = subprocess.run(
        [*enter, sys.executable, "-c", SETUP + textwrap.dedent(script), *map(str, folders)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_sandbox_has_its_own_address_and_its_end_removes_it(tmp_path: Path) -> None:
    script = """
    with closing(ProcessReaper()) as first:
        print(add_address(first, A))
        with closing(ProcessReaper()) as second:
            print(add_address(second, B), *addresses())
        print(*addresses())
    print(*addresses())
    """
    assert run(script, tmp_path) == ["192.0.2.1", "192.0.2.2 192.0.2.1 192.0.2.2", "192.0.2.1", ""]


def test_the_relay_leads_to_loopback(tmp_path: Path) -> None:
    script = """
    async def answer(reader, writer):
        writer.write(writer.get_extra_info("peername")[0].encode() + await reader.readline())
        writer.close()

    async def main(reaper):
        agent = await asyncio.start_server(answer, "127.0.0.1", 4567)
        async with relay_agents(reaper, A, [4567]) as address:
            reader, writer = await asyncio.open_connection(address, 4567)
            writer.write(b" hello\\n")
            print((await reader.read()).decode().strip())
            writer.close()

    with closing(ProcessReaper()) as reaper:
        asyncio.run(main(reaper))
    """
    assert run(script, tmp_path) == ["127.0.0.1 hello"]


def test_another_interface_does_not_reach_the_agents(tmp_path: Path) -> None:
    """A packet for the address that arrives from outside finds no listener."""
    script = """
    setup = "ip link add here type veth peer name there; ip address add 10.9.9.1/24 dev here; ip link set here up"
    subprocess.run(setup, shell=True, check=True)
    other = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo ready; exec sleep 60"], stdout=subprocess.PIPE)
    other.stdout.readline()
    inside = ["nsenter", "-t", str(other.pid), "-n"]
    subprocess.run(["ip", "link", "set", "there", "netns", str(other.pid)], check=True)
    for words in ("address add 10.9.9.2/24 dev there", "link set there up", "route add 192.0.2.0/24 via 10.9.9.1"):
        subprocess.run([*inside, "ip", *words.split()], check=True)
    call = [*inside, sys.executable, "-c", "import socket, sys; socket.create_connection((sys.argv[1], 4567), 3)"]

    async def main(reaper):
        agent = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 4567)
        async with relay_agents(reaper, A, [4567]) as address:
            reader, writer = await asyncio.open_connection(address, 4567)
            writer.close()
            called = await asyncio.to_thread(subprocess.run, [*call, address], capture_output=True, text=True)
            print(called.stderr.strip().splitlines()[-1])

    with closing(ProcessReaper()) as reaper:
        asyncio.run(main(reaper))
    other.kill()
    other.wait()
    """
    (error,) = run(script, tmp_path)
    assert "refused" in error or "timed out" in error


def test_a_killed_sandbox_leaves_no_address(tmp_path: Path) -> None:
    script = """
    process, _, _ = owner(A)
    print(*addresses())
    process.kill()
    process.wait()
    until(lambda: not addresses())
    """
    assert run(script, tmp_path) == ["192.0.2.1"]


def test_the_next_sandbox_removes_what_a_killed_one_and_its_reaper_left(tmp_path: Path) -> None:
    script = """
    process, reaper, _ = owner(A)
    os.kill(reaper, signal.SIGKILL)
    process.kill()
    process.wait()
    print(*addresses())
    with closing(ProcessReaper()) as other:
        print(add_address(other, B))
        with closing(ProcessReaper()) as again:
            print(add_address(again, A), *addresses())
    print(*addresses())
    """
    assert run(script, tmp_path) == ["192.0.2.1", "192.0.2.2", "192.0.2.1 192.0.2.1 192.0.2.2", ""]


def test_the_addresses_go_after_the_processes(tmp_path: Path) -> None:
    script = """
    reaper = ProcessReaper()
    address = add_address(reaper, A)
    check = f"trap '' TERM; while :; do ip -4 address show dev lo | grep -q {address} || echo gone >> {B}/log; done"
    spawn(["sh", "-c", check], reaper, output=subprocess.DEVNULL, cwd=B)
    time.sleep(0.5)
    reaper.close()
    print(*addresses(), (B / "log").exists())
    """
    assert run(script, tmp_path) == ["False"]


def test_a_block_that_another_interface_uses_is_left_alone(tmp_path: Path) -> None:
    script = """
    setup = "ip link add lab type veth peer name end; ip address add %s dev lab"
    subprocess.run(setup % "192.0.2.77/24", shell=True, check=True)
    with closing(ProcessReaper()) as reaper:
        print(add_address(reaper, A))
    for address in ("198.51.100.9/24", "203.0.113.1/30"):
        subprocess.run(["ip", "address", "add", address, "dev", "lab"], check=True)
    with closing(ProcessReaper()) as reaper:
        try:
            add_address(reaper, A)
        except NoAddress as error:
            print(error)
    print(*addresses())
    """
    address, message, left = run(script, tmp_path)
    assert address == "198.51.100.1"
    assert "192.0.2.0/24" in message
    assert left == "192.0.2.77 198.51.100.9 203.0.113.1"


def test_without_the_right_to_add_addresses_the_message_names_root(tmp_path: Path) -> None:
    script = """
    with closing(ProcessReaper()) as reaper:
        try:
            add_address(reaper, A)
        except NoAddress as error:
            print(error)
    """
    (message,) = run(script, tmp_path, enter=(*NAMESPACE, "setpriv", "--bounding-set=-net_admin"))
    assert "root" in message
