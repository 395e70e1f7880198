"""The spec of a dataflow job: read, checked, written, compared for an upgrade."""

import json

import pytest

from shoal.core.errors import InvalidError
from shoal.dataflow.fleet.spec import decode, encode, find_misfits, read_spec, with_width

HASH = "a" * 64


def plain(**changes):
    return {
        "name": "shop.totals",
        "plan": HASH,
        "bundle": HASH,
        "parallelism": 2,
        "checkpoint": {"directory": "/checkpoints", "interval": 0.5},
        "steps": {"sum-1": {"kind": "Aggregate", "text": "sum(amount)", "stateful": True, "fingerprint": "f1"}},
        **changes,
    }


def test_it_is_written_in_one_way():
    spec = read_spec(
        plain(settings={"key_groups": 64}, secrets={"KEY": "s3"}, constraints=[{"key": "a", "values": ["b"]}])
    )
    assert decode(encode(spec)) == spec
    assert encode(decode(encode(spec))) == encode(spec)
    assert b"width" not in encode(spec)  # as earlier versions wrote it
    settings = spec.flow_settings("/scratch")
    assert (settings.key_groups, settings.scratch, settings.checkpoint.interval) == (64, "/scratch", 0.5)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "a b"}, "name"),
        ({"plan": "xyz"}, "plan"),
        ({"bundle": None}, "bundle"),
        ({"format": 2}, "format"),
        ({"parallelism": 0}, "parallelism"),
        ({"parallelism": 129}, "parallelism"),
        ({"parallelism": 9, "settings": {"key_groups": 8}}, "parallelism"),
        ({"widths": {"sum-1": 0}}, "widths.sum-1"),
        ({"widths": {"sum-1": 9}, "settings": {"key_groups": 8}}, "widths.sum-1"),
        ({"settings": {"keygroups": 8}}, "settings.keygroups"),
        ({"settings": {"key_groups": "8"}}, "settings.key_groups"),
        ({"settings": {"scratch": "/x"}}, "settings.scratch"),
        ({"checkpoint": {"interval": 1.0}}, "checkpoint.directory"),
        ({"checkpoint": {"directory": "/x", "interval": -1}}, "checkpoint.interval"),
        ({"secrets": {"SHOAL_KEY": "x"}}, "secrets.SHOAL_KEY"),
        ({"env": {"A": "1"}, "secrets": {"A": "x"}}, "secrets.A"),
        ({"constraints": [{"key": "a"}]}, "constraints[0].values"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_every_problem_names_its_field(changes, field):
    with pytest.raises(InvalidError) as caught:
        read_spec(plain(**changes))
    assert field in {each.field for each in caught.value.problems}


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"1", b"{", b'{"plan": {}}', b"[" * 100_000])
def test_what_is_no_spec_is_refused(data):
    with pytest.raises(InvalidError):
        decode(data)


def test_a_width_has_bounds():
    spec = read_spec(plain(settings={"key_groups": 8}))
    assert with_width(spec, 8).parallelism == 8
    for width in (0, -1, 9, 1000):
        with pytest.raises(InvalidError, match="between 1 and 8"):
            with_width(spec, width)


def test_an_upgrade_that_does_not_fit_is_told_with_both_texts():
    before = read_spec(plain())
    assert find_misfits(before, before) == []
    changed = read_spec(
        plain(steps={"sum-1": {"kind": "Aggregate", "text": "max(price)", "stateful": True, "fingerprint": "f2"}})
    )
    (found,) = find_misfits(before, changed)
    assert "sum(amount)" in found.rule
    assert "max(price)" in str(found.value)
    (gone,) = find_misfits(before, read_spec(plain(steps={})))
    assert "sum(amount)" in gone.rule
    allowed = plain(steps={}, checkpoint={"directory": "/checkpoints", "allow_unknown_state": True})
    assert find_misfits(before, read_spec(allowed)) == []
    more = {"new-1": {"kind": "Distinct", "text": "distinct", "stateful": True}}
    (new,) = find_misfits(before, read_spec(plain(steps={**plain()["steps"], **more})))
    assert new.field == "steps.new-1"
    for elsewhere in (None, {"directory": "/elsewhere"}):
        (lost,) = find_misfits(before, read_spec(plain(checkpoint=elsewhere)))
        assert lost.field == "checkpoint.directory"
        assert "its state is there" in lost.rule
    other = json.loads(encode(before)) | {"name": "another", "settings": {"key_groups": 64}}
    assert {each.field for each in find_misfits(before, read_spec(other))} == {"name", "settings.key_groups"}
