"""A job is judged in a child process, which is ended if it does not answer."""

from random import Random

import pytest
from tests.tainter.step_times.scraped_jobs import LABELS, answer_of, judge
from tests.tainter.step_times.test_job_verdict import slow_job

from muster_tainter.step_times import judge as judge_module
from muster_tainter.step_times.job_verdict import JobQuestion
from muster_tainter.step_times.judge import JudgeFailed, judge_apart


async def test_a_child_process_comes_to_the_same_verdict() -> None:
    answer = answer_of(slow_job(), Random(2))
    verdict = await judge_apart(JobQuestion(LABELS, "ml/train", 1, 30.0), answer.body())
    assert len(verdict.slow) == 1
    assert verdict.slow == judge(answer).slow
    assert verdict.cpu_s > 0


async def test_a_child_process_that_hangs_is_ended() -> None:
    with pytest.raises(JudgeFailed):
        await judge_apart(JobQuestion(LABELS, "ml/train", 1, 30.0), b"{}", timeout_s=0.0)


@pytest.mark.parametrize("program", ["muster_tainter.step_times.job_verdict", "muster_tainter.step_times.absent"])
async def test_a_child_process_without_a_verdict(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "PROGRAM", program)
    with pytest.raises(JudgeFailed):
        await judge_apart(JobQuestion(LABELS, "ml/train", 1, 30.0), b"{}")
