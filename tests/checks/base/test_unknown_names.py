"""Messages for names that do not exist."""

from muster_checks.base.unknown_names import close_names, explain_unknown

NAMES = ["dmesg", "gpumem", "gpupower", "gputemp", "ping"]


def test_the_closest_names_come_first():
    assert close_names("gputmp", NAMES)[0] == "gputemp"
    assert close_names("DMSEG", NAMES) == ["dmesg"]
    assert close_names("zzz", NAMES) == []


def test_a_message_has_the_name_the_suggestion_and_where_names_are_listed():
    text = explain_unknown("check", "pingg", NAMES, "run the command")
    assert text.startswith('unknown check "pingg"')
    assert '"ping"' in text
    assert text.endswith("Run the command")
    assert "dmesg" not in text


def test_a_name_from_the_network_stays_short_and_on_one_line():
    text = explain_unknown("parameter", "a\n" * 10_000, NAMES)
    assert "\n" not in text
    assert len(text) < 250
