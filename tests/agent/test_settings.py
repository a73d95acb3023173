"""Settings: file under environment under flags, and errors that name the place, the value and what is allowed."""

import argparse
from pathlib import Path

import pytest

from muster_agent.__main__ import add_arguments
from muster_agent.settings import FLAGS, AgentSettings, check_parameters, load_agent_settings
from muster_checks.registry import load_registry
from muster_kube.process.settings import SettingsError


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "agent.yaml"
    file.write_text(text)
    return file


def test_flags_rule_over_environment_over_file(tmp_path):
    file = write(tmp_path, "node: from-file\nport: 1\nlog_format: json\n")
    environ = {"MUSTER_AGENT_NODE": "from-environment", "MUSTER_AGENT_PORT": "2", "HOME": "/"}
    settings = load_agent_settings(file, {"node": "from-flag", "port": None}, environ)
    assert (settings.node, settings.port, settings.log_format) == ("from-flag", 2, "json")


def test_the_state_lies_under_the_root_unless_it_is_named():
    assert AgentSettings(node="n", root=Path("/host")).state_directory == Path("/host/var/lib/muster")
    assert AgentSettings(node="n", root=Path("/host"), state_dir=Path("/x")).state_directory == Path("/x")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("prot: 1", ("agent.yaml: prot: 1: ", "node, ", "port, ")),
        ("port: many", ("agent.yaml: port: 'many': ",)),
        ("port: 70000", ("agent.yaml: port: 70000: ", "65535")),
        ("log_level: loud", ("agent.yaml: log_level: 'loud': ", "'debug'", "'error'")),
        ("log_format: xml", ("agent.yaml: log_format: 'xml': ", "'text'", "'json'")),
        ("node: Not_A_Node", ("agent.yaml: node: 'Not_A_Node'",)),
        ("checks: {dmesg: {enable: true}}", ("agent.yaml: checks.dmesg.", "enabled, period, parameters")),
        ("- a\n- b", ("agent.yaml: ['a', 'b']: ",)),
        ("a: [", ("agent.yaml: ", "YAML")),
        ("\x00", ("agent.yaml: ", "YAML")),
    ],
)
def test_a_bad_file_names_path_value_and_what_is_allowed(tmp_path, text, facts):
    with pytest.raises(SettingsError) as refused:
        load_agent_settings(write(tmp_path, text), {}, {})
    assert [fact for fact in facts if fact not in str(refused.value)] == []


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"gone\.yaml: .*No such file"):
        load_agent_settings(tmp_path / "gone.yaml", {}, {})


def test_an_unknown_variable_is_named_with_those_that_exist():
    with pytest.raises(SettingsError, match=r"MUSTER_AGENT_PROT: .*MUSTER_AGENT_PORT"):
        load_agent_settings(None, {}, {"MUSTER_AGENT_PROT": "1"})


def test_a_bad_variable_and_a_bad_flag_name_themselves():
    with pytest.raises(SettingsError, match=r"MUSTER_AGENT_PORT: 'x'"):
        load_agent_settings(None, {}, {"MUSTER_AGENT_PORT": "x"})
    with pytest.raises(SettingsError, match=r"--claim-grace-s: -1"):
        load_agent_settings(None, {"claim_grace_s": -1}, {})


def test_what_kubernetes_sets_beside_a_service_of_our_name_is_not_ours():
    links = {
        "MUSTER_AGENT_PORT": "tcp://10.0.0.1:3333",
        "MUSTER_AGENT_PORT_3333_TCP": "tcp://10.0.0.1:3333",
        "MUSTER_AGENT_PORT_3333_TCP_ADDR": "10.0.0.1",
        "MUSTER_AGENT_SERVICE_HOST": "10.0.0.1",
        "MUSTER_AGENT_SERVICE_PORT": "3333",
        "MUSTER_AGENT_SERVICE_PORT_HTTP": "3333",
    }
    assert load_agent_settings(None, {"node": "n"}, links).port == 3333


def test_a_checks_parameters_are_its_own_and_kmsg_is_dmesgs_path():
    checks = load_registry(plug_ins=[])
    settings = load_agent_settings(None, {"node": "n", "kmsg": Path("/k")}, {})
    assert str(check_parameters(settings, checks)["dmesg"].path) == "/k"
    off = AgentSettings.model_validate({"node": "n", "checks": {"dmesg": {"enabled": False}}})
    assert "dmesg" not in check_parameters(off, checks)


def test_checks_of_the_plug_ins_folder_take_settings_as_the_shipped_ones_do(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "disk.yaml").write_text("kind: nagios\nname: rootdisk\ncommand: [check_disk]\n")
    settings = load_agent_settings(
        write(tmp_path, f"node: n\nplugins: {folder}\nchecks: {{rootdisk: {{enabled: true}}}}\n"), {}, {}
    )
    checks = load_registry(plug_ins=[], plugins_folder=settings.plugins)
    assert "rootdisk" in check_parameters(settings, checks)
    with pytest.raises(SettingsError, match="rootdisk"):
        check_parameters(settings, load_registry(plug_ins=[]))


@pytest.mark.parametrize(
    ("checks", "facts"),
    [
        ({"dmseg": {}}, ("checks: ", '"dmseg"', '"dmesg"')),
        ({"dmesg": {"parameters": {"strat": "boot"}}}, ("checks.dmesg.parameters.strat: 'boot': ", "start")),
        (
            {"dmesg": {"parameters": {"start": "never"}}},
            ("checks.dmesg.parameters.start: 'never': ", "'boot'", "'now'"),
        ),
    ],
)
def test_a_bad_check_setting_names_itself(checks, facts):
    settings = AgentSettings.model_validate({"node": "n", "checks": checks})
    with pytest.raises(SettingsError) as refused:
        check_parameters(settings, load_registry(plug_ins=[]))
    assert [fact for fact in facts if fact not in str(refused.value)] == []


def test_flags_for_the_log_are_settings():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = parser.parse_args(["--node", "n", "--log-level", "debug", "--log-format", "json"])
    settings = load_agent_settings(None, {name: getattr(given, name) for name in FLAGS}, {})
    assert (settings.log_level, settings.log_format) == ("debug", "json")
    assert load_agent_settings(None, {"node": "n"}, {}).log_level == "info"


@pytest.mark.parametrize(
    ("own", "enabled"), [({}, False), ({"parameters": {"files": 1}}, False), ({"enabled": True}, True)]
)
def test_a_check_that_is_off_by_default_runs_only_if_it_is_enabled_by_name(
    own: dict[str, object], enabled: bool
) -> None:
    found = AgentSettings.model_validate({"checks": {"containerlog": own}})
    assert ("containerlog" in check_parameters(found, load_registry(()))) is enabled
