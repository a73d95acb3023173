"""The original's log levels, 1 to 6, as loggers of this program."""

import logging

from muster_kube.process.logs import configure_logging
from muster_operator.proxy.controllers import measured_calls
from muster_operator.proxy.partitions import reconciler

REQUESTS = "muster_operator.proxy.requests"


def configure(log_format: str, level: int) -> None:
    """1 warnings, 2 what is done, 3 why, 4 calls to V-IPU, 5 requests, 6 everything."""
    configure_logging(log_format, logging.WARNING if level == 1 else logging.DEBUG if level == 6 else logging.INFO)
    if level >= 3:
        reconciler.log.setLevel(logging.DEBUG)
    if level >= 4:
        measured_calls.log.setLevel(logging.DEBUG)
    if level >= 5:
        logging.getLogger(REQUESTS).setLevel(logging.DEBUG)
