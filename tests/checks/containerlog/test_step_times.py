"""Step times that programs print, and what a tenant may do with them."""

import random

import pytest

from muster_checks.base.declaration import StepTotals
from muster_checks.containerlog.step_line import (
    MalformedStep,
    StepLine,
    job_of_pod,
    parse_step,
)
from muster_checks.containerlog.step_times import RANKS_LIMIT, RANKS_OF_POD, StepTimes

POD = "ml/train-3-x7k2p"


def line(step: int | str, seconds: float | str = 0.5, rank: int | str = 0, **more: str) -> str:
    labels = {"rank": rank, "step": step, "seconds": seconds, **more}
    return "muster_step{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def totals(times: StepTimes) -> dict[tuple[str, str, int], tuple[int, float]]:
    return {(each.pod, each.job, each.rank): (each.steps, round(each.seconds, 6)) for each in times.totals()}


def test_labels_may_come_in_any_order() -> None:
    text = 'muster_step{seconds="0.41", gpu="3", step="12", stage="1", job="llm.7b", rank="7"} and more'
    assert parse_step(text) == StepLine(7, 12, 0.41, "llm.7b", "3", "1")


@pytest.mark.parametrize(
    "text",
    [
        "muster_step{",
        "muster_step{}",
        'muster_step{rank="1",step="2"}',
        'muster_step{rank="1",rank="1",step="2",seconds="1"}',
        'muster_step{rank="1" step="2" seconds="1"}',
        'muster_step{rank="1",step="2",seconds="1" x}',
        line(2, "nan"),
        line(2, "inf"),
        line(2, "-1"),
        line(2, "0"),
        line(2, "1e10"),
        line(2, "half"),
        line(-1),
        line(1.5),
        line(1 << 53),
        line("9" * 400),
        line("٣"),
        line(2, rank=1 << 20),
        line(2, rank="a"),
        line(2, job="a/b"),
        line(2, job="-a"),
        line(2, job="a" * 300),
        line(2, gpu="g" * 64),
        line(2, gpu="\x1b[2J"),
        line(2, stage="s" * 64),
        line(2, seconds="1" * 2000),
        line(2, work="0"),
        line(2, work="-1"),
        line(2, work="nan"),
        line(2, work="1e19"),
        line(2, work="many"),
    ],
)
def test_a_line_that_breaks_a_limit_is_malformed(text: str) -> None:
    with pytest.raises(MalformedStep):
        parse_step(text)
    times = StepTimes()
    times.take(POD, text)
    assert (times.malformed, times.totals()) == (1, ())


@pytest.mark.parametrize(
    ("pod", "job"),
    [("train-3-x7k2p", "train"), ("train-3", "train"), ("train-x7k2p", "train"), ("train", "train"), ("7", "7")],
)
def test_a_pods_name_tells_the_job_if_the_line_does_not(pod: str, job: str) -> None:
    assert job_of_pod(pod) == job


def test_steps_and_seconds_are_counted() -> None:
    times = StepTimes()
    for step in range(10, 14):
        times.take(POD, f"[rank0] {line(step, 0.25, gpu='0', stage='2')}")
    [total] = times.totals()
    assert total == StepTotals("ml", "train-3-x7k2p", "train", 0, "0", 14, 1.0, "2")


def test_a_line_for_each_tenth_step_counts_all_ten() -> None:
    times = StepTimes()
    for step in (9, 19, 29):
        times.take(POD, line(step, 0.5))
    assert totals(times)["train-3-x7k2p", "train", 0] == (30, 0.5 + 20 * 0.5)


def work_of(*lines: str) -> float | None:
    times = StepTimes()
    for each in lines:
        times.take(POD, each)
    [total] = times.totals()
    return total.work


def test_work_is_summed_for_the_same_steps_as_seconds() -> None:
    assert work_of(line(9, work="100"), line(19, work="30.5"), line(20, work="200")) == 100 + 10 * 30.5 + 200
    assert work_of(line(9, work="100"), line(9, work="900"), line(8, work="900")) == 100


def test_work_that_some_lines_do_not_give_is_unknown_until_the_program_begins_again() -> None:
    assert work_of(line(9), line(10, work="5")) is None
    assert work_of(line(9, work="5"), line(10), line(11, work="5")) is None
    assert work_of(line(9, work="5"), line(10), line(3, work="7"), line(4, work="7")) == 14


def test_a_step_that_comes_late_or_twice_changes_nothing() -> None:
    times = StepTimes()
    for step in (1, 2, 4, 3, 5, 5, 6):
        times.take(POD, line(step, 1.0))
    assert totals(times)["train-3-x7k2p", "train", 0] == (7, 6.0)


def test_a_program_that_begins_again_at_its_checkpoint_counts_from_there() -> None:
    times = StepTimes()
    for step in (98, 99, 100, 90, 91):
        times.take(POD, line(step, 1.0))
    assert totals(times)["train-3-x7k2p", "train", 0] == (92, 2.0)


def test_no_order_of_lines_makes_a_rank_faster_or_slower_than_its_lines() -> None:
    """Between two readings, seconds for a step stay within those of the lines, unless the counter began anew."""
    rng = random.Random(22)
    for _ in range(300):
        times, before = StepTimes(), None
        for _ in range(60):
            times.take(POD, line(rng.randrange(40), rng.choice((0.5, 1.0, 2.0))))
            steps, seconds = totals(times)["train-3-x7k2p", "train", 0]
            if before is not None and steps > before[0] and seconds >= before[1]:
                assert 0.5 <= (seconds - before[1]) / (steps - before[0]) <= 2.0
            before = steps, seconds


def test_a_pod_and_a_node_have_so_many_ranks_at_most() -> None:
    times = StepTimes()
    for rank in range(100):
        times.take(POD, line(1, rank=rank))
    assert len(times.totals()) == RANKS_OF_POD
    for pod in range(100):
        for rank in range(16):
            times.take(f"ml/other-{pod}", line(1, rank=rank))
    assert len(times.totals()) == RANKS_LIMIT
    assert times.left_out == 100 + 1600 - RANKS_LIMIT
    times.keep({POD})
    assert len(times.totals()) == RANKS_OF_POD


def test_a_pattern_of_ones_own_reads_another_format() -> None:
    times = StepTimes(
        r"iteration +(?P<step>\d+)/ *\d+ .*time per iteration \(s\): (?P<seconds>[\d.]+) .*rank (?P<rank>\d+)"
    )
    text = " iteration      120/   1000 | time per iteration (s): 0.75 | rank 5"
    assert times.may_match(text.encode())
    assert not times.may_match(b"iteration began")
    times.take(POD, text)
    times.take(POD, "iteration began")
    assert totals(times) == {("train-3-x7k2p", "train", 5): (121, 0.75)}
    assert times.malformed == 0


def test_a_pattern_of_ones_own_may_read_the_work_and_a_line_without_it_has_none() -> None:
    times = StepTimes(r"step (?P<step>\d+) took (?P<seconds>[\d.]+) s on (?P<rank>\d+)(?: for (?P<work>\d+) tokens)?")
    times.take(POD, "step 7 took 0.5 s on 0 for 4096 tokens")
    times.take(POD, "step 7 took 0.5 s on 1")
    assert [total.work for total in times.totals()] == [4096, None]
