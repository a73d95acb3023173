"""`muster sandbox inject` writes one kernel record, or says why not."""

from pathlib import Path

import pytest

from muster_sandbox.session.folder import SandboxNode
from muster_sandbox.session.kernel_line import ActionRefused, inject_line


def test_records_are_numbered_in_a_simulated_log(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    node = SandboxNode(name="sim-1", kmsg=str(log), root=str(tmp_path), simulated=True)
    inject_line(node, "first\n")
    inject_line(node, "second")
    lines = log.read_text().splitlines()
    assert [line.partition(";")[2] for line in lines] == ["first", "second"]
    assert [line.split(",")[:2] for line in lines] == [["4", "0"], ["4", "1"]]


@pytest.mark.parametrize(("line", "fact"), [("  \n", "line"), ("a\nb", "line"), ("x" * 993, "993 bytes")])
def test_what_the_kernel_would_refuse_is_refused_before_it_is_written(tmp_path: Path, line: str, fact: str) -> None:
    log = tmp_path / "kmsg"
    log.touch()
    with pytest.raises(ActionRefused, match=fact):
        inject_line(SandboxNode(name="sim-1", kmsg=str(log), root=str(tmp_path), simulated=True), line)
    assert log.read_bytes() == b""
