"""The log levels of the original proxy, 1 to 6, mapped to Python loggers."""

import logging

from muster_kube.process.logs import configure_logging
from muster_operator.proxy.controllers import measured_calls
from muster_operator.proxy.partitions import reconciler

REQUESTS = "muster_operator.proxy.requests"
_ROOT_LEVELS = {0: logging.ERROR, 1: logging.WARNING, 6: logging.DEBUG}


def configure(log_format: str, level: int) -> None:
    """0 errors, 1 warnings, 2 actions, 3 reasons, 4 calls to V-IPU, 5 requests, 6 everything."""
    configure_logging(log_format, _ROOT_LEVELS.get(level, logging.INFO))
    if level >= 3:
        reconciler.log.setLevel(logging.DEBUG)
    if level >= 4:
        measured_calls.log.setLevel(logging.DEBUG)
    if level >= 5:
        logging.getLogger(REQUESTS).setLevel(logging.DEBUG)
