"""Where a reading comes from, and who shares it."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS, UNMEASURED, any_json, huge, mangled, replaced
from tests.checks.nvidia.on_bus import CHILD, XML, Clock, answer, calls, ended, failure, gpu_node, put_gpus
from tests.checks.nvidia.samples_of import H100

from muster_checks.base.bounded_read import Unreadable
from muster_checks.base.commands import Output
from muster_checks.base.declaration import NodeView
from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.nvidia.gpu import Gpu, GpuReading, NvmlReply
from muster_checks.nvidia.probe import HUNG_S, NVML_CHILD, SHARED_S, parse_reply, read_gpus
from muster_checks.testing.recorded import failed, hung, node

ONE = GpuReading(source="nvml", driver_version="580.105.08", gpus=(Gpu(index=0, address="0000:18:00.0"),))
NO_LIBRARY = failure(12, "NVML Shared Library Not Found")


async def test_nvml_is_asked_first(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, ONE)
    assert await read_gpus(view) == ONE
    assert calls(view) == ["muster_checks.nvidia.nvml_child"]


async def test_a_node_without_nvidia_gpus_starts_no_program(tmp_path: Path) -> None:
    view = node(tmp_path, {CHILD: answer(ONE)})
    with pytest.raises(NotHere, match="no NVIDIA GPU"):
        await read_gpus(view)
    assert calls(view) == []


@pytest.mark.parametrize(
    "child",
    [NO_LIBRARY, failure(-1, "No module named 'pynvml'"), failed(CHILD, -11), b"Segmentation fault (core dumped)"],
)
async def test_nvidia_smi_is_asked_where_nvml_cannot_be_used(tmp_path: Path, child: "bytes | Output") -> None:
    view = gpu_node(tmp_path, {CHILD: child, XML: H100})
    reading = await read_gpus(view)
    assert (reading.source, len(reading.gpus)) == ("nvidia-smi", 8)


async def test_without_both_it_is_said_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match=r"libnvidia-ml\.so\.1\b.*\bdriver\b"):
        await read_gpus(gpu_node(tmp_path, NO_LIBRARY))


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (9, "DriverNotLoaded", "modprobe"),
        (18, "DriverMismatch", "reboot"),
        (4, "NoPermission", "root"),
        (999, "NvmlFailed", "dmesg"),
    ],
)
async def test_a_driver_in_trouble_is_named_and_nvidia_smi_left_alone(
    tmp_path: Path, code: int, reason: str, advice: str
) -> None:
    view = gpu_node(tmp_path, {CHILD: failure(code), XML: H100})
    with pytest.raises(CannotTell, match=advice) as caught:
        await read_gpus(view)
    assert caught.value.reason == reason
    assert calls(view) == ["muster_checks.nvidia.nvml_child"]


async def test_a_driver_that_hangs_is_not_asked_by_another_program(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, {CHILD: hung(CHILD, 30.0), XML: H100})
    with pytest.raises(CannotTell, match=r"\b30 s\b"):
        await read_gpus(view)
    assert calls(view) == ["muster_checks.nvidia.nvml_child"]


async def test_a_driver_that_hangs_is_asked_again_only_after_minutes(tmp_path: Path) -> None:
    clock = Clock()
    view = gpu_node(tmp_path, hung(CHILD, 30.0), clock=clock)
    for later_s, asked in ((0, 1), (60, 1), (HUNG_S - 61, 1), (2, 2)):
        clock.now += later_s
        with pytest.raises(CannotTell):
            await read_gpus(view, 0.0)
        assert len(calls(view)) == asked


@pytest.mark.parametrize(
    "smi", [hung(XML, 30.0), failed(XML, 9, b"couldn't communicate with the NVIDIA driver"), b"No devices were found\n"]
)
async def test_nvidia_smi_in_trouble_is_unknown(tmp_path: Path, smi: "bytes | Output") -> None:
    with pytest.raises((CannotTell, Unreadable)):
        await read_gpus(gpu_node(tmp_path, {CHILD: NO_LIBRARY, XML: smi}))


async def test_a_whole_document_beside_an_exit_code_counts(tmp_path: Path) -> None:
    warned = failed(XML, 14, b"WARNING: infoROM is corrupted at gpu 0000:18:00.0", H100)
    reading = await read_gpus(gpu_node(tmp_path, {CHILD: NO_LIBRARY, XML: warned}))
    assert len(reading.gpus) == 8


async def test_checks_of_one_pass_share_one_reading(tmp_path: Path) -> None:
    clock = Clock()
    view = gpu_node(tmp_path, ONE, clock=clock)
    await asyncio.gather(*(read_gpus(view) for _ in range(5)))
    clock.now += SHARED_S - 1
    await read_gpus(view)
    assert len(calls(view)) == 1
    clock.now += 1
    await read_gpus(view)
    assert len(calls(view)) == 2


async def test_a_failure_is_shared_like_a_reading(tmp_path: Path) -> None:
    view = gpu_node(tmp_path, failure(9))
    for _ in range(3):
        with pytest.raises(CannotTell):
            await read_gpus(view)
    assert len(calls(view)) == 1


async def test_two_nodes_share_nothing(tmp_path: Path) -> None:
    other = msgspec.structs.replace(ONE, driver_version="595.91.07")
    views = gpu_node(tmp_path / "a", ONE), gpu_node(tmp_path / "b", other)
    assert [(await read_gpus(view)).driver_version for view in views] == ["580.105.08", "595.91.07"]


async def test_a_caller_that_gives_up_does_not_end_the_reading_of_the_others(tmp_path: Path) -> None:
    going_on = asyncio.Event()

    class Slow:
        async def run(self, argv: object, **_: object) -> Output:
            await going_on.wait()
            return ended(stdout=answer(ONE))

        def which(self, name: str) -> str | None:
            raise NotImplementedError

    put_gpus(tmp_path, "0000:18:00.0")
    view = NodeView(tmp_path, Slow())
    impatient, patient = (asyncio.create_task(read_gpus(view)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    going_on.set()
    assert await patient == ONE
    assert impatient.cancelled()


def test_a_reading_that_died_with_its_event_loop_is_not_waited_for(tmp_path: Path) -> None:
    class Once:
        asked: asyncio.Event | None = None

        async def run(self, argv: object, **_: object) -> Output:
            if self.asked is not None and not self.asked.is_set():
                self.asked.set()
                await asyncio.Event().wait()
            return ended(stdout=answer(ONE))

        def which(self, name: str) -> str | None:
            raise NotImplementedError

    put_gpus(tmp_path, "0000:18:00.0")
    once = Once()
    view = NodeView(tmp_path, once)

    async def give_up() -> None:
        once.asked = asyncio.Event()
        reading = asyncio.create_task(read_gpus(view))
        await once.asked.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(give_up())
    assert asyncio.run(read_gpus(view)) == ONE


async def test_a_gpu_that_an_earlier_reading_had_is_missing(tmp_path: Path) -> None:
    two = GpuReading(source="nvml", gpus=tuple(Gpu(index=i, address=f"0000:0{i}:00.0") for i in range(2)))
    said = [answer(two), answer(msgspec.structs.replace(two, gpus=two.gpus[:1]))]
    view = gpu_node(tmp_path, lambda _: said.pop(0), "0000:00:00.0")
    assert (await read_gpus(view)).missing == ()
    assert (await read_gpus(view, 0.0)).missing == ("0000:01:00.0",)


async def test_a_gpu_that_was_given_to_another_driver_is_not_missing(tmp_path: Path) -> None:
    two = GpuReading(source="nvml", gpus=tuple(Gpu(index=i, address=f"0000:0{i}:00.0") for i in range(2)))
    said = [answer(two), answer(msgspec.structs.replace(two, gpus=two.gpus[:1]))]
    view = gpu_node(tmp_path, lambda _: said.pop(0), "0000:00:00.0")
    await read_gpus(view)
    put_gpus(tmp_path, "0000:01:00.0", driver="vfio-pci")
    assert (await read_gpus(view, 0.0)).missing == ()


async def test_gpus_too_lost_to_tell_get_the_addresses_that_are_left_over(tmp_path: Path) -> None:
    gpus = (Gpu(index=0, address="0000:01:00.0"), Gpu(index=1, lost="GPU is lost"), Gpu(index=2, lost="GPU is lost"))
    view = gpu_node(tmp_path, GpuReading(source="nvml", gpus=gpus), "0000:01:00.0", "0000:02:00.0", "0000:03:00.0")
    assert [gpu.address for gpu in (await read_gpus(view)).gpus] == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]


async def test_the_pci_bus_is_read_beside_the_event_loop(tmp_path: Path) -> None:
    readers: list[int] = []

    class Watched(NodeView):
        def path(self, absolute: str) -> Path:
            readers.append(threading.get_ident())
            return super().path(absolute)

    view = gpu_node(tmp_path, ONE)
    await read_gpus(Watched(view.root, view.commands, view.history))
    assert readers
    assert threading.get_ident() not in readers


async def test_no_address_is_guessed_where_more_are_left_over_than_gpus(tmp_path: Path) -> None:
    reading = GpuReading(source="nvml", gpus=(Gpu(index=0, lost="GPU is lost"),))
    view = gpu_node(tmp_path, reading, "0000:01:00.0", "0000:02:00.0")
    assert (await read_gpus(view)).gpus[0].component == "gpu/index-0"


@pytest.mark.parametrize("text", [*TEXTS, b'{"reading": {"source": "nv\xffml"}}'])
def test_what_is_no_answer_of_the_child_is_unreadable(text: bytes) -> None:
    with pytest.raises(UNMEASURED):
        parse_reply(ended(stdout=text))


def test_a_child_that_prints_without_end_is_unreadable() -> None:
    with pytest.raises(UNMEASURED):
        parse_reply(ended(stdout=huge(b'{"reading": {"source": "nvml", "gpus": ['), truncated=True))


def test_an_answer_cut_short_or_with_other_values_is_read_or_unreadable() -> None:
    whole = answer(ONE)
    others = [msgspec.json.encode(document) for document in replaced(msgspec.json.decode(whole)) if _finite(document)]
    for text in [*mangled(whole), *others]:
        with suppress(*UNMEASURED):
            assert isinstance(parse_reply(ended(stdout=text)), GpuReading)


def _finite(document: object) -> bool:
    return msgspec.json.decode(msgspec.json.encode(document)) is not None


@given(any_json())
@settings(max_examples=100, deadline=None)
def test_any_json_is_read_or_unreadable(document: object) -> None:
    _answer_or_unmeasured(msgspec.json.encode(document))


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_unreadable(text: bytes) -> None:
    _answer_or_unmeasured(text)


def _answer_or_unmeasured(text: bytes) -> None:
    with suppress(*UNMEASURED):
        assert isinstance(parse_reply(ended(stdout=text)), GpuReading)


@pytest.mark.parametrize("exit_code", [1, 127, -9, -11, None])
def test_a_child_that_ended_badly_is_unknown(exit_code: int | None) -> None:
    with pytest.raises(CannotTell):
        parse_reply(ended(exit_code, answer(ONE), timed_out=exit_code is None))


def test_the_child_is_our_own_module() -> None:
    assert NVML_CHILD[-2:] == ("-m", "muster_checks.nvidia.nvml_child")
    assert msgspec.json.decode(answer(ONE), type=NvmlReply).reading == ONE
