"""Settings: where they come from, and how a bad one is told."""

from pathlib import Path

import pytest

from muster_kube.process.settings import SettingsError
from muster_tainter.settings import load


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
