from __future__ import annotations

import dataclasses

import pytest

from shoal.core.errors import InvalidError
from shoal.serving.config.deployment import deploy
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings, cautions, read_settings
from shoal.serving.processes.commands import Program, model_server_command

LEAST = "bzid gip\nbase_name m\nbase_path /d\ndeploy_type mixed\n"


@pytest.fixture
def conf(tmp_path):
    def write(text: str, name: str = "agent.conf", *, least: str = LEAST) -> str:
        path = tmp_path / name
        path.write_text(least + text)
        return str(path)

    return write


def problems(path: str) -> list[tuple[str, str]]:
    with pytest.raises(InvalidError) as caught:
        read_settings(path)
    folder = path.rpartition("/")[0]
    return [
        (each.field.replace(f"{folder}/", ""), each.rule.replace(f"{folder}/", "")) for each in caught.value.problems
    ]


def test_the_defaults_are_those_of_the_seed(conf):
    settings = read_settings(conf(""))
    assert settings == ServingSettings(bzid="gip", base_name="m", base_path="/d", deploy_type="mixed")
    chosen = {
        "num_ps": 1,
        "dense_service_num": 3,
        "agent_version": 1,
        "version_policy": "latest",
        "version_data": 1,
        "fetch_ps_timeout_ms": 200,
        "fetch_ps_long_conn_num": 100,
        "fetch_ps_retry": 2,
        "aio_thread_num": 30,
        "file_system_poll_wait_seconds": 1,
        "file_system_poll_wait_seconds_ps": 0,
        "load_retry_interval_micros": 60_000_000,
        "max_num_load_retries": 5,
        "use_metrics": True,
        "rough_sort_model_loaded_server": "entry",
        "max_waiting_sec": 1200,
        "preload_jemalloc": True,
    }
    assert {name: getattr(settings, name) for name in chosen} == chosen


#: As a file of Monolith's repository has them: an older key for the type, `none`, 0 and 1 for texts, floats and flags.
FULL = """
bzid shop_rank
base_name shop_rank
base_path hdfs:///models/shop_rank
num_ps 6
server_type entry
zk_servers 127.0.0.1:2181
max_waiting_sec 300
layout_filters ps_1
layout_filters ps_4


agent_version 1
stand_alone_serving true
update_model_status_interval 5
enable_batching false
tensorflow_session_parallelism 0
tensorflow_intra_op_parallelism 2
tensorflow_inter_op_parallelism 0
per_process_gpu_memory_fraction 0
num_load_threads 0
num_unload_threads 0
max_num_load_retries 5
load_retry_interval_micros 2 * 1000 * 1000
file_system_poll_wait_seconds 1
file_system_poll_wait_seconds_ps 0
flush_filesystem_caches true
saved_model_tags none
grpc_channel_arguments none
grpc_max_threads 0
enable_model_warmup true
enable_signature_method_name_check false
xla_cpu_compilation_enabled false
enable_profiler true
num_shard 1
dc_aware 1
"""


def test_a_file_with_every_form_that_monoliths_files_have(conf):
    settings = read_settings(conf(FULL, least=""))
    assert settings.stand_alone_serving is True
    assert settings.layout_filters == ("ps_1", "ps_4")
    assert (settings.saved_model_tags, settings.per_process_gpu_memory_fraction, settings.dc_aware) == (None, 0.0, True)
    deployment = deploy(settings, read_environment({"MY_HOST_IP": "10.0.0.1"}))
    assert deployment.deploy_type == "mixed"
    assert [each.normal for each in deployment.filters] == ["ps_1;True", "ps_4;True"]
    (server, _) = deployment.servers
    command = model_server_command(deployment, server, Program(("tfs",)), config_file="/c")
    changed = {word.partition("=")[0] for word in command} - {"tfs", "--model_config_file", "--port", "--rest_api_port"}
    assert changed == {
        "--tensorflow_intra_op_parallelism", "--load_retry_interval_micros", "--file_system_poll_wait_seconds",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line", ["num_ps 4", "num_ps=4", "num_ps = 4", "  num_ps\t4  ", "num_ps 4 # four", "num_ps == 4#x"]
)
def test_ways_to_write_a_value(conf, line):
    assert read_settings(conf(line)).num_ps == 4


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("load_retry_interval_micros 60 * 1000 * 1000", "load_retry_interval_micros", 60_000_000),
        ("per_process_gpu_memory_fraction 1 / 4", "per_process_gpu_memory_fraction", 0.25),
        ("num_ps 8 / 2", "num_ps", 4),
        ("dc_aware false # not yet", "dc_aware", False),
        ("dc_aware TRUE", "dc_aware", True),
        ("zk_servers none", "zk_servers", None),
        ("zk_servers zk-1:2181, [::1]:2182/shoal", "zk_servers", "zk-1:2181, [::1]:2182/shoal"),
        ("zk_servers 10.0.0.1:2181,10.0.0.2:2181", "zk_servers", "10.0.0.1:2181,10.0.0.2:2181"),
        ("grpc_channel_arguments = a=b=", "grpc_channel_arguments", "a=b="),
        ("version_policy latest_once", "version_policy", "latest_once"),
        ("rough_sort_model_loaded_server PS", "rough_sort_model_loaded_server", "ps"),
    ],
)
def test_values(conf, line, field, value):
    assert getattr(read_settings(conf(line)), field) == value


@pytest.mark.parametrize(
    ("text", "micros", "threads", "said"),
    [
        ("agent_version 3\ndeploy_type unified", 1_000_000, 4, []),
        (
            # As Monolith's sample file has them.
            "agent_version 3\ndeploy_type unified\nload_retry_interval_micros 60 * 1000 * 1000\nnum_load_threads 0",
            60_000_000,
            0,
            ["num_load_threads 0: a stock", "tries a bad model for 300 s"],
        ),
        ("agent_version 3\ndeploy_type unified\nmax_num_load_retries 99", 1_000_000, 4, ["for 99 s"]),
        ("agent_version 1\ndeploy_type mixed\nbase_name m\nbase_path /m", 60_000_000, 0, []),
    ],
    ids=["layouts", "layouts, given", "layouts, many tries", "roles"],
)
def test_a_bad_model_holds_up_no_others_where_a_layout_waits_for_it(conf, text, micros, threads, said):
    settings = read_settings(conf(f"bzid g\n{text}", least=""))
    assert (settings.load_retry_interval_micros, settings.num_load_threads) == (micros, threads)
    found = list(cautions(settings))
    assert len(found) == len(said)
    assert all(words in each for words, each in zip(said, found, strict=True))


def test_every_repeat_of_a_list_is_kept_in_order(conf):
    text = (
        "layout_filters entry\nlayout_filters ps_{i}; i % 2 == 1 # odd\nlayout_filters dense_0\nlayout_filters ps_0\n"
    )
    assert read_settings(conf(text)).layout_filters == ("entry", "ps_{i}; i % 2 == 1", "dense_0", "ps_0")


def test_a_file_includes_others_in_their_place(conf, tmp_path):
    conf("layout_filters b\n", "inner.conf", least="")
    conf("layout_filters c\ninclude inner.conf\n", "sub.conf", least="")
    text = f"layout_filters a\ninclude sub.conf\ninclude = {tmp_path}/inner.conf\nlayout_filters d\n"
    assert read_settings(conf(text)).layout_filters == ("a", "c", "b", "b", "d")


@pytest.mark.parametrize(
    ("text", "field", "rule"),
    [
        ("num_pss 4", "agent.conf:5: num_pss", "num_ps"),
        ("num_ps x", "agent.conf:5: num_ps", "must be a number"),
        ("num_ps 1.5", "agent.conf:5: num_ps", "must be a whole number"),
        ("num_ps 0", "agent.conf:5: num_ps", "must be between"),
        ("update_model_status_interval 0", "agent.conf:5: update_model_status_interval", "must be between"),
        ("num_ps 1 / 0", "agent.conf:5: num_ps", "must not divide by zero"),
        ("num_ps __import__('os')", "agent.conf:5: num_ps", "may have numbers"),
        ("num_ps 1\nnum_ps 2", "agent.conf:6: num_ps", "is given already in line 5 of agent.conf"),
        ("num_ps", "agent.conf:5: num_ps", "must have a value"),
        ("num_ps =", "agent.conf:5: num_ps", "must have a value"),
        ("dc_aware maybe", "agent.conf:5: dc_aware", "must be true or false"),
        ("agent_port 70000", "agent.conf:5: agent_port", "must be a port"),
        ("tfs_entry_http_port -1", "agent.conf:5: tfs_entry_http_port", "must be a port"),
        ("agent_version 2", "agent.conf:5: agent_version", "must be 1 or 3; agent version 2"),
        ("version_policy newest", "agent.conf:5: version_policy", "must be one of latest, latest_once"),
        ("layout_filters ps_{i}; j", "agent.conf:5: layout_filters", "condition on j"),
        ("layout_filters ps_{i}; i % 2 ==", "agent.conf:5: layout_filters", "must be an expression"),
        ("= 4", "agent.conf:5", "must begin with a key"),
        ("zk_servers 10.0.0.1", "agent.conf:5: zk_servers", "must be HOST:PORT"),
        ("zk_servers 10.0.0.1:port", "agent.conf:5: zk_servers", "must be HOST:PORT"),
        ("zk_servers 10.0.0.1:2181,", "agent.conf:5: zk_servers", "must be HOST:PORT"),
        ("zk_servers 10.0.0.1:2181/../x", "agent.conf:5: zk_servers", "must be HOST:PORT"),
        ("zk_servers ::1:2181", "agent.conf:5: zk_servers", "must be HOST:PORT"),
        ("layout_pattern a/../b", "agent.conf:5: layout_pattern", "must be the name of a layout"),
        ("layout_pattern /a//b", "agent.conf:5: layout_pattern", "must be the name of a layout"),
        ("layout_pattern /", "agent.conf:5: layout_pattern", "must be the name of a layout"),
        ("9lives 1", "agent.conf:5", "must begin with a key"),
        ("include missing.conf", "agent.conf:5: include", "must be a file that exists"),
        ("include a\0b.conf", "agent.conf:5: include", "must be a path without null characters"),
        ("include agent.conf", "agent.conf:5: include", "must not include itself: agent.conf includes agent.conf"),
        ("include ./agent.conf", "agent.conf:5: include", "must not include itself"),
        ("agent_version 3", "agent.conf:4: deploy_type", "must be unified with agent_version 3"),
        ("rough_sort_model_name a:b", "agent.conf:5: rough_sort_model_name", "must not contain"),
        ("rough_sort_model_name ..", "agent.conf:5: rough_sort_model_name", "must not"),
        ("max_num_load_retries 99999999999999999999", "agent.conf:5: max_num_load_retries", "64 bits"),
    ],
)
def test_a_mistake_is_named_by_key_and_line(conf, text, field, rule):
    found = problems(conf(text))
    assert any(name == field and rule in text_ for name, text_ in found), found


def test_every_mistake_is_reported_at_once(conf):
    conf("num_ps -1\n", "inner.conf", least="")
    found = problems(conf("colour red\ninclude inner.conf\ndc_aware 7\nbzid a/b\n", least=""))
    assert [field for field, _ in found] == [
        "agent.conf:1: colour",
        "inner.conf:1: num_ps",
        "agent.conf:3: dc_aware",
        "agent.conf:4: bzid",
        "deploy_type",
        "base_name",
        "base_path",
    ]


def test_a_circle_of_files(conf):
    conf("include b.conf\n", "a.conf", least="")
    conf("include a.conf\n", "b.conf", least="")
    assert problems(conf("include a.conf")) == [
        ("b.conf:1: include", "must not include itself: a.conf includes b.conf includes a.conf")
    ]


def test_a_missing_file(tmp_path):
    assert problems(str(tmp_path / "agent.conf")) == [("agent.conf", "must be a file that exists")]


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "agent.conf").write_bytes(b"\xff\xfe")
    assert problems(str(tmp_path / "agent.conf")) == [("agent.conf", "must be UTF-8 text")]


@pytest.mark.parametrize(
    ("text", "field", "rule"),
    [
        (
            "bzid g\ndeploy_type dense\nbase_name m\nbase_path /d\n",
            "dense_alone",
            "must be true with deploy_type dense",
        ),
        ("bzid g\ndeploy_type unified\n", "agent_version", "must be 3 with deploy_type unified"),
        (
            "bzid g\ndeploy_type unified\nagent_version 3\nserver_type ps x\n",
            "agent.conf:4: server_type",
            "must be one of",
        ),
        (f"{LEAST}batching_parameters_file /b\n", "agent.conf:5: batching_parameters_file", "without enable_batching"),
        (f"{LEAST}rough_sort_model_name r\n", "rough_sort_model_p2p_path", "is required with rough_sort_model_name"),
    ],
)
def test_rules_between_keys(conf, text, field, rule):
    assert any(name == field and rule in said for name, said in problems(conf(text, least="")))


@pytest.mark.parametrize(
    "text",
    [
        "server_type ps\n",
        "stand_alone_serving true\n",
        "deploy_type ENTRY\n",
        "stand_alone_serving yes\ndeploy_type ps\n",
    ],
)
def test_a_deploy_type_can_be_said_in_older_ways(conf, text):
    assert read_settings(conf(f"bzid g\nbase_name m\nbase_path /d\n{text}", least=""))


def test_every_field_can_be_written_in_a_file(conf):
    given = {
        "deploy_type": "unified",
        "agent_version": "3",
        "server_type": "unified",
        "bzid": "g",
        "version_policy": "all",
        "rough_sort_model_loaded_server": "dense",
        "stand_alone_serving": "false",
        "zk_servers": "10.0.0.1:2181",
    }
    samples = {"bool": "true", "int": "7", "float": "0.5", "str": "text"}
    for field in dataclasses.fields(ServingSettings):
        kind = str(field.type).removesuffix(" | None")
        given.setdefault(field.name, samples.get(kind, "entry"))
    text = "".join(f"{key} {value}\n" for key, value in given.items())
    settings = read_settings(conf(text, least=""))
    assert settings.tfs_port_grpc == 7
    assert settings.layout_filters == ("entry",)
    assert settings.enable_batching is True
    assert settings.per_process_gpu_memory_fraction == 0.5


def test_what_cannot_be_read_hides_no_other_mistake(tmp_path):
    path = tmp_path / "agent.conf"
    path.write_text("bzid a/b\nfoo 1\ninclude nowhere.conf\nnum_ps x\nlayout_filters a;1 +\n")
    with pytest.raises(InvalidError) as caught:
        read_settings(str(path))
    found = [each.field.rpartition("agent.conf:")[2] for each in caught.value.problems]
    # What is missing may stand in the file that could not be read.
    assert found == ["3: include", "1: bzid", "2: foo", "4: num_ps", "5: layout_filters"]


def test_a_wrong_version_is_not_taken_for_the_default(conf):
    (only,) = problems(conf("bzid g\ndeploy_type unified\nagent_version 2\n", least=""))
    assert "agent version 2 has data in the tree and no agent" in only[1]
