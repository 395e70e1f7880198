from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidError
from shoal.records import fids

unsigned = st.integers(0, 2**64 - 1)


def signed(value):
    return value - 2**64 if value >= 2**63 else value


@given(st.integers(0, 1023), unsigned)
def test_version_1(slot, signature):
    made = fids.fid_v1(slot, signature)
    assert int(made) == signed(slot << 54 | signature & (1 << 54) - 1)
    assert int(fids.slot_v1(made)) == slot
    assert int(fids.signature_v1(made)) == signature & (1 << 54) - 1


@given(st.integers(0, 32767), unsigned)
def test_version_2(slot, signature):
    made = fids.fid_v2(slot, signature)
    assert int(made) == slot << 48 | signature & (1 << 48) - 1
    assert int(fids.slot_v2(made)) == slot
    assert int(fids.signature_v2(made)) == signature & (1 << 48) - 1
    assert int(fids.check_v2(made)) == int(made)


@given(unsigned, st.integers(0, 1023))
def test_ids_change_version_and_slot(fid, slot):
    assert int(fids.v1_to_v2(fid)) == (fid >> 54) << 48 | fid & (1 << 48) - 1
    assert int(fids.switch_slot_v1(fid, slot)) == signed(slot << 54 | fid & (1 << 54) - 1)
    assert int(fids.switch_slot_v2(fid, slot)) == slot << 48 | fid & (1 << 48) - 1


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_two_ids_are_combined_by_their_product(left, right):
    product = left * right
    folded = ((product >> 64) ^ product) & 2**64 - 1
    assert int(fids.combine_fids(left, right, 7)) == 7 << 48 | folded & (1 << 48) - 1


def test_arrays_of_either_sign_are_one():
    ids = np.array([1 << 63 | 5, 3 << 54 | 7], np.uint64)
    assert fids.slot_v1(ids).tolist() == fids.slot_v1(ids.view(np.int64)).tolist() == [512, 3]
    assert fids.slot_v1([1 << 63 | 5, 3]).tolist() == [512, 0]
    assert fids.slot_v1([]).tolist() == []
    assert fids.fid_v2(np.array([[1], [2]]), np.array([5, 6])).shape == (2, 2)


@pytest.mark.parametrize(("call", "rule"), [
    (lambda: fids.fid_v1(1024, 0), "from 0 to 1023"),
    (lambda: fids.fid_v1(-1, 0), "from 0 to 1023"),
    (lambda: fids.fid_v2([1, 32768], 0), "from 0 to 32767"),
    (lambda: fids.check_v2(-5), "bit 63"),
    (lambda: fids.slot_v1([1.5]), "whole numbers"),
])  # fmt: skip
def test_what_is_no_id_is_refused(call, rule):
    with pytest.raises(InvalidError, match=rule):
        call()
