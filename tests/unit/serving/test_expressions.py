from __future__ import annotations

import pytest

from shoal.serving.expressions import MAX_LENGTH, evaluate_number, parse_expression


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("60 * 1000 * 1000", 60_000_000),
        ("-(2 + 3) * 4", -20),
        ("7 // 2", 3),
        ("7 % 4", 3),
        ("1 / 4", 0.25),
        ("1.5e2", 150.0),
        ("+3", 3),
    ],
)
def test_numbers(text, value):
    assert evaluate_number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        ("i % 2 == 1", True),
        ("i % 2 == 0 or i > 2", True),
        ("not (1 < i < 5)", False),
        ("1 <= i != 4 and False", False),
        ("i", 3),
    ],
)
def test_conditions(text, value):
    assert parse_expression(text).evaluate({"i": 3}) == value


def test_the_second_part_is_not_evaluated_when_the_first_decides():
    assert parse_expression("i == 0 or 6 % i == 0").evaluate({"i": 0}) is True
    assert parse_expression("i != 0 and 6 % i == 0").evaluate({"i": 0}) is False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "__import__('os')",
        "i.real",
        "i[0]",
        "'a' * 9",
        "[1]",
        "(lambda: 1)()",
        "2 ** 9",
        "1 << 9",
        "1 if i else 2",
        "i := 3",
        "i is 3",
        "1j",
        "a\0b",
        "(" * 120,
        "1" * (MAX_LENGTH + 1),
        "1if 2else 3",
        "await i",
        "{i}",
        "f'{i}'",
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"must|may"):
        parse_expression(text)


def test_deep_nesting_is_refused_or_evaluated_but_never_a_crash():
    text = "-" * 200 + "1"
    assert parse_expression(text).evaluate({}) == 1


@pytest.mark.parametrize("text", ["1 / 0", "1 // 0", "1 % 0", "1.0 % 0"])
def test_a_division_by_zero_is_an_error_of_the_value(text):
    with pytest.raises(ValueError, match="divide by zero"):
        evaluate_number(text)


@pytest.mark.parametrize("text", ["i", "True", "1 == 1", "1e308 * 10", "1e308 * 10 - 1e308 * 10"])
def test_what_is_no_number(text):
    with pytest.raises(ValueError, match="number"):
        evaluate_number(text)


def test_a_name_without_a_value():
    expression = parse_expression("i + j")
    assert expression.names == {"i", "j"}
    with pytest.raises(ValueError, match="no value for j"):
        expression.evaluate({"i": 1})
