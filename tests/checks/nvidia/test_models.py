"""The table of expected values."""

from pathlib import Path

import pytest

from muster_checks.base.execution import CannotTell
from muster_checks.nvidia.models import gpu_models


@pytest.mark.parametrize(
    ("name", "pattern", "links"),
    [
        ("NVIDIA H100 80GB HBM3", "*H100 80GB HBM3*", 18),
        ("NVIDIA H100 PCIe", "*H100 PCIe*", None),
        ("NVIDIA H100 NVL", "*H100 NVL*", None),
        ("NVIDIA H200", "*H200", 18),
        ("NVIDIA H200 NVL", "*H200 NVL*", None),
        ("NVIDIA GH200 480GB", "*GH200*", None),
        ("NVIDIA B200", "*B200", 18),
        ("NVIDIA GB200", "*GB200*", 18),
        ("NVIDIA A100-SXM4-80GB", "*A100-SXM4-80GB*", 12),
        ("A100-SXM4-40GB", "*A100-SXM4-40GB*", 12),
        ("NVIDIA A100 80GB PCIe", "*A100 80GB PCIe*", None),
        ("Tesla V100-SXM2-16GB", "*V100-SXM2-16GB*", 6),
        ("Tesla T4", "*T4", 0),
        ("NVIDIA L4", "*L4", 0),
        ("NVIDIA L40", "*L40", 0),
        ("NVIDIA L40S", "*L40S", 0),
        ("NVIDIA A10", "*A10", 0),
        ("NVIDIA RTX 6000 Ada Generation", "*RTX 6000 Ada Generation*", 0),
    ],
)
def test_the_names_that_drivers_give_find_their_row(name: str, pattern: str, links: int | None) -> None:
    model = gpu_models().of(name)
    assert model is not None
    assert (model.model, model.nvlinks) == (pattern, links)


def test_an_unknown_name_finds_none() -> None:
    assert gpu_models().of("NVIDIA X900") is None


def test_every_row_has_its_source_and_sane_values() -> None:
    for row in gpu_models().rows:
        assert row.source, row.model
        assert bool(row.h2d_gb_per_s) == bool(row.measured), row.model
        assert row.h2d_gb_per_s == row.d2h_gb_per_s, row.model
        assert 300 <= (row.memory_gb_per_s or 0) <= 8000, row.model
        if row.h2d_gb_per_s and row.pcie_generation and row.pcie_width:
            # lanes x 8 Gbit/s of generation 3, doubled by each later one
            assert row.h2d_gb_per_s < row.pcie_width * 2 ** (row.pcie_generation - 3), row.model


def test_an_operators_file_goes_over_the_shipped_rows(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("- {model: '*H100*', h2d_gb_per_s: 40, source: measured here}\n")
    model = gpu_models(own).of("NVIDIA H100 80GB HBM3")
    assert model is not None
    assert (model.h2d_gb_per_s, model.nvlinks) == (40, 18)


def test_a_wrong_column_in_an_operators_file_is_named(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("- {model: '*H100*', h2d: 40}\n")
    with pytest.raises(CannotTell, match="h2d"):
        gpu_models(own)
