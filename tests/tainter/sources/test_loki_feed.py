"""From a Loki over HTTP to findings of nodes, as the leader runs it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry
from tests.tainter.fake_fleet import FakeFleet
from tests.tainter.sources.loki_stub import NS, LokiServer, Store, serving

from muster_kube.api.objects import Metadata, Node
from muster_kube.controller.backoff import Backoff
from muster_kube.nodehealth import ClearedFault, ReportedFinding
from muster_tainter.faults.external_findings import ExternalFindings
from muster_tainter.faults.record.node_record import ANNOTATION, ClosedFault, Fault, NodeRecord, encode_record
from muster_tainter.fleet.replica import Replica
from muster_tainter.policy.file import parse_policy
from muster_tainter.policy.rules import Policy
from muster_tainter.policy.sections.sources import Sources
from muster_tainter.sources.feeds import SourceFeeds
from muster_tainter.sources.source_status import SourceMetrics

WAIT_S = 60.0
NOW = 1_700_000_000.0
XID = "[1235733.431527] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus."


class Handed:
    """What the feeds hand on, in order."""

    def __init__(
        self, found: list[tuple[str, str, ReportedFinding]], over: list[tuple[str, str, ClearedFault]]
    ) -> None:
        self._found = found
        self._over = over

    def add(self, *one: Any) -> None:
        self._found.append(one)

    def close(self, *one: Any) -> None:
        self._over.append(one)


class Cluster:
    """What the feeds see of the tainter. ``now``: our clock; ``led_until``: when the last leader lived."""

    def __init__(self) -> None:
        self.now = NOW
        self.led_until: float | None = None
        self.nodes = {name: Node(metadata=Metadata(name=name)) for name in ("n1", "n2")}
        self.found: list[tuple[str, str, ReportedFinding]] = []
        self.over: list[tuple[str, str, ClearedFault]] = []
        self.sources = Sources()
        self.registry = CollectorRegistry()
        self.metrics = SourceMetrics(self.registry)
        self.feeds: SourceFeeds | None = None

    def remember(self, name: str, record: NodeRecord) -> None:
        """The node's record is this."""
        annotations = {ANNOTATION: encode_record(record) or ""}
        self.nodes[name] = Node(metadata=Metadata(name=name, annotations=annotations))

    def policy(self) -> Policy:
        return parse_policy("rules: []\n").model_copy(update={"sources": self.sources})

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"muster_tainter_source_{name}", labels)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        async def node_of_pod(_pod: str) -> str:
            return "n2"

        fleet = FakeFleet(nodes=self.nodes, external_findings=cast("ExternalFindings", Handed(self.found, self.over)))
        fleet.policy = self.policy  # type: ignore[method-assign]  # tests change it
        replica = Replica(may_write=lambda: True, led_until=lambda: self.led_until, now=lambda: self.now)
        backoff = Backoff(base_s=0.01, cap_s=0.02)
        self.feeds = SourceFeeds(fleet, replica, self.metrics, node_of_pod=node_of_pod, backoff=backoff)
        task = asyncio.create_task(self.feeds.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def follow(self, server: LokiServer, **fields: Any) -> None:
        text: dict[str, Any] = {"kernel": [{"query": '{k8s_daemonset_name="dmesg"}'}], **fields}
        sources = Sources.model_validate({"loki": {"url": server.url, **text}})
        assert sources.loki is not None
        # a second between two askings would only be waited for
        self.sources = sources.model_copy(update={"loki": sources.loki.model_copy(update={"every": 0.01})})
        if self.feeds is not None:
            self.feeds.look_at_all()


async def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def again(server: LokiServer) -> None:
    """Everything that is in Loki now has been asked for."""
    asked = len(server.headers)
    await until(lambda: len(server.headers) > asked + 2, "Loki is asked again")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def server(cluster: Cluster) -> AsyncIterator[LokiServer]:
    async with serving(LokiServer(Store(clock=lambda: cluster.now))) as made:
        yield made


async def test_a_kernel_line_becomes_a_finding_of_its_node(cluster: Cluster, server: LokiServer) -> None:
    cluster.follow(server)
    async with cluster.leading():
        server.store.dmesg("n1", XID)
        await until(lambda: cluster.found, "found")
    [(node, check, finding)] = cluster.found
    assert (node, check, finding.component, finding.reason) == ("n1", "loki", "gpu/0000:3b:00.0", "Xid79")
    assert finding.occurrence == int(NOW * 1000)


async def test_the_log_names_the_node_and_holds_the_line_without_control_characters(
    cluster: Cluster, server: LokiServer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.follow(server)
    with caplog.at_level("INFO"):
        async with cluster.leading():
            server.store.dmesg("n1", XID + "\x1b[31m")
            await until(lambda: cluster.found, "found")
    [line] = [text for text in caplog.text.splitlines() if f"{XID}\N{REPLACEMENT CHARACTER}[31m" in text]
    assert "`n1`" in line


async def test_a_shipper_that_sends_its_whole_log_again_is_told_once(
    cluster: Cluster, server: LokiServer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.follow(server)
    with caplog.at_level("INFO"):
        async with cluster.leading():
            server.store.dmesg("n1", XID)
            await until(lambda: cluster.found, "found")
            cluster.now += 30
            server.store.dmesg("n1", XID)  # by another pod of the DaemonSet: with a time of its own
            await until(lambda: cluster.value("lines_total", source="loki.kernel[0]", what="taken") == 2.0, "taken")
    assert caplog.text.count(XID) == 1


async def test_a_new_leader_reads_from_where_the_last_one_lived_with_the_same_numbers(
    cluster: Cluster, server: LokiServer
) -> None:
    cluster.follow(server)
    server.store.dmesg("n1", XID, int((NOW - 500) * NS))  # before the last leader's end and the overlap
    server.store.dmesg("n1", XID.replace("79", "48"), int((NOW - 350) * NS))
    server.store.dmesg("n2", XID, int((NOW - 100) * NS))
    cluster.led_until = NOW - 300
    numbers = []
    for _ in range(2):
        async with cluster.leading():
            await until(lambda: len(cluster.found) >= 2, "found")
            await again(server)
        numbers.append(sorted((node, finding.reason, finding.occurrence) for node, _, finding in cluster.found))
        cluster.found.clear()
    assert numbers[0] == numbers[1]
    assert [one[:2] for one in numbers[0]] == [("n1", "Xid48"), ("n2", "Xid79")]


async def test_clocks_that_differ_by_hours_hide_no_line(cluster: Cluster, server: LokiServer) -> None:
    cluster.follow(server)
    server.store.clock = lambda: cluster.now - 7200
    cluster.led_until = NOW - 300
    server.store.dmesg("n1", XID, int((NOW - 7200 - 200) * NS))
    server.store.dmesg("n2", XID, int((NOW - 7200 - 2000) * NS))
    async with cluster.leading():
        await until(lambda: cluster.found, "found")
        await again(server)
    assert [node for node, *_ in cluster.found] == ["n1"]


async def test_a_loki_that_is_away_from_the_start_counts_as_down_until_it_leaves_the_policy(
    cluster: Cluster, server: LokiServer
) -> None:
    cluster.follow(server)
    server.instead = lambda _parameters: (503, {}, b"")
    async with cluster.leading():
        await again(server)
        assert cluster.value("up", source="loki.kernel[0]") == 0.0
        cluster.sources = Sources()
        assert cluster.feeds is not None
        cluster.feeds.look_at_all()
        await until(lambda: cluster.value("up", source="loki.kernel[0]") is None, "forgotten")


async def test_loki_that_is_away_holds_up_nothing_and_is_read_on(
    cluster: Cluster, server: LokiServer, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = b"too many outstanding requests"
    cluster.follow(server)
    async with cluster.leading():
        await until(lambda: cluster.value("up", source="loki.kernel[0]") == 1.0, "up")
        server.instead = lambda _parameters: (429, {"Retry-After": "0"}, refusal)
        await until(lambda: cluster.value("up", source="loki.kernel[0]") == 0.0, "away")
        for i in range(30):
            cluster.now += 60
            server.store.dmesg("n1", XID.replace("3b", f"{i:02x}"))
        await again(server)
        server.instead = lambda _parameters: None
        await until(lambda: len(cluster.found) >= 30, "read on")
    assert len(cluster.found) == 30
    assert caplog.text.count(refusal.decode()) == 1


async def test_garbage_is_no_line_and_no_end(cluster: Cluster, server: LokiServer) -> None:
    cluster.follow(server)
    garbage = iter([b"", b"\xff", b'{"status":"success"}', b"[" * 100_000, b'{"status":"error"}'])
    server.instead = lambda _parameters: next(((200, {}, body) for body in garbage), None)
    async with cluster.leading():
        server.store.dmesg("n1", XID)
        await until(lambda: cluster.found, "found after all")


async def test_silence_counts_only_while_loki_answers(cluster: Cluster, server: LokiServer) -> None:
    cluster.follow(server)
    async with cluster.leading():
        server.store.dmesg("n1", "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, name=x, Ch 00000001")
        await until(lambda: cluster.found, "warned")
        server.instead = lambda _parameters: (503, {}, b"")
        await again(server)
        cluster.now += 7200
        await again(server)
        assert cluster.over == []
        server.instead = lambda _parameters: None
        await until(lambda: cluster.over, "over")
    [(node, check, cleared)] = cluster.over
    assert (node, check, cleared.reason, cleared.how) == ("n1", "loki", "Xid31", "quiet")


@pytest.mark.parametrize(("check", "reason"), [("loki", "Xid31"), ("podlog", "InvalidDeviceOrdinal")])
async def test_a_warning_that_an_earlier_leader_told_is_over_when_it_has_been_quiet(
    cluster: Cluster, server: LokiServer, check: str, reason: str
) -> None:
    cluster.follow(server, pods=[{"query": '{k8s_namespace_name="ml"}', "known": "cuda"}])
    stands = Fault(check=check, component="host", reason=reason, occurrence=7, verdict="WARN")
    fails = Fault(check=check, component="host", reason="Other", occurrence=8)
    cluster.remember("n1", NodeRecord(open=(stands, fails)))
    cluster.led_until = NOW
    async with cluster.leading():
        await again(server)
        cluster.now += 3000
        await again(server)
        assert cluster.over == []
        cluster.now += 1000
        await until(lambda: cluster.over, "over")
    [(node, told_check, cleared)] = cluster.over
    assert (node, told_check, cleared.reason, cleared.occurrence, cleared.how) == ("n1", check, reason, 7, "quiet")


async def test_a_query_that_is_refused_keeps_no_other_waiting(cluster: Cluster, server: LokiServer) -> None:
    cluster.follow(server, kernel=[{"query": "{job=bad"}, {"query": '{k8s_daemonset_name="dmesg"}'}])
    server.instead = lambda parameters: (400, {}, b"parse error") if "bad" in parameters["query"] else None
    async with cluster.leading():
        server.store.dmesg("n1", XID)
        await until(lambda: cluster.found, "found by the other query")


async def test_a_person_s_word_ends_the_finding_and_the_next_line_is_a_new_firing(
    cluster: Cluster, server: LokiServer
) -> None:
    cluster.follow(server)
    async with cluster.leading():
        server.store.dmesg("n1", XID)
        await until(lambda: cluster.found, "found")
        first = cluster.found[0][2]
        ended = ClosedFault(
            check="loki",
            component=first.component,
            reason=first.reason,
            occurrence=first.occurrence,
            closed_at="2023-11-14T22:13:30Z",  # NOW + 10
            how="person",
        )
        cluster.remember("n1", NodeRecord(closed=(ended,)))
        await until(lambda: cluster.over, "let go")
        cluster.now += 60
        server.store.dmesg("n1", XID.replace("1235733", "1235793"))
        await until(lambda: len(cluster.found) > 1, "found anew")
    assert cluster.found[1][2].occurrence == int((NOW + 60) * 1000)


async def test_lines_of_nodes_that_are_not_known_are_counted_and_taken_once_they_are(
    cluster: Cluster, server: LokiServer
) -> None:
    cluster.follow(server)
    async with cluster.leading():
        server.store.dmesg("stranger", XID)
        server.store.push(XID, k8s_daemonset_name="dmesg")
        await until(
            lambda: (cluster.value("lines_total", source="loki.kernel[0]", what="homeless") or 0) >= 2, "counted"
        )
        await again(server)
        assert cluster.found == []
        cluster.nodes["stranger"] = Node(metadata=Metadata(name="stranger"))  # its Node came after its first lines
        await until(lambda: cluster.found, "taken")
    assert [node for node, *_ in cluster.found] == ["stranger"]


async def test_patterns_of_a_kernel_query_speak_of_what_the_catalogue_does_not(
    cluster: Cluster, server: LokiServer
) -> None:
    own = [{"name": "AnyXid", "pattern": "(?i)nvrm: xid", "verdict": "FAIL", "class": "reset"}]
    cluster.follow(server, kernel=[{"query": '{k8s_daemonset_name="dmesg"}', "patterns": own}])
    async with cluster.leading():
        server.store.dmesg("n1", XID)
        server.store.dmesg("n2", "[7.5] NVRM: Xid (PCI:0000:3b:00): 106, SMBPBI test message")
        await until(lambda: len(cluster.found) >= 2, "found")
    assert sorted((node, finding.reason) for node, _, finding in cluster.found) == [("n1", "Xid79"), ("n2", "AnyXid")]


async def test_pods_lines_go_their_own_way(cluster: Cluster, server: LokiServer) -> None:
    cluster.follow(server, pods=[{"query": '{k8s_namespace_name="ml"}', "known": ["cuda", "nccl", "poplar"]}])
    async with cluster.leading():
        server.store.push("CUDA error: invalid device ordinal", k8s_namespace_name="ml", k8s_pod_name="train-0")
        await until(lambda: cluster.found, "found")
    [(node, check, finding)] = cluster.found
    assert (node, check, finding.reason, finding.verdict) == ("n2", "podlog", "InvalidDeviceOrdinal", "WARN")


async def test_another_policy_is_followed_at_once_and_reads_nothing_twice(cluster: Cluster, server: LokiServer) -> None:
    async with cluster.leading():
        await asyncio.sleep(0)
        cluster.follow(server)
        server.store.dmesg("n1", XID)
        await until(lambda: cluster.found, "found")
        cluster.follow(server, tenant="red")
        server.store.dmesg("n2", XID)
        await until(lambda: len(cluster.found) > 1, "found by the new settings")
        await again(server)
        assert server.headers[-1]["x-scope-orgid"] == "red"
        cluster.sources = Sources()
        assert cluster.feeds is not None
        cluster.feeds.look_at_all()
        await until(lambda: cluster.value("up", source="loki.kernel[0]") is None, "no longer followed")
    assert [node for node, *_ in cluster.found] == ["n1", "n2"]


async def test_a_ca_that_is_not_there_is_waited_for(
    cluster: Cluster, server: LokiServer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.sources = Sources.model_validate(
        {"loki": {"url": "https://127.0.0.1:1", "caFile": "/none", "kernel": [{"query": "{}"}]}}
    )
    async with cluster.leading():
        await until(lambda: "caFile: /none" in caplog.text, "said")
