"""The configuration of a custom plug-in monitor: defaults, and what stops node-problem-detector is refused here too."""

import copy
import json

import pytest
from hypothesis import given, settings
from tests.checks.bad_input import any_json, replaced

from muster_checks.base.npd_json import FileRefused
from muster_checks.plugins.custom import CustomMonitor, read_custom


@pytest.fixture
def read(bench):
    bench.script("ok.sh", "exit 0")
    return lambda document: read_custom(document, bench.folder)


OK = {"path": "./ok.sh"}


def test_what_is_not_said_has_the_defaults_of_node_problem_detector(read, custom):
    monitor = read({key: value for key, value in custom(OK).items() if key != "pluginConfig"})
    assert (monitor.period_s, monitor.concurrency, monitor.max_output_bytes) == (30.0, 3, 80)
    assert not monitor.follow_messages
    assert monitor.rules[0].timeout_s == 5.0


def test_a_rule_has_its_own_time_out_and_interval_and_the_shortest_is_the_checks_period(read, custom):
    document = custom(OK, {**OK, "timeout": "2s", "invoke_interval": "5m"}, invoke_interval="1m", timeout="3s")
    monitor = read(document)
    assert [(rule.timeout_s, rule.interval_s) for rule in monitor.rules] == [(3, 60), (2, 300)]
    assert monitor.period_s == 60


def test_rules_wait_for_each_other_where_few_may_run_at_once(read, custom):
    assert read(custom(OK, OK, OK, OK, OK, timeout="10s", concurrency=2)).longest_s == 36.0


def test_a_relative_path_is_looked_for_beside_the_file_and_in_the_folder_above(read, custom, bench):
    above = bench.folder.parent / "plugins/ok.sh"
    assert read(custom({"path": "plugins/ok.sh"})).rules[0].argv == (str(above),)
    assert read(custom({"path": "ok.sh", "args": ["-a", ""]})).rules[0].argv == (str(above), "-a", "")
    assert read(custom({"path": str(above)})).rules[0].path == str(above)


PERMANENT = {"type": "permanent", "condition": "Broken"}
BAD = [
    ({"rules": []}, "rules: []: List should have at least 1 item"),
    ({"rules": None}, "rules: missing"),
    ({"rules": {"a": 1}}, "rules: {'a': 1}: Input should be a valid list"),
    ({"pluginConfig": {"timeout": "5x"}}, 'pluginConfig.timeout: "5x": '),
    ({"pluginConfig": {"timeout": 5}}, "pluginConfig.timeout: 5: "),
    ({"pluginConfig": {"timeout": "0s"}}, 'pluginConfig.timeout: "0s": Input should be greater than 0'),
    ({"pluginConfig": {"invoke_interval": "0"}}, 'pluginConfig.invoke_interval: "0": Input should be greater than 0'),
    ({"pluginConfig": {"concurrency": 0}}, "pluginConfig.concurrency: 0: Input should be greater than or equal to 1"),
    ({"pluginConfig": {"max_output_length": -1}}, "pluginConfig.max_output_length: -1: "),
    (
        {"pluginConfig": {"max_output_length": "80"}},
        'pluginConfig.max_output_length: "80": Input should be a valid int',
    ),
    (
        {"pluginConfig": {"skip_initial_status": "no"}},
        'pluginConfig.skip_initial_status: "no": Input should be a valid',
    ),
    ({"pluginConfig": []}, "pluginConfig: []: Input should be a valid dictionary"),
]
BAD_RULES = [
    ({"timeout": "10s"}, "rules[0].timeout: 10 s: "),
    ({"path": "./gone.sh"}, 'rules[0].path: "./gone.sh": '),
    ({"path": "\u0000"}, "rules[0].path: "),
    ({"path": "x" * 300}, "rules[0].path: "),
    ({"path": None}, "rules[0].path: missing"),
    ({"path": "C:\\plugin\\x.ps1"}, "Windows"),
    (
        {"path": "/nowhere/log-counter"},
        'rules[0].path: "/nowhere/log-counter": ',
    ),
    ({"type": "permanent"}, 'rules[0].condition: "": '),
    ({"type": "permanent", "condition": "Other"}, 'rules[0].condition: "Other": '),
    ({"type": "Permanent"}, "rules[0].type: \"Permanent\": Input should be 'temporary' or 'permanent'"),
    ({"type": None}, "rules[0].type: missing"),
    ({"reason": ""}, 'rules[0].reason: "": '),
    ({"invoke_interval": "-5s"}, 'rules[0].invoke_interval: "-5s": '),
    ({"args": "x"}, 'rules[0].args: "x": Input should be a valid list'),
    ({"args": [1]}, "rules[0].args[0]: 1: Input should be a valid string"),
]


@pytest.mark.parametrize(("changes", "told"), BAD, ids=range(len(BAD)))
def test_a_bad_file_names_key_value_and_what_is_allowed(changes, told, read, custom):
    with pytest.raises(FileRefused) as caught:
        read({**custom(OK), **changes})
    assert told in str(caught.value)


@pytest.mark.parametrize(("changes", "told"), BAD_RULES, ids=range(len(BAD_RULES)))
def test_a_bad_rule_names_itself(changes, told, read, custom):
    with pytest.raises(FileRefused) as caught:
        read(custom({**OK, **changes}))
    assert told in str(caught.value)


def test_a_permanent_rule_knows_what_its_condition_is_while_all_is_well(read, custom):
    (rule,) = read(custom({**OK, **PERMANENT})).rules
    assert (rule.condition, rule.sound) == ("Broken", "it works")
    (rule,) = read(custom({**OK, "condition": "Ignored"})).rules
    assert rule.condition == ""


def test_a_real_file_with_any_value_in_it_is_read_or_refused(samples, bench):
    document = json.loads((samples / "npd/clock-plugin.json").read_text())
    bench.script("ok.sh", "exit 0")
    for rule in document["rules"]:
        rule["path"] = "./ok.sh"
    for changed in replaced(document):
        try:
            assert isinstance(read_custom(copy.deepcopy(changed), bench.folder), CustomMonitor)
        except FileRefused as error:
            assert str(error)  # noqa: PT017 - both outcomes are right


@settings(max_examples=100, deadline=None)
@given(document=any_json())
def test_any_json_is_read_or_refused(document, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp()
    for given_ in (document, {"plugin": "custom", "rules": document}, {"plugin": "custom", "rules": [document]}):
        with pytest.raises(FileRefused):
            read_custom(given_, folder)
