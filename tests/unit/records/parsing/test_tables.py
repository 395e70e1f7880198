from __future__ import annotations

import functools
import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core import files
from shoal.core.errors import CorruptError, InvalidError
from shoal.records import fids
from shoal.records.bad_records import BadRecords, OnBad
from shoal.records.parsing import tables
from shoal.records.parsing.compiled_csv import CompiledCsv
from shoal.records.parsing.schema import RowSchema, floats, ids, ints, texts
from shoal.records.parsing.screening import Screen
from shoal.records.parsing.tables import CsvFormat, read_csv, read_parquet

SCHEMA = RowSchema((ids("mov"), ints("uid", size=1), floats("vec", size=2), texts("t", size=1)), weight=False).arrow
TEXT = "other,mov,uid,label,vec,t\nx,1|2,7,1.0,0.5|1.5,a\nx,,8,,1|2,\n"
ROWS = [
    {"label": [1.0], "mov": [1, 2], "uid": 7, "vec": [0.5, 1.5], "t": b"a"},
    {"label": [], "mov": [], "uid": 8, "vec": [1.0, 2.0], "t": b""},
]


def rows(batches):
    return [row for batch in batches for row in batch.to_pylist()]


def test_csv(tmp_path):
    for name, content in (("f.csv", TEXT.encode()), ("f.csv.gz", gzip.compress(TEXT.encode()))):
        path = str(tmp_path / name)
        files.write_atomic(path, content)
        assert rows(read_csv(path, SCHEMA)) == ROWS
        assert rows(read_csv([path, path], SCHEMA)) == ROWS * 2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("cell", [
    "", "1", "-1|2", "9223372036854775807", "-9223372036854775808", "0x1f", "1|", "|1", "-", "1||2", "x", "1.5", " 1",
    "99999999999999999999", "+1", "--1", "1-", "|",
])  # fmt: skip
def test_cells_of_whole_numbers(tmp_path, monkeypatch, cell, compiled):
    """With and without kernels, a cell is what Arrow says."""
    path = str(tmp_path / "f")
    files.write_atomic(path, f"a,b\n5|6,1\n{cell},2\n,3\n".encode())
    schema = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.int64())])
    monkeypatch.setattr(tables, "has_numba", lambda: compiled)
    found = rows(read_csv(path, schema, bad=BadRecords(OnBad.SKIP)))
    try:
        expected = [{"a": pa.array(cell.split("|") if cell else []).cast(pa.int64()).to_pylist(), "b": 2}]
    except pa.ArrowInvalid:
        expected = []
    assert found == [{"a": [5, 6], "b": 1}, *expected, {"a": [], "b": 3}]


NUMBERS = [
    "", "0", "-0", "1", "-1", "007", "16777217", "16777219", "9007199254740993", "18446744073709551615", "0.1", "-0.0",
    "0.30000000000000004", "0.00012207031250000001", "1e5", "1E-05", "1e+3", "1e-40", "1e39", "1e400", "3.4028235e38",
    "1.17549435e-38", "1.00000005960464477", "1.00000005960464477539", "nan", "inf", "-inf", "1.", ".5", "1e", "e1",
    "1e5.0", "+1", " 1", "1 ", "12345678", "123456789", "1234567.8", "1.2345678", "1234567890123456789012", "0x10",
    "1|2", "1|2|3", "|", "1|", "|1", '"1"', '"1|2"', '""', '"', '"1', '1"', '"a""b"', "a", "a|b", "é", "a b", "\x00",
    '"a,b"', "1\r", "2147483648", "-2147483649", "4294967296", "9223372036854775808", "-9223372036854775808", "12:30",
    "true",
]  # fmt: skip
TYPES = [
    kind
    for each in (pa.int64(), pa.int32(), pa.uint64(), pa.uint32(), pa.float32(), pa.string(), pa.binary())
    for kind in (each, pa.list_(each), pa.list_(each, 2))
] + [pa.float64(), pa.bool_(), pa.list_(pa.float64())]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_kernels_read_what_arrow_reads(kind):
    """Every kind of column with every kind of cell, in the first column and in the last, beside one that is skipped."""
    schema = pa.schema([("a", kind), ("n", pa.int64())])
    good = {"a": "1|2" if hasattr(kind, "value_type") else "1", "skipped": "", "n": "5"}
    for names in (["a", "skipped", "n"], ["n", "skipped", "a"]):
        read = tables._reader(names, schema, CsvFormat())
        for number, cell in enumerate(NUMBERS):
            line = {"a": cell, "skipped": cell if number % 2 else "x", "n": str(number)}
            first, second = (",".join(each[name] for name in names) for each in (line, good))
            block = f"{first}\r\n\n\r\n{second}\n{first}".encode()
            by_arrow = functools.partial(tables._read_block, names=names, schema=schema, form=CsvFormat())
            assert _found(read, block) == _found(by_arrow, block), cell


def _found(read, block):
    try:
        batch = read(block)
    except (pa.ArrowException, ValueError):
        return None
    batch.validate(full=True)
    # By text: a NaN is not equal to itself, and a zero is equal to its negative.
    return str(batch.schema), str(batch.to_pylist())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False) | st.floats(allow_nan=False) | st.integers(-(1 << 70), 1 << 70)))
def test_floats_are_rounded_as_arrow_rounds_them(values):
    schema = pa.schema([("a", pa.float32())])
    found = CompiledCsv(["a"], schema, ",|", tables._split).read("".join(f"{each}\n" for each in values).encode())
    if found is not None:
        expected = pa.array([str(each) for each in values], pa.string()).cast(pa.float32())
        assert found.column(0).to_numpy().view("i4").tolist() == expected.to_numpy().view("i4").tolist()


def test_plain_cells_are_read_by_kernels():
    """Arrow reads what the kernels leave to it, so nothing else would tell that they leave everything."""
    schema = pa.schema([
        ("a", pa.list_(pa.int64())), ("b", pa.float32()), ("c", pa.string()), ("d", pa.list_(pa.float32(), 2)),
        ("e", pa.int32()), ("f", pa.list_(pa.binary())),
    ])  # fmt: skip
    block = b'-1|9223372036854775807,0.30000001192092896,x,1e-05|-2.5,7,p|q\r\n\n,"16777217","y,z",1|2,8,\n'
    found = CompiledCsv([*schema.names], schema, ",|", lambda texts, kind: tables._split(texts, kind, "|")).read(block)
    tenths, small = np.float32(0.3), np.float32(1e-5)
    assert found.to_pylist() == [
        {"a": [-1, 2**63 - 1], "b": tenths, "c": "x", "d": [small, -2.5], "e": 7, "f": [b"p", b"q"]},
        {"a": [], "b": 16777216.0, "c": "y,z", "d": [1.0, 2.0], "e": 8, "f": []},
    ]  # fmt: skip


def test_names_delimiter_and_separator(tmp_path):
    path = str(tmp_path / "f")
    files.write_atomic(path, b"1 2\t7\n3\t8")
    schema = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.int64())])
    form = CsvFormat(names=("a", "b"), delimiter="\t", separator=" ")
    assert rows(read_csv(path, schema, form)) == [{"a": [1, 2], "b": 7}, {"a": [3], "b": 8}]


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"mov,uid,label\n1,2,0.5\n")))
    schema = pa.schema([("mov", pa.int64()), ("label", pa.float32())])
    assert rows(read_csv("", schema)) == [{"mov": 1, "label": 0.5}]


@pytest.mark.parametrize("size", [16, 40, 1000])
def test_bad_lines_have_their_offset_and_follow_the_policy(tmp_path, monkeypatch, size):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", size)
    path = str(tmp_path / "f")
    good = [f"{number},{number / 2}\n" for number in range(50)]
    lines = [*good[:10], "x,1\n", *good[10:30], "1\n", "1,2,3\n", *good[30:], "5,"]
    files.write_atomic(path, ("a,b\n" + "".join(lines)).encode())
    schema = pa.schema([("a", pa.int64()), ("b", pa.float32())])
    with pytest.raises(CorruptError) as caught:
        list(read_csv(path, schema))
    assert caught.value.offset == 4 + sum(map(len, good[:10]))
    kept = []
    found = rows(read_csv(path, schema, bad=BadRecords(OnBad.SIDE, kept.append)))
    assert [row["a"] for row in found] == list(range(50))
    assert [each.payload for each in kept] == [b"x,1\n", b"1\n", b"1,2,3\n", b"5,"]
    content = files.read_bytes(path)
    assert [content[each.offset :].startswith(each.payload) for each in kept] == [True] * 4


_CELLS = st.text("0127 \t+-.eExXnaNif|_()", max_size=6) | st.sampled_from(
    [
        "",
        "1",
        "-7",
        "1|2",
        "0.5",
        "1e5|-.5",
        "nan",
        "inf|-Infinity",
        "0x1F",
        " 3 ",
        "1 | 2",
        "99999999999999999999",
        "a",
    ]
)
_KINDS = [
    pa.int64(), pa.uint8(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.list_(pa.int64()),
    pa.list_(pa.float32()), pa.list_(pa.uint64(), 1), pa.list_(pa.float64(), 2), pa.list_(pa.string()),
]  # fmt: skip


def is_row(text, names, schema, form, fid_v1):
    try:
        return tables._read_block(text, names=names, schema=schema, form=form, fid_v1=fid_v1).num_rows >= 0
    except (pa.ArrowException, ValueError):
        return False


@settings(max_examples=300)
@given(
    st.lists(_CELLS, min_size=1, max_size=4), st.data(), st.sampled_from(["|", "_", "e", ";;"]),
    st.sampled_from(["", "\n", "\r\n"]),
)  # fmt: skip
def test_what_the_screen_refuses_is_no_row(cells, data, separator, end):
    wanted = {name: data.draw(st.sampled_from(_KINDS)) for name in ("a", "b")}
    schema, names = pa.schema(list(wanted.items())), data.draw(st.permutations(["a", "b", "other"]))
    text = ",".join(cells).encode() + end.encode()
    fid_v1 = frozenset(name for name, kind in wanted.items() if kind in (pa.int64(), pa.list_(pa.int64())))
    problem = Screen(names, schema, ",", separator).problem_of(text)
    if problem:
        for converted in (frozenset(), fid_v1):
            form = CsvFormat(tuple(names), ",", separator)
            assert not is_row(text, names, schema, form, converted), problem


def test_a_file_of_bad_lines_is_read_in_one_pass(tmp_path, monkeypatch):
    path = str(tmp_path / "f")
    lines = [
        f"{number}|7,{number / 2}\n" if number % 3 == 0 else ("x,1\n", "5,\n")[number % 2] for number in range(3000)
    ]
    files.write_atomic(path, ("a,b\n" + "".join(lines)).encode())
    reads = []
    reader = tables._reader

    def counted(*given):
        read = reader(*given)
        return lambda block: reads.append(block) or read(block)

    monkeypatch.setattr(tables, "_reader", counted)
    kept = []
    schema = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.float32())])
    found = rows(read_csv(path, schema, bad=BadRecords(OnBad.SIDE, kept.append)))
    assert [row["a"] for row in found] == [[number, 7] for number in range(0, 3000, 3)]
    assert [each.payload.decode() for each in kept] == [line for line in lines if "|" not in line]
    assert [each.offset for each in kept] == sorted({each.offset for each in kept})
    assert len(reads) < 5, "once as they are, and once without what is bad"


@pytest.mark.parametrize("compiled", [False, True])
def test_lines_of_nothing_are_no_rows(tmp_path, monkeypatch, compiled):
    path = str(tmp_path / "f")
    files.write_atomic(path, b'"a"\r\n1|2\n\n3\n\n')
    monkeypatch.setattr(tables, "has_numba", lambda: compiled)
    assert rows(read_csv(path, pa.schema([("a", pa.list_(pa.int64()))]))) == [{"a": [1, 2]}, {"a": [3]}]


def test_a_column_that_is_not_there(tmp_path):
    path = str(tmp_path / "f")
    files.write_atomic(path, b"a,b\n1,2\n")
    with pytest.raises(InvalidError, match="which has a, b"):
        list(read_csv(path, pa.schema([("c", pa.int64())])))
    files.write_atomic(path, b"")
    assert list(read_csv(path, pa.schema([("c", pa.int64())]))) == []


def test_a_line_has_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 16)
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 100)
    path = str(tmp_path / "f")
    files.write_atomic(path, b"a\n" + b"1" * 1000)
    with pytest.raises(CorruptError, match="a line must have at most 100 bytes"):
        list(read_csv(path, pa.schema([("a", pa.string())])))


def test_parquet(tmp_path):
    path = str(tmp_path / "f.parquet")
    v1 = 3 << 54 | 9
    table = pa.table({
        "user": pa.array([[v1], [v1, 5]], pa.list_(pa.int64())), "n": [1, 2], "p": pa.array([0.5, 1.5], pa.float64()),
        "more": ["a", "b"],
    })  # fmt: skip
    pyarrow.parquet.write_table(table, path)
    schema = pa.schema([("p", pa.float32()), ("user", pa.list_(pa.int64())), ("n", pa.int64())])
    found = rows(read_parquet(path, schema, fid_v1=["user"], batch_rows=1))
    v2 = int(fids.v1_to_v2(v1))
    assert found == [{"p": 0.5, "user": [v2], "n": 1}, {"p": 1.5, "user": [v2, 5], "n": 2}]
    with pytest.raises(InvalidError, match="must be a column"):
        list(read_parquet(path, pa.schema([("x", pa.int64())])))


@pytest.mark.parametrize("compiled", [False, True])
def test_ids_of_version_1_in_csv(tmp_path, monkeypatch, compiled):
    """With and without a sign: slots from 512 on are negative as int64."""
    monkeypatch.setattr(tables, "has_numba", lambda: compiled)
    path = str(tmp_path / "f")
    small, large = 3 << 54 | 9, 1000 << 54 | 9
    schema = RowSchema((ids("a"), ids("b", size=1), ids("c", size=2)), label=False, weight=False).arrow
    for one in (small, large, large - 2**64):
        files.write_atomic(path, f"a,b,c\n{one}|5,{one},1|{one}\n,7,{one}|{small}\n".encode())
        v2, v2_small = int(fids.v1_to_v2(one)), int(fids.v1_to_v2(small))
        assert rows(read_csv(path, schema, fid_v1=["a", "b", "c"])) == [
            {"a": [v2, 5], "b": v2, "c": [1, v2]}, {"a": [], "b": 7, "c": [v2, v2_small]}
        ]  # fmt: skip
    files.write_atomic(path, f"a,b,c\n-5|{large},{small},1|2\n18446744073709551616,1,1|2\n".encode())
    bad = BadRecords(OnBad.SKIP)
    found = rows(read_csv(path, schema, bad=bad, fid_v1=["a"]))
    expected = [int(each) for each in fids.v1_to_v2([-5, large])]
    assert (found, bad.count) == ([{"a": expected, "b": small, "c": [1, 2]}], 1)


def test_only_columns_of_ids_can_be_of_version_1(tmp_path):
    schema = RowSchema((ids("a"), floats("f"), texts("t", size=1)), label=False, weight=False).arrow
    for read in (read_csv, read_parquet):
        with pytest.raises(InvalidError, match="fid_v1: must be a column of int64") as caught:
            list(read(str(tmp_path / "f"), schema, fid_v1=["a", "f", "t", "nobody"]))
        assert [each.value for each in caught.value.problems] == ["'f'", "'nobody'", "'t'"]


V1 = 1000 << 54 | 9


@pytest.mark.parametrize("fid_v1", [(), ("a",)])
@pytest.mark.parametrize("column", [
    pa.array([1, None]), pa.array([[1], None], pa.list_(pa.int64())), pa.array([[1, None], [2]], pa.list_(pa.int64())),
    pa.array([[1, None], [2, 3]], pa.list_(pa.int64(), 2)), pa.array([[1], [None]], pa.large_list(pa.int64())),
], ids=str)  # fmt: skip
def test_nulls_in_parquet_follow_the_policy(tmp_path, column, fid_v1):
    path = str(tmp_path / "f")
    pyarrow.parquet.write_table(pa.table({"a": column}), path)
    one = not hasattr(column.type, "value_type")
    schema = pa.schema([("a", pa.int64() if one else pa.list_(pa.int64()))])
    with pytest.raises(CorruptError, match="must have no nulls"):
        list(read_parquet(path, schema, fid_v1=fid_v1))
    skipping = BadRecords(OnBad.SKIP)
    assert list(read_parquet(path, schema, fid_v1=fid_v1, bad=skipping)) == []
    assert skipping.count == 1


@pytest.mark.parametrize("kind", [
    pa.list_(pa.int64()), pa.list_(pa.uint64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2)
], ids=str)  # fmt: skip
def test_lists_of_ids_of_version_1_in_parquet(tmp_path, kind):
    path = str(tmp_path / "f")
    one = V1 if pa.types.is_unsigned_integer(kind.value_type) else V1 - 2**64
    pyarrow.parquet.write_table(pa.table({"a": pa.array([[one, 5], [6, 7], [one, one]], kind)}), path)
    schema = RowSchema((ids("a"),), label=False, weight=False).arrow
    v2 = int(fids.v1_to_v2(V1))
    found = [batch.column("a").to_pylist() for batch in read_parquet(path, schema, fid_v1=["a"], batch_rows=2)]
    assert found == [[[v2, 5], [6, 7]], [[v2, v2]]]


def test_ids_of_version_1_must_be_whole_numbers_in_parquet(tmp_path):
    path = str(tmp_path / "f")
    pyarrow.parquet.write_table(pa.table({"a": ["1", "2"]}), path)
    with pytest.raises(CorruptError, match="ids must be whole numbers, and are string"):
        list(read_parquet(path, pa.schema([("a", pa.int64())]), fid_v1=["a"]))


def test_damaged_parquet_is_an_error_of_the_file(tmp_path):
    path, good = str(tmp_path / "bad"), str(tmp_path / "good")
    pyarrow.parquet.write_table(pa.table({"a": pa.array([1, None])}), good)
    schema = pa.schema([("a", pa.int64())])
    files.write_atomic(path, files.read_bytes(good)[:-10])
    for each in (path, good):  # cut off, and with a null
        with pytest.raises(CorruptError) as caught:
            list(read_parquet(each, schema))
        assert caught.value.path == each
    skipping = BadRecords(OnBad.SKIP)
    assert list(read_parquet([path, good], schema, bad=skipping)) == []
    assert skipping.count == 2
