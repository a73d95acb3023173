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
        ({**LIST, "controllers_file": "x"}, {}, "--controllers-file"),
        ({"controllers": "garbage"}, {}, "--controllers: 'garbage'"),
        ({**LIST, "log_level": 7}, {}, "--log-level: 7"),
        ({**LIST, "log_level": "loud"}, {}, "--log-level: 'loud'"),
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


def test_without_a_controller_list_the_error_names_both_flags_and_the_setting() -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {"port": 0}, {})
    assert "\n" not in str(caught.value)
    for name in ("--controllers", "--controllers-file", "controllers_map"):
        assert name in str(caught.value)


def test_a_list_with_one_valid_controller_is_accepted() -> None:
    assert load(None, {"controllers": "garbage,v:8090:k=v"}, {}).controllers == "garbage,v:8090:k=v"


@pytest.mark.parametrize(("text", "level"), [("error", 0), ("warning", 1), ("info", 2), ("debug", 6), ("4", 4), (5, 5)])
def test_a_log_level_is_a_name_or_a_number(text: object, level: int) -> None:
    assert load(None, {**LIST, "log_level": text}, {}).log_level == level
    assert load(None, LIST, {"MUSTER_VIPU_PROXY_LOG_LEVEL": str(text)}).log_level == level


def test_accounts_are_a_list_and_a_file_has_all_of_it(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text("controllers_map: ipu-operator-vipu-controllers\nbackend: sim\nallowed: [gc/manager]\n")
    assert load(file, {}, {}).allowed == ("gc/manager",)
    assert load(file, {}, {"MUSTER_VIPU_PROXY_ALLOWED": "a/b, c/d"}).allowed == ("a/b", "c/d")


def test_a_wrong_setting_ends_the_program_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.main(parser.parse_args(["--controllers", "v:1:k=v", "--log-level", "9"])) == 64
    assert capsys.readouterr().err.startswith("muster: --log-level: '9'")


def test_invalid_controllers_are_reported_before_the_cluster_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["--controllers", "garbage", "--kubeconfig", "/nowhere"]
    assert command.main(parser.parse_args(words)) == 64
    error = capsys.readouterr().err
    assert error.startswith("muster: --controllers: 'garbage'")
    assert "/nowhere" not in error
