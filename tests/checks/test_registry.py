"""Which checks there are, and what becomes of a plug-in that is broken."""

from importlib.metadata import EntryPoint

import pytest

from muster_checks.base.declaration import Check, Cost, Parameters
from muster_checks.registry import GROUP, UnknownCheck, load_registry, select_checks


async def _probe(_node, _parameters):
    return []


def _check(name: str) -> Check:
    return Check(
        name=name,
        description="a stranger's",
        cost=Cost.LIGHT,
        parameters=Parameters,
        timeout_s=1.0,
        devices=("host",),
        probe=_probe,
    )


class FakeEntryPoint:
    """An entry point that loads ``target``, or raises it."""

    def __init__(self, name: str, target: object) -> None:
        self.name, self.value, self.group = name, f"stranger:{name}", GROUP
        self._target = target

    def load(self) -> object:
        if isinstance(self._target, Exception):
            raise self._target
        return self._target


def test_the_shipped_checks_are_there_and_named_by_their_key():
    checks = load_registry(plug_ins=[])
    assert "dmesg" in checks
    assert all(name == check.name for name, check in checks.items())


def test_a_plug_in_joins_the_shipped_checks():
    checks = load_registry(plug_ins=[FakeEntryPoint("extra", _check("extra"))])
    assert list(checks)[-1] == "extra"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (ImportError("No module named 'gone'"), "No module named 'gone'"),
        (SyntaxError("invalid syntax"), "invalid syntax"),
        ("not a check", "muster_checks.base.declaration.Check"),
        (_check("dmesg"), "'dmesg'"),
        (_check("all"), "not 'all'"),
        (_check("Bad Name"), "'Bad Name'"),
    ],
)
def test_a_broken_plug_in_names_itself_and_takes_no_other_check_with_it(target, said, caplog):
    broken: dict[str, str] = {}
    plug_ins = [FakeEntryPoint("bad", target), FakeEntryPoint("good", _check("good"))]
    checks = load_registry(plug_ins=plug_ins, broken=broken)
    assert {"dmesg", "good"} <= set(checks)
    assert said in broken["bad"]
    assert "bad (stranger:bad)" in caplog.text


def test_an_installed_entry_point_that_does_not_import_is_left_out():
    broken: dict[str, str] = {}
    load_registry(plug_ins=[EntryPoint("ghost", "muster_no_such_module:CHECK", GROUP)], broken=broken)
    assert "muster_no_such_module" in broken["ghost"]


def test_an_unknown_name_suggests_a_close_one_and_carries_those_that_exist():
    with pytest.raises(UnknownCheck) as refused:
        select_checks(["dmseg"], {"extra": _check("extra"), "dmesg": _check("dmesg")})
    assert refused.value.known == ["dmesg", "extra"]
    assert '"dmesg"' in str(refused.value)
    assert "extra" not in str(refused.value)


def test_all_means_all_and_each_comes_once():
    checks = {"one": _check("one"), "two": _check("two")}
    assert [check.name for check in select_checks(["two", "all", "two"], checks)] == ["two", "one"]
