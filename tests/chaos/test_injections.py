"""A schedule is made by its seed alone, ends in time, and repeats a kind of a lane only when all of them have been."""

import itertools
from collections import Counter

from tests.chaos.injections import ClusterFault, PartFault, schedule

PARTS, LINKS, DISKS = ("tainter-0", "agent-0", "vipu-sim"), ("tainter-0", "agent-0", "vipu", "proxy"), ("agent-0",)


def test_a_schedule_is_made_by_its_seed_and_ends_in_time() -> None:
    made = schedule(7, 600.0, PARTS, LINKS, DISKS)
    assert made == schedule(7, 600.0, PARTS, LINKS, DISKS)
    assert made != schedule(8, 600.0, PARTS, LINKS, DISKS)
    assert max(each.at_s + each.lasts_s for each in made) <= 600.0
    assert [each.at_s for each in made] == sorted(each.at_s for each in made)


def test_every_kind_comes_before_one_comes_again_and_faults_of_the_cluster_never_overlap() -> None:
    made = [each for each in schedule(7, 600.0, PARTS, LINKS, DISKS) if isinstance(each.kind, ClusterFault)]
    times = Counter(each.kind for each in made)
    assert times.keys() == set(ClusterFault)
    assert max(times.values()) - min(times.values()) <= 1
    for one, following in itertools.pairwise(made):
        assert one.at_s + one.lasts_s < following.at_s


def test_only_a_part_with_a_disk_has_its_disk_filled() -> None:
    made = schedule(7, 600.0, PARTS, LINKS, DISKS)
    full = {each.target for each in made if each.kind in (PartFault.DISK_FULL, PartFault.DISK_READ_ONLY)}
    assert full == set(DISKS)
