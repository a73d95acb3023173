"""Which pods hold an accelerator, from a kubelet's answers."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.kubelet_socket import claim, devices, pod

from muster_agent.idle.pod_resources import DeviceHolder, PodResourcesReader, is_accelerator
from muster_agent.idle.protobuf import MalformedMessage
from muster_kube.nodehealth import device_digest

SAMPLES = Path(__file__).parent / "samples"
GPU = pod("train-0", devices("nvidia.com/gpu", "GPU-1", "GPU-2"))


def test_a_pod_with_a_gpu_holds_it() -> None:
    assert PodResourcesReader().holders(GPU + pod("web", namespace="shop")) == [
        DeviceHolder("team-a/train-0", ("nvidia.com/gpu",))
    ]


def test_a_real_kubelet_s_answer_is_read() -> None:
    answer = (SAMPLES / "pod_resources_kubelet_1.20.2.bin").read_bytes()
    assert PodResourcesReader().holders(answer) == [DeviceHolder("default/train-0", ("nvidia.com/gpu",))]


def test_a_pod_that_has_ended_holds_nothing_though_a_real_kubelet_lists_it() -> None:
    answer = (SAMPLES / "pod_resources_kubelet_1.20.2_ended.bin").read_bytes()
    assert b"done-0" in answer
    assert PodResourcesReader().holders(answer) == []


def test_pods_come_in_an_order_of_their_own() -> None:
    first, second = pod("a", devices("amd.com/gpu", "0")), pod("b", devices("nvidia.com/gpu", "1"))
    assert PodResourcesReader().holders(second + first) == PodResourcesReader().holders(first + second)


def test_a_claim_is_held_by_its_driver() -> None:
    assert PodResourcesReader().holders(pod("x", claim("gpu.nvidia.com", "k8s.gpu.nvidia.com/claim=1"))) == [
        DeviceHolder("team-a/x", ("gpu.nvidia.com",), frozenset({device_digest("gpu.nvidia.com", "pool", "device-0")}))
    ]


def test_devices_are_named_only_if_all_are() -> None:
    drivers = [claim("gpu.nvidia.com", device=name) for name in ("gpu-1", "gpu-2")]
    [both] = PodResourcesReader().holders(pod("x", *drivers))
    assert both.names is not None
    assert len(both.names) == 2
    [mixed] = PodResourcesReader().holders(pod("x", *drivers, devices("nvidia.com/gpu", "GPU-1")))
    assert mixed.names is None
    [network] = PodResourcesReader().holders(pod("x", drivers[0], devices("rdma/hca_shared_devices_a", "1")))
    assert network.names == {device_digest("gpu.nvidia.com", "pool", "gpu-1")}


def test_a_claim_of_an_older_kubelet_is_held_by_its_cdi_devices() -> None:
    assert PodResourcesReader().holders(pod("x", claim("", "nvidia.com/gpu=0", "nvidia.com/gpu=1"))) == [
        DeviceHolder("team-a/x", ("nvidia.com/gpu",))
    ]


def test_an_entry_without_devices_holds_nothing() -> None:
    assert PodResourcesReader().holders(pod("x", devices("nvidia.com/gpu"), claim(""))) == []


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
        "nvidia.com/mig-1g.10gb",
        "volcano.sh/vgpu-number",
        "aliyun.com/gpu-mem",
        "amd.com/gpu",
        "gpu.intel.com/xe",
        "habana.ai/gaudi",
        "graphcore.ai/ipu",
        "aws.amazon.com/neuroncore",
        "google.com/tpu",
        "huawei.com/Ascend910",
        "gpu.nvidia.com",
        "example.com/unheard-of",
    ],
)
def test_what_is_not_known_to_be_something_else_is_an_accelerator(resource: str) -> None:
    assert is_accelerator(resource)


@pytest.mark.parametrize(
    "resource",
    [
        "rdma/hca_shared_devices_a",
        "nvidia.com/rdma_rail_0",
        "nvidia.com/hostdev",
        "nvidia.com/mlnxnics",
        "mellanox.com/cx6",
        "openshift.io/mlxnics",
        "intel.com/intel_sriov_netdevice",
        "vpc.amazonaws.com/efa",
        "devices.kubevirt.io/kvm",
        "smarter-devices/fuse",
        "squat.ai/tun",
        "hugepages-1Gi",
        "cpu",
        "qat.intel.com/generic",
        "aws.ec2.nitro/nitro_enclaves",
        "dra.net",
        "dra.cpu",
        "compute-domain.nvidia.com",
    ],
)
def test_network_cards_and_plain_devices_are_no_accelerators(resource: str) -> None:
    assert not is_accelerator(resource)


@given(st.binary(max_size=64) | st.binary(max_size=32).map(lambda tail: GPU + tail))
def test_bytes_are_read_or_refused(message: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        assert isinstance(PodResourcesReader().holders(message), list)


def test_half_an_answer_is_none() -> None:
    for length in range(1, len(GPU)):
        with pytest.raises(MalformedMessage):
            PodResourcesReader().holders(GPU[:length])


def test_a_pod_that_changes_is_read_again() -> None:
    reader = PodResourcesReader()
    assert reader.holders(pod("a") + pod("b")) == []
    assert reader.holders(pod("b") + pod("a", devices("nvidia.com/gpu", "1"))) == [
        DeviceHolder("team-a/a", ("nvidia.com/gpu",))
    ]
    assert reader.holders(pod("b")) == []


def test_more_pods_than_a_node_can_have_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="10000"):
        PodResourcesReader().holders(b"\x0a\x00" * 10_001)


def test_names_are_printable_and_short() -> None:
    [holder] = PodResourcesReader().holders(pod("x\n\x1b[31m" * 1000, devices("nvidia.com/gpu", "1")))
    assert holder.pod.isprintable()
    assert len(holder.pod) < 300
