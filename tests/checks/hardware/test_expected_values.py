"""Expected values: the shipped table, with an operator's own rows over it. What he did not mean is never judged by."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.bad_input import TEXTS

from muster_checks.base.execution import CannotTell
from muster_checks.hardware.expected_values import FILE_LIMIT_BYTES, ModelTable, load_table

SHIPPED = "ib/models.yaml"


class Row(msgspec.Struct, frozen=True):
    model: str
    rate: float | None = None
    lanes: int | None = None
    notes: list[str] = []


class Loose(msgspec.Struct, frozen=True):
    """Takes what it knows of any shipped table."""

    model: str
    source: str = ""
    rate_gb_per_s: float | None = None


def _own(folder: Path, text: str | bytes) -> Path:
    path = folder / "own.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_longest_pattern_that_fits_is_the_closest() -> None:
    table = ModelTable([Row("*", 1.0), Row("NVIDIA H100*", 3.0), Row("NVIDIA*", 2.0)])
    row = table.of("NVIDIA H100 80GB HBM3")
    assert row is not None
    assert row.rate == 3.0
    other = table.of("AMD MI300X")
    assert other is not None
    assert other.rate == 1.0


def test_case_does_not_matter() -> None:
    assert ModelTable([Row("nvidia h100*", 3.0)]).of("NVIDIA H100 PCIe") is not None


def test_a_model_nobody_knows_has_no_expectation() -> None:
    assert ModelTable([Row("H100*")]).of("T4") is None


def test_an_operators_row_wins_in_each_field_that_it_sets_and_only_there() -> None:
    table = ModelTable([Row("H100*", 400.0, 4, ["shipped"])], over=[Row("*", rate=200.0)])
    assert table.of("H100 SXM") == Row("*", 200.0, 4, ["shipped"])


def test_a_model_only_the_operator_knows_has_his_values() -> None:
    table = ModelTable([Row("H100*", 400.0)], over=[Row("B300*", 800.0)])
    assert table.of("B300") == Row("B300*", 800.0)


def test_the_shipped_rows_are_read_once_and_without_a_file_of_ones_own() -> None:
    assert load_table(Loose, SHIPPED).rows is load_table(Loose, SHIPPED).rows
    assert load_table(Loose, SHIPPED).over == ()


def test_a_file_of_ones_own_lies_over_the_shipped_rows(tmp_path: Path) -> None:
    table = load_table(Loose, SHIPPED, _own(tmp_path, "- {model: 'MT4129*', rate_gb_per_s: 200}\n"))
    row = table.of("MT4129/any")
    assert row is not None
    assert row.rate_gb_per_s == 200
    assert row.source  # still the shipped row's


def test_an_empty_file_of_ones_own_changes_nothing(tmp_path: Path) -> None:
    assert load_table(Loose, SHIPPED, _own(tmp_path, "# nothing yet\n")).over == ()


@pytest.mark.parametrize(
    "text",
    [
        "model: H100",
        "- H100",
        "- {rate_gb_per_s: 1}",
        "- {model: 5}",
        "- {model: H100, rate_gb_per_s: fast}",
        "- {model: H100, source: [a]}",
        "- {model: H100",
        "!!python/object/apply:os.system ['true']",
        "[" * 50_000,
        "- &a {model: x}\n- *b",
    ],
)
def test_a_file_that_cannot_be_meant_says_which_and_why(tmp_path: Path, text: str) -> None:
    own = _own(tmp_path, text)
    with pytest.raises(CannotTell) as raised:
        load_table(Loose, SHIPPED, own)
    assert raised.value.reason == "BadExpectations"
    assert str(own) in raised.value.message


def test_a_file_that_is_not_there_or_too_large_is_not_guessed_at(tmp_path: Path) -> None:
    with pytest.raises(CannotTell, match="No such file"):
        load_table(Loose, SHIPPED, tmp_path / "gone.yaml")
    with pytest.raises(CannotTell):
        load_table(Loose, SHIPPED, tmp_path)
    with pytest.raises(CannotTell, match=r"\b1 MiB\b"):
        load_table(Loose, SHIPPED, _own(tmp_path, "#" * (FILE_LIMIT_BYTES + 1)))


@pytest.mark.parametrize("text", TEXTS)
def test_rubbish_gives_no_rows_of_its_own(tmp_path: Path, text: bytes) -> None:
    with contextlib.suppress(CannotTell):
        assert load_table(Loose, SHIPPED, _own(tmp_path, text)).over == ()


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_pattern_and_any_name_can_be_compared(pattern: str, name: str) -> None:
    row = ModelTable([Row(pattern, 1.0)]).of(name)
    assert row is None or row.rate == 1.0
