"""What programs print, and on which node it counts."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from muster_checks.containerlog.patterns import Patterns, known_patterns
from muster_kube.api.client import KubeClient
from muster_kube.api.errors import Forbidden, NotFound, Unreachable
from muster_kube.api.objects import Metadata, Pod, PodSpec
from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.record.node_record import NodeRecord
from muster_tainter.policy.sections.sources import PodLines
from muster_tainter.sources.loki.finding_tracker import FindingTracker
from muster_tainter.sources.loki.pod_nodes import KNOWN_FOR_S, PodNodeCache
from muster_tainter.sources.loki.response import LogEntry
from muster_tainter.sources.loki.streams import PodStream

NS = 1_000_000_000
NOW = 1_700_000_000
LINES = {
    "RuntimeError: CUDA error: invalid device ordinal": "InvalidDeviceOrdinal",
    "RuntimeError: CUDA error: uncorrectable ECC error encountered": "CudaUncorrectableEcc",
    "n1:512:812 [3] init.cc:1 NCCL WARN Cuda failure 'unhandled cuda error'": "NcclCudaFailure",
    "n1:512:812 [3] init.cc:1 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'": "NcclCudaFailure",
    "node-2:5776:5902 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with "
    "error 12, opcode 0, len 0, vendor err 129 (Recv)": "NcclCompletionError",
    "n:1:2 [1] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer 10.99.91.63<51161> with status=4 "
    "opcode=32614 len=32614 vendor err 81 (Send)": "NcclCompletionError",
    "n:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error": "NcclPortError",
    "host-01:1 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev "
    "mlx_x:1": "NcclQueuePairFailed",
    "[rank2]:[E626 05:06:30.929096625 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=120049, OpType=_ALLGATHER_BASE)": "NcclWatchdogTimeout",
    "  1 job process is considered dead (unreachable via the RAS network)": "NcclRasDead",
    "  12 job processes are considered dead (unreachable via the RAS network)": "NcclRasDead",
    "  Missing communicator data from 1 rank": "NcclRasIncomplete",
    "recoverable_runtime_error: [Recovery action: IPU_RESET] CIUERRVR.IPUSOFTERR error on IPU 0": "Ciuerrvr:IPUSOFTERR",
    "recoverable_runtime_error: [Recovery action: FULL_RESET]": "PoplarError",
}


@pytest.mark.parametrize("line", LINES)
def test_a_recorded_line_is_known_and_only_warns(line: str) -> None:
    [hit] = Patterns((), ("cuda", "nccl", "poplar")).hits(line)
    assert hit.reason == LINES[line]
    assert hit.verdict == "WARN"


@pytest.mark.parametrize("line", ["NCCL INFO Bootstrap : Using eth0:172.16.121.86<0>", "step 100 loss 2.5", ""])
def test_an_ordinary_line_is_nothing(line: str) -> None:
    assert Patterns((), ("cuda", "nccl", "poplar")).hits(line) == []


def test_what_comes_with_muster_never_fails_by_itself() -> None:
    assert {pattern.verdict for rows in known_patterns().values() for pattern in rows} == {"WARN"}


class Ends:
    """Where findings go to, and pods come from."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, ReportedFinding]] = []
        self.over: list[tuple[str, str, ClearedFault]] = []
        self.pods: dict[str, str | Exception] = {}
        self.asked: list[str] = []
        self.clock = 0.0

    async def get(self, path: str, *, type: Any) -> Pod:
        self.asked.append(path)
        node = self.pods.get(path, NotFound(404, "NotFound", "", path))
        if isinstance(node, Exception):
            raise node
        return Pod(metadata=Metadata(name="p"), spec=PodSpec(node_name=node))

    def stream(self, rule: Mapping[str, object]) -> PodStream:
        firings = FindingTracker(
            "podlog", lambda _: NodeRecord(), lambda *one: self.found.append(one), lambda *one: self.over.append(one)
        )
        nodes = PodNodeCache(cast("KubeClient", self), lambda: self.clock)
        return PodStream(
            "pods", PodLines.model_validate({"query": "{}", **rule}), firings, {"n1", "n2"}.__contains__, nodes
        )


@pytest.fixture
def ends() -> Ends:
    return Ends()


def entry(line: str = "invalid device ordinal", **labels: str) -> LogEntry:
    return LogEntry(NOW * NS, labels, line)


POD = {"k8s_namespace_name": "ml", "k8s_pod_name": "train-0"}
PATH = "/api/v1/namespaces/ml/pods/train-0"


async def test_the_label_says_the_node(ends: Ends) -> None:
    await ends.stream({"known": "cuda"}).take([entry(**POD, k8s_node_name="n1")])
    [(node, check, finding)] = ends.found
    assert (node, check, finding.component, finding.reason) == ("n1", "podlog", "host", "InvalidDeviceOrdinal")
    assert (finding.verdict, finding.origin, finding.occurrence) == ("WARN", "user", NOW * 1000)
    assert "ml/train-0" in finding.message
    assert finding.message.endswith(": invalid device ordinal")
    assert ends.asked == []


async def test_else_the_pod_is_asked_for_and_remembered_for_a_while(ends: Ends) -> None:
    stream = ends.stream({"known": "cuda"})
    ends.pods[PATH] = "n2"
    await stream.take([entry(**POD), entry(**POD)])
    assert [node for node, *_ in ends.found] == ["n2"]
    assert ends.asked == [PATH]
    ends.clock += KNOWN_FOR_S + 1
    ends.pods[PATH] = "n1"  # a StatefulSet's pod, made anew elsewhere
    await stream.take([entry(**POD)])
    assert [node for node, *_ in ends.found] == ["n2", "n1"]


@pytest.mark.parametrize("error", [None, Forbidden(403, "Forbidden", "", PATH)])
async def test_a_pod_that_is_gone_or_not_to_be_seen_leaves_its_lines_homeless(
    ends: Ends, error: Exception | None
) -> None:
    stream = ends.stream({"known": "cuda"})
    if error:
        ends.pods[PATH] = error
    await stream.take([entry(**POD), entry(), entry(k8s_node_name="stranger")])
    assert ends.found == []
    assert stream.homeless == 3


async def test_an_api_server_that_is_away_has_the_lines_read_again(ends: Ends) -> None:
    ends.pods[PATH] = Unreachable("refused", PATH)
    with pytest.raises(Unreachable):
        await ends.stream({"known": "cuda"}).take([entry(**POD)])


async def test_no_line_counts_before_the_nodes_of_all_are_known(ends: Ends) -> None:
    """All of them are given again after an error: what had counted would count twice."""
    ends.pods[PATH] = Unreachable("refused", PATH)
    with pytest.raises(Unreachable):
        await ends.stream({"known": "cuda"}).take([entry(k8s_node_name="n1"), entry(**POD)])
    assert ends.found == []


@pytest.mark.parametrize("name", ["../../secrets/x", "a/b", "a?b", "A", "", "x" * 300])
async def test_labels_never_become_another_path(ends: Ends, name: str) -> None:
    await ends.stream({"known": "cuda"}).take([entry(k8s_namespace_name="ml", k8s_pod_name=name)])
    assert ends.asked == []


async def test_a_rule_s_own_pattern_may_fail_and_speaks_first(ends: Ends) -> None:
    own = {"name": "InvalidDeviceOrdinal", "pattern": "invalid device", "verdict": "FAIL", "class": "reset"}
    stream = ends.stream({"known": "cuda", "patterns": [own]})
    await stream.take([entry(k8s_node_name="n1")])
    [(_, _, finding)] = ends.found
    assert (finding.verdict, finding.fault_class) == ("FAIL", "reset")


async def test_a_warning_is_over_after_an_hour_of_quiet(ends: Ends) -> None:
    stream = ends.stream({"known": "cuda"})
    await stream.take([entry(k8s_node_name="n1")])
    stream._firings.tick(NOW + 3599)
    assert ends.over == []
    stream._firings.tick(NOW + 3600)
    [(node, check, cleared)] = ends.over
    assert (node, check, cleared.how, cleared.occurrence) == ("n1", "podlog", "quiet", NOW * 1000)


def test_the_metrics_of_sources_have_names_of_their_own() -> None:
    from muster_tainter.sources.source_status import SourceMetrics

    registry = CollectorRegistry()
    SourceMetrics(registry)
    assert {metric.name for metric in registry.collect()} == {
        "muster_tainter_source_up",
        "muster_tainter_source_read_to_seconds",
        "muster_tainter_source_lines",
    }
