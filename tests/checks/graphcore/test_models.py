"""The table of expected values."""

import pytest

from muster_checks.base.execution import CannotTell
from muster_checks.graphcore.models import ipu_models


def test_every_shipped_row_has_a_source_and_no_limit_that_nobody_published():
    rows = ipu_models(None).rows
    assert {row.model for row in rows} == {"C2", "C600", "M2000"}
    for row in rows:
        assert "docs.graphcore.ai" in row.source
        assert row.min_ipu_traffic_gbit_per_s is None
        assert row.max_die_temp_c is None


def test_an_operators_file_adds_limits(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text('- {model: "M2*", max_die_temp_c: 80}\n- {model: "*", min_ipu_traffic_gbit_per_s: 200}\n')
    row = ipu_models(own).of("M2000")
    assert row is not None
    assert (row.link_width, row.max_die_temp_c, row.min_ipu_traffic_gbit_per_s) == (8, 80, None)
    other = ipu_models(own).of("Bow")
    assert other is not None
    assert other.min_ipu_traffic_gbit_per_s == 200


def test_a_file_that_cannot_be_used_is_said(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("- {model: [1]}\n")
    with pytest.raises(CannotTell, match=r"mine\.yaml"):
        ipu_models(own)
