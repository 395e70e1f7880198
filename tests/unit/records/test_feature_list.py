from __future__ import annotations

import pytest

from shoal.core import files
from shoal.core.errors import InvalidError, NotFoundError
from shoal.records.feature_list import Cache, Feature, Feed, load_feature_list, parse_feature_list

TEXT = """
# a comment
column_name: uid, item_id
cache_column: user
feed_name=user_feed shared=True feature_id=3
cache_name=c1 capacity=100 timeout=60 cache_type=lru
cache_key_class=k9
feature_name=fc_user_id   slot=1 method=Direct depend="uid", 'x' ; args=3, 4 shared=yes need_raw=0 feature_id=7
feature_name=f_item slot=2 depend=a=b c feature_version=2 input_optional=true, false odd=thing
feature_name=fc_a-fc_b slot=1 method=vectortop
feature_name=bare
"""


def test_every_kind_of_line_is_read(tmp_path):
    path = str(tmp_path / "feature_list.conf")
    files.write_atomic(path, TEXT.encode())
    read = load_feature_list(path)
    assert read.column_names == {"uid", "item_id"}
    assert read.feeds == (Feed("user_feed", shared=True, feature_id=3),)
    assert read.caches == (
        Cache(cache_column="user"),
        Cache(cache_name="c1", capacity=100, timeout=60, cache_type="lru"),
        Cache(cache_key_class="k9"),
    )
    assert [each.name for each in read.caches] == ["cache_column", "c1", "k9"]
    assert read["fc_user_id"] == Feature(
        "fc_user_id", slot=1, method="Direct", depend=("uid", "x"), args=("3", "4"), shared=True, feature_id=7
    )
    assert read["f_item"].input_optional == (True, False)
    assert read["f_item"].feature_version == 2
    assert len(read) == 4
    assert [each.feature_name for each in read] == ["fc_user_id", "f_item", "fc_a-fc_b", "bare"]


def test_prefixes_are_optional_and_slots_are_names():
    read = parse_feature_list(TEXT)
    assert read["user_id"].name == "user_id"
    assert read["item"].feature_name == "f_item"
    assert read["a-b"].name == "a-b"
    assert read[2].feature_name == "f_item"
    assert [each.feature_name for each in read.in_slot(1)] == ["fc_user_id", "fc_a-fc_b"]
    assert 1 in read
    assert "nothing" not in read
    assert 77 not in read
    with pytest.raises(NotFoundError, match="nothing"):
        read["nothing"]


def test_every_wrong_line_is_told():
    with pytest.raises(InvalidError) as caught:
        parse_feature_list("feature_name=a slot=x\nslot=3\nfeed_x=1\nfeature_name=ok\ncache_name=c capacity=many\n")
    assert [each.field for each in caught.value.problems] == [
        "feature_list.conf, line 1", "feature_list.conf, line 2", "feature_list.conf, line 3",
        "feature_list.conf, line 5",
    ]  # fmt: skip
    assert "slot must be a whole number" in caught.value.message


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = str(tmp_path / "f")
    files.write_atomic(path, b"feature_name=a\n\xff")
    with pytest.raises(InvalidError, match="byte 15: must be UTF-8"):
        load_feature_list(path)
