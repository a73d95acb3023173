"""What tests of several checks share: a CUDA driver that needs no GPU."""

from tests.checks.cuda.fake_driver import library

__all__ = ["library"]
