"""What each parser reads out of what its tool prints, value by value."""

import pytest
from tests.checks.graphcore.sample import sample

from muster_checks.base.bounded_read import Unreadable
from muster_checks.graphcore import component_of
from muster_checks.graphcore.tools import attributes, device_list, health, host_sync, ipu_traffic, links, monitor
from muster_checks.graphcore.tools import partitions as vipu
from muster_checks.graphcore.tools.device_list import IpuDevice
from muster_checks.graphcore.tools.partitions import ListedPartition


def test_gc_info_lists_single_ipus_with_partition_and_address():
    devices = device_list.parse(sample("gc_info_list.txt"))
    assert devices[0] == IpuDevice("ipu/10.2.0.21/3", "0", "train-16")
    assert devices[7] == IpuDevice("ipu/10.2.0.22/0", "7", "serve-4")
    assert devices[8:] == [
        IpuDevice("ipu/0000:21:00.0", "0", "", "0000:21:00.0"),
        IpuDevice("ipu/0000:22:00.0", "1", "", "0000:22:00.0"),
    ]


def test_groups_of_ipus_are_no_devices():
    text = b"-+- Id: [4], target: [Multi IPU]\n |--- Id: [0], DNC Id: [0], IPU-M host: [h], IPU#: [3]\ndevice listing\n"
    assert device_list.parse(text) == []


def test_a_device_line_that_was_cut_off_is_not_taken_for_a_device():
    whole = b"-+- Id: [0], target: [Fabric], IPU-M host: [10.1.5.10], IPU#: [3]\n"
    assert len(device_list.parse(whole + whole.replace(b"[0]", b"[11]")[:-3].replace(b"10.1", b"10.2"))) == 1


def test_the_attributes_of_a_c600_card():
    (said,) = attributes.parse(sample("gc_info_device_c600.txt"))
    assert said == attributes.IpuAttributes(
        component="ipu/0000:81:00.0",
        board="C600",
        error_state="no errors",
        link_gt_per_s=16.0,
        link_width=8.0,
        link_errors=0.0,
        link_errors_session=0.0,
        parity_threshold=4.0,
        parity_interval_s=7_776_000.0,
        parity_initialised=1.0,
        die_temp_c=27.1,
        board_temp_c=24.5,
        board_power_w=14.2,
        clock_mhz=20.0,
    )


def test_an_ipu_machine_is_named_by_address_and_board_index():
    (said,) = attributes.parse(sample("gc_info_device_m2000.txt"))
    assert said.component == "ipu/10.2.0.31/3"
    assert said.host_link_errors == 41_207
    assert said.die_temp_c is None
    assert said.board_power_w is None


def test_old_software_has_no_error_state():
    (said,) = attributes.parse(sample("gc_info_device_c2.txt"))
    assert said.error_state is None
    assert said.board_power_w == 87.3


def test_gc_inventory_lists_every_device_under_its_older_names():
    said = attributes.parse(sample("gc_inventory_c2.txt"))
    assert [one.component for one in said] == ["ipu/0000:b1:00.0", "ipu/0000:b2:00.0"]
    assert {one.board for one in said} == {"C2"}
    (newer,) = attributes.parse(sample("gc_inventory_c2_1.0.45.txt"))
    assert (newer.parity_initialised, newer.link_gt_per_s, newer.clock_mhz) == (0.0, 8.0, 1300.0)


def test_values_in_quotes_and_with_commas_are_read_alike():
    text = b'Device:\n "id": "6",\n "board type": "C600",\n "link width": "4",\n "pci id": "35:00.0",\n'
    (said,) = attributes.parse(text)
    assert (said.component, said.board, said.link_width) == ("ipu/0000:35:00.0", "C600", 4.0)


@pytest.mark.parametrize("value", ["N/A", "[Unknown Error]", "", "nan", "True", "[]", "{}", "-1", "1e308", "None"])
def test_what_stands_in_for_a_missing_error_state_is_no_error_state(value):
    (said,) = attributes.parse(f"Device Info:\n id: 0\n ipu error state: {value}\n link width: {value}\n".encode())
    assert said.error_state == ""
    assert said.link_width is None or value == "1e308"


def test_half_a_line_is_left_out():
    (said,) = attributes.parse(b"Device Info:\n id: 0\n link width: 1")
    assert said.link_width is None


def test_more_devices_than_any_machine_has_are_refused():
    block = b"Device:\n id: 1\n"
    assert len(attributes.parse(block * 1024)) == 1024
    with pytest.raises(Unreadable, match=r"\b1025\b"):
        attributes.parse(block * 1025)
    rows = b"".join(b"-+- Id: [%d], target: [Fabric], IPU-M host: [h], IPU#: [%d]\n" % (n, n) for n in range(1025))
    with pytest.raises(Unreadable, match=r"\b1025\b"):
        device_list.parse(rows)


def test_gc_monitor_lists_the_devices_of_the_active_partition():
    seen = monitor.parse(sample("gc_monitor.txt"))
    assert [row.device_id for row in seen] == [str(number) for number in range(8)]
    assert seen[0].component == "ipu/10.2.0.21/3"
    assert {row.partition for row in seen} == {"train-16"}


def test_gc_monitor_tells_the_temperature_of_ipu_and_board_apart():
    seen = monitor.parse(sample("gc_monitor_no_card_info.txt"))
    assert [(row.device_id, row.die_temp_c, row.board_temp_c, row.board_power_w) for row in seen] == [
        ("6", 35.2, 33.4, 121.9),
        ("7", 36.8, None, None),
        ("2", 26.5, 23.0, 88.1),
    ]
    assert [row.partition for row in seen] == ["train-16", "train-16", ""]
    assert seen[0].clock_mhz == 1330.0


def test_an_address_that_gc_monitor_cut_to_fit_names_nothing():
    text = sample("gc_monitor.txt").replace(b"|  10.2.0.21  |", b"|...31.100.130|")
    assert monitor.parse(text)[0].component == "ipu/0"


def test_gc_monitor_without_attached_processes_has_no_rows():
    assert monitor.parse(b"+---+\n|   No attached processes in partition ipuof   |\n+---+\n") == []


def test_rows_of_other_tables_are_passed_over():
    heading = b"| gc-monitor | x |\n| ID | Type |\n"
    assert monitor.parse(heading + b"| one | M2000 |\n| a | b | c |\n| 7 | M2000 |\n") == []


def test_the_health_check_names_each_failed_ipu():
    found = health.parse(sample("gcipuinfo_health_check.json"))
    assert [(one.component, one.device_id, one.partition, one.error) for one in found] == [
        ("ipu/10.2.0.21/2", "5", "train-16", "device"),
        ("ipu/10.2.0.21/1", "6", "train-16", "connection"),
    ]
    assert health.parse(b"{}\n") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"could not read partitions", "could not read partitions"),
        (b"", ""),
        (b"[]", "{}"),
        (b'{"error": "no partition"}', "{}"),
        (b'{"hosts": {"h": {"id": "1"}}}', "'h'"),
        (b'{"hosts": {"h": ["1"]}}', "'h'"),
    ],
)
def test_a_health_check_that_did_not_run_says_why(text, said):
    with pytest.raises(Unreadable) as caught:
        health.parse(text)
    assert said in str(caught.value)


def test_every_channel_under_the_repeated_key_is_read():
    found = links.parse(sample("gc_links_failed_1.0.x.json"))
    assert [(one.from_channel, one.status, one.gen, one.lanes) for one in found.channels] == [
        ("NLC_E_1A", "passed", 4.0, 8.0),
        ("NLC_E_1B", "failed", 0.0, 0.0),
    ]
    assert {(one.from_id, one.to_id) for one in found.channels} == {("13", "12")}
    assert found.overall == ""


def test_two_pairs_of_ipus_under_the_repeated_key_are_both_read():
    pair = '"ipu to ipu": {"from pcie id": "%s", "to pcie id": "7", "channel": {"from": "A", "status": "passed"}}'
    found = links.parse(f"{{{pair % 5}, {pair % 6}}}".encode())
    assert [one.from_id for one in found.channels] == ["5", "6"]


def test_channels_in_a_list_have_tries_and_figure_of_merit():
    found = links.parse(sample("gc_links_failed_latest.json"))
    assert [(one.tries, one.lowest_fom, one.status) for one in found.channels] == [
        (1.0, 151.0, "passed"),
        (2.0, 133.0, "failed"),
    ]


def test_a_pod_gives_a_result_and_says_that_nothing_was_trained():
    found = links.parse(sample("gc_links_pod.json"))
    assert found == links.IpuLinks((), "passed", trained_before=True)
    assert links.parse(sample("gc_links_ok.json")).overall == "passed"


def test_one_failed_iteration_among_passed_ones_counts():
    text = b'{"iteration_0": {"overall_result": "failed"}, "overall_result": "passed"}'
    assert links.parse(text).overall == "failed"


def test_traffic_between_two_ipus_is_in_gigabits():
    (one,) = ipu_traffic.parse(sample("gc_iputraffictest.json"))
    assert (one.device0, one.device1, one.errors) == ("2", "3", 0)
    assert one.gbit_per_s == pytest.approx(7.8125 * 2**30 * 8 / 0.160018204 / 1e9)


def test_traffic_of_several_pairs_is_read_from_repeated_keys_and_lists():
    one = sample("gc_iputraffictest.json").decode().strip()[1:-1]
    assert len(ipu_traffic.parse(f"{{{one}, {one}}}".encode())) == 2
    assert len(ipu_traffic.parse(f"[{{{one}}}, {{{one}}}]".encode())) == 2


def test_json_and_text_of_the_sync_test_say_the_same():
    assert host_sync.parse(sample("gc_hostsynclatencytest.json")) == host_sync.HostSync("0", 1612.0, "pass")
    assert host_sync.parse(sample("gc_hostsynclatencytest.txt")) == host_sync.HostSync("0", 1612.0, "pass")


@pytest.mark.parametrize("text", [b"o Using device Id - none\n", b'{"ipu_id": "0"}', b'{"result": "pass"}'])
def test_a_sync_test_without_device_or_result_is_unreadable(text):
    with pytest.raises(Unreadable):
        host_sync.parse(text)


def test_partitions_are_found_by_the_heading_of_their_column():
    assert vipu.parse(sample("vipu_list_partitions.txt")) == [ListedPartition("train-16", "ACTIVE", 16.0)]
    admin = b" Allocation | Partition | Cluster | State \n----\n a1 | p1 | c1 | PENDING \n a1 | | c1 | ACTIVE \n"
    assert vipu.parse(admin) == [ListedPartition("p1", "PENDING", None)]
    with pytest.raises(Unreadable):
        vipu.parse(b"Error: connection refused\n")


@pytest.mark.parametrize(
    ("host", "index", "pci", "device", "component"),
    [
        ("10.1.5.10", "3", "3", "0", "ipu/10.1.5.10/3"),
        ("", "1", "1A:00.0", "0", "ipu/0000:1a:00.0"),
        ("10.1.5.10", "", "3", "7", "ipu/7"),
        ("", "", "", "", "ipu/unnamed"),
    ],
)
def test_an_ipu_is_named_by_what_is_known_of_it(host, index, pci, device, component):
    assert component_of(host, index, pci, device) == component
