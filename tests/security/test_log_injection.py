"""Kernel lines, names and requests with control characters reach Muster's own log."""

import json
import logging
from typing import get_args

import pytest

from muster_kube.process.logs import LogFormat, configure_logging

FORGED = "\x1b[2J\x9b31m\x07\x7f\u2028\u202e\n2026-01-01T00:00:00.000Z INFO all is well\r"


@pytest.mark.parametrize("log_format", get_args(LogFormat))
def test_text_of_others_neither_commands_a_terminal_nor_forges_a_line(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(log_format)
    logging.getLogger("muster_agent").warning("kernel: %s", FORGED, extra={"fields": {"line": FORGED}})
    logged = capsys.readouterr().err
    assert logged.endswith("\n")
    assert logged[:-1].isprintable()
    if log_format == "json":
        assert json.loads(logged)["message"] == f"kernel: {FORGED}"
        assert json.loads(logged)["line"] == FORGED
