"""The checker of histories: it keeps silent about a good one, and finds each thing that is wrong with a bad one."""

import dataclasses

import pytest

from shoal.testing.evidence import Answer, Ended, Evidence, Ran, Wrote, find_faults, possible_ends

END = 20.0


def wrote(name, revision, at, answer=Answer.ACKNOWLEDGED):
    return Wrote(name, revision, at, at + 0.1, answer)


def ran(name, node, generation, revision, *lived):
    began, last_seen = lived
    missed_at = None if last_seen == END else last_seen + 0.1
    return Ran(name, node, generation, revision, f"{node}/{name}/{began}", began, last_seen, missed_at)


GOOD = Evidence(
    writes=(
        wrote("web", "r1", 1.0),
        wrote("only", "r1", 1.0),
        wrote("old", "r1", 1.0),
        wrote("web", "r2", 5.0),
        wrote("web", "r3", 6.0, Answer.REFUSED),
        wrote("old", None, 8.0),
    ),
    runs=(
        ran("web", "n1", 1, "r1", 1.5, 5.2),
        ran("web", "n1", 2, "r2", 5.3, 20.0),
        ran("only", "n1", 1, "r1", 1.5, 7.0),
        ran("only", "n2", 2, "r1", 7.5, 20.0),
        ran("old", "n2", 1, "r1", 1.5, 8.1),
    ),
    only_once=frozenset({"only"}),
    ends={"web": Ended("Running", "r2", "n1"), "only": Ended("Running", "r1", "n2")},
    healed_at=10.0,
    converged_at=12.0,
)


def change(**changes):
    return dataclasses.replace(GOOD, **changes)


def test_a_good_history_has_no_faults():
    assert find_faults(GOOD, bound=5) == []


def with_run(index, **changes):
    runs = list(GOOD.runs)
    fields = {**{each: getattr(runs[index], each) for each in ("began", "last_seen")}, **changes}
    known = runs[index]
    runs[index] = ran(known.workload_id, known.node_id, known.generation, known.revision, *fields.values())
    return change(runs=tuple(runs))


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (
            change(ends={**GOOD.ends, "web": Ended("Running", "r1", "n1")}),
            ["web ended as r1, and was acknowledged as r2", "web is Running"],
        ),
        (
            change(ends={**GOOD.ends, "web": Ended("Running", "r3", "n1")}),
            ["web ended as r3, and was acknowledged as r2", "web is Running"],
        ),
        (
            change(ends={"only": GOOD.ends["only"]}),
            ["web ended as gone, and was acknowledged as r2", "web is gone"],
        ),
        (
            change(ends={**GOOD.ends, "old": Ended("Running", "r1", "n2")}),
            ["old ended as r1, and was acknowledged as gone", "old is Running"],
        ),
        (
            change(
                ends={**GOOD.ends, "ghost": Ended("Running", "r1", "n2")},
                runs=(*GOOD.runs, ran("ghost", "n2", 1, "r1", 2.0, 20.0)),
            ),
            ["ghost exists, and nobody requested it"],
        ),
        (
            change(runs=(*GOOD.runs, ran("web", "n2", 2, "r2", 5.5, 6.0))),
            ["generation 2 of web ran on n1 and on n2", "web on n2 (generation 2) ended, and nobody requested that"],
        ),
        (with_run(3, began=6.5), ["only is at-most-one work and ran on n1 (generation 1) and n2 (2) at the same time"]),
        (with_run(4, last_seen=7.5), ["old on n2 (generation 1) ended, and nobody requested that"]),
        (with_run(1, last_seen=15.0), ["web on n1 (generation 2) ended, and nobody requested that", "web is Running"]),
        (change(converged_at=None), ["it did not converge within 5 s"]),
        (change(converged_at=16.0), ["it converged only after 6.0 s, not within 5 s"]),
        (
            change(runs=(*GOOD.runs, ran("web", "n2", 3, "r2", 9.0, 20.0))),
            ["it was said to have converged, and web is Running"],
        ),
        (with_run(4, last_seen=20.0), ["it was said to have converged, and old is gone"]),
        (
            change(ends={**GOOD.ends, "web": Ended("Pending", "r2", "n1")}),
            ["it was said to have converged, and web is Pending"],
        ),
    ],
)
def test_what_is_wrong_is_found(evidence, words):
    faults = find_faults(evidence, bound=5)
    assert len(faults) == len(words), faults
    for fault, word in zip(faults, words, strict=True):
        assert word in fault


def test_what_may_end_is_not_missed():
    assert find_faults(dataclasses.replace(with_run(4, last_seen=7.5), may_end=frozenset({"old"})), bound=5) == []


def test_a_lost_answer_leaves_both_ends_open_until_the_next_acknowledgement():
    writes = [wrote("a", "r1", 1.0), wrote("a", None, 2.0, Answer.LOST), wrote("a", "r2", 3.0, Answer.REFUSED)]
    assert possible_ends(writes, "a") == {"r1", None}
    assert possible_ends([*writes, wrote("a", "r3", 4.0)], "a") == {"r3"}
    assert possible_ends(writes, "b") == {None}
