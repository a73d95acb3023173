import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from muster_agent.publish.kernel_log_echo import KernelLogEcho
from muster_checks.base.declaration import NodeView, Sign
from muster_checks.base.vocabulary import Origin
from muster_checks.dmesg import DMESG, DmesgParameters, SourceKind
from muster_checks.dmesg.sources.kmsg import KmsgPlace
from muster_checks.dmesg.sources.position import VERSION, Position, load_position
from muster_checks.dmesg.stream_factory import choose_source, open_stream
from muster_checks.testing.recorded import lay_out

XID = b"NVRM: Xid (PCI:0000:b3:00): 79, pid=1234, GPU has fallen off the bus."


@pytest.fixture
def node(tmp_path: Path) -> NodeView:
    """A node with a boot id and no kernel log."""
    boot_id = tmp_path / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("first\n")
    (tmp_path / "dev").mkdir()
    return NodeView(tmp_path)


def reboot(node: NodeView, boot_id: str) -> None:
    node.path("/proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")


def on_ring(node: NodeView, ring: Any, clock: Any, saved: bytes | None, **parameters: Any) -> Any:
    parameters = {"source": "kmsg"} | parameters
    return open_stream(node, DmesgParameters(**parameters), saved, clocks=clock.clocks(), device=ring.open)


async def test_a_kernel_line_becomes_a_sign(node: NodeView, ring: Any, clock: Any, read_out: Any) -> None:
    ring.write(XID, prio=4, usec=900_000_000)
    (sign,) = await read_out(on_ring(node, ring, clock, None))
    assert isinstance(sign, Sign)
    assert (sign.component.startswith("gpu/0000:b3:00"), sign.reason, sign.origin) == (True, "Xid79", Origin.KERNEL)


@pytest.mark.parametrize(("age_s", "raised"), [(60, 1), (7200, 0)])
async def test_lines_and_judge_live_on_one_line_of_time(
    age_s: int, raised: int, node: NodeView, ring: Any, clock: Any, read_out: Any
) -> None:
    """A warning that would have gone by now is not raised any more."""
    clock.uptime = 10_000.0
    ring.write(b"NVRM: Xid (PCI:0000:b3:00): 31, pid=1, Ch 1", usec=int(clock.uptime - age_s) * 1_000_000)
    assert len(await read_out(on_ring(node, ring, clock, None))) == raised


class Awaited:
    """A line of the agent's own."""

    taken = 0

    def may_be_in(self, text: bytes) -> bool:
        return XID in text

    def take(self, line: str) -> bool:
        self.taken += line.encode() == XID
        return line.encode() == XID


@pytest.mark.parametrize(("prio", "taken"), [(15, 1), (12, 1), (4, 0)])
async def test_the_agents_own_line_is_read_and_not_judged_and_no_line_of_the_kernel_is_one(
    prio: int, taken: int, node: NodeView, ring: Any, clock: Any, read_out: Any
) -> None:
    echo = Awaited()
    ring.write(b"nothing of interest", prio=prio, usec=900_000_000)
    ring.write(XID, prio=prio, usec=900_000_000)
    signs = await read_out(on_ring(replace(node, echo=echo), ring, clock, None))
    assert (echo.taken, len(signs)) == (taken, 1 - taken)


async def test_the_agents_own_line_is_read_though_no_rule_knows_it(
    node: NodeView, ring: Any, clock: Any, read_out: Any
) -> None:
    echo = KernelLogEcho(os.open("/dev/null", os.O_WRONLY))
    task = asyncio.create_task(echo.is_read())
    await asyncio.sleep(0)
    ring.write(echo._awaited, prio=15, usec=900_000_000)
    assert await read_out(on_ring(replace(node, echo=echo), ring, clock, None, user_lines="refuse")) == []
    assert await task
    os.close(echo._writer)


async def test_a_users_line_can_be_refused(node: NodeView, ring: Any, clock: Any, read_out: Any) -> None:
    ring.write(XID, prio=12, usec=900_000_000)
    (sign,) = await read_out(on_ring(node, ring, clock, None))
    assert sign.origin is Origin.USER
    assert await read_out(on_ring(node, ring, clock, None, user_lines="refuse")) == []


async def test_what_became_of_the_lines_is_counted(node: NodeView, ring: Any, clock: Any, read_out: Any) -> None:
    ring.write(b"GPU reset executed: GPU-1, success: true")  # of a GPU whose address was never printed
    ring.write(XID, prio=12)
    stream = on_ring(node, ring, clock, None, user_lines="refuse")
    assert await read_out(stream) == []
    counts = stream.counts()
    assert {name: counts[name] for name in ("lines", "judged", "unknown_gpus", "refused_user", "signs")} == {
        "lines": 2,
        "judged": 2,
        "unknown_gpus": 1,
        "refused_user": 1,
        "signs": 0,
    }


async def test_a_restart_in_the_same_boot_goes_on(node: NodeView, ring: Any, clock: Any, read_out: Any) -> None:
    ring.write(XID, usec=900_000_000)
    stream = on_ring(node, ring, clock, None)
    assert len(await read_out(stream)) == 1
    again = on_ring(node, ring, clock, stream.position(), start="now")
    assert await read_out(again) == []


async def test_in_a_new_boot_all_of_it_is_read(
    node: NodeView, ring: Any, new_ring: Any, clock: Any, read_out: Any
) -> None:
    for _ in range(10):
        ring.write(b"dull")
    stream = on_ring(node, ring, clock, None)
    await read_out(stream)
    reboot(node, "second")
    fresh = new_ring()
    fresh.write(XID, usec=900_000_000)
    signs = await read_out(on_ring(node, fresh, clock, stream.position(), start="now"))
    assert [sign.reason for sign in signs] == ["Xid79"]
    for device in fresh.devices:
        device.close()


async def test_from_now_on_without_a_position(node: NodeView, ring: Any, clock: Any, read_out: Any) -> None:
    ring.write(XID, usec=900_000_000)
    assert await read_out(on_ring(node, ring, clock, None, start="now")) == []


@pytest.mark.parametrize("saved", [b"\xff", b"{}", b'{"boot_id": 5}', b"[" * 10_000])
async def test_an_unreadable_position_is_none(
    saved: bytes, node: NodeView, ring: Any, clock: Any, read_out: Any
) -> None:
    ring.write(XID, usec=900_000_000)
    assert len(await read_out(on_ring(node, ring, clock, saved))) == 1


def position(**changed: Any) -> bytes:
    fields: dict[str, Any] = {
        "boot_id": "first",
        "source": "kmsg:",
        "place": '{"seq":0}',
        "booted": 0.0,
        "judge": msgspec.Raw(b'{"rubbish":1}'),
    }
    return msgspec.json.encode(Position(**(fields | changed)))


async def test_an_unreadable_memory_of_the_judge_costs_only_itself(
    node: NodeView, ring: Any, clock: Any, read_out: Any
) -> None:
    ring.write(XID, usec=900_000_000)
    saved = position(source=f"kmsg:{node.root}/dev/kmsg")
    assert await read_out(on_ring(node, ring, clock, saved)) == [], "record 0 was dealt with"


async def test_a_place_of_another_source_means_nothing(node: NodeView, ring: Any, clock: Any, read_out: Any) -> None:
    ring.write(XID, usec=900_000_000)
    assert len(await read_out(on_ring(node, ring, clock, position(source="file:/x")))) == 1


def test_a_position_of_another_version_is_none() -> None:
    assert load_position(position()) is not None
    assert load_position(position(version=VERSION + 1)) is None


def test_auto_takes_what_is_there(node: NodeView, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    auto = DmesgParameters()
    monkeypatch.setenv("PATH", "")
    assert choose_source(node, auto) == (SourceKind.KMSG, node.path("/dev/kmsg"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/journalctl").write_text("")
    (tmp_path / "bin/journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert choose_source(node, auto)[0] is SourceKind.KMSG, "no journal either"
    node.path("/run/log/journal/machine").mkdir(parents=True)
    assert choose_source(node, auto) == (SourceKind.JOURNAL, node.root)
    node.path("/dev/kmsg").touch()
    assert choose_source(node, auto) == (SourceKind.FILE, node.path("/dev/kmsg"))
    assert choose_source(NodeView(), DmesgParameters(path=Path("/dev/null")))[0] is SourceKind.KMSG
    assert choose_source(node, DmesgParameters(path=tmp_path / "to come"))[0] is SourceKind.FILE


@pytest.mark.parametrize(
    "parameters", [{"source": "file"}, {"source": "journal", "path": "/x"}, {"source": "x"}, {"unknown": 1}]
)
def test_bad_parameters_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DmesgParameters(**parameters)


async def test_a_saved_log_without_a_last_newline_is_judged_whole(
    node: NodeView, read_out: Any, tmp_path: Path
) -> None:
    sample = tmp_path / "sample"
    sample.write_bytes(b"[  1.0] quiet\n[  2.0] " + XID)
    assert DMESG.stream is not None
    parameters = {"source": "file", "path": str(sample), "complete": "true"}
    stream = DMESG.stream(node, DmesgParameters.model_validate(parameters), None)
    assert [sign.reason for sign in await read_out(stream)] == ["Xid79"]


@pytest.mark.parametrize(
    ("parameters", "reason"), [({}, "VolumeReadOnly"), ({"node_paths": "/,/scratch"}, "FilesystemReadOnly")]
)
async def test_an_administrator_names_the_folders_that_the_node_needs(
    parameters: dict[str, str], reason: str, node: NodeView, ring: Any, clock: Any, read_out: Any
) -> None:
    mounts = "27 1 9999:1 / / rw - ext4 /dev/vda1 rw\n29 27 9999:3 / /scratch rw - ext4 /dev/nvme1n1 rw\n"
    lay_out(node.root, {"/proc/1/mountinfo": mounts})
    ring.write(b"EXT4-fs (nvme1n1): Remounting filesystem read-only", prio=3, usec=900_000_000)
    assert [sign.reason for sign in await read_out(on_ring(node, ring, clock, None, **parameters))] == [reason]


async def test_a_device_that_gives_nothing_is_no_kernel_log(node: NodeView, read_out: Any) -> None:
    assert DMESG.stream is not None
    stream = DMESG.stream(node, DmesgParameters(path=Path(os.devnull)), None)
    assert await read_out(stream) == []
    assert stream.health().startswith("/dev/null: ")


def test_places_are_small() -> None:
    assert len(msgspec.json.encode(KmsgPlace(2**62, skipping=True))) < 100
