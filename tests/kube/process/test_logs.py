"""The log of a part: levels by name."""

import logging
from collections.abc import Iterator

import pytest

from muster_kube.process.logs import LOG_LEVELS, LogLevel, configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_records_below_the_level_are_not_logged(level: LogLevel, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", level)
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("muster_test").log(number, "a record")
    logged = [line.split()[1].lower() for line in capsys.readouterr().err.splitlines()]
    assert logged == list(LOG_LEVELS[LOG_LEVELS.index(level) :])
