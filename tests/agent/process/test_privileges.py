"""The rights of a real agent process: what it has kept after its start, what it can still do, and what it cannot.

Each process runs in a mount namespace of its own, in which everybody can reach the interpreter (it may lie in root's
home) and, where a test wants that, nothing but the state's folder can be written.
"""

import contextlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.kernel_log_only import kernel_log_only
from tests.machine import needs

from muster_checks.dmesg.sources.kmsg import KmsgDevice, open_kmsg

ROOT = Path(__file__).parents[3]
KMSG = Path("/dev/kmsg")
NOBODY = 65534
GUARD_S = 120.0  # far more than anything takes: what hangs fails, what is slow does not
NO_CAPABILITY = "0" * 16
UNSHARE = ["unshare", "--mount", "--propagation", "private", "sh", "-e", "-c"]

# Words up to the first --: a folder that only root can enter, then what everybody has to reach below it.
# Words up to the second --: folders that stay writable while all else is not; none: everything stays as it is.
STAGE = """
held=$(mktemp -d); mount -t tmpfs held "$held"
while [ "$1" != -- ]; do
    mkdir "$held/it"; mount --bind "$2" "$held/it"
    mountpoint -q "$1.open" || mount -t tmpfs -o mode=755 open "$1"
    mkdir -p "$2"; mount --move "$held/it" "$2"; rmdir "$held/it"; shift 2
done; shift
umount "$held"; rmdir "$held"
if [ "$1" != -- ]; then
    while [ "$1" != -- ]; do mount --bind "$1" "$1"; kept="$kept $1"; shift; done
    while read -r _ _ _ _ place _; do
        case "$place " in /proc*|/sys*|/dev*) continue;; esac
        case "$kept " in *" $place "*) continue;; esac
        mount -o remount,bind,ro "$place" || :
    done < /proc/self/mountinfo
fi; shift
exec "$@"
"""

pytestmark = needs("root")  # only root has rights that it can give up
needs_kmsg = needs("/dev/kmsg")


def hidden() -> list[str]:
    """Pairs: a folder that only its owner can enter, and what this test's processes need below it."""
    pairs: dict[str, str] = {}
    places = {Path(sys.base_prefix), Path(sys.prefix), ROOT}
    for needed in [place for place in places if places.isdisjoint(place.parents)]:
        for folder in reversed(needed.parents):
            if not folder.stat().st_mode & 0o001:
                assert str(folder) not in pairs, f"{folder} hides two things that are needed"
                pairs[str(folder)] = str(needed)
                break
    return [word for pair in pairs.items() for word in pair]


def staged(*command: str, writable: tuple[Path, ...] = ()) -> list[str]:
    return [*UNSHARE, STAGE, "sh", *hidden(), "--", *map(str, writable), "--", *command]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter; pytest's own are for their owner only."""
    folder = Path(tempfile.mkdtemp(prefix="muster-rights-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


class Answering:
    """A running agent."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self._log = process, log
        assert process.stdout is not None
        first = process.stdout.readline().decode()
        match = re.match(r"listening on 127\.0\.0\.1:(\d+)", first)
        assert match, f"no address printed: {first!r}\n{self.log}"
        self.port = int(match[1])

    @property
    def log(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=GUARD_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.read().decode()

    def rights(self) -> dict[str, dict[str, str]]:
        """By thread: what its /proc/PID/task/TID/status says."""
        found: dict[str, dict[str, str]] = {}
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
                lines = (thread / "status").read_text().splitlines()
                found[thread.name] = {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines}
        return found


class Place:
    """One agent's folder, settings and state. ``settings``: beside those of an agent that reads the kernel log only."""

    def __init__(self, folder: Path, dmesg: dict[str, object] | None = None, **settings: object) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.config = kernel_log_only(folder, dmesg or {"start": "now"}, **settings)
        self.command = [
            *(sys.executable, "-m", "muster_agent", "--config", str(self.config), "--node", "rights-test"),
            *("--host", "127.0.0.1", "--port", "0", "--state-dir", str(self.state)),
        ]

    @contextlib.contextmanager
    def running(self, *before: str, writable: tuple[Path, ...] = ()) -> Iterator[Answering]:
        """``before``: the program that starts it."""
        log = self.folder / "agent.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                staged(*before, *self.command, writable=writable),
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment(),
                cwd="/",
            )
        try:
            yield Answering(process, log)
        finally:
            process.terminate()
            assert process.stdout is not None
            process.stdout.close()
            try:
                process.wait(GUARD_S)
            finally:
                process.kill()

    def refused(self, *before: str) -> tuple[int, str]:
        """The exit code and last line of an agent that must not start."""
        ended = run(*before, *self.command)
        return ended.returncode, ended.stderr.strip().splitlines()[-1]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        staged(*command), check=False, capture_output=True, text=True, env=environment(), cwd="/", timeout=GUARD_S
    )


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}


def until(look: Callable[[], Any], what: Callable[[], str] = str) -> Any:
    """What ``look`` returns once it is true; another process has no clock to fake."""
    deadline = time.monotonic() + GUARD_S
    while not (found := look()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)
    return found


def fault_in_the_kernel_log() -> str:
    """Writes one and returns its component, which no other test has."""
    component = f"{random.randrange(1 << 16):04x}:{random.randrange(1, 1 << 8):02x}:00"
    with KMSG.open("w") as log:
        log.write(f"NVRM: Xid (PCI:{component.removesuffix(':00')}:00): 79, GPU has fallen off the bus.\n")
    return f"gpu/{component}.0"


AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
WITHOUT_ANY_RIGHT = (*AS_NOBODY, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")


@needs_kmsg
@pytest.mark.kmsg
def test_an_agent_that_became_nobody_reads_the_kernel_log_with_no_right_left_in_any_thread(place: Path):
    here = Place(place, run_as=str(NOBODY))
    with here.running() as agent:
        until(lambda: agent.get("/readyz") == "ok\n", lambda: agent.log)
        component = fault_in_the_kernel_log()
        until(lambda: component in agent.get("/status?check=dmesg"), lambda: agent.log)
        # its threads save: by now there have been some
        saved = here.state / "agent.json"
        until(lambda: saved.exists() and component.encode() in saved.read_bytes(), lambda: agent.log)
        threads = agent.rights()
    assert threads
    for rights in threads.values():
        assert rights["Uid"] == rights["Gid"] == "\t".join([str(NOBODY)] * 4)
        assert rights["Groups"] == ""
        assert {rights[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {NO_CAPABILITY}
        assert rights["NoNewPrivs"] == "1"
    assert saved.stat().st_uid == NOBODY


@needs_kmsg
@pytest.mark.kmsg
def test_a_descriptor_of_the_kernel_log_serves_again_from_its_oldest_record(place: Path):
    opened = open_kmsg(KMSG)

    def oldest() -> bytes | None:
        with contextlib.closing(KmsgDevice(KMSG, opened)) as device:
            first = device.read()
            device.read()
        return first

    try:
        until(lambda: oldest() == oldest())  # of a full log the oldest goes whenever the kernel says something
    finally:
        os.close(opened)


COME_BACK = """
import ctypes, os, subprocess, sys
from pathlib import Path
from muster_agent import settings
from muster_agent.process import privileges
privileges.drop_privileges(settings.load_agent_settings(Path(sys.argv[1]), {"state_dir": Path(sys.argv[2])}, {}))
libc, tried = ctypes.CDLL(None, use_errno=True), {}
for name, way in {
    "user": lambda: os.setresuid(0, 0, 0),
    "group": lambda: os.setresgid(0, 0, 0),
    "groups": lambda: os.setgroups([0]),
    "root's files": lambda: os.open("/etc/shadow", os.O_RDONLY),
}.items():
    try: way()
    except OSError as error: tried[name] = error.strerror
header, every = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xffffffff] * 6)
tried["capabilities"] = libc.capset(header, every)
tried["no_new_privs off"] = libc.prctl(38, *map(ctypes.c_ulong, (0, 0, 0, 0)))
tried["setuid program"] = subprocess.run([sys.argv[3], "-u"], capture_output=True, text=True).stdout.strip()
import json; print(json.dumps(tried))
"""


def test_what_was_given_up_does_not_come_back(place: Path):
    config = kernel_log_only(place, run_as=str(NOBODY))
    setuid_id = place / "id"
    shutil.copy("/usr/bin/id", setuid_id)
    setuid_id.chmod(0o4755)
    ended = run(sys.executable, "-c", COME_BACK, str(config), str(place / "state"), str(setuid_id))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "user": "Operation not permitted",
        "group": "Operation not permitted",
        "groups": "Operation not permitted",
        "root's files": "Permission denied",
        "capabilities": -1,
        "no_new_privs off": -1,
        "setuid program": str(NOBODY),
    }


def test_run_as_without_root_ends_the_start(place: Path):
    code, line = Place(place, run_as="1234").refused(*AS_NOBODY)
    assert code == 64
    assert line.startswith("muster: run_as: '1234': ")
    assert str(NOBODY) in line


def test_five_capabilities_are_enough_to_begin_with_again_and_again(place: Path):
    here = Place(place, run_as="65534")
    few = ("setpriv", "--bounding-set=-all,+chown,+setgid,+setpcap,+setuid,+syslog")
    for _ in range(2):
        with here.running(*few) as agent:
            until((here.state / "agent.json").exists, lambda: agent.log)
            assert {rights["CapBnd"] for rights in agent.rights().values()} == {NO_CAPABILITY}
            assert not [line for line in agent.log.splitlines() if "WARNING" in line and str(here.state) in line]


@pytest.mark.parametrize("run_as", ["0", "65534:0"])
def test_run_as_root_is_no_drop_of_rights(place: Path, run_as: str):
    code, line = Place(place, run_as=run_as).refused()
    assert (code, line.startswith(f"muster: run_as: {run_as!r}: ")) == (64, True), line


def test_a_root_that_may_not_drop_everything_reads_what_it_lacks(place: Path):
    code, line = Place(place, run_as="65534").refused("setpriv", "--bounding-set=-setpcap")
    assert code == 64
    assert line.startswith("muster: run_as: '65534': ")
    assert "SETPCAP" in line


def test_a_folder_of_others_is_not_taken_for_the_states(place: Path):
    here = Place(place, run_as="65534")
    here.state.mkdir()
    (here.state / "payroll.db").touch()
    code, line = here.refused()
    assert code == 64
    assert line.startswith(f"muster: state_dir: {here.state}: ")
    assert "65534" in line
    assert "'payroll.db'" in line
    assert here.state.stat().st_uid == 0


def test_the_state_of_an_agent_that_was_root_is_handed_over_and_nothing_that_a_link_leads_to(place: Path):
    here = Place(place, run_as="65534")
    here.state.mkdir()
    secret = place / "secret"
    secret.touch(0o600)
    (here.state / "agent.lock").touch(0o600)
    (here.state / "agent.json").symlink_to(secret)
    (here.state / "agent.json.bad").hardlink_to(secret)
    with here.running() as agent:
        agent.get("/healthz")
    assert (here.state / "agent.lock").stat().st_uid == NOBODY
    assert secret.stat().st_uid == 0


def test_an_agent_of_the_journal_needs_no_right_at_all(place: Path):
    here = Place(place, {"source": "journal", "start": "now"})
    here.state.mkdir()
    os.chown(here.state, NOBODY, NOBODY)
    with here.running(*WITHOUT_ANY_RIGHT) as agent:
        assert agent.get("/healthz") == "ok\n"
        assert "dmesg" in agent.get("/status?check=dmesg").lower()
        assert {rights["Uid"].split()[0] for rights in agent.rights().values()} == {str(NOBODY)}
        until((here.state / "agent.json").exists, lambda: agent.log)


def test_where_nothing_but_its_state_can_be_written_an_agent_is_at_work(place: Path):
    here = Place(place, run_as="65534")
    here.state.mkdir()
    with here.running(writable=(here.state,)) as agent:
        for path in ("/status", "/report", "/metrics", "/docs", "/openapi.json"):
            agent.get(path)
        until((here.state / "agent.json").exists, lambda: agent.log)
        root = Path(f"/proc/{agent.process.pid}/root")
        with pytest.raises(OSError, match="Read-only file system"):
            (root / str(place).lstrip("/") / "written").touch()
        assert "Read-only file system" not in agent.log
