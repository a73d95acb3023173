"""What tests of several checks share: a CUDA driver that needs no GPU."""

from tests.checks.cuda.fake_driver import library

# tests of the agent would load these first, and then their lines would not be measured (tests/check_coverage.py)
import muster_checks.iperf.probe
import muster_checks.ping.neighbours  # noqa: F401

__all__ = ["library"]
