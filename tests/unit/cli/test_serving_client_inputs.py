"""What `shoal serving-client predict` sends: every kind of file, every header of frames, random rows."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format, text_format

from shoal.cli import main
from shoal.cli.connection.session import Surroundings
from shoal.records import Example, ExampleBatch, Instance, write_frames, write_tfrecords
from shoal.records.feature_list import load_feature_list
from shoal.records.formats.frames import FrameFormat
from shoal.records.messages import batch_to_examples, batch_to_instances, instance_to_example
from shoal.records.random_data import random_example_batch, random_instance
from shoal.serving.models.inputs import FileType, InputFile, InputType
from shoal.testing.model_server import FakeModelServer
from shoal.wire.local import LocalNetwork

FEATURES = "feature_name=f_user_id slot=1 feature_id=7\nfeature_name=f_item_id slot=2 method=vectortop args=3\n"
CONFIG = 'model_config_list { config { name: "entry" base_path: "/none/entry" model_platform: "tensorflow" } }'


def packed(*messages) -> list[bytes]:
    return [message.SerializeToString(deterministic=True) for message in messages]


@pytest.fixture
def features(tmp_path) -> Path:
    path = tmp_path / "feature_list.conf"
    path.write_text(FEATURES)
    return path


@pytest.fixture
def batch(features) -> ExampleBatch:
    return random_example_batch(np.random.default_rng(1), load_feature_list(str(features)), rows=5, now=1_700_000_000)


def rows_of(kind: InputType, batch: ExampleBatch) -> tuple[list, list[bytes]]:
    """What a file of this kind has, and the rows that are sent."""
    instances = batch_to_instances(batch)
    if kind is InputType.INSTANCE:
        return instances, packed(*instances)
    if kind is InputType.EXAMPLE:
        examples = [instance_to_example(each) for each in instances]
        return examples, packed(*examples)
    sent = {
        InputType.EXAMPLE_BATCH: [batch],
        InputType.BATCH_AS_INSTANCES: instances,
        InputType.BATCH_AS_EXAMPLES: batch_to_examples(batch),
    }
    return [batch], packed(*sent[kind])


WRITERS: dict[FileType, Callable] = {
    FileType.BYTES: lambda message: message.SerializeToString(),
    FileType.JSON: lambda message: json_format.MessageToJson(message).encode(),
    FileType.TEXT: lambda message: text_format.MessageToString(message).encode(),
}


@pytest.mark.parametrize("kind", InputType)
@pytest.mark.parametrize("file_type", WRITERS)
@pytest.mark.parametrize("named", [True, False])
def test_one_message_in_a_file(tmp_path, batch, kind, file_type, named):
    messages, rows = rows_of(kind, batch)
    path = tmp_path / (f"x.{file_type}" if named else "x")
    path.write_bytes(WRITERS[file_type](messages[0]))
    read = InputFile(kind, None if named else file_type).read(str(path), rows=2)
    assert read == (rows if kind.is_batch else rows[:1])


HEADERS = [FrameFormat(*flags) for flags in itertools.product([False, True], repeat=4)]


@pytest.mark.parametrize("kind", InputType)
@pytest.mark.parametrize("headers", HEADERS)
def test_framed_files_with_every_header(tmp_path, batch, kind, headers):
    messages, rows = rows_of(kind, batch)
    path = tmp_path / "part-0"
    write_frames(str(path), packed(*messages), headers)
    named = headers != FrameFormat()
    read = InputFile(kind, None if named else FileType.FRAMED, headers).read(str(path), rows=3)
    assert read == rows[: 1 if kind is InputType.EXAMPLE_BATCH else 3]


@pytest.mark.parametrize("kind", InputType)
def test_tfrecords(tmp_path, batch, kind):
    messages, rows = rows_of(kind, batch)
    path = tmp_path / "part-0.tfrecord"
    write_tfrecords(str(path), packed(*messages))
    assert InputFile(kind).read(str(path), rows=100) == rows


def test_a_dump(tmp_path):
    path = tmp_path / "x.dump"
    path.write_text('"feature":\n0:\n"fid":\n0: "1"\n1: "2"\n"name": "fc_a"\n"label":\n0: 1.0\n')
    (row,) = InputFile(InputType.INSTANCE).read(str(path), rows=1)
    found = Instance.FromString(row)
    assert (list(found.label), found.feature[0].name, list(found.feature[0].fid)) == ([1.0], "fc_a", [1, 2])


@pytest.fixture
def shoal(capsys):
    """Runs a command line beside a model server; returns its exit code, output, errors, and what the server got."""

    def run(*words: str) -> tuple[int, str, str, list]:
        network, got = LocalNetwork(), []

        def in_loop(work):
            async def everything():
                server = FakeModelServer(CONFIG)
                predict = server.predict

                async def seen(request, call):
                    got.append({name: list(tensor.string_val) for name, tensor in request.inputs.items()})
                    return await predict(request, call)

                server.predict = seen
                await server.start(network.transport("server"), "127.0.0.1:8500")
                try:
                    return await work
                finally:
                    await server.stop()

            return asyncio.run(everything())

        around = Surroundings(make_transport=lambda _access: network.transport("cli"), run=in_loop)
        code = main.run(["serving-client", *words], around=around)
        captured = capsys.readouterr()
        return code, captured.out, captured.err, got

    return run


def test_a_framed_file_is_sent(shoal, tmp_path, batch):
    path = tmp_path / "part-0"
    write_frames(str(path), packed(batch), FrameFormat(has_sort_id=True, kafka_dump=True))
    flags = ("--has-sort-id", "--kafka-dump", "--input-type", "example_batch_to_instance", "--batch-size", "4")
    code, out, err, got = shoal("predict", "entry", "--data", str(path), *flags, "--json")
    assert code == 0, err
    assert got == [{"instances": packed(*batch_to_instances(batch))[:4]}]
    assert len(json.loads(out)["outputs"]["scores"]["float_val"]) == 4


def test_random_rows_are_those_of_the_seed(shoal, features):
    _, _, _, first = shoal("predict", "entry", "--random", "--batch-size", "3", "--seed", "5")
    _, _, _, again = shoal("predict", "entry", "--random", "--batch-size", "3", "--seed", "5")
    rng = np.random.default_rng(5)
    assert first == again == [{"instances": packed(*(random_instance(rng) for _ in range(3)))}]
    words = ("--random", "--input-type", "example_batch", "--feature-list", str(features), "--input", "batch")
    code, _, err, got = shoal("predict", "entry", *words)
    assert code == 0, err
    (row,) = got[0]["batch"]
    assert ExampleBatch.FromString(row).batch_size == 8
    code, _, err, got = shoal(
        "predict", "entry", "--random", "--input-type", "example", "--feature-list", str(features)
    )
    assert code == 0, err
    assert len(Example.FromString(got[0]["instances"][0]).named_feature) == 2


def test_a_profile_takes_files_in_turn(shoal, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.pb").write_bytes(packed(Instance(label=[number]))[0])
    data = [word for number in range(3) for word in ("--data", f"{tmp_path}/{number}.pb")]
    code, _, err, got = shoal("profile", "entry", *data, "--duration", "100ms")
    assert code == 0, err
    labels = [Instance.FromString(call["instances"][0]).label[0] for call in got]
    assert labels[:6] == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    code, _, err, _ = shoal("predict", "entry", *data)
    assert (code, "one call has one file" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--data", "{tmp}/missing.pb"), 1, "not found"),
        (("--data", "{tmp}/rubbish.pb"), 2, "must be a parser.proto.Instance"),
        (("--data", "{tmp}/rubbish.json"), 2, "rubbish.json"),
        (("--data", "{tmp}/rubbish.pb", "--file-type", "framed"), 2, "rubbish.pb"),
        (("--data", "{tmp}/rubbish.pb", "--file-type", "csv"), 2, "--file-type: must be pb, json"),
        (("--data", "{tmp}/rubbish.pb", "--input-type", "rows"), 2, "--input-type: must be instance"),
        (("--data", "{tmp}/empty", "--file-type", "framed"), 2, "must have at least one row"),
        (("--data", "{tmp}/empty", "--file-type", "json", "--has-sort-id"), 2, "must be framed with headers"),
        (("--data", "{tmp}/empty", "--random"), 2, "give rows, --data, --random"),
        (("--random", "--input-type", "example_batch"), 2, "--feature-list: is required"),
        (("--random", "--batch-size", "0"), 2, "--batch-size: must be at least 1"),
    ],
)
def test_mistakes(shoal, tmp_path, words, code, said):
    (tmp_path / "rubbish.pb").write_bytes(b"\xff" * 20)
    (tmp_path / "rubbish.json").write_bytes(b'{"label": "x"}')
    (tmp_path / "empty").write_bytes(b"")
    found, _, err, got = shoal("predict", "entry", *(word.format(tmp=tmp_path) for word in words))
    assert (found, got) == (code, [])
    assert said in err
