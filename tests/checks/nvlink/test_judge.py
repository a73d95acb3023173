"""What the states, speeds and counters of NVLinks come to."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.checks.nvidia.samples_of import of, series
from tests.wording.facts import missing_facts

from muster_checks.base.counter_history import CounterSeries
from muster_checks.base.execution import NotHere
from muster_checks.base.vocabulary import FaultClass, Verdict
from muster_checks.nvidia.gpu import Gpu, NvLink
from muster_checks.nvidia.models import gpu_models
from muster_checks.nvlink import NvlinkParameters
from muster_checks.nvlink.judge import counters, judge

LIMITS = NvlinkParameters()
MODELS = gpu_models()
H100, A100_CARD, T4, V100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe", "Tesla T4", "Tesla V100-SXM2-16GB"
PASS, WARN, FAIL, UNKNOWN = Verdict.PASS, Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN
GPU0 = "gpu/0000:00:00.0"


def gpu(place: int, name: str = H100, down: Sequence[int] = (), links: int = 18, **every: Any) -> Gpu:
    values: dict[str, Any] = {"speed_mb_per_s": 26562.0, **every}
    return Gpu(
        index=place,
        address=f"0000:{place:02x}:00.0",
        name=name,
        nvlinks=tuple(
            NvLink(link=link, active=False) if link in down else NvLink(link=link, active=True, **values)
            for link in range(links)
        ),
    )


def judged(*gpus: Gpu, counted: dict[str, CounterSeries] | None = None) -> list[tuple[str, Verdict, str]]:
    findings = judge(of(*gpus), counted or {}, MODELS, LIMITS)
    return [(finding.component, finding.verdict, finding.reason) for finding in findings]


def first(*gpus: Gpu, counted: dict[str, CounterSeries] | None = None) -> tuple[Verdict, str]:
    return judged(*gpus, counted=counted)[0][1:]


def rising(counter: str, *points: tuple[float, float], link: int = 2) -> dict[str, CounterSeries]:
    return series(**{f"{GPU0} {link} {counter}": points})


def test_a_board_with_all_its_links_up_passes() -> None:
    assert judged(gpu(0), gpu(1)) == [(GPU0, PASS, "Ok"), ("gpu/0000:01:00.0", PASS, "Ok")]


def test_a_link_that_is_down_on_a_board_that_uses_all_fails() -> None:
    (down, sound) = judge(of(gpu(0, down=[3, 7]), gpu(1)), {}, MODELS, LIMITS)
    assert (down.verdict, down.reason, down.fault_class) == (FAIL, "LinkInactive", FaultClass.RESET)
    assert missing_facts(down.message, "3, 7", "18") == []
    assert sound.verdict is PASS


def test_a_gpu_with_all_links_down_beside_linked_ones_fails() -> None:
    assert first(gpu(0, down=range(18)), gpu(1)) == (FAIL, "LinkInactive")


def test_no_link_up_on_any_gpu_warns() -> None:
    assert first(gpu(0, down=range(18)), gpu(1, down=range(18))) == (WARN, "NoLinkUp")


def test_a_board_that_links_all_its_gpus_warns_even_alone_on_its_node() -> None:
    assert judged(gpu(0, down=range(18))) == [(GPU0, WARN, "NoLinkUp")]
    assert judged(gpu(0, V100, down=[0], links=1)) == [(GPU0, WARN, "NoLinkUp")]


def test_a_card_alone_on_its_node_has_nobody_to_link_with() -> None:
    with pytest.raises(NotHere):
        judged(gpu(0, A100_CARD, down=range(12), links=12))


def test_a_gpu_alone_whose_links_are_up_is_judged() -> None:
    assert first(gpu(0)) == (PASS, "Ok")
    assert first(gpu(0, down=[5], remote="switch")) == (FAIL, "LinkInactive")


def test_links_that_all_equals_miss_may_lead_out_of_this_virtual_machine() -> None:
    half = [gpu(place, V100, down=[4, 5], links=6, remote="gpu") for place in range(4)]
    assert {found[1:] for found in judged(*half)} == {(WARN, "LinksLeadElsewhere")}
    assert first(*half[:3], gpu(3, V100, links=6, remote="gpu")) == (FAIL, "LinkInactive")


def test_links_that_all_equals_miss_are_a_fault_where_they_lead_to_switches() -> None:
    assert first(gpu(0, down=[4], remote="switch"), gpu(1, down=[4], remote="switch")) == (FAIL, "LinkInactive")


def test_links_of_a_gpu_in_mig_mode_may_be_down() -> None:
    before = series(**{f"{GPU0} up": [(0, 0b111111), (60, 0)]})
    cut = msgspec.structs.replace(gpu(0, V100, down=range(6), links=6), mig=True)
    assert judged(cut, gpu(1, V100, links=6), counted=before) == [("gpu/0000:01:00.0", PASS, "Ok")]


def test_a_neighbour_of_a_gpu_in_mig_mode_may_miss_links_unless_they_lead_to_switches() -> None:
    cut = msgspec.structs.replace(gpu(1, V100, down=range(6), links=6), mig=True)
    assert first(gpu(0, V100, down=[1], links=6, remote="gpu"), cut) == (PASS, "Ok")
    assert first(gpu(0, V100, down=[1], links=6, remote="switch"), cut) == (FAIL, "LinkInactive")


def test_a_link_that_was_up_and_is_down_fails_on_any_card() -> None:
    before = series(**{f"{GPU0} up": [(0, 0b1111), (60, 0b0111)]})
    assert first(gpu(0, A100_CARD, down=[3], links=4), counted=before) == (FAIL, "LinkDown")


def test_links_without_a_bridge_that_were_never_up_are_no_fault() -> None:
    with pytest.raises(NotHere):
        judged(gpu(0, A100_CARD, down=range(12), links=12), gpu(1, A100_CARD, down=range(12), links=12))


def test_fewer_links_than_its_equals_warn_where_bridges_are_an_option() -> None:
    assert first(gpu(0, A100_CARD, down=range(8), links=12), gpu(1, A100_CARD, links=12)) == (
        WARN,
        "FewerLinksThanEquals",
    )


def test_an_unknown_model_is_compared_with_its_equals_alone() -> None:
    assert first(gpu(0, "NVIDIA X900", down=[0]), gpu(1, "NVIDIA X900")) == (WARN, "FewerLinksThanEquals")
    assert first(gpu(0, "NVIDIA X900", down=[0]), gpu(1)) == (PASS, "Ok")


def test_a_gpu_without_a_name_is_judged_by_what_it_has() -> None:
    assert first(msgspec.structs.replace(gpu(0), name=None), gpu(1)) == (PASS, "Ok")


def test_gpus_without_nvlinks_are_skipped() -> None:
    with pytest.raises(NotHere, match="NVLink"):
        judged(gpu(0, T4, links=0), Gpu(index=1, name=T4))


def test_a_link_that_cannot_be_read_is_unknown() -> None:
    sick = msgspec.structs.replace(gpu(0), errors={"nvlink.4": "Unknown Error"})
    assert judged(sick, gpu(1))[0] == (GPU0, UNKNOWN, "NotReadable")


@pytest.mark.parametrize(
    ("speed", "expected"), [(26562.0, (PASS, "Ok")), (22500.0, (PASS, "Ok")), (13281.0, (WARN, "LinkSlow"))]
)
def test_speeds_are_held_against_the_models(speed: float, expected: tuple[Verdict, str]) -> None:
    assert first(gpu(0, speed_mb_per_s=speed), gpu(1)) == expected


def test_one_slow_link_is_found_among_the_others_of_an_unknown_model() -> None:
    mixed = gpu(0, "NVIDIA X900")
    assert mixed.nvlinks is not None
    slow = msgspec.structs.replace(mixed.nvlinks[4], speed_mb_per_s=13281.0)
    mixed = msgspec.structs.replace(mixed, nvlinks=(*mixed.nvlinks[:4], slow, *mixed.nvlinks[5:]))
    (finding,) = judge(of(mixed), {}, MODELS, LIMITS)
    assert (finding.verdict, finding.reason) == (WARN, "LinkSlow")
    assert "link 4 slower" in finding.message


@pytest.mark.parametrize(
    ("counter", "points", "expected"),
    [
        ("crc", [(0, 0), (60, 5_999)], (PASS, "Ok")),
        ("crc", [(0, 0), (60, 6_000)], (FAIL, "LinkCrc")),
        ("crc", [(0, 900_000_000), (60, 900_000_000)], (PASS, "Ok")),
        ("replay", [(0, 0), (3600, 60)], (PASS, "Ok")),
        ("replay", [(0, 0), (3600, 61)], (WARN, "LinkReplays")),
        ("recovery", [(0, 5), (60, 5)], (PASS, "Ok")),
        ("recovery", [(0, 5), (60, 6)], (WARN, "LinkRecovery")),
        ("recovery", [(0, 5), (60, 8)], (FAIL, "LinkRecovery")),
        ("recovery", [(0, 0), (60, 3), (90_000, 3)], (PASS, "Ok")),
        ("recovery_failed", [(0, 0), (60, 1)], (FAIL, "LinkRecoveryFailed")),
    ],
)
def test_counters_are_judged_by_their_rise(
    counter: str, points: Sequence[tuple[float, float]], expected: tuple[Verdict, str]
) -> None:
    assert first(gpu(0), gpu(1), counted=rising(counter, *points)) == expected


def test_the_link_whose_errors_rise_is_named() -> None:
    counted = rising("crc", (0, 0), (10, 5000)) | rising("crc", (0, 0), (10, 2000), link=11)
    finding = judge(of(gpu(0), gpu(1)), counted, MODELS, LIMITS)[0]
    assert missing_facts(finding.message, "2, 11", "500", "CRC") == []


def test_many_links_are_named_in_short() -> None:
    finding = judge(of(gpu(0, down=range(9)), gpu(1)), {}, MODELS, LIMITS)[0]
    assert "links 0, 1, 2, 3, 4, 5 and 3 more" in finding.message
    assert len(finding.message.encode()) <= 256


@pytest.mark.parametrize(
    ("rate", "expected"), [(1.5e-254, (PASS, "Ok")), (1e-12, (PASS, "Ok")), (2e-12, (WARN, "LinkBitErrors"))]
)
def test_bit_error_rates_of_nvlink_5(rate: float, expected: tuple[Verdict, str]) -> None:
    assert first(gpu(0, "NVIDIA GB200", speed_mb_per_s=53125.0, effective_ber=rate), gpu(1)) == expected


def test_only_what_is_there_is_counted() -> None:
    reading = of(gpu(0, links=2, crc=7), msgspec.structs.replace(gpu(1), lost="GPU is lost"), Gpu(index=2))
    assert counters(reading) == {f"{GPU0} up": 3.0, f"{GPU0} 0 crc": 7.0, f"{GPU0} 1 crc": 7.0}
