"""Keys of jobs follow from one key of the control plane: the same for every leader, another one for every term."""

from shoal.control.trust.job_keys import JobKeys

GIVEN = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


async def test_every_job_workload_and_generation_has_a_key_of_its_own(tmp_path):
    keys = JobKeys(key_file=tmp_path / "jobs.key", given_key="", shared=False)
    found = [
        await keys.key_of(*each)
        for each in (("a", "a-c", 1), ("a", "a-c", 2), ("a", "a-d", 1), ("b", "a-c", 1), ("a", "a-c1", 1))
    ]
    assert len(set(found)) == 5
    assert all(len(each) == 32 for each in found)


async def test_the_next_leader_gives_the_same(tmp_path):
    first, second = (JobKeys(key_file=tmp_path / "jobs.key", given_key="", shared=False) for _ in range(2))
    assert await first.key_of("a", "a-c", 1) == await second.key_of("a", "a-c", 1)
    assert (tmp_path / "jobs.key").stat().st_mode & 0o777 == 0o600


async def test_control_planes_that_share_a_store_need_the_same_key(tmp_path):
    given = [JobKeys(key_file=tmp_path / name, given_key=GIVEN, shared=True) for name in ("one", "two")]
    assert await given[0].key_of("a", "a-c", 1) == await given[1].key_of("a", "a-c", 1)
    assert await JobKeys(key_file=tmp_path / "x", given_key="", shared=True).key_of("a", "a-c", 1) == b""
    assert list(tmp_path.iterdir()) == []
