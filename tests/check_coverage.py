"""Coverage of the checks by their own tests: it is paused while other tests of the same run are collected or run.

It costs whatever Python runs under it. The tests of checks are collected first (``testpaths``), so that the modules of
the checks are loaded under it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import machine

CHECKS = Path(__file__).with_name("checks")
_CHILDREN = "COVERAGE_PROCESS_CONFIG"  # by which coverage measures the processes that a test starts


@contextmanager
def paused_outside_checks(node: pytest.Item | pytest.Collector) -> Iterator[None]:
    """Does nothing where no coverage is measured."""
    plugin = node.config.pluginmanager.getplugin("_cov")
    coverage = getattr(getattr(plugin, "cov_controller", None), "cov", None)
    if coverage is None or node.path.is_relative_to(CHECKS):
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


def release_bound_of_skipped(config: pytest.Config) -> None:
    """Where tests of checks were skipped as something is missing here, a low coverage is no failure."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    plugin = config.pluginmanager.getplugin("_cov")
    if reporter is None or plugin is None or not plugin.options.cov_fail_under:
        return
    if any(
        machine.lack_of(each) for each in reporter.stats.get("skipped", ()) if each.nodeid.startswith("tests/checks")
    ):
        plugin.options.cov_fail_under = None
        reporter.write_line("\nmuster: tests of checks were skipped, so their coverage is not held to its bound")
