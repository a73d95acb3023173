"""`muster run`: the question it asks, by which way, and what it makes of every kind of answer."""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cli.recorded_agent import GUARD_S, Piece, RecordedAgent, bad, ending, node, serving
from tests.wording.facts import missing_facts

from muster_cli.__main__ import main
from muster_cli.cluster.agent_routes import find_route
from muster_cli.commands.run import add_arguments
from muster_cli.report.columns import as_lines, as_page
from muster_cli.report.fleet.answer import HEAD, FleetAnswers
from muster_cli.report.fleet.progress import FleetProgress
from muster_kube.api.config import ClusterConfig
from muster_kube.api.credentials import StaticToken

GOOD = {"verdict": "PASS"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def ask(stack: ExitStack, capsys: pytest.CaptureFixture[str]):
    """Runs the command against an agent that answers so; returns exit code, stdout, stderr, and the agent."""

    def run(pieces: Sequence[Piece], *flags: str, status: int = 200) -> tuple[int, str, str, RecordedAgent]:
        agent = stack.enter_context(serving(RecordedAgent((status, pieces))))
        code = main(["run", "--url", agent.url, *flags])
        told = capsys.readouterr()
        return code, told.out, told.err, agent

    return run


def complaints(err: str) -> list[str]:
    """Lines of stderr but the first, which says who is asked, and those of nodes that are not well."""
    return [line for line in err.splitlines()[1:] if line.startswith("muster: ")]


def kubeconfig(folder: Path, server: str) -> Path:
    file = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": server}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "secret-of-a-person"}}
    whole = {"current-context": "x", "clusters": [cluster], "contexts": [context], "users": [user]}
    file.write_text(json.dumps(whole))
    return file


def test_flags_become_the_query_of_status(ask):
    flags = "--check pciebw,dcgm --check ping --host node1 --host node2,node1 --batch 5 --job team:app=x"
    more = "--nodelabel pool=a --r 2 --plane mgmt --serverspernode 4 --clientsperiface 8 --force --set dcgm.level=3"
    *_, agent = ask([node("node1"), ending()], *flags.split(), *more.split())
    assert agent.asked == [
        (
            "/status",
            {
                "check": "pciebw,dcgm,ping",
                "host": "node1,node2",
                "batch": "5",
                "job": "team:app=x",
                "nodelabel": "pool=a",
                "r": "2",
                "plane": "mgmt",
                "serverspernode": "4",
                "clientsperiface": "8",
                "force": "true",
                "dcgm.level": "3",
                "format": "jsonl",
            },
        )
    ]


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--set", "level"], ("--set level", "[CHECK.]PARAMETER=VALUE")),
        (["--set", "host=x"], ("--set host=x", "--host")),
        (["--set", "r=1", "--r", "2"], ("--set r=1", "r")),
        (["--check", ","], ("--check",)),
        (["--url", "ftp://x"], ("--url 'ftp://x'", "http://HOST[:PORT]")),
        (["--url", "http://x:99999"], ("--url 'http://x:99999'", "http://HOST[:PORT]")),
    ],
)
def test_invalid_query_is_a_usage_error(flags: list[str], facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--url", "http://127.0.0.1:1", *flags]) == 64
    (line,) = capsys.readouterr().err.splitlines()
    assert not missing_facts(line, *facts)


@pytest.mark.parametrize(
    "flags",
    [["--batch", "0"], ["--batch", "x"], ["--timeout", "-1"], ["--timeout", "nan"], ["--host", "Not A Node"]],
)
def test_arguments_are_checked_before_any_request(flags: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["run", *flags])
    assert ended.value.code == 64
    assert not missing_facts(capsys.readouterr().err, flags[0], repr(flags[1]))


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("SKIP", 0), ("WARN", 1), ("FAIL", 2), ("UNKNOWN", 3)])
def test_the_exit_code_is_the_worst_verdict(ask, verdict: str, code: int):
    assert ask([node("a", "PASS", ping=GOOD), node("b", verdict, dcgm=bad(verdict=verdict)), ending()])[0] == code


def test_worst_nodes_come_first_with_their_findings(ask):
    lines = [
        node("node1", "PASS", pciebw=GOOD),
        node("node2", "WARN", pciebw=bad(verdict="WARN", message="a bit slow")),
        node("node3", "FAIL", pciebw=bad(message="very slow"), dcgm=GOOD),
    ]
    _, out, err, _ = ask([*lines, ending("FAIL")])
    rows = [line.split(maxsplit=3) for line in out.splitlines()]
    assert rows[0] == list(HEAD)
    assert rows[1] == ["node3", "FAIL", "pciebw", "gpu/0000:3b:00.0 LowBandwidth: very slow"]
    assert rows[2][:3] == ["node2", "WARN", "pciebw"]
    assert rows[3][:2] == ["node1", "PASS"]
    assert out.splitlines()[-1] == "3 nodes: 1 PASS, 1 WARN, 1 FAIL; 1.5 s"
    assert "node3 FAIL pciebw: gpu/0000:3b:00.0 LowBandwidth: very slow" in err, "told as it came, no terminal here"
    assert "node1" not in err


def test_many_healthy_nodes_are_one_line(ask):
    fleet = [node(f"node{n}", "PASS", ping=GOOD) for n in range(21)]
    _, out, _, _ = ask([*fleet, node("bad", "FAIL", ping=bad()), ending()])
    assert "node7" not in out
    assert not missing_facts(out, "21", "--all")


def test_all_shows_every_node(ask):
    _, out, _, _ = ask([*(node(f"node{n}", "PASS", ping=GOOD) for n in range(21)), ending()], "--all")
    assert out.count("PASS") == 22  # the rows, and the last line
    assert "--all" not in out


def test_old_result_of_a_busy_node_shows_age_and_workload(ask):
    old = GOOD | {"ageSeconds": 7200.0, "refused": "busy", "why": "pod team/train-0 holds nvidia.com/gpu"}
    _, out, _, _ = ask([node("a", "PASS", dcgm=old), ending()])
    assert not missing_facts(out, "dcgm", "2h", "busy", old["why"])


def test_healthy_node_names_few_checks_and_counts_many(ask):
    none = {"verdict": "SKIP", "reason": "NotHere", "message": "no GPU here"}
    many = {f"check{n}": GOOD for n in range(20)}
    _, out, _, _ = ask([node("a", "PASS", ping=GOOD, dcgm=none), node("b", "PASS", dcgm=none, **many), ending()])
    few, many_checks = sorted(out.splitlines()[1:3])
    assert not missing_facts(few, "ping, dcgm", f"dcgm: {none['message']}")
    assert not missing_facts(many_checks, "21 checks", "1")


def test_unreachable_node_is_unknown_with_the_reason(ask):
    dead = {"node": "dead", "verdict": "UNKNOWN", "error": "connection refused", "endpoint": "10.0.0.9:3333"}
    dead["results"] = [{"check": "ping", "verdict": "UNKNOWN", "reason": "Unreachable", "message": "refused"}]
    code, out, _, _ = ask([json.dumps(dead).encode() + b"\n", ending("UNKNOWN")])
    assert code == 3
    assert "Unreachable: connection refused" in out


def test_more_findings_than_there_is_room_for_are_counted(ask):
    found = bad()
    found["findings"] = [found["findings"][0] | {"component": f"gpu/{n}"} for n in range(5)]
    _, out, _, _ = ask([node("a", "FAIL", pciebw=found), ending()])
    assert out.count("LowBandwidth") == 3
    assert not missing_facts(out, "2")


def test_notes_of_the_agent_are_printed(ask):
    note = "r has no effect"
    assert f"muster: {note}" in ask([node("a"), ending(notes=[note])])[2]


# --- answers that are none


def test_incomplete_answer_is_unknown(ask):
    code, out, err, _ = ask([node("a", "PASS", ping=GOOD)])
    assert code == 3
    assert "a " in out
    assert not missing_facts(err, "1 node")


def test_a_fail_in_half_an_answer_stays_a_fail(ask):
    assert ask([node("a", "FAIL", ping=bad())])[0] == 2


def test_lost_connection_is_reported(stack: ExitStack, capsys: pytest.CaptureFixture[str]):
    agent = stack.enter_context(serving(RecordedAgent((200, [node("a", "PASS", ping=GOOD), b"", node("b")]))))
    assert main(["run", "--url", agent.url]) == 3  # an empty chunk ends the body, what follows breaks the protocol
    assert not missing_facts(capsys.readouterr().err, "1 node")


@pytest.mark.parametrize(
    "garbage",
    [
        b"<html>busy</html>\n",
        b'{"node": 7}\n',
        b'{"node":"x","verdict":"GREAT"}\n',
        b"\xff\xfe\x00\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_undecodable_line_is_reported_and_the_others_count(ask, garbage: bytes):
    code, out, err, _ = ask([node("a", "WARN", ping=bad(verdict="WARN")), garbage, node("b"), ending("WARN")])
    assert code == 1
    assert "2 nodes" in out
    assert len(complaints(err)) == 1


def test_garbage_alone_is_unknown(ask):
    assert ask([b"hello\nworld\n"])[0] == 3


def test_a_node_that_answers_twice_counts_once(ask):
    code, out, err, _ = ask([node("a", "FAIL", ping=bad()), node("a", "PASS"), ending()])
    assert code == 2
    assert "1 node: 1 FAIL" in out
    (complaint,) = complaints(err)
    assert not missing_facts(complaint, "a")


def test_an_error_at_the_end_of_the_answer_makes_it_unknown(ask):
    why = "the answer breaks off here: OSError"
    code, _, err, _ = ask([node("a"), ending("PASS", error=why)])
    assert code == 3
    assert complaints(err) == [f"muster: {why}"]


def test_a_refused_question_is_a_usage_error_in_the_agents_words(ask):
    refusal = ["check: 'pingg': expected ping, pvc", "host: no such node"]
    code, out, err, _ = ask(["\n".join([*refusal, ""]).encode()], status=400)
    assert (code, out) == (64, "")
    assert complaints(err) == [f"muster: {line}" for line in refusal]


def test_an_agent_that_does_not_answer_is_unknown(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--url", "http://127.0.0.1:1"]) == 3
    assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_control_characters_of_an_answer_never_reach_the_terminal(ask):
    _, out, err, _ = ask([node("a\x1b[2J", "FAIL", ping=bad(message="\x1b]0;owned\x07")), b"\x1b[31m\n", ending()])
    assert "\x1b" not in out + err


def test_a_time_limit_ends_the_wait_and_shows_what_there_is(ask):
    held = threading.Event()
    code, _, err, _ = ask([node("a", "PASS", ping=GOOD), held], "--timeout", "5")
    held.set()
    assert code == 3
    assert not missing_facts(err, "5 s", "1 node")


# --- JSON


def test_json_is_one_document_with_the_whole_answer(ask):
    _, out, _, _ = ask([node("a", "PASS", ping=GOOD), node("b", "FAIL", ping=bad()), ending("FAIL")], "--json")
    document = json.loads(out)
    assert [each["node"] for each in document["nodes"]] == ["a", "b"]
    assert document["nodes"][1]["results"][0]["findings"][0]["component"] == "gpu/0000:3b:00.0"
    assert (document["verdict"], document["runtimeSeconds"]) == ("FAIL", 1.5)
    assert "error" not in document


@pytest.mark.parametrize("pieces", [[], [b"garbage\n"], [node("a")], [node("a"), b"garbage\n", ending()]])
def test_json_is_a_document_whatever_became_of_the_answer(ask, pieces: list[bytes]):
    code, out, _, _ = ask(pieces, "--json")
    document = json.loads(out)
    assert code == 3
    assert document["verdict"] == "UNKNOWN"
    assert document["error"]


# --- the ways


def test_a_laptop_asks_through_the_api_servers_proxy(stack: ExitStack, tmp_path, capsys):
    agent = stack.enter_context(serving(RecordedAgent((200, [node("a"), ending()]))))
    assert main(["run", "--kubeconfig", str(kubeconfig(tmp_path, agent.url)), "--check", "ping"]) == 0
    ((path, query),) = agent.asked
    assert path == "/api/v1/namespaces/autopilot/services/http:autopilot-healthchecks:3333/proxy/status"
    assert query == {"check": "ping", "format": "jsonl"}
    assert not missing_facts(capsys.readouterr().err, "autopilot/autopilot-healthchecks", agent.url)


def test_an_agent_that_the_proxy_does_not_reach_is_not_the_only_one(stack: ExitStack, tmp_path):
    dead = (503, [b'{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"error trying to reach"}'])
    agent = stack.enter_context(serving(RecordedAgent(dead, dead, (200, [node("a"), ending()]))))
    assert main(["run", "--kubeconfig", str(kubeconfig(tmp_path, agent.url))]) == 0
    assert len(agent.asked) == 3


def test_a_service_without_agents_is_unknown(stack: ExitStack, tmp_path, capsys):
    why = "no endpoints available"
    none = {"kind": "Status", "code": 503, "reason": "ServiceUnavailable", "message": why}
    agent = stack.enter_context(serving(RecordedAgent((503, [json.dumps(none).encode()]))))
    assert main(["run", "--kubeconfig", str(kubeconfig(tmp_path, agent.url))]) == 3
    assert len(agent.asked) == 3
    assert why in capsys.readouterr().err


def in_a_pod(_: Path | None) -> ClusterConfig:
    return ClusterConfig("in-cluster (/var/run/secrets)", "https://10.96.0.1:443", credentials=StaticToken("of-a-pod"))


def asked(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(flags)


async def test_a_pod_asks_the_service_by_name_and_keeps_its_own_token():
    way = find_route(asked(), in_a_pod)
    assert (way.config.server, way.path) == ("http://autopilot-healthchecks.autopilot.svc:3333", "/status")
    assert await way.config.credentials.header() is None


def test_a_pod_proves_its_right_to_the_api_server_and_not_with_its_token():
    way = find_route(asked("--force"), in_a_pod)
    assert way.permits is not None
    assert (way.permits.server, way.config.server) == (
        "https://10.96.0.1:443",
        "http://autopilot-healthchecks.autopilot.svc:3333",
    )


@pytest.mark.parametrize(
    "flags", [(), ("--url", "http://10.1.2.3:3333"), ("--url", "http://agents.autopilot.svc:3333")]
)
def test_a_token_is_never_sent_over_a_network_in_the_clear(flags: Sequence[str], tmp_path, capsys):
    assert main(["run", "--token-file", str(tmp_path / "token"), *flags]) == 64
    assert not missing_facts(capsys.readouterr().err, "--token-file", "--url")


REFUSED = (401, [b"check=pciebw: permission required\n"])


def test_a_right_that_the_agent_requires_is_proved_with_an_annotation(stack: ExitStack, tmp_path):
    agent = stack.enter_context(serving(RecordedAgent(REFUSED, (200, [node("a"), ending()]))))
    command = ["run", "a", "--check", "pciebw", "--kubeconfig", str(kubeconfig(tmp_path, agent.url))]
    assert main(command) == 0
    assert [next(iter(each["metadata"]["annotations"].values())) is None for _, each in agent.patched] == [False, True]
    ((path, written), (_, deleted)) = agent.patched
    assert path == "/apis/muster.dev/v1alpha1/nodehealths/a"
    assert written["metadata"]["annotations"].keys() == deleted["metadata"]["annotations"].keys()
    name, secret = {key.lower(): value for key, value in agent.headers[-1].items()}["muster-permit"].split()
    assert name == "a"
    assert secret not in str(agent.patched)


def test_without_the_right_the_agents_refusal_is_the_error(stack: ExitStack, tmp_path, capsys):
    agent = stack.enter_context(serving(RecordedAgent(REFUSED)))
    agent.patch_status = 403
    command = ["run", "a", "--check", "pciebw", "--kubeconfig", str(kubeconfig(tmp_path, agent.url))]
    assert main(command) == 3
    assert not missing_facts(capsys.readouterr().err, "permission required")


@pytest.mark.parametrize("has_token", [False, True])
def test_a_url_that_proves_no_right_names_the_charts_value_that_does(ask, tmp_path: Path, has_token: bool):
    """The Jobs of the chart have a URL unless the value gives them an account."""
    file = tmp_path / "token"
    file.write_text("t")
    flags = ["--token-file", str(file)] if has_token else []
    status, pieces = REFUSED
    code, _, err, _ = ask(pieces, "--check", "pciebw", *flags, status=status)
    assert (code, "run.heavyChecks=true" in err) == (3, not has_token)


def test_the_token_of_a_kubeconfig_never_goes_to_a_url(ask, tmp_path):
    file = kubeconfig(tmp_path, "http://127.0.0.1:1")
    *_, agent = ask([node("a"), ending()], "--kubeconfig", str(file))
    assert not [name for name in agent.headers[0] if name.lower() == "authorization"]


def test_a_token_file_is_sent_to_a_url(ask, tmp_path):
    token = tmp_path / "token"
    token.write_text("for-agents\n")
    *_, agent = ask([node("a"), ending()], "--token-file", str(token))
    assert agent.headers[0]["Authorization"] == "Bearer for-agents"


# --- while it runs


def test_ctrl_c_ends_at_once(stack: ExitStack):
    held = threading.Event()
    stack.callback(held.set)
    agent = stack.enter_context(serving(RecordedAgent((200, [node("a", "PASS", ping=GOOD), held]))))
    command = [sys.executable, "-m", "muster_cli", "run", "--url", agent.url]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert agent.called.wait(GUARD_S)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=GUARD_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert b"Traceback" not in err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_counts_answers_and_bad_nodes():
    now = [100.0]
    answers = FleetAnswers()
    waiting = FleetProgress(answers, total=500, file=Terminal(), clock=lambda: now[0])
    for line in (node("a"), node("b", "FAIL", ping=bad()), node("c", "UNKNOWN")):
        answers.take(line)
    now[0] = 162.0
    assert waiting.line() == "3/500 nodes, 1 FAIL, 1 UNKNOWN, 1:02"


def test_the_number_of_nodes_comes_from_the_cluster(stack: ExitStack, tmp_path, monkeypatch):
    held = threading.Event()
    agent = stack.enter_context(serving(RecordedAgent((200, [node("a", "PASS", ping=GOOD), held, ending()]))))

    class Watching(Terminal):
        def write(self, text: str) -> int:
            if "1/8 nodes" in text:
                held.set()
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", Watching())
    assert main(["run", "--kubeconfig", str(kubeconfig(tmp_path, agent.url))]) == 0
    assert held.is_set()


# --- the table


def test_on_a_terminal_nothing_is_wider_than_it_and_nothing_is_lost():
    name = "node-" + "x" * 200
    page = as_page(HEAD, [(name, "FAIL", "pciebw", "word " * 60), ("b", "PASS", "ping", "")], 80)
    assert max(map(len, page.splitlines())) <= 80
    assert "".join(page.split()).count("x") == 200
    assert page.count("word") == 60


def test_a_name_like_the_one_above_is_left_out_on_a_terminal_and_kept_in_a_pipe():
    rows = [("node1", "FAIL", "pciebw", "x"), ("node1", "WARN", "ping", "y")]
    assert as_page(HEAD, rows, 80).count("node1") == 1
    assert "\n".join(as_lines(HEAD, rows)).count("node1") == 2


def test_verdicts_are_coloured_only_on_request():
    rows = [("node1", "FAIL", "pciebw", "[bold]x[/bold]")]
    assert "\x1b[1;31mFAIL" in as_page(HEAD, rows, 80, colour=True)
    assert "\x1b" not in as_page(HEAD, rows, 80)
    assert "[bold]x[/bold]" in as_page(HEAD, rows, 80)
