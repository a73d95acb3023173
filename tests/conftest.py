"""What all tests share: none of them hangs on where this process was started, and what hangs on chance says its seed.

`make test` runs four files of integration tests at a time, and meanwhile most others in one process (scheduling.py).
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from tests import check_coverage, machine, scheduling, state_machines

from muster_sandbox.image import oci, product

pytest_plugins = ["tests.shared_data", "tests.loggers", "tests.loop_time", "tests.real_cluster"]

# The same examples in every run, and no deadline, but for state machines (state_machines.py).
# `pytest --hypothesis-profile=search` looks for new ones.
settings.load_profile("ci")
settings.register_profile("search", settings.get_profile("ci"), derandomize=False)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts background jobs so, and children would inherit it: what is ended by Ctrl-C here would never end
    signal.signal(signal.SIGINT, signal.default_int_handler)

# of what is written in Go: an API server of 1.20 spent 8 % of its time under these tests on garbage (its pprof profile)
os.environ.setdefault("GOGC", "400")

for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG", "PYTEST_ADDOPTS"):
    # in a pod, or where a person works: what is started here must not find a cluster that is somebody's, nor a pytest
    # that a test runs the options of this one
    os.environ.pop(name, None)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("muster")
    group.addoption("--examples", type=int, metavar="N", help="state machines play N random examples each")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.yaml, by which files run")


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its seed
def pytest_configure(config: pytest.Config) -> None:
    state_machines.choose_seed(config)
    if config.getoption("record_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(scheduling.DurationRecorder(config.rootpath))


def pytest_report_header(config: pytest.Config) -> str:
    return state_machines.describe_seed(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> scheduling.LongestFirst:
    config.option.loadscopereorder = False  # it would begin with what has most tests, not with what takes longest
    return scheduling.LongestFirst(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order = scheduling.run_order([scheduling.file_of(item) for item in items], scheduling.load_durations())
    items.sort(key=lambda item: order[scheduling.file_of(item)])
    for item in items:
        file = scheduling.file_of(item)
        if scheduling.is_integration(file):
            item.add_marker(pytest.mark.integration)
        if item.get_closest_marker("kmsg"):
            if scheduling.group_of(file) != "the kernel log":
                raise pytest.UsageError(f"{file} is marked kmsg: name it in GROUPS of tests/scheduling.py")
            item.add_marker(machine.needs("/dev/kmsg"))
        if state_machines.is_state_machine(item):
            state_machines.randomize(item, config.getoption("examples"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of tests that `make test` chooses by a marker loads no file of which it runs none: that takes seconds."""
    chosen = config.option.markexpr
    if chosen not in scheduling.CHOICES or collection_path.suffix != ".py" or not collection_path.is_file():
        return None
    file = scheduling.file_name(collection_path, config)
    return not scheduling.may_choose(chosen, file, collection_path.read_text()) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is loaded stays until the end: the garbage collector need not look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[object]:
    """Comes to its end before pytest-cov looks at the bound."""
    ended = yield
    check_coverage.release_bound_of_skipped(session.config)
    return ended


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line counts the tests that this machine, or this user, could not run; the seed plays the examples again."""
    terminalreporter.write_line(state_machines.describe_seed(config))
    if line := machine.summary(terminalreporter.stats.get("skipped", ())):
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
