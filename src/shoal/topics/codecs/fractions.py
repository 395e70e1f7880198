"""Whether a JSON text may have a fraction where a whole number belongs, by looking at its bytes all at once.

The reader of JSON cuts fractions off, and to search every record with a regular expression costs as much as half of its
decoding. A fraction has a mark, a point or an exponent after a digit; from each mark one goes back to the name before
the number. Called by `shoal.topics.codecs.objects`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: Digits before a mark that are looked at: no whole number of 64 bits has more.
_MOST_DIGITS = 20
_ZERO, _DIGITS = ord("0"), 10
_LOWER = 32  # what a letter has more when it is a small one
_BLANK = np.zeros(256, bool)
_BLANK[list(b" \t\r\n")] = True


def may_have_fractions(text: Bytes, names: Sequence[bytes]) -> bool:
    """Whether a number with a fraction may follow one of these names. False is sure, True has to be looked at closely.

    Args:
        text: objects, one after another.
        names: of members, as JSON writes them, without quotes.
    """
    if _has_written_out_letters(text):
        return True  # a name may be written with them
    before = _before_numbers(text, _marks(text))
    if before is None:
        return True
    found = text[before]
    ends = before[found == ord(":")] - 1
    closing = text[ends]
    if _BLANK[found].any() or _BLANK[closing].any():
        return True
    quotes = ends[closing == ord('"')]
    return any(_is_any_named(text, quotes, name) for name in names)


def _has_written_out_letters(text: Bytes) -> bool:
    escapes = np.flatnonzero(text == ord("\\"))
    return bool(len(escapes)) and bool((text[np.minimum(escapes + 1, len(text) - 1)] == ord("u")).any())


def _marks(text: Bytes) -> npt.NDArray[np.int64]:
    """Where a point or an exponent comes after a digit."""
    digits = (text - _ZERO) < _DIGITS
    points = np.flatnonzero(text == ord("."))
    points = points[digits[points - 1]]
    exponents = (text[1:] | _LOWER) == ord("e")
    exponents &= digits[:-1]
    # Hardly ever is there one: to look for the places would take longer than all of this.
    return np.concatenate((points, np.flatnonzero(exponents) + 1)) if exponents.any() else points


def _before_numbers(text: Bytes, marks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """What comes before the digits, the sign and a space before each mark; None if a number is too long for that."""
    at = marks - 1
    for _ in range(_MOST_DIGITS):
        is_digit = (text[at] - _ZERO) < _DIGITS
        if not is_digit.any():
            break
        at -= is_digit
    else:
        return None
    at -= text[at] == ord("-")
    at -= text[at] == ord(" ")
    return at


def _is_any_named(text: Bytes, quotes: npt.NDArray[np.int64], name: bytes) -> bool:
    """Whether one of these quotes closes the name."""
    at = quotes - 1
    for letter in reversed(b'"' + name):
        at = at[text[at] == letter] - 1
        if not len(at):
            return False
    return True
