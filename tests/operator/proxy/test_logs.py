"""The original's log levels: what each of them adds."""

import logging

import pytest

from muster_operator.proxy import logs
from muster_operator.proxy.controllers import measured_calls
from muster_operator.proxy.partitions import reconciler

LOGGERS = (reconciler.log, measured_calls.log, logging.getLogger(logs.REQUESTS))


@pytest.mark.parametrize(("level", "number"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 3)])
def test_decisions_calls_and_requests_are_logged_from_levels_3_4_and_5(level: int, number: int) -> None:
    logs.configure("text", level)
    assert [each.isEnabledFor(logging.DEBUG) for each in LOGGERS] == [at < number for at in range(3)]
    assert reconciler.log.isEnabledFor(logging.INFO) == (level > 1)
    assert reconciler.log.isEnabledFor(logging.WARNING) == (level > 0)
