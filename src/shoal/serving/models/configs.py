"""Model configurations: which models a model server has, as TensorFlow Serving's `ModelServerConfig`.

`model_config` and `model_spec` make single messages, `role_config` the configuration of a model server by its role, and
`config_text` and `parse_config` the text form of a file. The policy `latest_once` (load the newest version, then stay)
is known to one private build of TensorFlow Serving only. It becomes `specific` here, with the version that the caller
chose (`shoal.serving.models.chosen`), so it works on every model server. Pure, apart from `versions_in`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from google.protobuf import text_format

from shoal.core import files
from shoal.core.errors import InvalidError, problem
from shoal.serving.config.deployment import SERVING_HOME, Deployment, Role
from shoal.serving.config.settings import VERSION_POLICIES
from shoal.wire.pb.tensorflow import serving_pb2 as pb
from shoal.wire.pools import TENSORFLOW

PLATFORM = "tensorflow"
#: A model server that has lost every model still gets this one, so that it never runs without any.
DEFAULT_MODEL = "default"
MAX_VERSION = 2**63 - 1

_VERSION = re.compile(r"[0-9]{1,18}")

#: The newest version in a directory; None while there is none.
NewestVersion = Callable[[str], int | None]


def model_spec(name: str, version: int | str | None = None, signature_name: str = "") -> pb.ModelSpec:
    """A model; its version by number or by label; its signature. Raises `InvalidError` for what no call can carry."""
    spec = pb.ModelSpec(name=_text(name, "model"), signature_name=_text(signature_name, "signature"))
    if isinstance(version, int):
        if not 0 <= version <= MAX_VERSION:
            raise InvalidError([problem("version", version, f"must be from 0 to {MAX_VERSION}")])
        spec.version.value = version
    elif version is not None:
        spec.version_label = _text(version, "version")
    return spec


def _text(text: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidError([problem(field, text, "must be text that UTF-8 can write")]) from None
    return text


def model_config(
    name: str,
    base_path: str,
    *,
    policy: str = "latest",
    versions: int | Sequence[int] = 1,
    labels: Mapping[str, int] | None = None,
    newest: int | None = None,
) -> pb.ModelConfig:
    """The configuration of one model.

    Args:
        name: how callers name it.
        base_path: the directory with its versions.
        policy: `latest`, `all`, `specific` or `latest_once`.
        versions: how many of the latest, or which of them with `specific`.
        labels: names for versions.
        newest: the version that `latest_once` loads.
    """
    made = pb.ModelConfig(name=name, base_path=base_path, model_platform=PLATFORM, version_labels=labels or {})
    given = [versions] if isinstance(versions, int) else list(versions)
    chosen = made.model_version_policy
    if policy == "latest":
        chosen.latest.num_versions = given[0]
    elif policy == "all":
        chosen.all.SetInParent()
    elif policy == "specific":
        chosen.specific.versions.extend(given)
    elif policy == "latest_once":
        if newest is None:
            raise InvalidError([problem(f"model {name}", base_path, "has no version yet to load with latest_once")])
        chosen.specific.versions.append(newest)
    else:
        raise InvalidError([problem("version_policy", policy, f"must be one of {', '.join(VERSION_POLICIES)}")])
    return made


def default_model() -> pb.ModelConfig:
    """The model of a server that has no other."""
    return model_config(DEFAULT_MODEL, f"{SERVING_HOME}/dat/saved_models/entry")


def server_config(models: Sequence[pb.ModelConfig]) -> pb.ModelServerConfig:
    """The configuration of a model server, by the names of its models."""
    made = pb.ModelServerConfig()
    made.model_config_list.SetInParent()
    made.model_config_list.config.extend(sorted(models, key=lambda model: model.name))
    return made


def role_config(deployment: Deployment, role: Role, *, newest: NewestVersion) -> pb.ModelServerConfig:
    """The models of a role: those of its sub graphs, and the rough-sort model where it is loaded.

    A model without a version that its policy asks for is left out; the next look finds it.
    """
    settings = deployment.settings
    base = settings.base_path or ""
    names: list[tuple[str, str]]
    if role is Role.PS:
        names = [(f"ps_{index}", base) for index in deployment.ps_indexes()]
        extra = [f"ps_item_embedding_{index}" for index in deployment.ps_indexes()]
    else:
        names = [("entry" if role is Role.ENTRY else "dense_0", base)]
        extra = [f"{role.value}_item_embedding_0"]
    loaded_here = settings.rough_sort_model_loaded_server == role.value
    if settings.rough_sort_resource_constrained and loaded_here and role is Role.ENTRY:
        names.extend((name, base) for name in extra)
    elif settings.rough_sort_model_name and loaded_here:
        received = f"{settings.rough_sort_model_local_path}/{settings.rough_sort_model_name}"
        names.extend((name, received) for name in extra)
    made = [
        _with_policy(name, f"{folder}/{name}", settings.version_policy, settings.version_data, newest)
        for name, folder in names
    ]
    return server_config([model for model in made if model is not None])


def _with_policy(name: str, path: str, policy: str, versions: int, newest: NewestVersion) -> pb.ModelConfig | None:
    if policy != "latest_once":
        return model_config(name, path, policy=policy, versions=versions)
    found = newest(path)
    return None if found is None else model_config(name, path, policy=policy, newest=found)


def model_names(config: pb.ModelServerConfig) -> tuple[str, ...]:
    """The models of a configuration, in order."""
    return tuple(model.name for model in config.model_config_list.config)


def config_text(config: pb.ModelServerConfig) -> str:
    """The text form, as a model server reads it from its file."""
    return text_format.MessageToString(config, descriptor_pool=TENSORFLOW)


def parse_config(text: str, *, where: str = "model config") -> pb.ModelServerConfig:
    """Read the text form. Raises `InvalidError`."""
    try:
        return text_format.Parse(text, pb.ModelServerConfig(), descriptor_pool=TENSORFLOW)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise InvalidError([problem(where, None, f"must be a ModelServerConfig in text form: {error}")]) from None


def is_version(name: str) -> bool:
    """Whether a directory of this name is a version of a model."""
    return _VERSION.fullmatch(name) is not None


def versions_in(base_path: str) -> frozenset[int]:
    """The versions in a directory. Raises `ShoalError` when it cannot be read."""
    names = (files.name(each.path) for each in files.list_files(base_path))
    return frozenset(int(name) for name in names if is_version(name))
