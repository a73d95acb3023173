"""Recorded samples of other projects. They stand beside the checkout and are never copied into it.

``$MUSTER_SHARED_DATA`` names their folder, relative to the checkout or absolute; by default it is ``../shared/data``
where that exists. A test that reads one takes the fixture ``shared_data``. Where there is no such folder it is skipped,
and one line at the end of the run says how many tests were; in CI it fails.
"""

import os
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

VARIABLE = "MUSTER_SHARED_DATA"
ROOT = Path(__file__).resolve().parents[1]
DEFAULT = "../shared/data"
NEED = "need recorded samples of other projects"
# what the tests read from it
TOPICS = ("autopilot", "catalogue", "dcgm", "infiniband", "ipu", "kernel-lines", "nvidia-smi", "npd", "traces")


class SharedData:
    """The folder. ``data.read("nvidia-smi/qx-t4.xml")``"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def text(self, name: str) -> str:
        return self.read(name).decode()


def find_folder(environment: Mapping[str, str], root: Path = ROOT) -> Path | None:
    """None where nothing is named and the default is not there. Raises ValueError where what is named is not it."""
    named = environment.get(VARIABLE)
    folder = Path(os.path.normpath(root / (named or DEFAULT)))
    missing = [topic for topic in TOPICS if not (folder / topic).is_dir()]
    if not missing:
        return folder
    if not named:
        return None
    what = "no such folder" if not folder.is_dir() else f"it has no {', '.join(missing)}"
    raise ValueError(f"{VARIABLE}={named}: {folder}: {what}; expected the recorded samples of other projects")


def pytest_configure(config: pytest.Config) -> None:
    try:
        find_folder(os.environ)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def shared_data() -> SharedData:
    folder = find_folder(os.environ)
    if folder is not None:
        return SharedData(folder)
    if os.environ.get("CI"):
        pytest.fail(f"tests {_reason()}", pytrace=False)
    pytest.skip(f"tests {_reason()}")


def _reason() -> str:
    return f"{NEED}: {os.path.normpath(ROOT / DEFAULT)} does not have them; set {VARIABLE} to their folder"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """One line for all that were skipped, where ``-ra`` would print one for each."""
    skipped = terminalreporter.stats.get("skipped", [])
    ours = [report for report in skipped if NEED in str(report.longrepr)]
    if ours:
        terminalreporter.stats["skipped"] = [report for report in skipped if report not in ours]
    yield
    if ours:
        terminalreporter.stats["skipped"] = skipped
        terminalreporter.write_line(f"{len(ours)} tests {_reason()}", yellow=True)
