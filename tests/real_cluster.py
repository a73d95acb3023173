"""A real control plane for a whole test session; a namespace and simulated nodes for each test.

Where it cannot be had these tests fail, because a green run without them says little. On a person's own machine
``MUSTER_SKIP_CLUSTER=1`` skips them instead, and says so.
"""

import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.chart.real_node_images import images
from tests.cluster.devices.feature_gates import DEVICE_TAINT_RULES
from tests.machine import require, skip
from tests.processes import processes_with

from muster_kube.api.client import KubeClient
from muster_kube.api.config import load_config
from muster_sandbox.controlplane.cluster import ControlPlane, read_minor_version
from muster_sandbox.controlplane.install import install
from muster_sandbox.programs.binaries import NoControlPlane, find_kubelet
from muster_sandbox.programs.control_plane import find_or_build
from muster_sandbox.programs.packages import RUNTIME, NoPackages, unpack_tree
from muster_sandbox.realnode.containers import PROGRAMS as NODE_PROGRAMS
from muster_sandbox.realnode.node import RealNode, find_node_obstacle
from muster_sandbox.simulation.kubelets import Kubelets
from muster_sandbox.simulation.nodes import SimulatedNodes

FOLDERS = ("tests/cluster/", "tests/security/cluster/")
_namespaces = iter(range(1, 1_000_000))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(FOLDERS):
            item.add_marker(pytest.mark.cluster)
        if item.get_closest_marker("needs_modern"):
            item.fixturenames.insert(0, "_is_modern")  # type: ignore[attr-defined]  # pytest's own items have it


@pytest.fixture(scope="session")
def binaries(pytestconfig: pytest.Config) -> Path:
    """The folder with the control plane's programs, built first where there is none yet."""
    if os.environ.get("MUSTER_SKIP_CLUSTER") == "1":
        skip("a control plane", "MUSTER_SKIP_CLUSTER=1, which is for a person's machine")
    try:
        return find_or_build(_teller(pytestconfig))
    except NoControlPlane as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def control_plane(binaries: Path) -> Iterator[ControlPlane]:
    """The session's control plane, with Muster's CRDs and roles. At its end nothing runs and no node is tainted."""
    arguments = DEVICE_TAINT_RULES.get(read_minor_version(binaries / "kube-apiserver"), {})
    with ControlPlane(binaries, extra_args=arguments) as running:
        install(running.admin)
        groups, data = running.process_ids, running.data
        yield running
        tainted = _tainted_nodes(running)
    left = _left_running(groups, data)
    assert not left, f"still running after the control plane was stopped: {left}"
    assert not data.exists(), f"{data} was left behind"
    assert not tainted, f"nodes left tainted by the tests: {tainted}"


@pytest.fixture
def _is_modern(request: pytest.FixtureRequest, control_plane: ControlPlane) -> None:
    """Skips tests that need a newer API server. Debian's is what CI has, so it skips them too."""
    (minor,) = request.node.get_closest_marker("needs_modern").args
    if control_plane.minor < minor:
        pytest.skip(f"needs Kubernetes 1.{minor} or later in $KUBEBUILDER_ASSETS")


@pytest.fixture(scope="session")
def real_node(binaries: Path, pytestconfig: pytest.Config) -> Iterator[RealNode]:
    """A kubelet with containerd and its own control plane, in namespaces of their own. At its end nothing is left.

    It takes root and the right to make namespaces. Where they are there and it still does not come up, tests fail.
    """
    require("root", "kubectl", *NODE_PROGRAMS)
    if reason := find_node_obstacle():
        # where namespaces are not allowed even CI goes on: `make test` has said so in capitals
        pytest.skip(f"needs a real node: {reason}")
    tell = _teller(pytestconfig)
    try:
        find_or_build(tell, with_kubelet=True)
        kubelet = find_kubelet()
        assert kubelet is not None
        node = RealNode(binaries=binaries, kubelet=kubelet, runtime=unpack_tree(RUNTIME, tell), images=images(tell))
    except (NoControlPlane, NoPackages) as error:
        pytest.fail(str(error), pytrace=False)
    with node:
        install(node.plane.admin)
        data, groups = node.data, node.machine.group.places
        yield node
    left = _left_running({}, data)
    assert not left, f"still running after the node was stopped: {left}"
    assert not data.exists(), f"{data} was left behind"
    assert not [group for group in groups if group.exists()], f"control groups left behind: {groups}"
    assert str(data) not in Path("/proc/mounts").read_text(), "mounts were left behind"


@pytest.fixture
def real_namespace(real_node: RealNode) -> Iterator[str]:
    """A namespace of the real node's cluster; its pods are told to end when the test has."""
    name = f"real-{next(_namespaces)}"
    admin = real_node.plane.admin
    admin.create_namespace(name)
    yield name
    real_node.kubectl("-n", name, "delete", "pods", "--all", "--grace-period=1", "--wait=false")
    admin.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def kubeconfig(control_plane: ControlPlane) -> Path:
    """An administrator's."""
    return control_plane.kubeconfig


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace for one test, in which pods can be made at once."""
    name = f"test-{next(_namespaces)}"
    control_plane.admin.create_namespace(name)
    yield name
    # nothing runs its pods any more: they would stay Terminating for the rest of the session
    control_plane.admin.delete(f"/api/v1/namespaces/{name}/pods", grace_s=0)
    control_plane.admin.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """A connected client with an administrator's rights."""
    config = load_config(control_plane.kubeconfig)
    async with KubeClient(config, user_agent="muster-test", timeout_s=30.0) as client:
        yield client


@pytest.fixture
async def fleet(api: KubeClient) -> AsyncIterator[SimulatedNodes]:
    """Simulated nodes: ``await fleet.create(8)``; they go at the end of the test, with their NodeHealths."""
    made = SimulatedNodes(api)
    yield made
    await made.delete()


@pytest.fixture
async def kubelets(api: KubeClient) -> AsyncIterator[Kubelets]:
    """Runs the pods that are bound to simulated nodes, each by its own annotation."""
    async with Kubelets(api) as running:
        yield running


def _teller(config: pytest.Config) -> Callable[[str], None]:
    capture = config.pluginmanager.getplugin("capturemanager")

    def tell(line: str) -> None:
        # a build takes minutes: whoever waits has to see that it goes on
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    return tell


def _tainted_nodes(running: ControlPlane) -> list[str]:
    try:
        nodes = running.admin.get("/api/v1/nodes")["items"]
    except Exception as error:  # a test may have left the server dead; that must not hide what follows
        warnings.warn(f"cannot look for tainted nodes: {error}", stacklevel=1)
        return []
    return [node["metadata"]["name"] for node in nodes if node["spec"].get("taints")]


def _left_running(groups: dict[str, int], data: Path) -> list[str]:
    found = processes_with(lambda words: any(str(data) in word for word in words))
    left = [f"{process.info['cmdline'][0]} (pid {process.pid})" for process in found]
    for name, group in groups.items():
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            continue
        left.append(f"{name} (group {group})")
    return left
