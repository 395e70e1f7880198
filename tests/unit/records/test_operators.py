"""Operators on whole columns, against the same rules written out row by row."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core import files
from shoal.core.errors import InvalidError
from shoal.records import fids
from shoal.records.operators.base import INVALID_LABEL, AnyOf, Compose
from shoal.records.operators.filters import Comparison, FilterByFids, FilterByLabel, FilterByValue
from shoal.records.operators.labels import (
    AddAction,
    AddLabel,
    LabelUpperBound,
    MultiLabel,
    NormalizeLabel,
    ScatterLabel,
    TaskLabel,
    UseFieldAsLabel,
    parse_tasks,
)
from shoal.records.operators.sampling import (
    ActionWeight,
    CombineFeatures,
    NegativeSample,
    Reweight,
    SpecialStrategy,
    Strategy,
    SwitchSlot,
)
from shoal.wire.pb.idl.matrix.proto.example_pb2 import FilterValues

RNG = np.random.default_rng(0)
KINDS = {
    "label": pa.list_(pa.float32()), "actions": pa.list_(pa.int32()), "pre_actions": pa.list_(pa.int32()),
    "special_strategies": pa.list_(pa.int32()), "chnid": pa.int64(), "req_time": pa.int64(), "cid": pa.string(),
    "sample_rate": pa.float32(), "a": pa.list_(pa.int64()), "b": pa.list_(pa.int64()), "n": pa.int64(),
}  # fmt: skip


def batch(**columns):
    count = max((len(each) for each in columns.values()), default=0)
    full = {"label": [[1.0]] * count, **columns}
    return pa.RecordBatch.from_arrays(
        [pa.array(each, KINDS[name]) for name, each in full.items()], names=list(full)
    )  # fmt: skip


def run(operator, rows, rng=None):
    found = operator.apply(rows, rng or np.random.default_rng(0))
    found.validate(full=True)
    return found


def column(operator, rows, name, rng=None):
    return run(operator, rows, rng).column(name).to_pylist()


lists = st.lists(st.integers(1, 5), max_size=3)


@settings(max_examples=100)
@given(st.lists(st.tuples(lists, lists), min_size=1, max_size=5), st.tuples(*[st.sets(st.integers(1, 5))] * 3))
def test_filter_by_fids(rows, sets):
    dropped, wanted, needed = sets
    made = batch(a=[left for left, _ in rows], b=[right for _, right in rows], n=list(range(len(rows))))
    operator = FilterByFids(("a", "b"), tuple(dropped), tuple(wanted), tuple(needed))
    expected = []
    for index, (left, right) in enumerate(rows):
        found = {*left, *right}
        if not (found & dropped) and (not wanted or found & wanted) and needed <= found:
            expected.append(index)
    assert column(operator, made, "n") == expected


def test_filter_by_slots_actions_and_time():
    made = batch(
        a=[[int(fids.fid_v2(3, 1))], [int(fids.fid_v2(4, 1))], []], actions=[[1], [1, 2], [3]], req_time=[5, 10, 15]
    )
    assert FilterByFids(("a",), select_slots=(4,)).keeps(made, RNG).tolist() == [False, True, False]
    assert FilterByFids(("a",), has_actions=(2, 3)).keeps(made, RNG).tolist() == [False, True, True]
    assert FilterByFids(("a",), req_time_min=10).keeps(made, RNG).tolist() == [False, True, True]
    with pytest.raises(InvalidError, match="must be a column"):
        run(FilterByFids(("x",), filter_fids=(1,)), made)


@pytest.mark.parametrize(("op", "operands", "expected"), [
    ("gt", (2,), [False, False, True]), ("ge", (2,), [False, True, True]), ("eq", (2,), [False, True, False]),
    ("lt", (2,), [True, False, False]), ("le", (2,), [True, True, False]), ("neq", (2,), [True, False, True]),
    ("between", (1, 3), [True, True, False]), ("in", (1, 3), [True, False, True]),
    ("not-in", (1, 3), [False, True, False]),
])  # fmt: skip
def test_filter_by_value(op, operands, expected):
    made = batch(n=[1, 2, 3], a=[[1, 9], [2], [3]])
    assert FilterByValue("n", Comparison(op), operands).keeps(made, RNG).tolist() == expected
    assert FilterByValue("a", Comparison(op), operands).keeps(made, RNG).tolist() == expected, "the first of a list"


@pytest.mark.parametrize(("op", "expected"), [
    ("any", [True, True, False, False]), ("all", [False, True, False, False]), ("diff", [False, True, True, False]),
])  # fmt: skip
@pytest.mark.parametrize("keep_empty", [False, True])
def test_filter_by_sets(op, expected, keep_empty):
    made = batch(a=[[1], [1, 2, 3], [3], []])
    found = FilterByValue("a", Comparison(op), (1, 2), keep_empty).keeps(made, RNG).tolist()
    assert found == [*expected[:3], keep_empty]


def test_filter_by_text_and_from_a_file(tmp_path):
    made = batch(cid=["ab", "ba", "c"], n=[1, 2, 3])
    assert FilterByValue("cid", Comparison.STARTS_WITH, ("a", "c")).keeps(made, RNG).tolist() == [True, False, True]
    assert FilterByValue("cid", Comparison.ENDS_WITH, ("a",)).keeps(made, RNG).tolist() == [False, True, False]
    path = str(tmp_path / "f")
    message = FilterValues()
    message.int64_list.value.extend([1, 3])
    files.write_atomic(path, message.SerializeToString())
    assert FilterByValue.from_file("n", Comparison.NOT_IN, path).keeps(made, RNG).tolist() == [False, True, False]
    files.write_atomic(path, b"")
    for make in (
        lambda: FilterByValue.from_file("n", Comparison.IN, path),
        lambda: FilterByValue.from_file("n", Comparison.GT, path),
        lambda: FilterByValue("n", Comparison.BETWEEN, (1,)),
        lambda: FilterByValue("n", Comparison.GT, (1, 2)),
        lambda: run(FilterByValue("n", Comparison.GT, ("x",)), made),
        lambda: run(FilterByValue("n", Comparison.ANY, (1,)), made),
    ):
        with pytest.raises(InvalidError):
            make()


def test_filter_by_label():
    made = batch(label=[[-1000, -1], [-1000, 0], [-1, -1], [5], []])
    assert FilterByLabel((-100.0, 0.0)).keeps(made, RNG).tolist() == [False, True, True, False, False]
    assert FilterByLabel((-1.0,), filter_equal=True).keeps(made, RNG).tolist() == [False, False, False, True, False]
    kept = AnyOf((FilterByLabel((5.0,)), FilterByLabel((-100.0, 0.0)))).apply(made, RNG)
    assert kept.column("label").to_pylist() == [[-1000, 0], [-1, -1], [5]]


# ---------------------------------------------------------------------------------------------------------
# Labels


def test_tasks_are_read():
    assert parse_tasks("1,2:3:1.0;4::0.5;") == (TaskLabel((1, 2), (3,), 1.0), TaskLabel((4,), (), 0.5))
    for wrong in ("", "1:2", "x::1", ":3:1", "1:1:1", "1::2", "1::x"):
        with pytest.raises(InvalidError):
            parse_tasks(wrong)


@given(st.lists(st.tuples(st.lists(st.sampled_from([0.0, 1.0, -1.0]), max_size=2), lists), min_size=1, max_size=5))
def test_add_label(rows):
    made = batch(label=[label for label, _ in rows], actions=[actions for _, actions in rows])
    expected = []
    for label, actions in rows:
        before = [INVALID_LABEL if index == 0 and each <= 0 else each for index, each in enumerate(label)]
        first = 1.0 if {1, 2} & set(actions) else -1.0 if 3 in actions else INVALID_LABEL
        second = 1.0 if 4 in actions else -1.0
        expected.append([*before, first, second])
    assert column(AddLabel(parse_tasks("1,2:3:1.0;4::1.0"), negative_value=-1.0), made, "label") == expected


def test_negatives_of_a_task_are_sampled():
    made = batch(label=[[]] * 10_000, actions=[[3]] * 10_000, sample_rate=[1.0] * 10_000)
    found = run(AddLabel(parse_tasks("1::0.25"), new_sample_rate=0.25), made)
    share = sum(label == [0.0] for label in found.column("label").to_pylist()) / 10_000
    assert 0.2 < share < 0.3
    assert set(found.column("sample_rate").to_pylist()) == {0.25}


def test_actions_are_added():
    made = batch(actions=[[1], [], [2]], n=[5, 6, 7])
    assert column(AddAction(FilterByValue("n", Comparison.GE, (6,)), 9), made, "actions") == [[1], [9], [2, 9]]


def test_labels_are_scattered():
    made = batch(label=[[1.0], [2.0], [3.0], []], chnid=[100, 200, 7, 100])
    bad = INVALID_LABEL
    assert column(ScatterLabel({100: 2, 200: 0}), made, "label") == [
        [bad, bad, 1.0], [2.0, bad, bad], [bad, bad, bad], [bad, bad, bad],
    ]  # fmt: skip


def test_labels_of_heads():
    made = batch(actions=[[3, 1], [2], [], [9]], cid=["x", "y", "x", "y"])
    operator = MultiLabel({"x": 0, "y": 1}, "cid", pos_actions=(1,), neg_actions=(2,), action_priority=(1, 3))
    bad = INVALID_LABEL
    assert column(operator, made, "label") == [[1.0, bad], [bad, 0.0], [bad, bad], [bad, bad]]
    origin = MultiLabel({"x": 0}, "cid", tasks=2)
    assert column(origin, made, "label") == [[1.0, bad], [bad, bad], [1.0, bad], [bad, bad]]


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 3.0, INVALID_LABEL]), max_size=3), st.integers(-2, 4))
    ),
    st.none() | st.integers(-2, 5),
)
def test_a_field_as_label(rows, threshold):
    made = batch(label=[labels for labels, _ in rows], chnid=[number for _, number in rows])
    expected = []
    for labels, number in rows:
        field = 0 if threshold is not None and number >= threshold else number
        expected.append([max(label, float(field)) for label in labels])
    assert column(UseFieldAsLabel("chnid", threshold), made, "label") == expected
    assert column(UseFieldAsLabel("chnid", threshold), made.slice(1), "label") == expected[1:]


@pytest.mark.parametrize("name", ["cid", "actions", "none"])
def test_only_a_number_is_a_label(name):
    with pytest.raises(InvalidError, match="column"):
        run(UseFieldAsLabel(name), batch(cid=["x"], actions=[[1]]))


def test_labels_are_cut_and_normalized():
    made = batch(label=[[5.0, 5.0, 5.0], [1.0], []])
    assert column(LabelUpperBound((2.0, 7.0)), made, "label") == [[2.0, 5.0, 5.0], [1.0], []]
    for methods, expected in (
        ((("log", 1.0),), math.log(6)), ((("scale", 2.0),), 2.5), ((("scale2int", 2.0),), 2.0),
        ((("pow", 2.0),), 36.0), ((("repow", 2.0),), 25.0), ((("scalelog", 5.0),), math.log(2)),
        ((("scale", 5.0), ("scale", 2.0)), 0.5),
    ):  # fmt: skip
        assert column(NormalizeLabel(methods), made, "label")[0][0] == pytest.approx(expected, rel=1e-6)
    assert column(NormalizeLabel((("repow", 2.0),)), batch(label=[[-1.0]]), "label") == [[0.0]]
    with pytest.raises(InvalidError, match="must be one of"):
        NormalizeLabel((("nothing", 1.0),))


# ---------------------------------------------------------------------------------------------------------
# Sampling and weights


def test_negatives_are_left_out():
    made = batch(label=[[-1.0]] * 10_000 + [[1.0]] * 100 + [[]], actions=[[1, 2]] * 10_101)
    for operator, share in (
        (NegativeSample(0.75), 0.25),
        (NegativeSample(0.75, action_priority=(2, 1), drop_rate_of_action={2: 0.5}), 0.5),
        (NegativeSample(0.75, action_priority=(1, 2), drop_rate_of_action={2: 0.5}), 0.25),
        (NegativeSample(0.0), 1.0),
        (NegativeSample(1.0), 0.0),
    ):
        kept = run(operator, made).num_rows
        assert share * 10_000 - 300 < kept - 101 < share * 10_000 + 300
        assert run(operator, made).num_rows == kept, "the same seed gives the same rows"
    with pytest.raises(InvalidError, match="drop_rate"):
        NegativeSample(1.5)


def test_special_strategies():
    made = batch(special_strategies=[[1], [2, 1], [], [9]], label=[[5.0], [], [5.0], [5.0]])
    operator = SpecialStrategy({1: Strategy(label=-1.0), 2: Strategy(0.0)})
    assert column(operator, made, "label") == [[-1.0], [], [5.0]], "the first that is named counts"
    operator = SpecialStrategy({2: Strategy(0.0), 1: Strategy(label=-1.0)}, keep_empty=False)
    assert column(operator, made, "label") == [[-1.0]]


def reweighted(label, before, now, actions, priority, *, additive):
    """The rules for one row."""

    def important(given):
        known = [each for each in priority if each in given]
        return (priority.index(known[0]), known[0]) if known else (100 if given else 200, None)

    def count(given):
        result, chosen = (1 if given else 0), important(given)[1]
        for each in given:
            if each in priority and each != chosen:
                continue
            if each in actions:
                result = result + actions[each].weight if additive else result * actions[each].weight
        return result

    rank_before, action_before = important(before)
    rank, action = important(now)
    if not label:
        return []
    if rank_before > rank:
        if action in actions:
            label = [actions[action].label, *label[1:]]
        if action_before in actions:
            early = actions[action_before].label
            if early != label[0]:
                return [label] * (count(before) + count(now))
            if count(before) > count(now):
                return [[-label[0], *label[1:]]] * (count(before) - count(now))
            return [label] * (count(now) - count(before))
        return [label] * count(now)
    return [label] if not before and not now else []


@settings(max_examples=200)
@given(st.lists(st.tuples(st.lists(st.sampled_from([1.0, -1.0]), max_size=2), lists, lists), min_size=1, max_size=4),
       st.booleans())  # fmt: skip
def test_rows_are_repeated_by_their_actions(rows, additive):
    made = batch(label=[row[0] for row in rows], pre_actions=[row[1] for row in rows], actions=[row[2] for row in rows])
    actions = {1: ActionWeight(2, 1.0), 2: ActionWeight(3, -1.0), 4: ActionWeight(1, 1.0)}
    priority = (1, 2, 3)
    expected = [
        label for label, before, now in rows
        for label in reweighted(label, before, now, actions, priority, additive=additive)
    ]  # fmt: skip
    assert column(Reweight(actions, priority, additive), made, "label") == expected


def test_slots_and_pairs():
    left, right = int(fids.fid_v2(1, 7)), int(fids.fid_v2(2, 9))
    made = batch(a=[[left, left + 1], [], [left]], b=[[right, right + 1], [right], [right]])
    assert column(SwitchSlot("a", 5), made, "a") == [
        [int(fids.fid_v2(5, 7)), int(fids.fid_v2(5, 8))], [], [int(fids.fid_v2(5, 7))]
    ]  # fmt: skip
    assert run(SwitchSlot("a", 5, to="c"), made).schema.names == ["label", "a", "b", "c"]
    pairs = [(left, right), (left, right + 1), (left + 1, right), (left + 1, right + 1)]
    expected = [int(fids.combine_fids(*pair, 6)) for pair in pairs]
    assert column(CombineFeatures("a", "b", 6, "c"), made, "c") == [expected, [], expected[:1]]


def test_operators_are_composed_and_take_slices():
    made = batch(n=[1, 2, 3, 4], actions=[[1], [], [2], [1, 2]]).slice(1)
    operator = Compose((
        AddAction(FilterByValue("n", Comparison.GT, (2,)), 9), FilterByValue("actions", Comparison.ANY, (9,)),
    ))  # fmt: skip
    assert column(operator, made, "actions") == [[2, 9], [1, 2, 9]]
    assert run(operator, made.slice(0, 0)).num_rows == 0


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FilterByFids(("a",), filter_fids=(1 << 63,)), "filter_fids"),
        (lambda: FilterByFids(("a",), select_slots=(fids.V2_SLOTS,)), "select_slots"),
        (lambda: FilterByFids(("a",), has_actions=(1 << 31,)), "has_actions"),
        (lambda: AddAction(FilterByValue("n", Comparison.GT, (2,)), 1 << 31), "action"),
        (lambda: AddLabel(()), "tasks"),
        (lambda: AddLabel((TaskLabel((1, 1 << 40)),)), r"tasks\[0\]"),
        (lambda: AddLabel((TaskLabel((1,), sample_rate=2.0),)), r"tasks\[0\]"),
        (lambda: ScatterLabel({}), "places"),
        (lambda: ScatterLabel({3: -1}), "places"),
        (lambda: ScatterLabel({3: 1 << 40}), "places"),
        (lambda: MultiLabel({"a": 0.5}), "heads"),
        (lambda: MultiLabel({3: 0}, tasks=1 << 40), "tasks"),
        (lambda: MultiLabel({3: 0}, action_priority=(-1 << 40,)), "action_priority"),
        (lambda: NegativeSample(0.5, label_index=-1), "label_index"),
        (lambda: NegativeSample(0.5, drop_rate_of_action={1: math.nan}), "drop_rate"),
        (lambda: SpecialStrategy({1 << 31: Strategy()}), "strategies"),
        (lambda: SpecialStrategy({1: Strategy(sample_rate=1.5)}), "sample_rate"),
        (lambda: Reweight({1: ActionWeight(-1, 1.0)}, (1,)), "weight"),
        (lambda: Reweight({1 << 31: ActionWeight(1, 1.0)}, ()), "actions"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(make, field):
    with pytest.raises(InvalidError, match=rf"^{field}: (must|the rate must)"):
        make()


@pytest.mark.parametrize("key", [1 << 63, "a", 1.5])
def test_a_key_that_a_column_cannot_have_is_refused(key):
    with pytest.raises(InvalidError, match="chnid: must be a value of a column of int64"):
        run(ScatterLabel({key: 0}), batch(chnid=[3]))


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [(Comparison.GT, (1,), [3]), (Comparison.ANY, (4, 9), [1, 3]), (Comparison.ALL, (3, 4), [3]),
     (Comparison.DIFF, (1, 4), [3]), (Comparison.IN, (1,), [1])],
)  # fmt: skip
def test_lists_of_one_length_are_filtered_by_their_values(op, operands, expected):
    kind = pa.list_(pa.int64(), 2)
    made = pa.record_batch({"n": [0, 1, 3], "a": pa.array([[0, 0], [1, 4], [3, 4]], kind)}).slice(1)
    assert column(FilterByValue("a", op, operands), made, "n") == expected


@pytest.mark.parametrize("operand", [1 << 70, 1.5, "a"])
@pytest.mark.parametrize("op", [Comparison.IN, Comparison.NOT_IN])
def test_an_operand_that_a_column_cannot_have_is_refused(op, operand):
    with pytest.raises(InvalidError, match="operands of n"):
        run(FilterByValue("n", op, (operand,)), batch(n=[1]))


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [(Comparison.EQ, (1.5,), []), (Comparison.NEQ, (1.5,), [0, 1, 2]), (Comparison.LT, (1.5,), [0, 1]),
     (Comparison.GE, (1.5,), [2]), (Comparison.EQ, (1.0,), [1]), (Comparison.BETWEEN, (0.5, 1.5), [1]),
     (Comparison.GT, (math.nan,), [])],
)  # fmt: skip
def test_whole_numbers_are_compared_with_fractions(op, operands, expected):
    assert column(FilterByValue("n", op, operands), batch(n=[0, 1, 2]), "n") == expected


@pytest.mark.parametrize("additive", [True, False])
def test_rows_do_not_become_more_than_a_batch_may_have(additive):
    operator = Reweight({1: ActionWeight(1 << 20, 1.0)}, (2,), additive)
    made = batch(pre_actions=[[]], actions=[[2, *[1] * 40]], label=[[1.0]])
    with pytest.raises(InvalidError, match="must make at most 16777216 rows of a batch"):
        run(operator, made)


def test_pairs_of_a_batch_are_bounded():
    many = list(range(12_000))
    with pytest.raises(InvalidError, match="c: must have at most 134217728 pairs in a batch, and has 144000000"):
        run(CombineFeatures("a", "b", 6, "c"), batch(a=[many], b=[many]))
