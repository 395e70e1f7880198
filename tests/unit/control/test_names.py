"""A control plane's name: the same in every life, and of one process at a time."""

import pytest

from shoal.control.names import HeldName
from shoal.core.entropy import SeededEntropy
from shoal.core.errors import PreconditionError


def test_a_name_is_made_once(tmp_path):
    first = HeldName(tmp_path / "data", SeededEntropy(1))
    assert first.text
    assert HeldName(tmp_path / "data", SeededEntropy(2)).text == first.text
    assert HeldName(tmp_path / "other", SeededEntropy(2)).text != first.text


def test_nobody_else_uses_it_meanwhile(tmp_path):
    first, second = HeldName(tmp_path, SeededEntropy(1)), HeldName(tmp_path, SeededEntropy(1))
    first.hold()
    with pytest.raises(PreconditionError, match=r"in use by process \d+"):
        second.hold()
    first.release()
    first.release()
    second.hold()
    second.release()
