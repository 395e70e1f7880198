"""The part of the registry for serving: agent.conf, its environment, filters, and the configs of model servers."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from shoal.discovery.documents import read_record
from shoal.discovery.models.layouts import Layout, LayoutEntry
from shoal.discovery.models.records import DeployConfig, SavedModel
from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import read_settings
from shoal.serving.config.text import read_entries
from shoal.serving.expressions import parse_expression
from shoal.serving.filters import parse_filter, parse_filters
from shoal.serving.layouts import chosen_entries, plan_models
from shoal.serving.models.configs import config_text, parse_config
from shoal.testing.fuzz import JSON_VALUES, ParserCase, changed_bytes, changed_text, changed_values
from tests.fuzz.inputs import blobs, file_named, texts, with_folder

CONF = b"# a comment\nbzid = test\nnum_ps = 2 * 3\nlayout_filters ps_{i};i % 2 == 1\ninclude other.conf\n"
ENVIRONMENT = {"SHARD_ID": "1", "MONOLITH_HOST_SHARD_N": "2", "PORT": "8000", "MY_HOST_IP": "10.0.0.1"}
MODELS = 'model_config_list { config { name: "m:ps_0" base_path: "/m/ps_0" model_platform: "tensorflow" } }'
FILTER = "ps_{i}; i % ${shard_num} == ${shard_id}"

DECLARED = {"model_base_path": "/m/ps_0", "version_policy": "latest_once"}


def plan_of(given: bytes) -> str:
    """From the declaration of a model to what its model server is told."""
    model = SavedModel("m", "ps_0")
    layout = Layout((LayoutEntry(model, read_record(DeployConfig, given, at="/n")),))
    plan = plan_models(*chosen_entries(layout, ()), {model: 3})
    return config_text(plan.config)


SERVING_PARSERS: dict[str, ParserCase] = {
    "shoal.serving.config.text.read_entries": ParserCase(
        with_folder(file_named("agent.conf"), lambda folder: read_entries(str(folder / "agent.conf"))),
        blobs | changed_bytes(CONF),
        good=(b"bzid = test\n",),
    ),
    "shoal.serving.config.settings.read_settings": ParserCase(
        with_folder(file_named("agent.conf"), lambda folder: read_settings(str(folder / "agent.conf"))),
        blobs | changed_bytes(CONF),
    ),
    "shoal.serving.config.environment.read_environment": ParserCase(
        read_environment,
        st.dictionaries(st.sampled_from(sorted(ENVIRONMENT)) | texts, texts | changed_text("8000"), max_size=6),
        good=(ENVIRONMENT,),
    ),
    "shoal.serving.expressions.parse_expression": ParserCase(
        parse_expression, texts | changed_text("i % 2 == 1 and not (j / 3 > 1.5)"), (ValueError,), ("60 * 1000",)
    ),
    "shoal.serving.filters.parse_filter": ParserCase(
        parse_filter, texts | changed_text(FILTER), (ValueError,), (FILTER,)
    ),
    "shoal.serving.filters.parse_filters": ParserCase(
        lambda given: parse_filters(given, shard_id=0, shard_num=2),
        st.lists(texts | changed_text(FILTER), max_size=3),
        (ValueError,),
        ([FILTER, "entry"],),
    ),
    "shoal.serving.layouts.plan_models of a declaration": ParserCase(
        plan_of,
        blobs
        | changed_bytes(json.dumps(DECLARED).encode())
        | (JSON_VALUES | changed_values(DECLARED)).map(lambda each: json.dumps(each).encode()),
        good=(json.dumps(DECLARED).encode(),),
    ),
    "shoal.serving.models.configs.parse_config": ParserCase(parse_config, texts | changed_text(MODELS), good=(MODELS,)),
}
