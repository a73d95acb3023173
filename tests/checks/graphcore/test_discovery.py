"""Which IPUs a node has, and what is said where that cannot be told."""

import pytest
from tests.checks.graphcore.sample import sample

from muster_checks.base.execution import CannotTell, NotHere, ToolMissing
from muster_checks.graphcore.discovery import discover_ipus
from muster_checks.graphcore.settings import GraphcoreParameters, read_fabric
from muster_checks.testing.recorded import failed, hung, lay_out, node

LISTED = sample("gc_info_list.txt")
NOWHERE = read_fabric(GraphcoreParameters(), {})
OVER_FABRIC = read_fabric(GraphcoreParameters(vipu_api_host="10.1.5.1", partition="p1"), {})


def _card(root, address="0000:21:00.0", vendor="0x1d95"):
    return lay_out(
        root,
        {
            f"/sys/bus/pci/devices/{address}/vendor": vendor,
            f"/sys/bus/pci/devices/{address}/device": "0x0001",
            f"/sys/bus/pci/devices/{address}/class": "0x120000",
        },
    )


async def _find(view, reached=NOWHERE, all_partitions=False):
    return await discover_ipus(view, reached, all_partitions, 10.0)


async def test_a_node_without_any_sign_of_an_ipu_has_none(tmp_path):
    with pytest.raises(NotHere, match="1d95"):
        await _find(node(_card(tmp_path, vendor="0x10de")))


@pytest.mark.parametrize(
    "reached", [OVER_FABRIC, read_fabric(GraphcoreParameters(), {"IPUOF_CONFIG_PATH": "/opt/ipuof.conf"})]
)
async def test_a_configured_controller_without_tools_names_the_package(tmp_path, reached):
    with pytest.raises(ToolMissing, match="Poplar SDK"):
        await _find(node(tmp_path), reached)


async def test_a_card_or_its_device_file_without_tools_names_the_package(tmp_path):
    with pytest.raises(ToolMissing, match="gc-info"):
        await _find(node(_card(tmp_path / "pci")))
    with pytest.raises(ToolMissing, match="gc-info"):
        await _find(node(lay_out(tmp_path / "dev", {"/dev/ipu0": ""})))


async def test_a_camera_is_no_ipu(tmp_path):
    with pytest.raises(NotHere):
        await _find(node(lay_out(tmp_path, {"/dev/ipu-psys0": ""})))


@pytest.mark.parametrize(
    "answer", [failed("gc-info -l", 1, b"no devices"), failed("gc-info -l", -11), hung("gc-info -l"), b"garbage\n", b""]
)
async def test_a_tool_that_cannot_list_is_no_sign_by_itself_and_a_hindrance_where_there_is_one(tmp_path, answer):
    view = node(tmp_path, {"gc-info": answer})
    with pytest.raises(NotHere):
        await _find(view)
    with pytest.raises(CannotTell, match="IPU"):
        await _find(view, OVER_FABRIC)


async def test_cards_that_the_driver_does_not_offer_are_named(tmp_path):
    _card(tmp_path)
    _card(tmp_path, "0000:1c:00.0")
    found = await _find(node(tmp_path, {"gc-info -l": LISTED}))
    assert found.unlisted == ("ipu/0000:1c:00.0",)
    assert "ipu/0000:21:00.0" in {device.component for device in found.devices}


async def test_a_fabric_host_without_a_partition_has_no_ipu_now(tmp_path):
    view = node(tmp_path, {"gc-info -l": b"Graphcore device listing:\n"})
    with pytest.raises(NotHere, match="no partition"):
        await _find(view, read_fabric(GraphcoreParameters(vipu_api_host="10.1.5.1"), {}))
    with pytest.raises(CannotTell, match="partition p1"):
        await _find(view, OVER_FABRIC)


async def test_other_partitions_are_listed_when_asked_for(tmp_path):
    view = node(tmp_path, {"gc-info -l": LISTED})
    await _find(view, all_partitions=True)
    assert view.commands.calls[0][0] == ("gc-info", "-l", "--all-partitions")


def test_parameters_come_before_the_environment():
    environment = {"IPUOF_VIPU_API_HOST": "env", "IPUOF_VIPU_API_PORT": "9090", "IPUOF_VIPU_API_PARTITION_ID": "pe"}
    by_environment = read_fabric(GraphcoreParameters(), environment)
    assert (by_environment.host, by_environment.port, by_environment.partition) == ("env", 9090, "pe")
    assert by_environment.variables == {}
    both = read_fabric(GraphcoreParameters(vipu_api_host="mine", vipu_api_port=8091, partition="p"), environment)
    assert (both.host, both.port, both.partition) == ("mine", 8091, "p")
    assert both.variables["IPUOF_VIPU_API_HOST"] == "mine"


@pytest.mark.parametrize("port", ["", "http", "-1", "9" * 30, "٣"])
def test_a_port_that_is_none_is_the_usual_one(port):
    assert read_fabric(GraphcoreParameters(), {"IPUOF_VIPU_API_PORT": port}).port == 8090


@pytest.mark.parametrize("name", ["--help", "a b", "$(reboot)", "x" * 300])
def test_a_host_that_would_be_an_option_or_worse_is_refused(name):
    with pytest.raises(ValueError, match="vipu_api_host"):
        GraphcoreParameters(vipu_api_host=name)
    with pytest.raises(ValueError, match="partition"):
        GraphcoreParameters(partition=name)
