"""Coverage of the checks by their own tests: while other tests of the same run are at work it is paused.

It is also paused while the files of other tests are loaded, because all Python code is slower under it. What they load
of the checks would then not be measured, so the tests of the checks are collected first.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import machine

CHECKS = Path(__file__).with_name("checks")
_CHILDREN = "COVERAGE_PROCESS_CONFIG"  # by which coverage measures the processes that a test starts


def put_checks_first(nodes: list[pytest.Item | pytest.Collector]) -> None:
    """nodes: what a folder holds."""
    nodes.sort(key=lambda node: node.path != CHECKS)


@contextmanager
def paused_outside_checks(node: pytest.Item | pytest.File) -> Iterator[None]:
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
