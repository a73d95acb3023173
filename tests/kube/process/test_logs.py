"""The log settings of every part."""

import argparse
import logging
from typing import get_args

import pytest

from muster_kube.process.command_line import add_log_arguments
from muster_kube.process.logs import LogFormat, LogLevel, configure_logging


def test_flags_take_what_the_settings_take() -> None:
    parser = argparse.ArgumentParser()
    add_log_arguments(parser)
    for name in get_args(LogFormat):
        assert parser.parse_args(["--log-format", name]).log_format == name
    for name in get_args(LogLevel):
        assert parser.parse_args(["--log-level", name]).log_level == name
    assert parser.parse_args([]).log_level is None, "the setting's default counts"


@pytest.mark.parametrize("name", get_args(LogLevel))
def test_messages_below_the_level_are_not_logged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("text", name)
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger("muster_agent").log(level, "message")
    logged = capsys.readouterr().err
    levels = [each for each in ("DEBUG", "INFO", "WARNING", "ERROR") if each in logged]
    assert levels[0] == name.upper()
    assert levels[-1] == "ERROR"
