"""What all tests share: none of them hangs on chance, nor on where this process was started.

`make test` runs two files at a time, as most tests on a cluster wait more than they compute. A file is run by one
process, and so are all files that need the same thing of which a machine has one. What is marked `alone` comes last.
"""

import os
import signal
from pathlib import Path, PurePath

import pytest
from hypothesis import settings
from tests import machine
from xdist.scheduler import LoadFileScheduling

from muster_sandbox.image import oci, product

pytest_plugins = ["tests.shared_data"]

# The same examples in every run, and no deadline: neither a die nor a loaded machine decides whether a change lands.
# `pytest --hypothesis-profile=search` looks for new ones.
settings.load_profile("ci")
settings.register_profile("search", settings.get_profile("ci"), derandomize=False)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts background jobs so, and children would inherit it: what is ended by Ctrl-C here would never end
    signal.signal(signal.SIGINT, signal.default_int_handler)

for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
    # in a pod, or where a person works: what is started here must not find a cluster that is somebody's
    os.environ.pop(name, None)

# what a machine has once: files of a group are run one after the other. The real node is with the kernel log, as the
# chart's agent on it reads that
GROUPS = {
    "the kernel log": (
        "agent/process/test_privileges.py",
        "checks/dmesg/sources/test_printed_logs.py",
        "checks/dmesg/sources/test_real_kmsg.py",
        "cluster/agent/test_agent_publishing.py",
        "cluster/chart/test_chart_on_node.py",
        "cluster/chart/test_migration_commands.py",
        "cluster/commands/test_sandbox_commands.py",
        "cluster/chart/test_real_node.py",
        "cluster/chart/test_real_node_mpi.py",
        "cluster/commands/test_sandbox.py",
        "cluster/commands/test_tour.py",
    ),
}
_GROUP = {f"tests/{file}": group for group, files in GROUPS.items() for file in files}


class _ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _GROUP.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _ByFile:
    config.option.loadscopereorder = False  # it would begin with what has most tests, not with what takes longest
    return _ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those on a cluster first: the short ones at the end leave no process idle for long."""
    root = config.rootpath
    items.sort(key=lambda item: "cluster" not in item.path.relative_to(root).parts)
    for item in items:
        file = PurePath(item.path.relative_to(root)).as_posix()
        if item.get_closest_marker("kmsg") and _GROUP.get(file) != "the kernel log":
            raise pytest.UsageError(f"{file} is marked kmsg: name it in GROUPS of tests/conftest.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line counts the tests that this machine, or this user, could not run."""
    skipped = (report.longrepr for report in terminalreporter.stats.get("skipped", ()))
    if line := machine.summary(place[2].removeprefix("Skipped: ") for place in skipped):
        terminalreporter.write_line(line, yellow=True)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Muster's, of this checkout."""
    return product.build_wheel(tmp_path_factory.mktemp("wheel"), print)


@pytest.fixture(scope="session")
def image_archive(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Muster's image, under the name that the chart has for it."""
    archive = tmp_path_factory.mktemp("image") / "muster.tar"
    with archive.open("wb") as file:
        oci.write_archive(product.build_image(print, wheel), file)
    return archive
