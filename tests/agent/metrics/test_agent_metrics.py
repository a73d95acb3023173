"""The agent's metrics: what each series says, how many there are at most, and that the page for users names all."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from muster_agent.idle.occupancy import AlwaysIdle
from muster_agent.metrics.agent_metrics import FAULTS_LIMIT, REASONS_LIMIT, AgentMetrics, CheckReading
from muster_agent.metrics.measurements import COMPONENT_LIMIT, FAMILIES, MEASURED_LIMIT, UNITS
from muster_checks.base.declaration import StepTotals
from muster_checks.base.vocabulary import FaultClass, Finding, Measurement, Verdict
from muster_tainter.policy.sections.sources import StepTimesSource

NOW = 1_800_000_000.0
PAGE = Path(__file__).parents[3] / "docs/metrics.md"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Readings:
    def __init__(self, *checks: CheckReading) -> None:
        self._checks = checks

    def checks(self) -> Sequence[CheckReading]:
        return self._checks

    def unpublished_s(self) -> float:
        return 0.0

    def accelerator(self) -> Mapping[str, str]:
        return {"cpumodel": "Some CPU", "gpumodel": "H100"}


def reading(name: str, verdict: Verdict = Verdict.PASS, *measured: Finding, **others: object) -> CheckReading:
    given = {"findings": (), "counts": {}, "number_given": 0, "measured": measured, **others}
    return CheckReading(name=name, verdict=verdict, **given)  # type: ignore[arg-type]


def finding(component: str, verdict: Verdict = Verdict.PASS, *measurements: Measurement, reason: str = "Ok") -> Finding:
    return Finding(component=component, verdict=verdict, reason=reason, message="", measurements=measurements)


def failing(component: str, reason: str, fault_class: FaultClass) -> Finding:
    return Finding(component=component, verdict=Verdict.FAIL, reason=reason, message="", fault_class=fault_class)


def scrape(*checks: CheckReading, busy: bool = False) -> Series:
    """What Prometheus would take: it refuses a scrape that has a series twice."""
    metrics = AgentMetrics("node-1", "1.0", wall=lambda: NOW)
    occupancy = AlwaysIdle(NOW)
    occupancy.idle_since = None if busy else NOW
    metrics.bind(Readings(*checks), occupancy)
    found: Series = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def of(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))


def named(series: Series, name: str) -> dict[str, float]:
    """The series of ``name``, by their labels' values in the order of the labels' names."""
    return {"|".join(v for _, v in sorted(labels)): n for (found, labels), n in series.items() if found == name}


def autopilot(series: Series, health: str) -> dict[str, float]:
    """By deviceid."""
    found = {}
    for (name, labels), value in series.items():
        if name == "autopilot_health_checks" and ("health", health) in labels:
            assert {("node", "node-1"), ("cpumodel", "Some CPU"), ("gpumodel", "H100")} < labels
            found[dict(labels)["deviceid"]] = value
    return found


@pytest.mark.parametrize(
    ("measurement", "family", "value"),
    [
        (Measurement("to_device", 25.5, "GB/s"), "_bytes_per_second", 25.5e9),
        (Measurement("rate", 100.0, "Gbit/s"), "_bytes_per_second", 12.5e9),
        (Measurement("temperature", 61.0, "°C"), "_celsius", 61.0),
        (Measurement("rtt", 0.5, "ms"), "_seconds", 0.0005),
        (Measurement("loss", 25.0, "%"), "_ratio", 0.25),
        (Measurement("free_space", 2.0, "GiB"), "_bytes", 2.0 * 2**30),
        (Measurement("replays", 6.0, "/min"), "_per_second", 0.1),
        (Measurement("gpus", 8.0, ""), "", 8.0),
        (Measurement("zombies", 3.0, "processes"), "", 3.0),
    ],
)
def test_a_measured_value_comes_in_the_base_unit_of_its_family(measurement: Measurement, family: str, value: float):
    series = scrape(reading("some", Verdict.PASS, finding("host", Verdict.PASS, measurement)))
    labels = {"check": "some", "component": "host", "measurement": measurement.name}
    assert of(series, f"muster_agent_measured{family}", **labels) == pytest.approx(value)


def test_a_unit_without_a_family_is_a_label():
    series = scrape(
        reading("ipmi", Verdict.PASS, finding("sensor/FAN1", Verdict.PASS, Measurement("FAN1", 9000, "RPM")))
    )
    assert named(series, "muster_agent_measured_other") == {"ipmi|sensor/FAN1|FAN1|RPM": 9000}


def test_every_unit_has_a_family():
    assert {suffix for suffix, _ in UNITS.values()} == FAMILIES.keys() - {"other"}


def test_a_value_that_is_no_number_makes_no_series():
    bad = finding("host", Verdict.PASS, Measurement("a", float("nan"), "s"), Measurement("b", float("inf"), "s"))
    assert not named(scrape(reading("some", Verdict.PASS, bad)), "muster_agent_measured_seconds")


def test_two_findings_on_one_component_with_the_same_figures_make_one_series():
    rows = Measurement("rows", 3)
    pending = finding("gpu/0000:3b:00.0", Verdict.FAIL, rows, reason="RowRemapPending")
    spare = finding("gpu/0000:3b:00.0", Verdict.WARN, rows, reason="NoSpareRows")
    series = scrape(reading("remapped", Verdict.FAIL, spare, pending))
    assert len(named(series, "muster_agent_measured")) == 1
    assert named(series, "muster_agent_component_verdict") == {"remapped|gpu/0000:3b:00.0|FAIL": 1.0}


def test_a_component_that_a_stream_has_found_has_its_verdict():
    found = finding("gpu/0000:3b:00.0", Verdict.FAIL, reason="Xid79")
    series = scrape(reading("dmesg", Verdict.FAIL, findings=(found,)))
    assert named(series, "muster_agent_component_verdict") == {"dmesg|gpu/0000:3b:00.0|FAIL": 1.0}


def test_each_fault_has_the_class_of_its_repair():
    found = [
        failing("gpu/0", "Xid79", FaultClass.REBOOT),
        failing("host", "Bad", FaultClass.NONE),
        finding("gpu/1", Verdict.WARN, reason="Warm"),
    ]
    series = scrape(reading("dmesg", Verdict.FAIL, findings=found))
    for component, reason, fault_class in (("gpu/0", "Xid79", "reboot"), ("host", "Bad", "none")):
        labels = {"check": "dmesg", "component": component, "reason": reason, "class": fault_class}
        assert of(series, "muster_agent_fault", **labels) == 1
    assert len(named(series, "muster_agent_fault")) == 2


def test_faults_that_ask_for_a_repair_have_room_before_others():
    many = [failing(f"gpu/{n}", "Bad", FaultClass.NONE) for n in range(2 * FAULTS_LIMIT)]
    last = failing("nic/9", "LinkDown", FaultClass.CONTACT)
    series = scrape(reading("nic", Verdict.FAIL, findings=[*many, last]))
    assert len(named(series, "muster_agent_fault")) == FAULTS_LIMIT
    labels = {"check": "nic", "component": "nic/9", "reason": "LinkDown", "class": "contact"}
    assert of(series, "muster_agent_fault", **labels) == 1


def test_the_worst_components_have_room_and_the_rest_is_counted():
    many = [finding(f"nic/{n}", Verdict.PASS, Measurement("mtu", n), Measurement("speed", n)) for n in range(2000)]
    bad = finding("nic/bad", Verdict.FAIL, Measurement("mtu", 1))
    series = scrape(reading("nic", Verdict.FAIL, *many, bad))
    assert of(series, "muster_agent_component_verdict", check="nic", component="nic/bad", verdict="FAIL") == 1
    assert of(series, "muster_agent_measured", check="nic", component="nic/bad", measurement="mtu") == 1
    assert len(named(series, "muster_agent_component_verdict")) == COMPONENT_LIMIT
    assert len(named(series, "muster_agent_measured")) == MEASURED_LIMIT
    assert named(series, "muster_agent_series_left_out") == {
        "muster_agent_component_verdict": 2001 - COMPONENT_LIMIT,
        "muster_agent_measured": 4001 - MEASURED_LIMIT,
    }


def test_the_whole_page_is_bounded_whatever_a_node_has_in_it():
    def each(check: int) -> CheckReading:
        found = [
            finding(f"gpu/0000:{n % 256:02x}:{n // 256:02x}.0", Verdict.FAIL, Measurement(f"m{n}", 1, f"unit{n}"))
            for n in range(2000)
        ]
        reasons = [finding("host", Verdict.FAIL, reason=f"Reason{n}") for n in range(1000)]
        name = ("pciebw", "remapped", "gpupower", "ping")[check] if check < 4 else f"plugin{check}"
        return reading(name, Verdict.FAIL, *found, findings=tuple(reasons), ran_at=NOW, period_s=60.0)

    checks = 30
    series = scrape(*(each(number) for number in range(checks)))
    most = COMPONENT_LIMIT + MEASURED_LIMIT + REASONS_LIMIT + (16 + 2) * checks + 256 + 50
    assert len(series) <= most


def test_labels_of_any_length_and_content_are_taken():
    figures = [Measurement("y" * 5000 + end, 1.0, "z" * 5000) for end in ("1", "2")]
    odd = [finding('disk/"\n\\' + "x" * 5000 + end, Verdict.WARN, *figures) for end in ("1", "2")]
    series = scrape(reading("disk", Verdict.WARN, *odd))
    (labels,) = [labels for name, labels in series if name == "muster_agent_measured_other"]
    assert max(len(value) for _, value in labels) == 128


@pytest.mark.parametrize("check", ["pciebw", "remapped", "ping", "link"])
def test_names_without_end_and_names_that_are_no_text_cost_no_scrape(check: str):
    odd = [
        finding(
            f"peer/\udcff{'x' * 5000}{end}", Verdict.FAIL, Measurement("to_device", 1.0, "GB/s"), reason="R\udcff" * 900
        )
        for end in "12"
    ]
    series = scrape(reading(check, Verdict.FAIL, *odd, findings=tuple(odd)))
    assert max(len(value) for _, labels in series for _, value in labels) == 128


def test_a_run_has_an_age_a_duration_and_a_period():
    done = reading("link", Verdict.PASS, ran_at=NOW - 90, duration_s=1.5, period_s=60.0)
    series = scrape(done)
    assert of(series, "muster_agent_check_age_seconds", check="link") == 90
    assert of(series, "muster_agent_check_duration_seconds", check="link") == 1.5
    assert of(series, "muster_agent_check_period_seconds", check="link") == 60


def test_a_clock_that_was_set_back_makes_no_age_below_zero():
    assert of(scrape(reading("link", ran_at=NOW + 5)), "muster_agent_check_age_seconds", check="link") == 0


def test_a_check_that_has_not_run_has_only_its_waiting_time():
    waiting = reading("dcgm", Verdict.UNKNOWN, known=False, period_s=3600.0, due_since=NOW - 7200)
    series = scrape(waiting)
    assert of(series, "muster_agent_check_due_seconds", check="dcgm") == 7200
    assert of(series, "muster_agent_check_runs_total", check="dcgm") == 0
    assert not named(series, "muster_agent_check_verdict")
    assert not named(series, "muster_agent_check_age_seconds")
    assert not autopilot(series, "dcgm")


def test_what_became_of_runs_is_counted():
    tallies = Counter({"run": 7, "timeout": 1, "overrun": 2, "refused": 3, "gave_way": 4})
    series = scrape(reading("dcgm", tallies=tallies))
    found = {n: of(series, f"muster_agent_check_{n}_total", check="dcgm") for n in ("runs", "timeouts", "overruns")}
    assert found == {"runs": 7, "timeouts": 1, "overruns": 2}
    assert of(series, "muster_agent_check_refused_total", check="dcgm") == 3
    assert of(series, "muster_agent_check_gave_way_total", check="dcgm") == 4


@pytest.mark.parametrize("busy", [False, True])
def test_idleness_is_a_metric(busy: bool):
    assert of(scrape(busy=busy), "muster_agent_idle") == (0 if busy else 1)


def test_the_time_from_a_sign_to_its_finding_is_a_histogram():
    metrics = AgentMetrics("node-1", "1.0")
    metrics.record_detection("dmesg", 0.004)
    metrics.record_detection("dmesg", -3.0)
    text = generate_latest(metrics.registry).decode()
    assert 'muster_agent_detect_seconds_bucket{check="dmesg",le="0.001"} 1.0' in text
    assert 'muster_agent_detect_seconds_bucket{check="dmesg",le="0.005"} 2.0' in text
    assert 'muster_agent_detect_seconds_sum{check="dmesg"} 0.004' in text


# --- Autopilot's gauge


def test_autopilots_bandwidth_is_in_gb_per_s_by_the_gpus_number():
    def gpu(address: str, to: float) -> Finding:
        return finding(
            f"gpu/{address}", Verdict.PASS, Measurement("to_device", to, "GB/s"), Measurement("from_device", 1)
        )

    series = scrape(reading("pciebw", Verdict.PASS, gpu("0000:86:00.0", 25.1), gpu("0000:3b:00.0", 24.9)))
    assert autopilot(series, "pciebw") == {"0": 24.9, "1": 25.1}


def test_a_gpu_that_one_check_could_not_see_keeps_its_number():
    temperatures = [finding(f"gpu/0000:{n}:00.0") for n in ("3b", "86", "af")]
    rows = [finding("gpu/0000:86:00.0", Verdict.FAIL), finding("gpu/0000:af:00.0")]
    series = scrape(reading("gputemp", Verdict.PASS, *temperatures), reading("remapped", Verdict.FAIL, *rows))
    assert autopilot(series, "remapped") == {"1": 1, "2": 0}


def test_gpupower_has_autopilots_name():
    held = finding("gpu/0000:3b:00.0", Verdict.FAIL, reason="HwSlowdown")
    series = scrape(reading("gpupower", Verdict.FAIL, held))
    assert autopilot(series, "power-slowdown") == {"0": 1}
    assert not autopilot(series, "gpupower")


def test_each_peer_of_ping_has_a_series():
    silent = finding("peer/node-7", Verdict.WARN, reason="NoAnswer")
    slow = finding("peer/node-8", Verdict.WARN, reason="Poor")
    series = scrape(reading("ping", Verdict.WARN, finding("host"), silent, slow, finding("peer/node-9")))
    assert autopilot(series, "ping") == {"node-7": 1, "node-8": 0, "node-9": 0}


def test_a_node_that_reaches_nobody_is_bad_itself():
    alone = finding("host", Verdict.FAIL, reason="PeersSilent")
    assert autopilot(scrape(reading("ping", Verdict.FAIL, alone)), "ping") == {"": 1}


@pytest.mark.parametrize(("verdict", "value"), [(Verdict.PASS, 0), (Verdict.WARN, 0), (Verdict.FAIL, 1)])
def test_other_checks_are_good_or_bad(verdict: Verdict, value: float):
    assert autopilot(scrape(reading("dcgm", verdict)), "dcgm") == {"": value}


@pytest.mark.parametrize("verdict", [Verdict.UNKNOWN, Verdict.SKIP])
def test_what_is_not_known_has_no_series(verdict: Verdict):
    gpu = finding("gpu/0000:3b:00.0", verdict, Measurement("to_device", 3.0, "GB/s"), reason="InUse")
    checks = [reading(name, verdict, gpu) for name in ("pciebw", "remapped", "gpupower", "dcgm", "ping")]
    assert not named(scrape(*checks), "autopilot_health_checks")


def test_iperf_has_no_series():
    assert not named(scrape(reading("iperf", Verdict.FAIL, finding("host", Verdict.FAIL))), "autopilot_health_checks")


def test_step_times_have_the_labels_that_the_tainter_reads():
    where = StepTimesSource(url="http://p")
    total = StepTotals("ml", "train-0", "train", 7, "3", 12, 6.5, "1", work=4096.0)
    series = scrape(reading("containerlog", step_times=(total,)))
    labels = {where.namespace_label: "ml", where.pod_label: "train-0", where.rank_label: "7", where.gpu_label: "3"}
    labels |= {where.stage_label: "1", "job_name": "train"}
    assert "job_name" in where.job_labels
    assert of(series, f"{where.metric}_count", **labels) == 12
    assert of(series, f"{where.metric}_sum", **labels) == 6.5
    assert of(series, where.work_metric, **labels) == 4096


def test_a_rank_whose_program_does_not_say_how_much_work_it_had_has_no_series_of_work():
    total = StepTotals("ml", "train-0", "train", 7, "3", 12, 6.5, "1")
    assert not named(scrape(reading("containerlog", step_times=(total,))), "muster_step_work_total")


# --- the page


def page() -> str:
    """What it says of the agent; the tainter's metrics follow."""
    return PAGE.read_text().partition("\n# The tainter's\n")[0]


def test_the_page_for_users_names_exactly_the_families_that_exist_and_their_types():
    metrics = AgentMetrics("node-1", "1.0")
    metrics.bind(Readings(reading("dmesg", counts={"read": 1})), AlwaysIdle())
    written = re.findall(r"^\| `([a-z_]+)` \| (\w+) \|([\w, ]*)\|", page(), re.MULTILINE)
    exist = set()
    for family in metrics.registry.collect():
        exist.add((family.name + ("_total" if family.type == "counter" else ""), family.type))
    assert {(name, kind) for name, kind, _ in written} == exist


def test_the_page_names_the_labels_of_each_family():
    metrics = AgentMetrics("node-1", "1.0")
    units = [Measurement(f"m{n}", 1.0, unit) for n, unit in enumerate([*UNITS, "RPM"])]
    found = finding("gpu/0000:3b:00.0", Verdict.FAIL, *units)
    steps = (StepTotals("ml", "train-0", "train", 0, "3", 12, 6.0, work=1.0),)
    full = reading(
        "dcgm", Verdict.FAIL, found, findings=(found,), counts={"read": 1}, ran_at=1.0, period_s=60.0, step_times=steps
    )
    metrics.bind(Readings(full), AlwaysIdle())
    metrics.record_detection("dmesg", 0.1)
    metrics.record_publish_failure("Conflict")
    metrics.record_stream_failure("dmesg")
    documented = dict(re.findall(r"^\| `([a-z_]+)` \| \w+ \|([\w, ]*)\|", page(), re.MULTILINE))
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == {label.strip() for label in documented[name].split(",") if label.strip()}, name


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (COMPONENT_LIMIT, "verdicts of components | {}"),
        (MEASURED_LIMIT, "measurements | {}"),
        (REASONS_LIMIT, "by reason | {}"),
        (FAULTS_LIMIT, "faults | {}"),
    ],
)
def test_the_page_names_the_bounds(limit: int, words: str):
    assert words.format(f"{limit:,}") in page()
