"""`muster release --ipus`: what it writes, and what it says of writes that fail."""

import io
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.visibility.capacities import node

from muster_cli.__main__ import main
from muster_cli.exit_codes import EXIT_WARN
from muster_cli.release.ipus import release_ipus
from muster_kube.api.errors import ApiError, Forbidden, NotFound
from muster_kube.process.command_line import EXIT_UNKNOWN, EXIT_USAGE
from muster_operator.observe.node_capacity import IPUS_FREE, IPUS_TOTAL

LABELS = {"muster.dev_ipus-free": "4", "muster.dev_ipus-total": "16"}
NONE = {IPUS_FREE: None, IPUS_TOTAL: None}


class Cluster:
    def __init__(self, **errors: ApiError) -> None:
        self._errors = errors
        self.written: dict[str, object] = {}
        self.numbered = True

    async def list_pages(self, *_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(items=[node("plain")])
        if not self.numbered:
            return
        yield SimpleNamespace(items=[node("labels", **LABELS)])
        yield SimpleNamespace(items=[node("resources", free="4", total="16"), node("both", free="4", **LABELS)])

    async def patch(self, path: str, body: object, **_: object) -> None:
        if (error := self._errors.get(path.split("/")[4])) is not None:
            raise error
        self.written[path.removeprefix("/api/v1/nodes/")] = body


async def release(cluster: Any, **options: bool) -> int:
    return await release_ipus(cluster, confirm=lambda _: True, **options)


async def test_numbers_of_both_forms_are_removed(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster()
    assert await release(cluster) == 0
    free = {IPUS_FREE: None}
    assert cluster.written == {
        "labels": {"metadata": {"labels": NONE}},
        "resources/status": {"status": {"capacity": NONE, "allocatable": NONE}},
        "both": {"metadata": {"labels": NONE}},
        "both/status": {"status": {"capacity": free, "allocatable": free}},
    }
    assert "3 nodes" in capsys.readouterr().out


async def test_a_node_that_is_gone_is_no_error_and_a_refused_write_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert await release(Cluster(labels=NotFound(404, "NotFound", "gone", "/p"))) == 0
    cluster = Cluster(both=Forbidden(403, "Forbidden", "may not", "/p"))
    assert await release(cluster) == EXIT_UNKNOWN
    assert set(cluster.written) == {"labels", "resources/status"}
    assert "may not" in capsys.readouterr().err


async def test_it_asks_before_it_writes_and_only_if_there_is_something_to_write() -> None:
    asked: list[str] = []

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    cluster: Any = Cluster()
    assert await release_ipus(cluster, confirm=refuse) == EXIT_WARN
    assert cluster.written == {}
    assert "3 nodes" in asked[0]
    cluster.numbered = False
    assert await release_ipus(cluster, confirm=refuse) == 0
    assert len(asked) == 1


def test_without_a_terminal_it_takes_a_yes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["release", "--ipus"]) == EXIT_USAGE
    assert "--yes" in capsys.readouterr().err


async def test_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(both=Forbidden(403, "Forbidden", "may not", "/p"))
    assert await release(cluster, as_document=True) == EXIT_UNKNOWN
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert (answer["released"], answer["failed"], printed.err) == (2, 1, "")
    nodes = {each["node"]: (each["released"], "may not" in each.get("why", "")) for each in answer["nodes"]}
    assert nodes == {"labels": (True, False), "resources": (True, False), "both": (False, True)}


@pytest.mark.parametrize("words", [("--ipus", "--all"), ("--ipus", "node-1"), ()])
def test_it_releases_either_nodes_or_ipus(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["release", *words]) == EXIT_USAGE
    assert "--ipus" in capsys.readouterr().err
