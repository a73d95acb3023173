"""What a back end promises, by all of them: by HTTP and by a `vipu` program, to a real simulator; and in process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.operator.vipu.simulator_process import SimulatorProcess, write_vipu

from muster_operator.vipu.backends import create_controller
from muster_operator.vipu.command import CommandController
from muster_operator.vipu.controller import (
    Capacity,
    IpuLister,
    NoRoom,
    PartitionExists,
    VipuController,
    VipuError,
    VipuUnreachable,
)
from muster_operator.vipu.simulator.faults import FaultRequest, add_faults
from muster_operator.vipu.simulator.fleet import InjectedFaults, SimulatedFleet
from muster_operator.vipu.simulator.in_process import InProcessController
from muster_operator.vipu.simulator_client import SimulatorController

FAR_S = 300.0  # a call that takes so long hangs
BACKENDS = ["sim", "vipu", "in process"]


@dataclass
class Bed:
    """controller: patient; impatient: to the same simulator, with half a second for each call. fault: as in POST
    /faults; mend: all faults."""

    controller: VipuController
    impatient: VipuController
    fault: Callable[..., None]
    mend: Callable[[], object]


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorProcess]:
    process = SimulatorProcess(tmp_path_factory.mktemp("simulator"), "--ipus", "32", "--delay", "0")
    process.start()
    yield process
    process.kill()


@pytest.fixture(params=BACKENDS)
async def bed(request: pytest.FixtureRequest, simulator: SimulatorProcess, tmp_path: Path) -> AsyncIterator[Bed]:
    def mend() -> None:
        simulator.call("DELETE", "/faults")

    if request.param == "in process":
        yield _bed_in_process()
        return
    simulator.empty()
    if request.param == "sim":
        impatient = SimulatorController("127.0.0.1", simulator.port, timeout_s=0.5)
        patient: VipuController = SimulatorController("127.0.0.1", simulator.port, timeout_s=FAR_S)
        yield Bed(patient, impatient, simulator.fault, mend)
        return
    program = (str(write_vipu(tmp_path)),)
    hurried = CommandController("127.0.0.1", simulator.port, program=program, list_s=0.5, change_s=0.5)
    patient = CommandController("127.0.0.1", simulator.port, program=program, list_s=FAR_S, change_s=FAR_S)
    yield Bed(patient, hurried, simulator.fault, mend)


def _bed_in_process() -> Bed:
    controller = InProcessController(SimulatedFleet(ipus=32, delay_s=0), time.monotonic, timeout_s=0.01)
    clocked_fleet = controller.clocked_fleet

    def fault(vanish: str | None = None, **asked: object) -> None:
        names = {"loseAnswers": "lose_answers"}
        fields = {names.get(key, key): value for key, value in asked.items()}
        clocked_fleet.set_faults(add_faults(clocked_fleet.fleet, FaultRequest(**fields)))  # type: ignore[arg-type] # test data
        if vanish is not None:
            clocked_fleet.forget(vanish)

    return Bed(controller, controller, fault, lambda: clocked_fleet.set_faults(InjectedFaults()))


async def _raised(call: Awaitable[object]) -> type[BaseException]:
    with pytest.raises(VipuError) as caught:
        await call
    return caught.type


async def test_a_partition_is_made_and_becomes_active(bed: Bed) -> None:
    await bed.controller.create("p-a-default-0", 8, 2)
    made = await bed.controller.find_partition("p-a-default-0")
    assert made is not None
    assert (made.name, made.size, made.gcds, made.state) == ("p-a-default-0", 8, 2, "ACTIVE")
    assert [each.name for each in await bed.controller.list_partitions()] == ["p-a-default-0"]


async def test_a_missing_partition_is_none_and_an_empty_fleet_lists_nothing(bed: Bed) -> None:
    assert await bed.controller.find_partition("p-a-default-0") is None
    assert list(await bed.controller.list_partitions()) == []


async def test_a_partition_that_is_still_being_made_is_there_and_not_active(bed: Bed) -> None:
    bed.fault(stuck="a")
    await bed.controller.create("a", 4, 1)
    made = await bed.controller.find_partition("a")
    assert made is not None
    assert made.state == "CREATING"
    bed.mend()
    made = await bed.controller.find_partition("a")
    assert made is not None
    assert made.state == "ACTIVE"


async def test_a_duplicate_name_is_refused_and_the_first_partition_stays(bed: Bed) -> None:
    await bed.controller.create("a", 4, 1)
    before = await bed.controller.list_partitions()
    assert await _raised(bed.controller.create("a", 8, 1)) is PartitionExists
    assert await bed.controller.list_partitions() == before


async def test_of_two_at_the_same_time_for_one_name_one_is_made(bed: Bed) -> None:
    both = await asyncio.gather(
        bed.controller.create("a", 4, 1), bed.controller.create("a", 4, 1), return_exceptions=True
    )
    assert sum(outcome is None for outcome in both) == 1
    assert all(outcome is None or isinstance(outcome, VipuError) for outcome in both)
    assert len(await bed.controller.list_partitions()) == 1


async def test_no_room_differs_from_other_refusals_and_creates_nothing(bed: Bed) -> None:
    await bed.controller.create("a", 1, 1)
    for size in (32, 64):
        assert await _raised(bed.controller.create("b", size, 1)) is NoRoom
    assert await bed.controller.find_partition("b") is None


async def test_invalid_sizes_and_names_are_refused_with_the_reason(bed: Bed) -> None:
    for size, gcds in ((3, 1), (0, 1), (-4, 1), (8, 3), (8, 0), (8, 16)):
        assert await _raised(bed.controller.create("a", size, gcds)) is VipuError
    for name in ("--force", "", "a b", "a\nb", "../faults", "a;b", "ä", "x" * 300):
        assert await _raised(bed.controller.create(name, 4, 1)) is VipuError
    assert list(await bed.controller.list_partitions()) == []


async def test_powers_of_two_from_one_to_the_fleet_can_be_made(bed: Bed) -> None:
    for size in (1, 2, 16, 32):
        await bed.controller.create("a", size, size)
        made = await bed.controller.find_partition("a")
        assert made is not None
        assert (made.size, made.gcds, made.state) == (size, size, "ACTIVE")
        await bed.controller.remove("a")


async def test_a_reset_takes_its_delay_and_keeps_the_partition(bed: Bed) -> None:
    await bed.controller.create("a", 8, 4)
    bed.fault(stuck="a")
    await bed.controller.reset("a")
    under_way = await bed.controller.find_partition("a")
    assert under_way is not None
    assert (under_way.size, under_way.gcds, under_way.state) == (8, 4, "RESETTING")
    bed.mend()
    after = await bed.controller.find_partition("a")
    assert after is not None
    assert (after.size, after.gcds, after.state, after.ipus) == (8, 4, "ACTIVE", under_way.ipus)


async def test_a_reset_of_nothing_is_an_error(bed: Bed) -> None:
    assert await _raised(bed.controller.reset("a")) is VipuError


async def test_removing_gives_the_ipus_back_and_may_be_asked_for_again(bed: Bed) -> None:
    await bed.controller.create("a", 32, 1)
    await bed.controller.remove("a")
    await bed.controller.remove("a")
    assert await bed.controller.find_partition("a") is None
    assert await bed.controller.read_capacity() == Capacity(32, 32)


async def test_a_partition_that_is_being_made_can_be_removed(bed: Bed) -> None:
    bed.fault(stuck="a")
    await bed.controller.create("a", 8, 1)
    await bed.controller.remove("a")
    leaving = await bed.controller.find_partition("a")
    assert leaving is not None
    assert leaving.state == "REMOVING"
    await bed.controller.remove("a")
    bed.mend()
    assert await bed.controller.find_partition("a") is None


async def test_behaviour_53_four_of_32_ipus_used_leave_14_blocks_of_two_and_none_of_64(bed: Bed) -> None:
    await bed.controller.create("a", 4, 1)
    assert await bed.controller.read_capacity() == Capacity(32, 28)
    assert await bed.controller.count_free_blocks(2) == 14
    assert await bed.controller.count_free_blocks(16) == 1  # 28 are free, and not two times 16 of them
    assert await bed.controller.count_free_blocks(64) == 0
    assert await _raised(bed.controller.count_free_blocks(3)) is VipuError


async def test_a_controller_that_is_down_has_no_answer_and_has_changed_nothing(bed: Bed) -> None:
    await bed.controller.create("a", 4, 1)
    bed.fault(down=True)
    calls = [
        bed.controller.list_partitions(),
        bed.controller.find_partition("a"),
        bed.controller.create("b", 4, 1),
        bed.controller.remove("a"),
        bed.controller.read_capacity(),
        bed.controller.count_free_blocks(4),
    ]
    for call in calls:
        assert await _raised(call) is VipuUnreachable
    bed.mend()
    assert [each.name for each in await bed.controller.list_partitions()] == ["a"]


@pytest.mark.parametrize("what", ["create", "remove"])
async def test_a_lost_answer_is_no_answer_though_it_was_done(bed: Bed, what: str) -> None:
    if what == "create":
        bed.fault(loseAnswers=1)
        assert await _raised(bed.controller.create("a", 4, 1)) is VipuUnreachable
        assert await bed.controller.find_partition("a") is not None
        return
    await bed.controller.create("a", 4, 1)
    bed.fault(loseAnswers=1)
    with contextlib.suppress(VipuUnreachable):  # or it was looked at, and gone
        await bed.controller.remove("a")
    assert await bed.controller.find_partition("a") is None


async def test_a_late_answer_is_unreachable(bed: Bed) -> None:
    bed.fault(slow=600)
    assert await _raised(bed.impatient.list_partitions()) is VipuUnreachable
    assert await _raised(bed.impatient.create("a", 4, 1)) is VipuUnreachable
    assert await _raised(bed.impatient.count_free_blocks(4)) is VipuUnreachable


async def test_a_slow_answer_is_waited_for(bed: Bed) -> None:
    bed.fault(slow=0.005)
    await bed.controller.create("a", 4, 1)
    assert await bed.controller.find_partition("a") is not None


async def test_a_partition_that_vanishes_is_not_there_any_more(bed: Bed) -> None:
    await bed.controller.create("a", 4, 1)
    bed.fault(vanish="a")
    assert await bed.controller.find_partition("a") is None
    assert await bed.controller.read_capacity() == Capacity(32, 32)


async def test_a_faulty_ipu_breaks_its_partition_until_it_is_mended_and_reset(bed: Bed) -> None:
    await bed.controller.create("a", 8, 1)
    bed.fault(ipu="10.1.1.2/3")
    broken = await bed.controller.find_partition("a")
    assert broken is not None
    assert broken.state == "ERROR"
    assert broken.message
    bed.mend()
    still = await bed.controller.find_partition("a")
    assert still is not None
    assert still.state == "ERROR"
    await bed.controller.reset("a")
    mended = await bed.controller.find_partition("a")
    assert mended is not None
    assert mended.state == "ACTIVE"


async def test_a_faulty_link_breaks_only_partitions_across_it(bed: Bed) -> None:
    bed.fault(link="10.1.1.1-10.1.1.2")
    await bed.controller.create("wide", 8, 1)
    wide = await bed.controller.find_partition("wide")
    await bed.controller.remove("wide")
    await bed.controller.create("narrow", 4, 1)
    narrow = await bed.controller.find_partition("narrow")
    assert wide is not None
    assert narrow is not None
    assert (wide.state, narrow.state) == ("ERROR", "ACTIVE")


async def test_ipus_are_named_in_the_order_of_blocks_or_not_at_all(bed: Bed) -> None:
    await bed.controller.create("a", 4, 1)
    await bed.controller.create("b", 8, 1)
    made = await bed.controller.find_partition("b")
    assert made is not None
    if not isinstance(bed.controller, IpuLister):
        assert made.ipus == ()
        return
    everything = tuple(await bed.controller.list_ipus())
    assert len(everything) == 32
    assert (everything[3].machine, everything[3].index) == ("10.1.1.1", 3)
    assert made.ipus == everything[8:16]


async def test_a_refused_connection_is_unreachable(tmp_path: Path) -> None:
    program = (str(write_vipu(tmp_path)),)
    # port 1 of loopback: nobody but root may listen there, and nothing here does
    gone: list[VipuController] = [
        create_controller("sim", "127.0.0.1", 1),
        CommandController("127.0.0.1", 1, program=program),
    ]
    for controller in gone:
        assert await _raised(controller.list_partitions()) is VipuUnreachable
        assert await _raised(controller.create("a", 4, 1)) is VipuUnreachable


def test_back_ends_are_named_and_an_unknown_one_is_refused() -> None:
    assert create_controller("sim", "h", 1).address == "h:1"
    assert create_controller("vipu", "::1", 2).address == "[::1]:2"
    with pytest.raises(ValueError, match=r"'grpc'.*vipu.*sim"):
        create_controller("grpc", "h", 1)
