from __future__ import annotations

import pytest

from shoal.serving.filters import accepts, parse_filter, parse_filters


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("entry", ["entry"], ["entry_1", "an_entry", "ps_0"]),
        ("entry; True", ["entry"], ["ps_0"]),
        ("entry;False", [], ["entry"]),
        ("ps_{i}; True", ["ps_0", "ps_12"], ["ps_", "ps_1_extra", "entry", "ps_x"]),
        ("ps_{i}; i % 2 == 1", ["ps_1", "ps_3"], ["ps_0", "ps_2"]),
        ("ps_{i};i%2==1", ["ps_1"], ["ps_2"]),
        ("ps_{i}; i % ${shard_num} == ${shard_id}", ["ps_2", "ps_5"], ["ps_0", "ps_1", "ps_3"]),
        (r"ps_(?P<i>\d+); i < 2", ["ps_1"], ["ps_2"]),
        ("dense_.*", ["dense_0", "dense_item"], ["dense"]),
        ("t{a}_{b}; a < b and b != 9", ["t1_2"], ["t2_1", "t1_9"]),
        ("ps_٣|ps_{i}", ["ps_3"], ["ps_٤"]),
    ],
)
def test_a_filter(text, yes, no):
    each = parse_filter(text, shard_id=2, shard_num=3)
    assert [name for name in (*yes, *no) if each.accepts(name)] == yes


def test_filters_are_alternatives_and_none_of_them_is_all():
    filters = parse_filters(["entry", "ps_{i}; i == 1"], shard_id=0, shard_num=1)
    assert [name for name in ("entry", "ps_0", "ps_1", "dense_0") if accepts(filters, name)] == ["entry", "ps_1"]
    assert accepts((), "anything")


def test_the_shard_is_at_least_zero_and_there_is_at_least_one():
    assert parse_filter("ps_{i}; i % ${shard_num} == ${shard_id}", shard_id=-1, shard_num=0).accepts("ps_7")


def test_a_condition_without_a_value_names_the_filter_and_does_not_hide_another():
    filters = parse_filters(["ps_{i}; 6 // i > 1", "ps_0"], shard_id=0, shard_num=1)
    assert accepts(filters, "ps_0")
    with pytest.raises(ValueError, match=r"ps_\{i\}; 6 // i > 1.*divide by zero"):
        accepts(filters[:1], "ps_0")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("; True", "name of a sub graph"),
        ("entry; 1 / 0", "never has a value.*must not divide by zero"),
        ("ps_{i}; i % 0 == 1", "never has a value"),
        ("ps_{i}; j == 1", "condition on j"),
        ("ps_{i}; open('x')", "may have numbers"),
        ("ps_(; True", "regular expression"),
        ("t{a}_{a}", "regular expression"),
        ("a" * 600, "at most"),
    ],
)
def test_a_bad_filter(text, rule):
    with pytest.raises(ValueError, match=rule):
        parse_filter(text)


def test_peers_see_a_plain_regular_expression():
    assert parse_filter("ps_{i}; i % 2 == 0").normal == r"ps_(?P<i>\d+);i % 2 == 0"
