"""Traffic between host and IPU, for the check pciebw."""

import pytest
from tests.checks.graphcore.sample import sample

from muster_checks.base.bounded_read import Unreadable
from muster_checks.graphcore import UNNAMED
from muster_checks.pciebw import graphcore
from muster_checks.pciebw.bandwidth import Bandwidth
from muster_checks.pciebw.graphcore import measure
from muster_checks.testing.recorded import failed, hung, lay_out, node

TRAFFIC = sample("gc_hosttraffictest.json")
LISTED = b"-+- Id: [0], target: [Fabric], IPU-M host: [10.1.5.10], IPU#: [3]\n"


def test_each_way_alone_counts_in_gigabytes_on_the_hosts_side():
    found = graphcore.parse(TRAFFIC, "ipu/10.1.5.10/3")
    assert found.component == "ipu/10.1.5.10/3"
    # the bytes and seconds beside the speeds say the same
    assert found.to_device_gb_per_s == pytest.approx(14_562_607_104 / 2.050118271 / 1e9)
    assert found.from_device_gb_per_s == pytest.approx(5_380_243_456 / 1.802211904 / 1e9)


def test_a_card_has_only_the_tiles_side():
    text = b'{"repeat_0": {"host_to_tile": {"duration_seconds": "1", "tile_transfer_speed_gbps": "80"}}}'
    assert graphcore.parse(text) == Bandwidth(UNNAMED, 10.0, None)


def test_the_best_of_several_repeats_counts():
    way = '{"host_to_buffer_to_tile": {"duration_seconds": "1", "host_transfer_speed_gbps": "%d"}}'
    text = f'{{"repeat_0": {way % 40}, "repeat_1": {way % 56}, "repeat_2": {way % 48}}}'
    assert graphcore.parse(text.encode()).to_device_gb_per_s == 7.0


def test_both_ways_at_once_say_nothing_of_either():
    text = b'{"r": {"host_to_buffer_from_tile": {"duration_seconds": "1", "host_transfer_speed_gbps": "21"}}}'
    found = graphcore.parse(text)
    assert (found.to_device_gb_per_s, found.from_device_gb_per_s) == (None, None)
    assert "single direction" in found.trouble


def test_an_output_without_transfers_is_unreadable():
    with pytest.raises(Unreadable):
        graphcore.parse(b'{"configuration": {"number_of_ipus": "1"}}')


async def test_a_node_without_ipus_measures_nothing(tmp_path):
    assert await measure(node(tmp_path), 60.0, {}) == []


async def test_every_ipu_is_measured_after_the_other(tmp_path):
    second = LISTED.replace(b"[0]", b"[1]").replace(b"IPU#: [3]", b"IPU#: [2]")
    view = node(tmp_path, {"gc-info -l": LISTED + second, "gc-hosttraffictest": TRAFFIC})
    measured = await measure(view, 60.0, {})
    assert [one.component for one in measured] == ["ipu/10.1.5.10/3", "ipu/10.1.5.10/2"]
    assert view.commands.calls[1:] == [
        (("gc-hosttraffictest", "-d", "0", "-j"), 60.0),
        (("gc-hosttraffictest", "-d", "1", "-j"), 60.0),
    ]


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, "not found"),
        ({"gc-hosttraffictest": failed("gc-hosttraffictest", 1, stdout=b"device busy")}, "device busy"),
        ({"gc-hosttraffictest": failed("gc-hosttraffictest", -9)}, "SIGKILL"),
        ({"gc-hosttraffictest": hung("gc-hosttraffictest")}, "10 s"),
        ({"gc-hosttraffictest": b"garbage"}, "JSON"),
    ],
)
async def test_an_ipu_that_cannot_be_measured_says_why(tmp_path, answers, said):
    (one,) = await measure(node(tmp_path, {"gc-info -l": LISTED, **answers}), 60.0, {})
    assert (one.component, one.to_device_gb_per_s, one.from_device_gb_per_s) == ("ipu/10.1.5.10/3", None, None)
    assert said in one.trouble


async def test_ipus_that_cannot_be_listed_are_said_to_be_there(tmp_path):
    (one,) = await measure(node(tmp_path), 60.0, {"IPUOF_VIPU_API_HOST": "10.1.5.1"})
    assert one.component == UNNAMED
    assert "Poplar SDK" in one.trouble


async def test_a_card_that_is_not_listed_is_named(tmp_path):
    card = {"vendor": "0x1d95", "device": "0x0001", "class": "0x120000"}
    lay_out(tmp_path, {f"/sys/bus/pci/devices/0000:1a:00.0/{name}": value for name, value in card.items()})
    (one,) = await measure(node(tmp_path, {"gc-info -l": b"Graphcore device listing:\n"}), 60.0, {})
    assert one.component == "ipu/0000:1a:00.0"
    assert "gc-info" in one.trouble
