"""`muster status`: the table of a fleet and the page of one node, from what the cluster holds."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
import yaml
from tests.browser.sample_fleet import make_fleet, xid79
from tests.cli.commands.test_run import kubeconfig
from tests.cli.withheld_taint import node_without_its_taint
from tests.wording.facts import missing_facts

from muster_checks.base.vocabulary import Verdict
from muster_cli.__main__ import main
from muster_cli.cluster.node_snapshot import NodeState
from muster_cli.report.columns import as_page
from muster_cli.report.fleet.rows import HEAD, NodeRow, node_row, node_rows, select_rows, summary, worst_verdict
from muster_cli.report.fleet.spare_counts import spare_counts, spare_lines
from muster_cli.report.node import format_node
from muster_kube.api.objects import Metadata, Node, NodeSpec, Taint
from muster_kube.api.times import rfc3339
from muster_kube.nodehealth import (
    CheckRequest,
    ClearedFault,
    NodeHealth,
    NodeHealthSpec,
    NodeHealthStatus,
    ReportedCheck,
    ReportedFinding,
    ReportedMeasurement,
    RequestAnswer,
)
from muster_tainter.faults.record.node_record import ClosedFault, Fault, NodeRecord
from muster_tainter.policy.spares import SpareRole
from muster_tainter.spares.plan import GroupState, SparePlan

NOW = 1_800_000_000.0
NOTHING_ASKED = NodeHealthSpec()
OURS = Taint(key="muster.dev/faulty", value="true", effect="NoSchedule")
LONG = "gpu-worker-h100-8x-europe-west4-a-rack-17-unit-03.internal"


def ago(seconds: float) -> str:
    return rfc3339(NOW - seconds)


def node(name: str, *taints: Taint, unschedulable: bool = False, **labels: str) -> Node:
    named = {f"muster.dev/{key}": value for key, value in labels.items()}
    spec = NodeSpec(taints=taints, unschedulable=unschedulable)
    return Node(metadata=Metadata(name=name, labels=named), spec=spec)


def health(
    name: str, verdict: str = "PASS", *checks: ReportedCheck, spec: NodeHealthSpec = NOTHING_ASKED, **status: Any
) -> NodeHealth:
    return NodeHealth(
        metadata=Metadata(name=name), spec=spec, status=NodeHealthStatus(verdict=verdict, checks=checks, **status)
    )


def check(name: str, verdict: str, since_s: float, *findings: ReportedFinding, **others: Any) -> ReportedCheck:
    return ReportedCheck(name=name, verdict=verdict, last_change=ago(since_s), findings=findings, **others)


XID = ReportedFinding(
    component="gpu/0000:3b:00.0",
    reason="Xid79",
    verdict="FAIL",
    message="GPU has fallen off the bus",
    fault_class="reboot",
    measurements=(ReportedMeasurement(name="lines", value=3, unit="1/h", threshold=1),),
    first_seen=ago(7200),
    count=3,
    occurrence=5,
)


def one(made: Node | None, said: NodeHealth | None) -> NodeRow:
    return node_row("a", made, said, NOW)


def test_node_row_shows_the_report_of_its_agent():
    said = health("a", "FAIL", check("dmesg", "FAIL", 7200, XID), failing="dmesg,ping", message="fell off")
    row = one(node("a", OURS), said)
    assert (row.verdict, row.failing, row.message) == (Verdict.FAIL, ("dmesg", "ping"), "fell off")
    assert row.taints == ("muster.dev/faulty=true:NoSchedule",)
    assert row.cells(NOW)[HEAD.index("FOR")] == "2h"


def test_unwatched_node_is_not_unknown():
    row = one(node("a"), None)
    assert row.verdict is None
    assert worst_verdict([row, one(node("a"), health("a"))]) is Verdict.PASS


def test_unwatched_fleet_is_unknown():
    assert worst_verdict([one(node("a"), None)]) is Verdict.UNKNOWN


def test_an_agent_that_has_not_spoken_is_unknown():
    row = one(node("a"), health("a", ""))
    assert row.verdict is Verdict.UNKNOWN
    assert row.message


def test_an_agent_that_the_tainter_does_not_believe_is_unknown():
    row = one(node("a", health="unknown"), health("a", "PASS"))
    assert row.verdict is Verdict.UNKNOWN
    assert not missing_facts(row.message, "PASS", "muster.dev/health=unknown")


def test_a_fail_of_an_agent_that_is_gone_stays_a_fail():
    assert one(node("a", health="unknown"), health("a", "FAIL")).verdict is Verdict.FAIL


def test_a_word_that_is_no_verdict_is_unknown():
    assert one(node("a"), health("a", "GREAT")).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("made", "said", "state"),
    [
        (node("a"), health("a", idle_since=ago(600)), "idle 10m"),
        (node("a"), health("a"), "busy"),
        (node("a"), health("a", due=("dcgm", "pciebw")), "busy, 2 due"),
        (node("a", testing="dcgm"), health("a", idle_since=ago(600)), "testing dcgm"),
    ],
)
def test_what_a_node_is_doing(made: Node, said: NodeHealth, state: str):
    assert one(made, said).state == state


def test_withheld_taint_is_shown_with_its_reason():
    why = "budget: pool all has 3 of 3 nodes tainted (30% of 8)"
    made = node_without_its_taint("a", why)
    said = health("a", "PASS")
    row = one(made, said)
    cells = dict(zip(HEAD, row.cells(NOW), strict=True))
    assert (cells["TAINTS"], cells["MESSAGE"]) == ("withheld", why)
    assert any(line.endswith(f"  {why}") for line in format_node(NodeState(made, said, NodeRecord()), row, NOW))
    sound = [node_row(str(n), node(str(n)), health(str(n)), NOW) for n in range(100)]
    assert select_rows([row, *sound], every=False)[0] == [row], "not hidden among those that are well"


def test_no_full_stop_precedes_the_reason_of_a_withheld_taint():
    made = node_without_its_taint("a", "budget: full")
    row = msgspec.structs.replace(one(made, health("a", "FAIL")), message="GPU has fallen off the bus.")
    message = row.cells(NOW)[-1]
    assert ".;" not in message
    assert not missing_facts(message, "off the bus", "budget: full")


def test_cordoned_is_shown_and_taints_of_kubernetes_are_not():
    cordon = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
    assert one(node("a", cordon, unschedulable=True), health("a")).taints == ("cordoned",)


def test_healthy_node_counts_from_the_last_change_of_a_check():
    said = health("a", "PASS", check("ping", "PASS", 9000), check("nic", "PASS", 600))
    assert one(node("a"), said).since == ago(600)


def test_a_nodehealth_without_a_node_is_shown():
    row = one(None, health("a", "PASS"))
    assert (row.node, row.verdict) == ("a", Verdict.PASS)
    assert not missing_facts(row.message, "Node")


def test_unmanaged_node_shows_its_label():
    assert not missing_facts(one(node("a", managed="false"), health("a")).message, "muster.dev/managed=false")


def test_worst_nodes_come_first_and_unwatched_ones_last():
    healths = {name: health(name, verdict) for name, verdict in (("a", "PASS"), ("b", "FAIL"), ("c", "UNKNOWN"))}
    rows = node_rows([node(name) for name in "abcd"], healths, NOW)
    assert [row.node for row in rows] == ["b", "c", "a", "d"]
    watched, _, others = summary(rows).partition("; ")
    assert watched == "3 nodes: 1 PASS, 1 FAIL, 1 UNKNOWN"
    assert not missing_facts(others, "1")


def test_many_healthy_nodes_are_one_line_but_tainted_ones_have_rows():
    names = [f"n{number}" for number in range(30)]
    nodes = [node(name) for name in names] + [node("tainted", OURS), node("tested", testing="dcgm")]
    rows = node_rows(nodes, {each.metadata.name: health(each.metadata.name) for each in nodes}, NOW)
    visible, said = select_rows(rows, every=False)
    assert [row.node for row in visible] == ["tainted", "tested"]
    assert not missing_facts(said, "30", "all")
    assert select_rows(rows, every=True) == (rows, "")


@pytest.mark.parametrize("width", [40, 80, 160])
@pytest.mark.parametrize("count", [0, 1, 8, 500])
def test_the_table_fits_any_terminal(width: int, count: int):
    names = [f"{number}-{LONG}" for number in range(count)]
    said = {n: health(n, "FAIL", check("dmesg", "FAIL", 60, XID), failing="dmesg", message="x" * 256) for n in names}
    rows = node_rows([node(name, OURS) for name in names], said, NOW)
    page = as_page(HEAD, [row.cells(NOW) for row in rows], width)
    assert max(map(len, page.splitlines())) <= width


def test_one_node_in_full():
    spec = NodeHealthSpec(requests=(CheckRequest(id="night", checks=("pciebw",), by="ann", expires=ago(-60)),))
    over = ClearedFault(component="gpu/1", reason="Xid31", occurrence=4, how="quiet", at=ago(60))
    said = health(
        "a",
        "FAIL",
        check("ping", "PASS", 60),
        check("dmesg", "FAIL", 7200, XID, more_findings=2, cleared=(over,)),
        check("ib", "UNKNOWN", 60, reason="Timeout", message="ibstat took more than 10 s"),
        spec=spec,
        idle_since=ago(600),
        due=("dcgm",),
        answers=(RequestAnswer(id="plan-7", verdict="UNKNOWN", finished=ago(120), reason="Busy", message="pod x"),),
    )
    fault = Fault(
        check="dmesg", component="gpu/0000:3b:00.0", reason="Xid79", occurrence=5, rule="fatal", since=ago(60)
    )
    closed = ClosedFault(
        check="ping", component="host", reason="PeersSilent", occurrence=1, closed_at=ago(90), how="boot"
    )
    state = NodeState(node("a", OURS), said, NodeRecord(open=(fault,), closed=(closed,)))
    row = node_row("a", state.node, said, NOW)
    lines = list(format_node(state, row, NOW))
    for facts in (
        ("a", "FAIL", "2h"),
        ("muster.dev/faulty=true:NoSchedule",),
        ("dmesg", "gpu/0000:3b:00.0", "Xid79", "60s", "fatal"),
        ("ping", "host", "PeersSilent", "90s", "boot"),
        (row.state,),
        ("due", "dcgm"),
        ("night", "pciebw", "ann", ago(-60)),
        ("plan-7", "UNKNOWN", "0 of 0", "2m", "Busy", "pod x"),
        ("FAIL", "gpu/0000:3b:00.0", "Xid79", "reboot", XID.message),
        ("3", "2h", "5"),
        ("lines 3 1/h", "1"),
        ("2",),
        ("gpu/1", "Xid31", "60s", "quiet", "4"),
        ("ib", "Timeout", "ibstat took more than 10 s"),
    ):
        assert any(not missing_facts(line, *facts) for line in lines), facts
    text = "\n".join(lines)
    order = [text.index(f"\n{name} ") for name in ("dmesg", "ib", "ping")]
    assert order == sorted(order), "the worst check first"


def test_control_characters_in_objects_never_reach_the_terminal():
    said = health("a", "FAIL", check("x\x1b[2J", "FAIL", 60, reason="\x1b", message="\x07"), message="\x1b]0;x\x07")
    state = NodeState(node("a"), said, NodeRecord())
    row = node_row("a", state.node, said, NOW)
    assert "\x1b" not in "\n".join(format_node(state, row, NOW)) + as_page(HEAD, [row.cells(NOW)], 80)


# --- the command, against an API server that answers so


@contextmanager
def cluster(objects: dict[str, Any]) -> Iterator[str]:
    """objects: answers by path; lists come in pages of two."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            found = objects.get(parts.path)
            body: Any = {"kind": "NodeHealthStatus", "code": 404, "reason": "NotFound", "message": "not there"}
            if isinstance(found, list):
                start = int(parse_qs(parts.query).get("continue", ["0"])[0])
                more = {"continue": str(start + 2)} if start + 2 < len(found) else {}
                body = {"metadata": {"resourceVersion": "1", **more}, "items": found[start : start + 2]}
            elif found is not None:
                body = msgspec.to_builtins(found)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(body, default=msgspec.to_builtins).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"


def test_the_fleet_is_printed_and_the_exit_code_is_the_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    nodes = [node(name) for name in "abcde"]
    healths = [health("a"), health("b", "WARN", failing="nic", message="flaps"), health("c"), health("d"), health("e")]
    with cluster({"/api/v1/nodes": nodes, HEALTHS: healths}) as server:
        assert main(["status", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].split() == ["b", "WARN", "nic", "busy", "flaps"]
        assert lines[-1] == "5 nodes: 4 PASS, 1 WARN"
        assert main(["status", "--json", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 1
        document = json.loads(capsys.readouterr().out)
        assert document["verdict"] == "WARN"
        assert [each["node"] for each in document["nodes"]] == ["b", "a", "c", "d", "e"]


SPARES = """
rules: []
pools: [{name: h100, selector: {matchLabels: {gpu: h100}}, spares: {nodes: 2, checks: [pciebw]}}]
"""


def fleet_with_spares(policy: str = SPARES) -> dict[str, Any]:
    """A spare, a replacement, and the node that it replaces; each API path with its objects."""
    fleet = make_fleet(25, time.time())
    names = [name for name in fleet.nodes if name.startswith("h100")]
    fleet.assign(names[0], SpareRole.SPARE, ago=900)
    fleet.assign(names[1], SpareRole.REPLACEMENT, names[2])
    fleet.break_node(names[2], "dmesg", xid79())
    nodes = [
        msgspec.structs.replace(
            each, metadata=msgspec.structs.replace(each.metadata, labels=each.metadata.labels | {"gpu": "h100"})
        )
        for each in (fleet.nodes[name] for name in names)
    ]
    lease = {"metadata": {"name": "muster-tainter", "namespace": "ops"}, "spec": {}}
    healths = [fleet.healths[name] for name in names]
    return {
        "/api/v1/nodes": nodes,
        HEALTHS: healths,
        **{f"/api/v1/nodes/{each.metadata.name}": each for each in nodes},
        **{f"{HEALTHS}/{each.metadata.name}": each for each in healths},
        "/apis/coordination.k8s.io/v1/leases": [lease],
        "/api/v1/namespaces/ops/configmaps/muster-policy": {
            "metadata": {"name": "muster-policy"},
            "data": {"policy.yaml": policy},
        },
    }


def test_spares_and_replacements_are_shown_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    objects = fleet_with_spares()
    spare, replacement, faulty = (each.metadata.name for each in objects["/api/v1/nodes"][:3])
    with cluster(objects) as server:
        config = ["--kubeconfig", str(kubeconfig(tmp_path, server))]
        assert main(["status", *config]) == 2
        out = capsys.readouterr().out
        assert main(["status", "--json", *config]) == 2
        document = json.loads(capsys.readouterr().out)
        assert main(["status", spare, *config]) == 0
        in_full = capsys.readouterr().out
    assert not missing_facts(next(line for line in out.splitlines() if line.startswith(spare)), "spare, ready")
    assert not missing_facts(next(line for line in out.splitlines() if line.startswith(replacement)), faulty)
    [line] = [line for line in out.splitlines() if line.startswith("spares of pool h100: ")]
    assert not missing_facts(line, "1 ready of 2", "1 node")
    assert document["spares"] == [
        {"pool": "h100", "domain": "", "ready": 1, "spares": 1, "wanted": 2, "out": 1, "problem": ""}
    ]
    roles = {each["node"]: each["role"] for each in document["nodes"] if each["role"]}
    assert roles.keys() == {spare, replacement}
    assert (roles[spare]["role"], roles[spare]["ready"], roles[spare]["why"]) == ("spare", True, [])
    assert roles[replacement]["replaces"] == faulty
    assert not missing_facts(in_full, "spare, ready", roles[spare]["since"])


def test_more_spares_than_nodes_is_shown_as_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with cluster(fleet_with_spares(SPARES.replace("nodes: 2", "nodes: 25"))) as server:
        config = ["--kubeconfig", str(kubeconfig(tmp_path, server))]
        assert main(["status", *config]) == 2
        [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("spares of pool h100: ")]
        assert main(["status", "--json", *config]) == 2
    [count] = json.loads(capsys.readouterr().out)["spares"]
    assert count["wanted"] == 25
    assert count["problem"]
    assert count["problem"] in line


def test_without_the_policy_nothing_is_said_about_readiness(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    objects = fleet_with_spares()
    del objects["/api/v1/namespaces/ops/configmaps/muster-policy"]
    with cluster(objects) as server:
        assert main(["status", "--json", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 2
    document = json.loads(capsys.readouterr().out)
    [why] = [each["role"]["why"] for each in document["nodes"] if (each["role"] or {}).get("role") == "spare"]
    assert not missing_facts(why[0], "ConfigMap", "muster-policy")


def test_spares_per_domain_are_one_line_that_names_the_short_ones():
    groups = [
        GroupState("h100", f"r{n}", SparePlan(size=8, asked=1, wanted=1, spares=n % 2, ready=n % 2)) for n in range(4)
    ]
    [line] = spare_lines(spare_counts(groups))
    assert not missing_facts(line, "2 ready of 4", "r0 0 of 1", "r2 0 of 1")
    assert "r1" not in line


def test_one_node_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    objects = {"/api/v1/nodes/a": node("a"), f"{HEALTHS}/a": health("a", "FAIL", check("dmesg", "FAIL", 60, XID))}
    with cluster(objects) as server:
        assert main(["status", "--host", "a", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 2
        assert XID.message in capsys.readouterr().out
        assert main(["status", "--host", "a", "--json", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 2
        assert json.loads(capsys.readouterr().out)["status"]["checks"][0]["findings"][0]["reason"] == "Xid79"


@pytest.mark.parametrize("words", [["a", "b"], ["--host", "a,b"], ["--host", "a", "--host", "b"], ["a", "--host", "b"]])
def test_nodes_are_named_as_words_or_by_host(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    objects = {f"/api/v1/nodes/{name}": node(name) for name in "ab"}
    objects |= {f"{HEALTHS}/a": health("a", "WARN"), f"{HEALTHS}/b": health("b")}
    with cluster(objects) as server:
        assert main(["status", *words, "--json", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["node"] for each in document["nodes"]] == ["a", "b"]
    assert document["verdict"] == "WARN"


def test_yaml_and_json_are_the_same_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    objects = {"/api/v1/nodes": [node("a")], HEALTHS: [health("a", "FAIL", check("dmesg", "FAIL", 60, XID))]}
    documents = []
    with cluster(objects) as server:
        for flags in (["-o", "yaml"], ["-o", "json"], ["--json"]):
            assert main(["status", *flags, "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 2
            documents.append(yaml.safe_load(capsys.readouterr().out))
    assert documents[0] == documents[1] == documents[2]
    assert documents[0]["verdict"] == "FAIL"


def test_a_misspelled_node_gets_a_suggestion(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with cluster({"/api/v1/nodes": [node("gpu-17"), node("cpu-1")]}) as server:
        assert main(["status", "gpu17", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 3
    assert not missing_facts(capsys.readouterr().err, "muster", '"gpu17"', '"gpu-17"')


def test_watch_has_no_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["status", "--watch", "--json", "--kubeconfig", str(tmp_path)]) == 64
    assert not missing_facts(capsys.readouterr().err, "muster", "--watch", "-o json")


def test_a_node_that_is_not_there_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with cluster({}) as server:
        assert main(["status", "--host", "a", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 3
    assert not missing_facts(capsys.readouterr().err, "muster", '"a"')


def test_cluster_without_muster_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with cluster({"/api/v1/nodes": [node("a")]}) as server:
        assert main(["status", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert not missing_facts(told.err, "NodeHealths")


def test_an_empty_cluster_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with cluster({"/api/v1/nodes": [], HEALTHS: []}) as server:
        assert main(["status", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 3
    assert capsys.readouterr().out == "0 nodes\n"


def test_undecodable_nodehealth_is_unknown_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    broken = {"metadata": {"name": "b"}, "status": {"checks": 7}}
    with cluster({"/api/v1/nodes": [node("a"), node("b")], HEALTHS: [health("a"), broken]}) as server:
        assert main(["status", "--kubeconfig", str(kubeconfig(tmp_path, server))]) == 3
    told = capsys.readouterr()
    assert "nodehealths/b: " in told.err
    assert not missing_facts(next(line for line in told.out.splitlines() if line.startswith("b ")), "UNKNOWN")
