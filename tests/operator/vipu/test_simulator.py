"""`muster vipu-sim` as a process: killed and started again, over a bad state, asked nonsense."""

import http.client
import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.operator.vipu.simulator_process import START_S, SimulatorProcess
from tests.operator.vipu.test_tables import PARTITIONS

from muster_operator.vipu.simulator.simulated_command import main as vipu

ROOT = Path(__file__).parents[3]
NEVER_S = "3600"  # a passing state that does not end while a test looks


@pytest.fixture
def simulator(tmp_path: Path) -> Iterator[SimulatorProcess]:
    process = SimulatorProcess(tmp_path, "--ipus", "32", "--delay", NEVER_S)
    yield process
    process.kill()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatorProcess]:
    process = SimulatorProcess(tmp_path_factory.mktemp("asked"), "--ipus", "32", "--delay", "0")
    process.start()
    yield process
    process.kill()


def _start_in_vain(*flags: str, **variables: str) -> tuple[int, str]:
    """Exit code and what it says of it."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "muster_cli.__main__", "vipu-sim", "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
        env={**os.environ, **variables},
    )
    return ended.returncode, ended.stderr


def test_a_creation_in_progress_continues_after_a_kill(simulator: SimulatorProcess) -> None:
    simulator.start()
    simulator.call("POST", "/partitions", b'{"name": "a", "size": 8, "gcds": 2}')
    before = simulator.call("GET", "/")[1]
    simulator.kill()
    simulator.start()
    assert simulator.call("GET", "/")[1] == before
    assert before["partitions"][0]["state"] == "CREATING"
    simulator.kill()
    soon = SimulatorProcess(simulator.folder, "--delay", "0")
    soon.start()
    try:
        assert soon.call("GET", "/partitions/a")[1]["state"] == "ACTIVE"
    finally:
        soon.kill()


@pytest.mark.parametrize("after", [1, 7, 40])
def test_a_kill_loses_no_answered_partition_and_duplicates_none(simulator: SimulatorProcess, after: int) -> None:
    simulator.start()
    answered: dict[str, dict[str, object]] = {}
    enough = threading.Event()

    def make(worker: int) -> None:
        for number in range(400):
            name = f"p-{worker}-{number}"
            try:
                status, made = simulator.call("POST", "/partitions", json.dumps({"name": name, "size": 1}).encode())
                if status == 202:
                    answered[name] = made
                if len(answered) >= min(after, 32):
                    enough.set()
            except (OSError, ValueError, http.client.HTTPException):
                return  # it has been killed

    workers = [threading.Thread(target=make, args=(worker,)) for worker in range(3)]
    for worker in workers:
        worker.start()
    assert enough.wait(START_S)
    simulator.kill()
    for worker in workers:
        worker.join(START_S)
    simulator.start()
    there = {each["name"]: each for each in simulator.call("GET", "/partitions")[1]}
    for name, made in answered.items():
        assert there[name] == made
    ipus = [(ipu["machine"], ipu["index"]) for each in there.values() for ipu in each["ipus"]]
    assert len(ipus) == len(set(ipus))
    # at most what was under way when it died
    assert len(there) - len(answered) <= len(workers)


def test_faults_outlive_a_kill(simulator: SimulatorProcess) -> None:
    simulator.start()
    simulator.fault(ipu="10.1.1.2/1", slow=0.001, stuck="x")
    simulator.fault(link="10.1.1.1-10.1.1.2", down=True, loseAnswers=3)
    before = simulator.call("GET", "/faults")[1]
    simulator.kill()
    simulator.start()
    assert simulator.call("GET", "/faults")[1] == before == {
        "ipus": ["10.1.1.2/1"],
        "links": ["10.1.1.1-10.1.1.2"],
        "down": True,
        "slow": 0.001,
        "loseAnswers": 3,
        "stuck": ["x"],
    }  # fmt: skip
    assert simulator.call("DELETE", "/faults?ipu=10.1.1.2/1&stuck=x&link=10.1.1.1-10.1.1.2")[1]["ipus"] == []
    assert simulator.call("GET", "/partitions")[0] == 503
    assert simulator.call("DELETE", "/faults")[1]["down"] is False
    assert simulator.call("GET", "/partitions")[0] == 200


def test_healthz_answers_whatever_faults_there_are(simulator: SimulatorProcess) -> None:
    simulator.start()
    assert simulator.healthz() == (200, b"ok\n")
    simulator.fault(down=True)
    assert simulator.call("GET", "/partitions")[0] == 503
    assert simulator.healthz() == (200, b"ok\n")


def test_sigterm_ends_it_with_exit_code_0(simulator: SimulatorProcess) -> None:
    simulator.start()
    assert simulator.stop() == 0


def test_two_over_one_state_are_refused(simulator: SimulatorProcess) -> None:
    simulator.start()
    code, said = _start_in_vain("--state", str(simulator.folder / "state"))
    assert code == 64
    assert str(simulator.folder / "state") in said


@pytest.mark.parametrize(
    ("state", "complaint"),
    [(b"", "malformed"), (b"{", "malformed"), (b'{"ipus": 3}', "ipus: 3"), (b'{"ipus": 8, "x": 1}', "`x`")],
)
def test_an_invalid_state_file_is_reported_and_kept(tmp_path: Path, state: bytes, complaint: str) -> None:
    (tmp_path / "vipu.json").write_bytes(state)
    code, said = _start_in_vain("--state", str(tmp_path))
    assert code == 64
    assert f"{tmp_path}/vipu.json" in said
    assert complaint in said or "truncated" in said
    assert (tmp_path / "vipu.json").read_bytes() == state


def test_a_half_written_state_beside_the_whole_one_does_no_harm(simulator: SimulatorProcess) -> None:
    simulator.start()
    simulator.call("POST", "/partitions", b'{"name": "a", "size": 8}')
    simulator.kill()
    (simulator.folder / "state/vipu.json.new").write_bytes(b'{"ipus": 3')
    simulator.start()
    assert [each["name"] for each in simulator.call("GET", "/partitions")[1]] == ["a"]


def test_a_fleet_may_grow_and_shrinks_only_where_no_partition_is(simulator: SimulatorProcess) -> None:
    simulator.start()
    simulator.call("POST", "/partitions", b'{"name": "a", "size": 16}')
    simulator.kill()
    code, said = _start_in_vain("--state", str(simulator.folder / "state"), "--ipus", "8")
    assert code == 64
    assert "partition a" in said
    larger = SimulatorProcess(simulator.folder, "--ipus", "64")
    larger.start()
    try:
        assert larger.call("GET", "/capacity")[1] == {"total": 64, "free": 48}
    finally:
        larger.kill()


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "--state"),
        (("--state", "{tmp}", "--log-level", "loud"), "--log-level"),
        (("--state", "{tmp}", "--ipus", "6"), "ipus: 6"),
        (("--state", "{tmp}", "--delay", "nan"), "--delay"),
        (("--state", "{tmp}", "--delay", "-1"), "--delay"),
        (("--state", "{tmp}", "--first-rack", "56"), "--first-rack"),
        (("--state", "{tmp}/file/under"), "--state"),
    ],
)
def test_bad_settings_stop_the_start_and_are_named(tmp_path: Path, flags: tuple[str, ...], complaint: str) -> None:
    (tmp_path / "file").touch()
    code, said = _start_in_vain(*(flag.format(tmp=tmp_path) for flag in flags))
    assert code == 64
    assert complaint in said


def test_settings_come_from_a_file_and_the_environment_too(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(f"state: {tmp_path}/state\nipus: 7\n")
    code, said = _start_in_vain("--config", str(tmp_path / "settings.yaml"))
    assert (code, "ipus: 7" in said) == (64, True)
    code, said = _start_in_vain("--config", str(tmp_path / "settings.yaml"), MUSTER_VIPU_SIM_IPUS="9")
    assert (code, "ipus: 9" in said) == (64, True)


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "facts"),
    [
        ("POST", "/partitions", b"", 400, ["body"]),
        ("POST", "/partitions", b"nonsense", 400, ["body", "JSON"]),
        ("POST", "/partitions", b"\xff\xfe", 400, ["body"]),
        ("POST", "/partitions", b"[]", 400, ["body"]),
        ("POST", "/partitions", b'{"size": 4}', 400, ["body.name"]),
        ("POST", "/partitions", b'{"name": "a"}', 400, ["body.size"]),
        ("POST", "/partitions", b'{"name": "a", "size": "4"}', 400, ["body.size", "'4'", "integer"]),
        ("POST", "/partitions", b'{"name": "a", "size": 4.5}', 400, ["body.size", "4.5", "integer"]),
        ("POST", "/partitions", b'{"name": "a", "size": true}', 400, ["body.size", "True", "integer"]),
        ("POST", "/partitions", b'{"name": "a", "size": 3}', 400, ["size: 3"]),
        ("POST", "/partitions", b'{"name": "a", "size": -4}', 400, ["size: -4"]),
        ("POST", "/partitions", b'{"name": "a", "size": 4, "gcds": 3}', 400, ["gcds: 3"]),
        ("POST", "/partitions", b'{"name": "a", "size": 4, "gcd": 1}', 400, ["body.gcd", "name, size, gcds"]),
        ("POST", "/partitions", b'{"name": "a b", "size": 4}', 400, ["name: 'a b'"]),
        ("POST", "/partitions", b'{"name": "", "size": 4}', 400, ["name: ''"]),
        ("POST", "/partitions", b'{"name": "' + b"a" * 3000 + b'", "size": 4}', 400, ["name", "253"]),
        ("POST", "/partitions", b'{"name": "a", "size": 1' + b"0" * 3000 + b"}", 400, ["size: 1000"]),
        ("POST", "/partitions", b" " * 5000, 413, ["4096"]),
        ("POST", "/partitions", b"[" * 4000, 400, ["body"]),
        ("POST", "/partitions", b'{"name": "a", "size": 1048576}', 409, ["1048576"]),
        ("POST", "/partitions", b'{"name": "a", "size": 2097152}', 400, ["size: 2097152", "1048576"]),
        ("GET", "/partitions/a", None, 404, ["'a'"]),
        ("GET", "/partitions?x=1", None, 400, ["'x'"]),
        ("POST", "/partitions/a/reset", None, 404, ["'a'"]),
        ("GET", "/free-blocks", None, 400, ["size"]),
        ("GET", "/free-blocks?size=3", None, 400, ["size: 3"]),
        ("GET", "/free-blocks?size=-2", None, 400, ["size: '-2'"]),
        ("GET", "/free-blocks?size=%D9%A2", None, 400, ["size: '\u0662'"]),
        ("GET", "/free-blocks?size=2&size=4", None, 400, ["'size'"]),
        ("GET", "/free-blocks?count=2", None, 400, ["'count'", "size"]),
        ("POST", "/faults", b'{"ipu": "10.1.1.9/0"}', 400, ["ipu: '10.1.1.9/0'", "10.1.1.1/0", "10.1.1.8/3"]),
        ("POST", "/faults", b'{"ipu": "10.1.1.1/4"}', 400, ["ipu: '10.1.1.1/4'", "MACHINE/INDEX"]),
        ("POST", "/faults", b'{"link": "10.1.1.1-10.1.1.3"}', 400, ["link", "10.1.1.1-10.1.1.2"]),
        ("POST", "/faults", b'{"slow": -1}', 400, ["body.slow", "-1"]),
        ("POST", "/faults", b'{"loseAnswers": 5000}', 400, ["body.loseAnswers", "5000", " 1000"]),
        ("POST", "/faults", b'{"vanish": "a"}', 404, ["'a'"]),
        ("POST", "/faults", b'{"fire": true}', 400, ["ipu, link, down, slow, loseAnswers, stuck, vanish"]),
        ("DELETE", "/faults?down=1", None, 400, ["'down'", "ipu, link, stuck"]),
        ("GET", "/nowhere", None, 404, ["GET '/nowhere'", "/free-blocks", "POST /partitions"]),
        ("PUT", "/partitions", b"{}", 405, ["PUT '/partitions'", "/free-blocks", "POST /partitions"]),
    ],
)
def test_an_invalid_request_is_refused_by_name_and_changes_nothing(
    asked: SimulatorProcess, method: str, target: str, body: bytes | None, status: int, facts: list[str]
) -> None:
    before = asked.call("GET", "/")[1]
    got, refusal = asked.call(method, target, body)
    assert (got, set(refusal)) == (status, {"why", "message"})
    assert [fact for fact in facts if fact not in refusal["message"]] == []
    assert len(refusal["message"]) < 600
    assert asked.call("GET", "/")[1] == before


def test_a_disk_that_cannot_be_written_refuses_the_change_and_nothing_has_changed(tmp_path: Path) -> None:
    process = SimulatorProcess(tmp_path, "--ipus", "32", "--delay", "0")
    process.start()
    try:
        (tmp_path / "state/vipu.json.new").mkdir()  # stands where the next state is written, for root too
        status, refusal = process.call("POST", "/partitions", b'{"name": "a", "size": 4}')
        assert (status, refusal["why"]) == (503, "NotKept")
        assert process.call("GET", "/partitions")[1] == []
        (tmp_path / "state/vipu.json.new").rmdir()
        assert process.call("POST", "/partitions", b'{"name": "a", "size": 4}')[0] == 202
    finally:
        process.kill()


def test_the_overview_shows_which_partition_has_which_machine(asked: SimulatorProcess) -> None:
    asked.empty()
    asked.call("POST", "/partitions", b'{"name": "a", "size": 2}')
    glance = asked.call("GET", "/")[1]
    asked.empty()
    assert (glance["ipus"], glance["free"], glance["delayS"]) == (32, 30, 0.0)
    assert glance["machines"][0] == {"address": "10.1.1.1", "partitions": ["a", "a", "", ""]}
    assert len(glance["machines"]) == 8
    assert [each["name"] for each in glance["partitions"]] == ["a"]


def test_the_vipu_command_prints_the_published_formats(
    asked: SimulatorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    asked.empty()
    server = ["--api-host", "127.0.0.1", "--api-port", str(asked.port)]
    assert vipu(["create", "partition", "p2", "--size", "2", "--reconfigurable", "--num-gcds", "2", *server]) == 0
    assert capsys.readouterr().out == "create partition (p2): success.\n"
    assert vipu([*server, "list", "partitions"]) == 0
    table = capsys.readouterr().out
    header, _, row, _ = [[cell.strip() for cell in line.split("|")] for line in table.splitlines()]
    assert header == [cell.strip() for cell in PARTITIONS.splitlines()[0].split("|")]
    assert row == ["p2", "c32", "1", "DEFAULT", "DNC", "2", "2", "ACTIVE"]
    assert vipu(["list", "allocations", *server]) == 0
    assert capsys.readouterr().out.splitlines()[1:4:2] == [
        " Allocation ID | Agents",
        " alloc-1       | ag0 ag1 ag2 ag3 ag4 ag5 ag6 ag7",
    ]
    for verb in ("reset", "remove"):
        assert vipu([verb, "partition", "p2", *server]) == 0
        assert capsys.readouterr().out == f"{verb} partition (p2): success.\n"
    assert vipu(["remove", "partition", "p2", "--force", *server]) == 1
    printed = capsys.readouterr()
    assert (printed.out, "remove partition (p2): failed: " in printed.err) == ("", True)


def test_its_vipu_command_is_a_script_of_the_package() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["muster-sim-vipu"] == f"{vipu.__module__}:{vipu.__name__}"
