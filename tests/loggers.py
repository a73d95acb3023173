"""What a test, or a command that it runs in this process, sets up for the log holds for that test alone."""

import logging
from collections.abc import Iterator

import pytest


def _settings() -> dict[logging.Logger, tuple[list[logging.Handler], int, bool]]:
    known = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return {each: (each.handlers[:], each.level, each.propagate) for each in (logging.root, *known)}


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    before = _settings()
    yield
    for logger, settings in _settings().items():
        handlers, level, propagate = before.get(logger, ([], logging.NOTSET, True))
        if settings != (handlers, level, propagate):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
