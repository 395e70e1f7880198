"""Tables fit the width, ids are whole, and nothing that a workload prints can move the cursor."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.output.tables import GAP, Column, cells, clean, cut, fit, pad

COLUMNS = (Column("NAME"), Column("STATE"), Column("EXTRA", rank=1), Column("REASON", rank=2, least=10))


def test_everything_is_shown_when_there_is_room():
    layout = fit(COLUMNS, [["web", "Running", "x", "because"]], 80)
    assert layout.columns == (0, 1, 2, 3)
    assert layout.widths == (4, 7, 5, 7)


def test_prose_is_cut_before_a_column_is_left_out():
    layout = fit(COLUMNS, [["web", "Running", "x", "a long story " * 10]], 40)
    assert layout.columns == (0, 1, 2, 3)
    assert sum(layout.widths) + GAP * 3 == 40


def test_the_least_important_column_goes_first():
    row = ["a-rather-long-workload-id", "Running", "x", "a long story " * 10]
    assert fit(COLUMNS, [row], 45).columns == (0, 1, 2)
    assert fit(COLUMNS, [row], 38).columns == (0, 1)


def test_an_id_is_never_cut_even_when_it_does_not_fit():
    layout = fit(COLUMNS, [["w" * 100, "Running", "x", ""]], 40)
    assert layout.widths[0] == 100


def test_an_empty_table_has_its_titles():
    assert fit(COLUMNS, [], 80).widths == (4, 5, 5, 6)


def test_cut_leaves_an_ellipsis():
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abcde…"
    assert cut("ab cdefg", 4) == "ab…"


def test_wide_characters_count_twice():
    assert cells("日本") == 4
    assert pad("日本", 6) == "日本  "
    assert cells(cut("日本日本", 5)) <= 5


def test_control_characters_are_taken_out():
    assert clean("a\x1b[2Jb") == "a\N{REPLACEMENT CHARACTER}[2Jb"
    assert clean("two\nlines\tand a tab") == "two lines and a tab"


@given(st.text())
def test_what_is_cleaned_is_one_printable_line(text):
    assert clean(text).isprintable()


@given(st.text(alphabet=st.characters(exclude_categories=["C"])), st.integers(1, 40))
def test_what_is_cut_fits(text, width):
    assert cells(cut(text, width)) <= width


@given(
    st.lists(st.tuples(st.text("ab-", min_size=1, max_size=30), st.text("xy ", max_size=60)), max_size=6),
    st.integers(10, 120),
)
def test_a_table_is_too_wide_only_when_its_ids_are(rows, width):
    columns = (Column("ID"), Column("NUMBER", rank=1), Column("WHY", rank=2, least=8))
    layout = fit(columns, [[name, "1", why] for name, why in rows], width)
    total = sum(layout.widths) + GAP * (len(layout.widths) - 1)
    longest = max([len("ID"), *(len(name) for name, _ in rows)])
    assert layout.columns[0] == 0
    assert layout.widths[0] == longest
    assert total <= width or layout.columns == (0,)


def test_a_column_in_which_nothing_stands_is_left_out():
    assert fit(COLUMNS, [["web", "Running", "", ""], ["db", "", "", "x"]], 80).columns == (0, 1, 3)
