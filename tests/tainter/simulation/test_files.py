"""Fault, job and fleet files: what is read, and the line and value of what is not valid."""

import gzip
import json
import lzma
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from tests.shared_data import SharedData
from tests.tainter.simulation.worlds import BEGIN, HOUR, fleet_file

from muster_tainter.simulation.scenario import fault_file, job_file
from muster_tainter.simulation.scenario.fault_file import UNTIL_REPAIRED, FaultFile
from muster_tainter.simulation.scenario.fleet_file import FleetError, load_fleet
from muster_tainter.simulation.scenario.job_file import read_jobs
from muster_tainter.simulation.scenario.nodes import make_nodes
from muster_tainter.simulation.scenario.public_traces import read_gpu_cluster, read_hpc_outages

HEAD = "node,start,end,class\n"
KNOWN = ("gpu-1", "gpu-2")


def write(folder: Path, text: str, name: str = "faults.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def error_of(path: Path) -> str:
    with pytest.raises(FleetError) as caught:
        FaultFile(path, KNOWN)
    return str(caught.value)


def test_faults_with_zones_and_without_an_end(tmp_path: Path) -> None:
    text = (
        "start,node,class,end,component,fatal\n"
        "2026-01-01T02:00:00+02:00,gpu-1,replace,,gpu/3,no\n"
        "2026-01-01T01:00:00Z,gpu-2,reboot,2026-01-01T03:30:00+01:00,,\n"
    )
    first, second = FaultFile(write(tmp_path, text), KNOWN).rows()
    assert (first.start, first.end, first.component, first.fatal) == (BEGIN, UNTIL_REPAIRED, "gpu/3", False)
    assert (second.start, second.end, second.fatal) == (BEGIN + HOUR, BEGIN + 2.5 * HOUR, True)


def test_a_hidden_fault_needs_a_heavy_check(tmp_path: Path) -> None:
    head = "node,start,end,class,check,hidden\n"
    (row,) = FaultFile(write(tmp_path, head + "gpu-1,2026-01-01T00:00:00Z,,replace,gpumem,yes\n"), KNOWN).rows()
    assert (row.hidden, row.check) == (True, "gpumem")
    for check in ("", "nic", "burn"):
        found = error_of(write(tmp_path, head + f"gpu-1,2026-01-01T00:00:00Z,,replace,{check},yes\n"))
        assert ":2: " in found
        assert "gpumem" in found, "what is allowed"


@pytest.mark.parametrize(
    ("rows", "line", "found"),
    [
        ("gpu-1,2026-01-01T00:00:00Z,2026-01-01T00:00:00Z,reboot", 2, "2026-01-01T00:00:00Z"),
        ("gpu-1,2026-01-02T00:00:00Z,2026-01-01T00:00:00Z,reboot", 2, "2026-01-01T00:00:00Z"),
        ("gpu-1,2026-01-01T00:00:00,,reboot", 2, "2026-01-01T00:00:00"),
        ("gpu-1,1/2/2026,,reboot", 2, "1/2/2026"),
        ("gpu-1,0001-01-01T00:00:00+23:00,,reboot", 2, "0001-01-01"),
        ("gpu-1,9999-12-31T23:00:00-23:00,,reboot", 2, "9999-12-31"),
        ("gpu-9,2026-01-01T00:00:00Z,,reboot", 2, "gpu-9"),
        (",2026-01-01T00:00:00Z,,reboot", 2, "node"),
        ("gpu-1,2026-01-01T00:00:00Z,,melted", 2, "melted"),
        ("gpu-1,2026-01-01T00:00:00Z", 2, "2 values"),
        ("gpu-1,2026-01-01T00:00:00Z,,reboot,*", 2, "5 values"),
        (
            "gpu-1,2026-01-01T00:00:00Z,2026-01-01T05:00:00Z,reboot\ngpu-1,2026-01-01T04:00:00Z,,reboot",
            3,
            "2026-01-01T05:00:00Z",
        ),
        ("gpu-1,2026-01-02T00:00:00Z,,reboot\ngpu-2,2026-01-01T00:00:00Z,,reboot", 3, "2026-01-01T00:00:00Z"),
    ],
    ids=[
        "empty",
        "negative",
        "no-zone",
        "date",
        "first-year",
        "last-year",
        "unknown",
        "no-node",
        "class",
        "short",
        "long",
        "overlap",
        "order",
    ],
)
def test_bad_row_is_named_with_line_and_value(tmp_path: Path, rows: str, line: int, found: str) -> None:
    path = write(tmp_path, HEAD + rows + "\n")
    (text,) = error_of(path).splitlines()
    assert text.startswith(f"{path}:{line}: ")
    assert found in text


@pytest.mark.parametrize(
    "head", ["", "node,start,end\n", "node,start,end,class,class\n", "node,start,end,class,moon\n"]
)
def test_bad_header(tmp_path: Path, head: str) -> None:
    path = write(tmp_path, head + "a,b,c,d,e\n" * bool(head))
    assert error_of(path).startswith(f"{path}:1: ")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("component", "*"),
        ("check", "muster"),
        ("check", "condition"),
        ("reason", "a b"),
        ("fatal", "?"),
        ("hidden", "?"),
    ],
)
def test_bad_optional_value(tmp_path: Path, column: str, value: str) -> None:
    path = write(tmp_path, f"{HEAD.strip()},{column}\ngpu-1,2026-01-01T00:00:00Z,,reboot,{value}\n")
    text = error_of(path)
    assert text.startswith(f"{path}:2: {column}: ")
    assert value in text


def test_several_problems_are_named_at_once_and_their_number_is_bounded(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "gpu-1,never,,reboot\n" * 50)
    assert len(error_of(path).splitlines()) == 10


def test_endless_line(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "x" * 100_000)
    assert error_of(path).startswith(f"{path}:2: ")


def test_faults_of_different_components_may_overlap(tmp_path: Path) -> None:
    rows = "".join(f"gpu-1,2026-01-01T0{hour}:00:00Z,2026-01-01T09:00:00Z,reboot,gpu/{hour}\n" for hour in range(3))
    history = FaultFile(write(tmp_path, f"{HEAD.strip()},component\n{rows}"), KNOWN)
    assert (history.summary.rows, history.summary.end) == (3, BEGIN + 9 * HOUR)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_file(tmp_path: Path, suffix: str, pack: object) -> None:
    assert callable(pack)
    path = tmp_path / f"faults.csv{suffix}"
    path.write_bytes(pack(f"{HEAD}gpu-1,2026-01-01T00:00:00Z,,reboot\n".encode()))
    assert FaultFile(path).summary.rows == 1


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
@pytest.mark.parametrize("kept", [0.5, 0.0])
def test_broken_compressed_file(tmp_path: Path, suffix: str, kept: float) -> None:
    rows = "".join(f"gpu-1,2026-01-01T00:{minute:02}:00Z,,reboot\n" for minute in range(60))
    pack = gzip.compress if suffix == ".gz" else lzma.compress
    whole = pack((HEAD + rows).encode())
    path = tmp_path / f"faults.csv{suffix}"
    path.write_bytes(whole[: int(len(whole) * kept)] if kept else b"node,start,end,class\n")
    assert str(path) in error_of(path)


def test_many_rows_are_not_held_in_memory(tmp_path: Path) -> None:
    rows = 8_000
    with (tmp_path / "faults.csv").open("w") as file:
        file.write(HEAD)
        for number in range(rows):
            minute, day = number % 1440, number // 1440
            file.write(f"gpu-{number % 2 + 1},2026-01-{day + 1:02}T{minute // 60:02}:{minute % 60:02}:00Z,,reset\n")
    tracemalloc.start()
    try:
        history = FaultFile(tmp_path / "faults.csv", KNOWN)
        assert sum(1 for _ in history.rows()) == rows
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20  # a list of the rows takes four times as much


def test_names_of_components_are_bounded_like_those_of_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_file, "COMPONENTS_LIMIT", 5)
    rows = "".join(f"gpu-1,2026-01-01T00:00:00Z,,reboot,gpu/{number}\n" for number in range(9))
    text = error_of(write(tmp_path, f"{HEAD.strip()},component\n{rows}"))
    assert f":{2 + 5}: component: gpu/5: " in text


# the fleet


def fleet_error(folder: Path, text: str) -> str:
    with pytest.raises(FleetError) as caught:
        load_fleet(write(folder, text, "fleet.yaml"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("groups: []", "groups"),
        ("groups: [{name: gpu, nodes: 0}]", "groups[0].nodes"),
        ("groups: [{name: gpu, nodes: 2, moon: 1}]", "groups[0].moon"),
        ("groups: [{name: gpu, nodes: 2}, {name: gpu, nodes: 1}]", "groups[1].name"),
        ("groups: [{name: gpu, nodes: 2}]\nstart: 2026-01-01T00:00:00", "start"),
        ("groups: [{name: gpu, nodes: 2}]\nstart: 2026-01-02T00:00:00Z\nend: 2026-01-01T00:00:00Z", "end"),
        (
            "groups: [{name: gpu, nodes: 2}]\nworkload: {kinds: [{name: a, nodes: 3, lasts: 1h}]}",
            "workload.kinds[0].nodes",
        ),
        (
            "groups: [{name: gpu, nodes: 2}]\nworkload: {kinds: [{name: a, nodes: 1, lasts: 1h, group: b}]}",
            "workload.kinds[0].group",
        ),
        (
            "groups: [{name: gpu, nodes: 2}]\nworkload: {kinds: [{name: a, nodes: 1, devices: 9, lasts: 1h}]}",
            "workload.kinds[0].devices: 9",
        ),
        (
            "groups: [{name: gpu, nodes: 2}]\nfaults: {rates: [{class: melted, perNodeYear: 1}]}",
            "faults.rates[0].class",
        ),
        ("groups: [{name: gpu, nodes: 2}]\nagents: {planned: {nic: 1h}}", "agents.planned"),
        ("groups: [{name: gpu, nodes: 2}]\nagents: {planned: {gpumem: never}}", "agents.planned.gpumem"),
        (
            "groups: [{name: gpu, nodes: 2}]\nfaults: {rates: [{class: reset, perNodeYear: 1, hidden: true}]}",
            "faults.rates[0]",
        ),
        ("groups: {", "line 2"),
        ("[]", "groups"),
    ],
)
def test_bad_fleet_is_named_with_its_place(tmp_path: Path, text: str, where: str) -> None:
    (line,) = fleet_error(tmp_path, text).splitlines()
    assert line.startswith(f"{tmp_path / 'fleet.yaml'}:")
    assert where in line


def test_bad_values_of_a_fleet_are_named_with_their_lines(tmp_path: Path) -> None:
    text = "groups:\n  - name: gpu\n    nodes: 0\n    moon: 3\nidleFaults: maybe\n"
    lines = fleet_error(tmp_path, text).splitlines()
    assert [line.partition("fleet.yaml:")[2].split(": ")[:2] for line in lines] == [
        ["3", "groups[0].nodes"],
        ["4", "groups[0].moon"],
        ["5", "idleFaults"],
    ]
    too_large = "groups:\n  - {name: gpu, nodes: 2}\nworkload:\n  kinds:\n    - {name: a, nodes: 3, lasts: 1h}\n"
    (line,) = fleet_error(tmp_path, too_large).splitlines()
    assert line.partition("fleet.yaml:")[2].startswith("5: workload.kinds[0].nodes: 3: ")


def test_more_recorded_nodes_than_the_fleet_has() -> None:
    fleet = fleet_file().model_copy(update={"groups": fleet_file().groups})
    group = fleet.groups[0].model_copy(update={"names_from": "faults"})
    named = fleet.model_copy(update={"groups": (group,)})
    assert [node.name for node in make_nodes(named, {"a": 1})] == ["a", "gpu-2"]
    with pytest.raises(FleetError, match="3"):
        make_nodes(named, {"a": 1, "b": 1, "c": 1})


# jobs


def test_jobs(tmp_path: Path) -> None:
    text = "submitted,nodes,lasts,gang,restart\n2026-01-01T01:00:00Z,2,12h,no,5m\n2026-01-01T00:30:00Z,1,1h,,\n"
    first, second = read_jobs(write(tmp_path, text), fleet_file())
    assert (first.at, first.kind.nodes, first.kind.gang, first.kind.restart) == (BEGIN + HOUR, 2, False, 300)
    assert (second.at, second.kind.lasts, second.kind.gang) == (BEGIN + HOUR / 2, HOUR, True)


def test_devices_of_a_job(tmp_path: Path) -> None:
    head = "submitted,nodes,lasts,devices\n"
    [some, whole] = read_jobs(
        write(tmp_path, head + "2026-01-01T01:00:00Z,2,1h,7\n2026-01-01T01:00:00Z,2,1h,\n"), fleet_file()
    )
    assert (some.kind.devices, whole.kind.devices) == (7, None)
    for value in ("9", "0", "all"):
        path = write(tmp_path, f"{head}2026-01-01T01:00:00Z,2,1h,{value}\n")
        with pytest.raises(FleetError, match=rf":2: devices: '?{value}'?: "):
            read_jobs(path, fleet_file())


def test_jobs_without_gang_count_for_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_file, "ROWS_LIMIT", 1000)
    row = "2026-01-01T00:00:00Z,400,1h,no\n"
    with pytest.raises(FleetError, match=r"jobs.csv:4: "):
        read_jobs(write(tmp_path, "submitted,nodes,lasts,gang\n" + 9 * row, "jobs.csv"), fleet_file())


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ("2026-01-01T01:00:00Z,3,1h", "3"),
        ("2026-01-01T01:00:00Z,0,1h", "0"),
        ("2026-01-01T01:00:00Z,one,1h", "one"),
        ("2026-01-01T01:00:00Z,1,soon", "soon"),
        ("2026-01-01T01:00:00,1,1h", "2026-01-01T01:00:00"),
        ("2026-01-01T01:00:00Z,1", ""),
    ],
)
def test_bad_job_is_named_with_line_and_value(tmp_path: Path, row: str, found: str) -> None:
    path = write(tmp_path, f"submitted,nodes,lasts\n2026-01-01T01:00:00Z,1,1h\n{row}\n")
    with pytest.raises(FleetError) as caught:
        read_jobs(path, fleet_file())
    assert str(caught.value).startswith(f"{path}:3: ")
    assert found in str(caught.value)


# public traces


def test_trace_of_a_gpu_cluster(shared_data: SharedData) -> None:
    path = shared_data.folder / "traces" / "infinitehbd_fault_trace.json"
    history = read_gpu_cluster(path)
    rows = list(history.rows())
    assert len(history.summary.nodes) == 231
    assert 500 < len(rows) <= 584
    # 2.26 % of the node-days of 400 nodes
    assert sum(row.end - row.start for row in rows) / 86_400 / (400 * 348) == pytest.approx(0.0226, abs=0.002)
    for node in history.summary.nodes:
        own = [row for row in rows if row.node == node]
        assert all(first.end <= second.start for first, second in pairwise(own))


def test_outages_of_hpc_systems(shared_data: SharedData) -> None:
    history = read_hpc_outages(shared_data.folder / "traces" / "lanl_failures_1996_2005.csv.xz", ["20"])
    assert len(history.summary.nodes) > 200
    assert all(row.end > row.start for row in history.rows())


@pytest.mark.parametrize("text", ["[1]", "[", '[{"node_id": 1}]'])
def test_json_that_is_no_trace(tmp_path: Path, text: str) -> None:
    with pytest.raises(FleetError):
        read_gpu_cluster(write(tmp_path, text, "trace.json"))


def gpu_events(*events: tuple[str, object]) -> str:
    kind = {"Class": "GPU", "Desc": "Xid"}
    return json.dumps([
        {"node_id": "n1", "event_type": f"fault_{step}", "event_time": day, "fault_type": kind} for step, day in events
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (gpu_events(("start", 3.0), ("end", 2.0)), "event 2"),
        (gpu_events(("start", float("nan"))), "event 1"),
        (gpu_events(("start", float("inf"))), "event 1"),
        (gpu_events(("start", -1)), "event 1"),
        (gpu_events(("start", "soon")), "soon"),
        ("[{}]", "node_id"),
        ("[{}", ""),
        ("[" * 100_000, ""),
    ],
    ids=["negative", "nan", "infinite", "before", "word", "empty", "open", "deep"],
)
def test_bad_events_of_a_gpu_cluster(tmp_path: Path, text: str, found: str) -> None:
    path = write(tmp_path, text, "trace.json")
    with pytest.raises(FleetError) as caught:
        read_gpu_cluster(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert found in str(caught.value)


OUTAGES = "System,nodenum,Prob Started,Prob Fixed\n2,1,1/1/2003 10:00,1/1/2003 12:00\n"


def test_outages_without_a_whole_row_are_left_out(tmp_path: Path) -> None:
    history = read_hpc_outages(write(tmp_path, OUTAGES + "2,1\n2,1,1/1/2003 14:00,1/1/2003 13:00\n2,2,x,y\n"))
    assert history.summary.rows == 1
    assert history.summary.notes[0].startswith("3 ")


def test_endless_line_of_outages(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"outages.csv:3: "):
        read_hpc_outages(write(tmp_path, OUTAGES + "x" * 100_000, "outages.csv"))
