"""A person's clear while a node cannot reach the API server: it closes what had fired when it was written, no more."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import yaml
from tests.cluster.agent import test_agent_publishing as publishing
from tests.cluster.agent.test_agent_publishing import HEALTHS, XID, AgentProcess, Bench, until

bench = publishing.bench  # fixture


class Link:
    """The way from one node to the API server, which can be cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._cut = threading.Event()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._cut.is_set():
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._open |= {client, server}
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=_pump, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        self._cut.set()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def mend(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        self.cut()
        self._listener.close()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with one, other:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for each in (one, other):  # closing it alone would neither wake the other thread nor end the connection
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def link(bench: Bench) -> Iterator[Link]:
    """Between the agents of ``bench`` and the API server."""
    place = urlsplit(bench.plane.server)
    assert place.hostname is not None
    assert place.port is not None
    made = Link(place.hostname, place.port)
    config = yaml.safe_load(bench.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{made.port}"
    bench.kubeconfig = bench.folder / "through-the-link.kubeconfig"
    bench.kubeconfig.write_text(yaml.safe_dump(config))
    yield made
    made.close()


def clear(bench: Bench, node: str, occurrence: int = 1) -> None:
    entry = {"check": "dmesg", "component": "*", "occurrence": occurrence, "by": "ann"}
    bench.plane.admin.patch(f"{HEALTHS}/{node}", {"spec": {"clear": [entry]}})


def has_read(agent: AgentProcess, count: int) -> bool:
    return f'"count":{count}' in agent.get("/report")[1].replace(" ", "")


def cut_off_with_a_fault(bench: Bench, link: Link) -> tuple[str, AgentProcess]:
    node = bench.node()
    agent = bench.agent(node).start()
    agent.write(XID % 1)
    until(lambda: len(bench.findings(node)) == 1)
    link.cut()
    return node, agent


def test_the_same_fatal_line_after_a_clear_is_a_new_firing(bench: Bench, link: Link) -> None:
    node, agent = cut_off_with_a_fault(bench, link)
    clear(bench, node)
    agent.write(XID % 700)
    until(lambda: has_read(agent, 2), what="the agent has read the second line")
    link.mend()
    until(lambda: bench.dmesg(node).get("cleared"), what="the clear has arrived")
    assert bench.findings(node) == [("gpu/0000:3b:00.0", "Xid79", 2)]
    assert bench.status(node)["verdict"] == "FAIL"


def test_a_clear_up_to_a_number_that_comes_later_hides_nothing(bench: Bench, link: Link) -> None:
    node, agent = cut_off_with_a_fault(bench, link)
    clear(bench, node, occurrence=2)
    agent.write("[700.0] NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.\n")
    until(lambda: "0000:5e" in agent.get("/report")[1], what="the agent has read the other line")
    link.mend()
    until(lambda: bench.dmesg(node).get("cleared"), what="the clear has arrived")
    assert bench.findings(node) == [("gpu/0000:5e:00.0", "Xid79", 3)]


def test_a_line_after_a_clear_survives_the_loss_of_the_agents_state(bench: Bench, link: Link) -> None:
    node, agent = cut_off_with_a_fault(bench, link)
    clear(bench, node)
    agent.write(XID % 700)
    until(lambda: has_read(agent, 2), what="the agent has read the second line")
    until(agent.state.exists, what="its state is saved")
    agent.kill()
    agent.state.unlink()
    link.mend()
    agent.start()
    until(lambda: bench.findings(node) == [("gpu/0000:3b:00.0", "Xid79", 2)])


def test_what_had_fired_before_the_clear_is_closed_by_it(bench: Bench, link: Link) -> None:
    node, _agent = cut_off_with_a_fault(bench, link)
    clear(bench, node)
    link.mend()
    until(lambda: bench.dmesg(node).get("verdict") == "PASS")
    assert [(over["occurrence"], over["how"]) for over in bench.dmesg(node)["cleared"]] == [(1, "request")]
