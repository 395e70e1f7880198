"""The part of the registry for serving: agent.conf, its environment, filters, and the configs of model servers."""

from __future__ import annotations

from hypothesis import strategies as st

from shoal.serving.config.environment import read_environment
from shoal.serving.config.settings import read_settings
from shoal.serving.config.text import read_entries
from shoal.serving.expressions import parse_expression
from shoal.serving.filters import parse_filter, parse_filters
from shoal.serving.models.configs import parse_config
from shoal.testing.fuzz import ParserCase, changed_bytes, changed_text
from tests.fuzz.inputs import blobs, file_named, texts, with_folder

CONF = b"# a comment\nbzid = test\nnum_ps = 2 * 3\nlayout_filters ps_{i};i % 2 == 1\ninclude other.conf\n"
ENVIRONMENT = {"SHARD_ID": "1", "MONOLITH_HOST_SHARD_N": "2", "PORT": "8000", "MY_HOST_IP": "10.0.0.1"}
MODELS = 'model_config_list { config { name: "m:ps_0" base_path: "/m/ps_0" model_platform: "tensorflow" } }'
FILTER = "ps_{i}; i % ${shard_num} == ${shard_id}"

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
    "shoal.serving.models.configs.parse_config": ParserCase(parse_config, texts | changed_text(MODELS), good=(MODELS,)),
}
