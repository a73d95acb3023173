from tests.checks.cuda.fake_driver import library

__all__ = ["library"]
