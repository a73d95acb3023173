"""Settings and flags: file, the original's environment, ours, flags; what is wrong stops the start by name."""

import argparse
from pathlib import Path

import pytest

from muster_kube.process.settings import SettingsError
from muster_operator.proxy import __main__ as command
from muster_operator.proxy.settings import load

LIST = {"controllers": "v:8090:k=v"}


def test_the_originals_environment_counts_and_ours_goes_before_it() -> None:
    theirs = {
        "PROXY_PORT": "8081", "PROXY_READ_TIMEOUT": "31", "PROXY_WRITE_TIMEOUT": "301", "PROXY_IDLE_TIMEOUT": "61",
        "PROXY_NAMESPACE": "gc",
    }  # fmt: skip
    loaded = load(None, LIST, theirs)
    assert (loaded.port, loaded.read_timeout, loaded.write_timeout, loaded.idle_timeout) == (8081, 31, 301, 61)
    assert loaded.namespace == "gc"
    assert load(None, LIST, theirs | {"MUSTER_VIPU_PROXY_PORT": "9"}).port == 9
    assert load(None, {**LIST, "port": 7}, theirs).port == 7


def test_the_defaults_are_the_originals() -> None:
    loaded = load(None, LIST, {})
    assert (loaded.port, loaded.read_timeout, loaded.write_timeout, loaded.idle_timeout) == (8080, 30, 300, 60)
    assert (loaded.tracker, loaded.log_level, loaded.max_ipus) == ("ipu-partitions-tracker", 2, 64)


@pytest.mark.parametrize(
    ("flags", "environ", "told"),
    [
        ({}, {}, "controllers_map"),
        ({**LIST, "controllers_file": "x"}, {}, "controllers_file"),
        ({**LIST, "log_level": 7}, {}, "--log-level: 7"),
        (LIST, {"PROXY_READ_TIMEOUT": "soon"}, "PROXY_READ_TIMEOUT: 'soon'"),
        (LIST, {"MUSTER_VIPU_PROXY_MAX_IPUS": "48"}, "MUSTER_VIPU_PROXY_MAX_IPUS: '48'"),
        (LIST, {"MUSTER_VIPU_PROXY_ALLOWED": "operator"}, "MUSTER_VIPU_PROXY_ALLOWED"),
        (LIST, {"MUSTER_VIPU_PROXY_COLOUR": "red"}, "MUSTER_VIPU_PROXY_COLOUR"),
    ],
)
def test_what_is_wrong_is_named(flags: dict[str, object], environ: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, flags, environ)
    assert told in str(caught.value)
    assert "MUSTER_VIPU_PROXY_READ_TIMEOUT:" not in str(caught.value)
    assert "Value error" not in str(caught.value)


def test_what_is_wrong_with_no_one_setting_says_that_alone() -> None:
    with pytest.raises(SettingsError, match=r"^[^:\n]*controllers, controllers_file and controllers_map$"):
        load(None, {"port": 0}, {})


def test_accounts_are_a_list_and_a_file_has_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text("controllers_map: ipu-operator-vipu-controllers\nbackend: sim\nallowed: [gc/manager]\n")
    assert load(file, {}, {}).allowed == ("gc/manager",)
    assert load(file, {}, {"MUSTER_VIPU_PROXY_ALLOWED": "a/b, c/d"}).allowed == ("a/b", "c/d")


def test_a_wrong_setting_ends_the_program_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.main(parser.parse_args(["--controllers", "v:1:k=v", "--log-level", "9"])) == 64
    assert "--log-level: 9" in capsys.readouterr().err
