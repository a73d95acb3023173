import socket

import pytest

from muster_sandbox.controlplane import cluster
from muster_sandbox.controlplane.cluster import END_OF_PORTS, FIRST_PORT, free_ports


def test_no_port_is_given_twice_though_nobody_has_used_it_yet() -> None:
    given = [port for _ in range(300) for port in free_ports(2)]
    assert len(set(given)) == len(given) == 600
    assert all(FIRST_PORT <= port < END_OF_PORTS for port in given)


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        port = used.getsockname()[1]
        monkeypatch.setattr(cluster, "FIRST_PORT", port - 1)
        monkeypatch.setattr(cluster, "END_OF_PORTS", port + 2)
        monkeypatch.setattr(cluster, "_given_ports", set())
        assert port not in free_ports(1)
