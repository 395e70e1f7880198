"""Whether a JSON text may have a fraction where there is no room for it, by looking at its bytes all at once.

The reader of JSON cuts fractions off, and to search every record with a regular expression costs as much as half of its
decoding. A fraction of a number has a mark, a point or an exponent after a digit; from each mark one goes back to the
name before the number. Of a time it is what follows the seconds. Called by `shoal.topics.codecs.exact`.
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
#: From the colons before the minutes and the seconds to the point behind them.
_MINUTES, _SECONDS = 6, 3
#: From what is between a date and its time to what is behind the seconds.
_TIME_OF_DAY = 9
#: Digits behind the seconds that are looked at.
_MOST_PLACES = 20
_BLANK = np.zeros(256, bool)
_BLANK[list(b" \t\r\n")] = True


def may_have_fractions(text: Bytes, names: Sequence[bytes]) -> bool:
    """Whether a number with a fraction may follow one of these names. False is sure, True has to be looked at closely.

    Args:
        text: objects, one after another.
        names: of members, as JSON writes them, without quotes.
    """
    if has_escapes(text, b"u/" if any(b"/" in name for name in names) else b"u"):
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


def may_have_fine_times(text: Bytes, digits: int) -> bool:
    """Whether a time may have more digits behind its seconds than these, other than zeros. False is sure.

    Letters that are written out count for nothing here: `has_escapes` tells of them.
    """
    points = np.flatnonzero(text == ord("."))
    points = points[points >= _MINUTES]
    # A number may have a colon before the seconds, not before the minutes, too.
    points = points[text[points - _MINUTES] == ord(":")]
    at = points[text[points - _SECONDS] == ord(":")] + 1
    # The last place first: hardly any time has it.
    for place in (digits, *range(digits)):
        at = at[at < len(text) - place]
        at = at[(text[at + place] - _ZERO) < _DIGITS]
    at += digits
    for _ in range(_MOST_PLACES):
        at = at[at < len(text)]
        found = text[at] - _ZERO
        at = at[found < _DIGITS] + 1
        if not len(at):
            return False
        if ((found > 0) & (found < _DIGITS)).any():
            return True
    return True


def may_have_times_of_day(text: Bytes) -> bool:
    """Whether a time may follow a date. False is sure, but for letters that are written out."""
    between = np.flatnonzero(((text | _LOWER) == ord("t")) | (text == ord(" ")))
    between = between[(between > 0) & (between < len(text) - 1)]
    return bool((((text[between - 1] - _ZERO) < _DIGITS) & ((text[between + 1] - _ZERO) < _DIGITS)).any())


def may_have_zones(text: Bytes) -> bool:
    """Whether something may follow the time of day behind a date. False is sure, but for letters that are written out.

    Only times that are written with colons and a quote behind them are known to have no zone.
    """
    between = np.flatnonzero(((text | _LOWER) == ord("t")) | (text == ord(" ")))
    between = between[(between > 0) & (between < len(text) - _TIME_OF_DAY)]
    between = between[((text[between - 1] - _ZERO) < _DIGITS) & ((text[between + 1] - _ZERO) < _DIGITS)]
    if not len(between):
        return False
    if (text[between + 3] != ord(":")).any() or (text[between + 6] != ord(":")).any():
        return True
    at = between + _TIME_OF_DAY
    at = at[text[at] != ord('"')]
    if (text[at] != ord(".")).any():
        return True
    for _ in range(_MOST_PLACES):
        at = at[at < len(text) - 1] + 1
        at = at[text[at] != ord('"')]
        if not len(at):
            return False
        if ((text[at] - _ZERO) >= _DIGITS).any():
            return True
    return True


def has_escapes(text: Bytes, kinds: bytes = b"u") -> bool:
    """Whether a letter is written in one of these ways, after a backslash."""
    escapes = np.flatnonzero(text == ord("\\"))
    if not len(escapes):
        return False
    following = text[np.minimum(escapes + 1, len(text) - 1)]
    return any(bool((following == kind).any()) for kind in kinds)


def _marks(text: Bytes) -> npt.NDArray[np.int64]:
    """Where a point or an exponent comes after a digit, or a point after a sign: the reader takes that, too."""
    digits = (text - _ZERO) < _DIGITS
    points = np.flatnonzero(text == ord("."))
    points = points[digits[points - 1] | (text[points - 1] == ord("-"))]
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
        at = at[at >= 0]  # a name never begins a text
        if not len(at):
            return False
    return True
