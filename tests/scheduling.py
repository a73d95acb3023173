"""Which process runs which test file, and when: what takes longest begins first, by durations.yaml.

Integration tests wait more than they compute, so several files run at a time. All others compute: meanwhile one process
runs those that are not of checks, and takes the processor's time that integration tests leave. A file is run by one
process, and so are all files that need the same thing of which a machine has one.
``--record-durations`` writes down how long each file of that run took.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import pytest
import yaml
from xdist.scheduler import LoadFileScheduling

DURATIONS = Path(__file__).with_name("durations.yaml")
SHORT_S = 3.0  # what takes less is not worth a row

# What a machine has once: files of a group run one after the other, in this order. The real node is with the kernel
# log, as the chart's agent on it reads that; its files are the last, so that it does not run beside the others.
GROUPS = {
    "the kernel log": (
        "tests/cluster/commands/test_sandbox.py",
        "tests/cluster/commands/test_tour.py",
        "tests/agent/process/test_privileges.py",
        "tests/checks/dmesg/sources/test_printed_logs.py",
        "tests/checks/dmesg/sources/test_real_kmsg.py",
        "tests/security/test_forged_mount_option.py",
        "tests/cluster/agent/test_real_kernel_log.py",
        "tests/cluster/chart/test_real_node.py",
        "tests/cluster/chart/test_real_node_mpi.py",
        "tests/cluster/chart/test_real_node_ipus.py",
        "tests/cluster/chart/test_chart_on_node.py",
        "tests/cluster/chart/test_migration_commands.py",
    ),
}
# Folders of integration tests: they start a control plane, a browser or a container engine. Files of GROUPS are with
# them, as some of each group are theirs.
INTEGRATION = ("tests/browser/", "tests/cluster/", "tests/release/", "tests/security/cluster/")
# -m of the runs of `make test`: each test is chosen by one of them
CHOICES = (
    "alone",
    "beside",
    "integration and not alone and not beside",
    "not integration and not alone and not beside",
)
_BESIDE = re.compile(r"^pytestmark = pytest\.mark\.beside$", re.MULTILINE)
_GROUP = {file: group for group, files in GROUPS.items() for file in files}


def group_of(file: str) -> str:
    """The file itself, where it needs nothing of which a machine has one."""
    return _GROUP.get(file, file)


def is_integration(file: str) -> bool:
    """Whether the tests of a file are marked ``integration``."""
    return file.startswith(INTEGRATION) or file in _GROUP


def may_choose(choice: str, file: str, text: str) -> bool:
    """Whether a file with this text can have tests that one of CHOICES is for."""
    if choice in ("alone", "beside"):
        return f"mark.{choice}" in text
    return is_integration(file) != choice.startswith("not ") and not _BESIDE.search(text)


def run_order(files: Sequence[str], seconds: Mapping[str, float]) -> dict[str, tuple[float, str, int]]:
    """A sort key for each file: longest group first, its files in their order. seconds: of those that take long."""
    total: dict[str, float] = {}
    for file in dict.fromkeys(files):
        total[group_of(file)] = total.get(group_of(file), 0.0) + seconds.get(file, 0.0)
    places = {file: place for group in GROUPS.values() for place, file in enumerate(group)}
    return {file: (-total[group_of(file)], group_of(file), places.get(file, 0)) for file in files}


def load_durations() -> dict[str, float]:
    """Seconds by file, of those that take long."""
    return dict(yaml.safe_load(DURATIONS.read_text()) or {})


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's, with groups of files; the tests come in their order (:func:`run_order`)."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(super()._split_scope(nodeid))


class DurationRecorder:
    """Writes durations.yaml at the end of a run: files that were not run keep their row."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] = self._seconds.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        rows = {file: round(took_s) for file, took_s in {**load_durations(), **self._seconds}.items()}
        kept = {file: rows[file] for file in sorted(rows) if rows[file] >= SHORT_S and (self._root / file).exists()}
        head = "# Seconds that a file of tests takes, of those that take some; by pytest --record-durations\n"
        DURATIONS.write_text(head + yaml.safe_dump(kept))


def file_name(path: Path, config: pytest.Config) -> str:
    """Relative to the root, as in an item's id."""
    return PurePath(path.relative_to(config.rootpath)).as_posix()


def file_of(item: pytest.Item) -> str:
    """Of :func:`file_name`."""
    return file_name(item.path, item.config)
