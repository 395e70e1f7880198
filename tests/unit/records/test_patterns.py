from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.core import files
from shoal.core.errors import ExhaustedError, InvalidError, NotFoundError
from shoal.records.patterns import Shard, dated_patterns, expand_pattern, find_files


@pytest.fixture
def root(tmp_path):
    for name in ("a/1.pb", "a/2.pb", "a/3.txt", "b/c/4.pb", "b/5.pb", "20201120/x", "20201121/x", "20201121/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return str(tmp_path)


def below(root, found):
    return [each.removeprefix(f"{root}/") for each in found]


@pytest.mark.parametrize(("pattern", "expected"), [
    ("{root}/a/1.pb", ["a/1.pb"]),
    ("{root}/a/*.pb", ["a/1.pb", "a/2.pb"]),
    ("{root}/a/[!1].*", ["a/2.pb", "a/3.txt"]),
    ("{root}/*/?.pb", ["a/1.pb", "a/2.pb", "b/5.pb"]),
    ("{root}/**/*.pb", ["a/1.pb", "a/2.pb", "b/5.pb", "b/c/4.pb"]),
    ("{root}/b/**", ["b/5.pb", "b/c/4.pb"]),
    ("{root}/b/5.pb, {root}/a/*.pb , {root}/b/5.pb,", ["b/5.pb", "a/1.pb", "a/2.pb"]),
    ("{root}/{DATE(20201119,20201121)}/*", ["20201120/x", "20201121/x", "20201121/y"]),
    ("{root}/a/{INT(0, 9)}.pb", ["a/1.pb", "a/2.pb"]),
    ("{root}/nothing*,{root}/a/2.pb", ["a/2.pb"]),
])  # fmt: skip
def test_patterns(root, pattern, expected):
    assert below(root, find_files(pattern.replace("{root}", root))) == expected


def test_a_list_of_files(root):
    path = f"{root}/list"
    files.write_atomic(path, f"# today\n{root}/a/*.pb\n\n  {root}/b/5.pb\n{root}/a/1.pb\n".encode())
    assert below(root, find_files(f"@{path}")) == ["a/1.pb", "a/2.pb", "b/5.pb"]
    assert below(root, find_files([f"{root}/b/5.pb", f"@{path}"])) == ["b/5.pb", "a/1.pb", "a/2.pb"]
    files.write_atomic(path, f"@{path}".encode())
    with pytest.raises(InvalidError, match="must not name another list"):
        find_files(f"@{path}")
    files.write_atomic(path, b"\xff")
    with pytest.raises(InvalidError, match="UTF-8"):
        find_files(f"@{path}")


def test_relative_patterns(root, monkeypatch):
    monkeypatch.chdir(root)
    assert find_files("a/*.pb") == ("a/1.pb", "a/2.pb")
    assert find_files("*/1.pb") == ("a/1.pb",)
    assert find_files("**/4.pb") == ("b/c/4.pb",)
    assert Path(os.curdir, "a/1.pb").exists()


def test_other_file_systems():
    files.write_atomic("memory://patterns/x/1", b"")
    assert find_files("memory://patterns/*/1") == ("memory://patterns/x/1",)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_hosts_share_all_files_and_none_twice(root, count):
    whole = find_files(f"{root}/**/*")
    shares = [find_files(f"{root}/**/*", shard=Shard(index, count)) for index in range(count)]
    assert sorted(each for share in shares for each in share) == sorted(whole)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_ranges_are_a_product():
    assert expand_pattern("d_{DATE(20201231,20210101)}/h_{INT(9,10)}") == (
        "d_20201231/h_9", "d_20201231/h_10", "d_20210101/h_9", "d_20210101/h_10",
    )  # fmt: skip
    assert expand_pattern("{DATE(2020123123,2021010100)}") == ("2020123123", "2021010100")
    assert expand_pattern("{ INT ( 1 , 2 ) }") == ("1", "2")


@pytest.mark.parametrize(("pattern", "error"), [
    ("{INT(5,1)}", InvalidError),
    ("{INT(a,1)}", InvalidError),
    ("{DATE(20201332,20201333)}", InvalidError),
    ("{DATE(20201210,20201120)}", InvalidError),
    ("{DATE(2020,2021)}", InvalidError),
    ("{WEEK(1,2)}", InvalidError),
    ("{INT(1)}", InvalidError),
    ("x}", InvalidError),
    ("{INT(0,999999999)}", ExhaustedError),
    ("{INT(0,9999)}{INT(0,9999)}", ExhaustedError),
    ("{DATE(0001010100,9999123100)}", ExhaustedError),
    ("{INT(" + " " * 20_000, InvalidError),  # at once
])  # fmt: skip
def test_what_is_no_pattern_is_refused(pattern, error):
    with pytest.raises(error):
        expand_pattern(pattern)


def test_no_file_at_all_is_an_error(root):
    with pytest.raises(NotFoundError, match="nothing"):
        find_files(f"{root}/nothing*")
    with pytest.raises(NotFoundError):
        find_files("")


def test_days_and_hours():
    assert dated_patterns("/d", "20201130", "20201202") == ("/d/20201130/*", "/d/20201201/*")
    assert dated_patterns("hdfs:/d", "2020-11-30", "2020-12-01", date_format="%Y-%m-%d", wildcard="part-*") == (
        "hdfs:/d/2020-11-30/part-*",
    )
    assert dated_patterns("d", "20201130:23", "20201201:01", hourly=True) == ("d/20201130/23*", "d/20201201/00*")
    hours = [(f"20201130:{hour}", "20201205") for hour in ("xx", "24", "-1", "007", "1 ")]
    for start, end in (("20201130", "20201130"), ("x", "20201130"), *hours):
        with pytest.raises(InvalidError):
            dated_patterns("d", start, end)
    with pytest.raises(ExhaustedError):
        dated_patterns("d", "00010101", "99991231", hourly=True)
    with pytest.raises(InvalidError, match="shard"):
        Shard(2, 2)
