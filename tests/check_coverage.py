"""Coverage of the checks by their own tests: while other tests of the same run are at work it is paused."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("checks")
_CHILDREN = "COVERAGE_PROCESS_CONFIG"  # by which coverage measures the processes that a test starts


@contextmanager
def paused_outside_checks(item: pytest.Item) -> Iterator[None]:
    """Does nothing where no coverage is measured."""
    plugin = item.config.pluginmanager.getplugin("_cov")
    coverage = getattr(getattr(plugin, "cov_controller", None), "cov", None)
    if coverage is None or item.path.is_relative_to(CHECKS):
        yield
        return
    coverage.stop()
    children = os.environ.pop(_CHILDREN, None)
    try:
        yield
    finally:
        if children is not None:
            os.environ[_CHILDREN] = children
        coverage.start()
