"""Settings: their sources, errors, and the log level."""

import logging
from argparse import ArgumentParser
from pathlib import Path

import pytest

from muster_kube.process.settings import SettingsError
from muster_tainter.__main__ import add_arguments, main
from muster_tainter.faults.logs.audit_log import configure, findings_log
from muster_tainter.settings import FLAGS, load


class TestSettings:
    """File, environment, flags."""

    def test_flags_stand_over_environment_over_file(self, tmp_path: Path) -> None:
        file = tmp_path / "tainter.yaml"
        file.write_text("{port: 1, host: a, logFormat: text}".replace("logFormat", "log_format"))
        loaded = load(file, {"port": 3, "host": None}, {"MUSTER_TAINTER_PORT": "2", "MUSTER_TAINTER_HOST": "b"})
        assert (loaded.port, loaded.host) == (3, "b")

    @pytest.mark.parametrize(("text", "flags", "environ", "place"), [
        ("{prot: 1}", {}, {}, "tainter.yaml: prot: 1:"),
        ("{port: 70000}", {}, {}, "tainter.yaml: port: 70000"),
        ("{}", {}, {"MUSTER_TAINTER_PRT": "1"}, "MUSTER_TAINTER_PRT:"),
        ("{}", {"log_format": "xml"}, {}, "--log-format: 'xml'"),
        ("{}", {"log_level": "loud"}, {}, "--log-level: 'loud'"),
        ("{log_level: 3}", {}, {}, "tainter.yaml: log_level: 3"),
        ("[]", {}, {}, "tainter.yaml"),
        ("{", {}, {}, "tainter.yaml"),
    ])  # fmt: skip
    def test_an_error_names_the_place(
        self, tmp_path: Path, text: str, flags: dict[str, object], environ: dict[str, str], place: str
    ) -> None:
        file = tmp_path / "tainter.yaml"
        file.write_text(text)
        with pytest.raises(SettingsError) as caught:
            load(file, flags, environ)
        assert place in str(caught.value)

    def test_the_variables_of_a_service_are_no_settings(self) -> None:
        environ = {"MUSTER_TAINTER_SERVICE_HOST": "10.0.0.1", "MUSTER_TAINTER_PORT": "tcp://10.0.0.1:3334"}
        assert load(None, {}, environ).port == 3334


class TestLogLevel:
    """--log-level, MUSTER_TAINTER_LOG_LEVEL and log_level."""

    def test_every_setting_with_a_flag_is_an_argument(self) -> None:
        parser = ArgumentParser()
        add_arguments(parser)
        assert set(FLAGS) == vars(parser.parse_args([])).keys() - {"config"}

    def test_the_flag_overrides_the_variable(self) -> None:
        environ = {"MUSTER_TAINTER_LOG_LEVEL": "debug"}
        assert load(None, {}, environ).log_level == "debug"
        assert load(None, {"log_level": "error"}, environ).log_level == "error"
        assert load(None, {}, {}).log_level == "info"

    def test_messages_below_the_level_are_not_logged(self, capsys: pytest.CaptureFixture[str]) -> None:
        configure("text", "error")
        logging.getLogger("muster_tainter.app").warning("hidden")
        logging.getLogger("muster_tainter.app").error("shown")
        assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["shown"]

    def test_findings_are_logged_at_every_level_because_a_replay_needs_them(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        configure("text", "error")
        findings_log.info("%s", "{}")
        assert capsys.readouterr().err == "{}\n"


def test_every_line_of_an_error_begins_with_muster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{name: a, action: tain}, {name: b, action: drian}]")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], current-context: x, "
        "contexts: [{name: x, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}]}"
    )
    parser = ArgumentParser()
    add_arguments(parser)
    for arguments in (["--policy", str(policy), "--kubeconfig", str(kubeconfig)], ["--port", "70000"]):
        assert main(parser.parse_args(arguments)) == 64
        lines = [line for line in capsys.readouterr().err.splitlines() if " INFO " not in line]
        assert lines
        assert all(line.startswith("muster: ") for line in lines)
