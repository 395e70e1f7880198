from __future__ import annotations

import dataclasses

import pytest
from google.protobuf import text_format

from shoal.core.errors import InvalidError
from shoal.discovery.replicas.records import ModelState
from shoal.serving.config.deployment import Role, deploy
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import ServingSettings
from shoal.serving.models.configs import (
    config_text,
    model_config,
    model_names,
    model_spec,
    parse_config,
    role_config,
    server_config,
    versions_in,
)
from shoal.serving.models.lifecycle import VersionStatus, choose_version, state_of
from shoal.serving.models.platform import needs_platform_file, platform_text
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.pools import TENSORFLOW

SETTINGS = ServingSettings(bzid="gip", base_name="m", base_path="/d", deploy_type="mixed", num_ps=5, dense_alone=True)
ROUGH = dataclasses.replace(
    SETTINGS, rough_sort_model_name="r", rough_sort_model_local_path="/rec", rough_sort_model_p2p_path="/p2p"
)


def config_of(settings: ServingSettings, role: Role, *, newest=lambda _path: 7) -> pb.ModelServerConfig:
    env = read_environment({"SHARD_ID": "1", "MONOLITH_HOST_SHARD_N": "2"})
    return role_config(deploy(settings, env), role, newest=newest)


def paths(config: pb.ModelServerConfig) -> dict[str, str]:
    return {model.name: model.base_path for model in config.model_config_list.config}


@pytest.mark.parametrize(
    ("settings", "role", "expected"),
    [
        (SETTINGS, Role.PS, {"ps_1": "/d/ps_1", "ps_3": "/d/ps_3"}),
        (SETTINGS, Role.ENTRY, {"entry": "/d/entry"}),
        (SETTINGS, Role.DENSE, {"dense_0": "/d/dense_0"}),
        (ROUGH, Role.ENTRY, {"entry": "/d/entry", "entry_item_embedding_0": "/rec/r/entry_item_embedding_0"}),
        (ROUGH, Role.PS, {"ps_1": "/d/ps_1", "ps_3": "/d/ps_3"}),
        (
            dataclasses.replace(ROUGH, rough_sort_model_loaded_server="ps"),
            Role.PS,
            {
                "ps_1": "/d/ps_1",
                "ps_3": "/d/ps_3",
                "ps_item_embedding_1": "/rec/r/ps_item_embedding_1",
                "ps_item_embedding_3": "/rec/r/ps_item_embedding_3",
            },
        ),
        (
            dataclasses.replace(ROUGH, rough_sort_model_loaded_server="dense"),
            Role.DENSE,
            {"dense_0": "/d/dense_0", "dense_item_embedding_0": "/rec/r/dense_item_embedding_0"},
        ),
        (
            dataclasses.replace(SETTINGS, rough_sort_resource_constrained=True),
            Role.ENTRY,
            {"entry": "/d/entry", "entry_item_embedding_0": "/d/entry_item_embedding_0"},
        ),
    ],
    ids=[
        "ps",
        "entry",
        "dense",
        "rough sort at entry",
        "not at ps",
        "rough sort at ps",
        "rough sort at dense",
        "constrained",
    ],
)
def test_the_models_of_a_role(settings, role, expected):
    config = config_of(settings, role)
    assert paths(config) == expected
    assert {model.model_platform for model in config.model_config_list.config} == {"tensorflow"}


def test_latest_once_becomes_the_version_that_was_found():
    settings = dataclasses.replace(SETTINGS, version_policy="latest_once")
    config = config_of(settings, Role.PS, newest={"/d/ps_1": 9}.get)
    (model,) = config.model_config_list.config
    assert model.name == "ps_1"
    assert list(model.model_version_policy.specific.versions) == [9]


@pytest.mark.parametrize(
    ("arguments", "policy"),
    [
        ({}, "latest { num_versions: 1 }"),
        ({"versions": 2}, "latest { num_versions: 2 }"),
        ({"policy": "all"}, "all { }"),
        ({"policy": "specific", "versions": 3}, "specific { versions: 3 }"),
        ({"policy": "specific", "versions": [3, 5]}, "specific { versions: 3 versions: 5 }"),
        ({"policy": "latest_once", "newest": 8}, "specific { versions: 8 }"),
    ],
)
def test_policies(arguments, policy):
    expected = text_format.Parse(
        f'name: "m" base_path: "/d" model_platform: "tensorflow" model_version_policy {{ {policy} }}', pb.ModelConfig()
    )
    assert model_config("m", "/d", **arguments) == expected


@pytest.mark.parametrize("arguments", [{"policy": "newest"}, {"policy": "latest_once"}])
def test_a_bad_policy(arguments):
    with pytest.raises(InvalidError):
        model_config("m", "/d", **arguments)


def test_labels():
    assert model_config("m", "/d", labels={"stable": 3}).version_labels == {"stable": 3}


@pytest.mark.parametrize(
    ("version", "expected"),
    [(None, 'name: "m"'), (4, 'name: "m" version { value: 4 }'), ("stable", 'name: "m" version_label: "stable"')],
)
def test_a_spec(version, expected):
    made = text_format.Parse(f'{expected} signature_name: "predict"', pb.ModelSpec())
    assert model_spec("m", version, "predict") == made


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("\udcff",), "model"),
        (("m", "\udcff"), "version"),
        (("m", 2**63), "version"),
        (("m", -1), "version"),
        (("m", 1, "\udcff"), "signature"),
    ],
)
def test_what_no_call_can_carry_is_refused(words, field):
    with pytest.raises(InvalidError) as caught:
        model_spec(*words)
    assert [each.field for each in caught.value.problems] == [field]


def test_a_file_is_sorted_and_read_back():
    config = server_config([model_config("m:ps_2", "/b"), model_config("m:entry", "/a", policy="all")])
    assert model_names(parse_config(config_text(config))) == ("m:entry", "m:ps_2")
    assert parse_config(config_text(config)) == config
    assert config_text(server_config([])) == "model_config_list {\n}\n"


@pytest.mark.parametrize("text", ["nonsense", "model_config_list { config { nam: 'x' } }", "model_config_list {"])
def test_a_file_that_is_no_config(text):
    with pytest.raises(InvalidError, match="must be a ModelServerConfig"):
        parse_config(text)


def test_versions_are_compared_as_numbers(tmp_path):
    for name in ("9", "10", "2", "11.tmp", "010x", ".12", "temp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").write_text("x")
    assert versions_in(str(tmp_path)) == {2, 9, 10}
    assert versions_in(str(tmp_path / "missing")) == frozenset()


A, L, E = ModelState.AVAILABLE, ModelState.LOADING, ModelState.END


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([], None),
        ([(1, L)], 1),
        ([(1, A), (2, L)], 1),
        ([(3, A), (2, A), (9, E)], 3),
        ([(10, L), (9, E)], 10),
    ],
)
def test_the_version_that_stands_for_a_model(given, chosen):
    found = choose_version(VersionStatus(version, state) for version, state in given)
    assert (found.version if found else None) == chosen


@pytest.mark.parametrize("state", ModelState)
def test_states_have_the_numbers_of_tensorflow_serving(state):
    assert pb.ModelVersionStatus.State.Value(state.name) == state
    assert state_of(int(state)) is state


def test_a_state_of_a_later_model_server():
    assert state_of(77) is ModelState.UNKNOWN


def platform(cpus: str = "4", **changes) -> tuple[bool, pb.SessionBundleConfig]:
    deployment = deploy(dataclasses.replace(SETTINGS, **changes), read_environment({"MY_CPU_LIMIT": cpus}))
    parsed = text_format.Parse(platform_text(deployment), pb.PlatformConfigMap(), descriptor_pool=TENSORFLOW)
    adapter = pb.SavedModelBundleSourceAdapterConfig()
    assert parsed.platform_configs["tensorflow"].source_adapter_config.Unpack(adapter)
    return needs_platform_file(deployment), adapter.legacy_config


@pytest.mark.parametrize(("cpus", "threads"), [("", 16), ("0", 16), ("0.5", 1), ("2.9", 2), ("32", 32)])
def test_a_platform_file_has_the_threads_of_the_container(cpus, threads):
    assert platform(cpus)[1].session_config.intra_op_parallelism_threads == threads


def test_a_platform_file_with_threads():
    needed, bundle = platform(tensorflow_inter_op_parallelism=3)
    assert not needed
    assert bundle.session_config.intra_op_parallelism_threads == 4
    assert bundle.session_config.inter_op_parallelism_threads == 3
    assert bundle.enable_model_warmup
    assert not bundle.HasField("batching_parameters")


def test_a_platform_file_with_batching():
    needed, bundle = platform(enable_batching=True)
    assert needed
    assert bundle.batching_parameters.max_batch_size.value == 1024
    assert bundle.batching_parameters.num_batch_threads.value == 8
