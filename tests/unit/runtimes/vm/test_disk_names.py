"""Which disk of a guest is which, when its spec changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.workloads import FailureReason, VmDisk
from shoal.runtimes.base import RunError
from shoal.runtimes.vm.disk_names import KnownDisk, name_disks

ROOT = VmDisk(size_gb=10)
DATA = VmDisk(size_gb=5, mount_point="/data")
LOGS = VmDisk(size_gb=5, mount_point="/logs")
FAST = VmDisk(size_gb=5, pool_name="fast")
SMALL, LARGE = VmDisk(size_gb=1), VmDisk(size_gb=9)
CD = VmDisk(image="/a.iso", format="iso", read_only=True)
FILE = VmDisk(path="/srv/a.qcow2")
IMAGE = VmDisk(image="/other.qcow2")


class Guest:
    """One guest whose spec changes, as the disk store remembers it."""

    def __init__(self, *, has_root: bool = True) -> None:
        self.has_root = has_root
        self.known: dict[str, KnownDisk] = {}

    def apply(self, *disks: VmDisk) -> list[str]:
        named = name_disks(disks, sorted(self.known.values(), key=lambda each: each.name), has_root=self.has_root)
        names = [each.name for each in named]
        assert len(set(names)) == len(names)
        self.known = {name: replace(each, attached=False) for name, each in self.known.items()}
        self.known |= {each.name: each for each in named}
        return names


def test_disks_are_numbered_as_they_come() -> None:
    assert Guest().apply(ROOT, DATA, CD, FAST) == ["disk0", "disk1", "disk2", "disk3"]
    assert Guest().apply(replace(ROOT, name="system"), DATA, replace(FAST, name="scratch")) == [
        "system",
        "disk0",
        "scratch",
    ]


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ((ROOT, DATA, LOGS), (ROOT, LOGS, DATA), ["disk0", "disk2", "disk1"]),
        ((ROOT, DATA), (ROOT, LOGS, DATA), ["disk0", "disk2", "disk1"]),
        ((ROOT, DATA, LOGS), (ROOT, LOGS), ["disk0", "disk2"]),
        ((ROOT, DATA, FAST), (replace(ROOT, size_gb=20), FAST, replace(DATA, size_gb=50)), ["disk0", "disk2", "disk1"]),
        ((ROOT, CD, DATA), (ROOT, DATA, CD), ["disk0", "disk2", "disk1"]),
        ((ROOT, CD, DATA), (ROOT, replace(CD, image="/b.iso"), DATA), ["disk0", "disk3", "disk2"]),
        ((ROOT, FILE, DATA), (ROOT, DATA), ["disk0", "disk2"]),
        ((ROOT, SMALL, LARGE), (ROOT, SMALL), ["disk0", "disk1"]),
        ((ROOT, SMALL), (ROOT, SMALL, LARGE), ["disk0", "disk1", "disk2"]),
        ((ROOT, SMALL), (ROOT, LARGE), ["disk0", "disk1"]),
        ((ROOT, DATA), (ROOT, replace(LOGS, name="logs")), ["disk0", "logs"]),
        ((ROOT, DATA), (replace(ROOT, name="disk0"), replace(DATA, name="disk1")), ["disk0", "disk1"]),
        ((ROOT, replace(SMALL, name="a"), replace(LARGE, name="b")), (ROOT, replace(LARGE, name="b")), ["disk0", "b"]),
    ],
)
def test_a_disk_stays_the_same(before: tuple[VmDisk, ...], after: tuple[VmDisk, ...], names: list[str]) -> None:
    guest = Guest()
    first = guest.apply(*before)
    assert guest.apply(*after) == names
    assert guest.apply(*after) == names
    assert guest.apply(*before) == first


@pytest.mark.parametrize("newer", [replace(DATA, mount_point="/srv"), replace(LARGE), replace(IMAGE)])
def test_a_name_keeps_a_disk_whatever_else_changes(newer: VmDisk) -> None:
    guest = Guest()
    guest.apply(ROOT, DATA)
    assert guest.apply(ROOT, LOGS, replace(newer, name="disk1")) == ["disk0", "disk2", "disk1"]
    assert guest.apply(ROOT, replace(newer, name="disk1"), LOGS) == ["disk0", "disk1", "disk2"]


@pytest.mark.parametrize("newer", [LOGS, replace(DATA, name="data"), FAST, IMAGE])
def test_a_disk_that_was_removed_first_makes_room_for_another(newer: VmDisk) -> None:
    guest = Guest()
    guest.apply(ROOT, DATA)
    guest.apply(ROOT)
    (_, name) = guest.apply(ROOT, newer)
    assert name == (newer.name or "disk2")
    guest.apply(ROOT)
    assert guest.apply(ROOT, replace(DATA, name="disk1")) == ["disk0", "disk1"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((ROOT, SMALL), (ROOT, LARGE, SMALL)),
        ((ROOT, SMALL, LARGE), (ROOT, LARGE, SMALL)),
        ((ROOT, SMALL, LARGE), (ROOT, LARGE)),
        ((ROOT, SMALL, LARGE), (ROOT, SMALL, replace(LARGE, size_gb=20))),
        ((ROOT, SMALL, LARGE), (ROOT, replace(LARGE, name="large"), SMALL)),
        ((ROOT, DATA), (ROOT, replace(DATA, name="data"))),
        ((ROOT, replace(DATA, name="a")), (ROOT, DATA)),
        ((ROOT, DATA), (replace(ROOT, name="system"), DATA)),
        ((ROOT, DATA), (ROOT, replace(DATA, mount_point="/srv"))),
        ((ROOT, DATA), (ROOT, replace(DATA, pool_name="fast"))),
        ((ROOT, FAST), (ROOT, replace(FAST, pool_name=""))),
        ((ROOT, IMAGE), (ROOT, replace(IMAGE, image="/newer.qcow2"))),
        ((ROOT, replace(DATA, name="a")), (ROOT, replace(DATA, name="a", pool_name="fast"))),
        ((ROOT, replace(DATA, name="a")), (ROOT, replace(FILE, name="a"))),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_names(before: tuple[VmDisk, ...], after: tuple[VmDisk, ...]) -> None:
    guest = Guest()
    guest.apply(*before)
    with pytest.raises(RunError) as raised:
        guest.apply(*after)
    assert (raised.value.failure, raised.value.transient) == (FailureReason.INVALID_SPEC, False)
    assert "name" in raised.value.hint
    assert any(name in raised.value.message for name in ("disk0", "disk1", "disk2", "'a'", "a ("))


#: A person's disks, each of them another one: by name, by mount point, or one of several blank ones by its size.
PERSONS = {
    **{f"named {n}": VmDisk(name=f"n{n}", size_gb=n) for n in range(1, 4)},
    **{f"mounted {n}": VmDisk(mount_point=f"/m{n}", size_gb=n) for n in range(1, 4)},
    **{f"blank {n}": VmDisk(size_gb=n) for n in range(1, 4)},
    **{f"fast {n}": VmDisk(pool_name="fast", size_gb=n) for n in range(1, 3)},
    **{f"file {n}": VmDisk(path=f"/srv/{n}") for n in range(1, 3)},
}


@given(st.lists(st.lists(st.sampled_from(sorted(PERSONS)), unique=True, max_size=6), min_size=2, max_size=8))
def test_no_disk_ever_gets_the_data_of_another(specs: list[list[str]]) -> None:
    guest = Guest(has_root=False)
    owners: dict[str, str] = {}
    for spec in specs:
        try:
            names = guest.apply(*(PERSONS[each] for each in spec))
        except RunError:
            continue
        for person, name in zip(spec, names, strict=True):
            owner = owners.setdefault(name, person)
            # The only blank disk of a pool may grow; another size of it is the same disk.
            kind = person.split()[0]
            is_only_one = kind in ("blank", "fast") and [each.split()[0] for each in spec].count(kind) == 1
            assert owner == person or (is_only_one and owner.split()[0] == kind), (spec, owners)
            if is_only_one:
                owners[name] = person


@given(st.permutations(sorted(PERSONS)), st.permutations(sorted(PERSONS)))
def test_named_and_mounted_disks_may_be_in_any_order(first: list[str], second: list[str]) -> None:
    told = ("named", "mounted", "file")
    guest = Guest(has_root=False)
    orders = [[each for each in order if each.startswith(told)] for order in (first, second)]
    before = dict(zip(orders[0], guest.apply(*(PERSONS[each] for each in orders[0])), strict=True))
    after = dict(zip(orders[1], guest.apply(*(PERSONS[each] for each in orders[1])), strict=True))
    assert before == after
