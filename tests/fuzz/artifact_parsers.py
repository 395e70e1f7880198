"""The part of the registry for artifacts: a bundle comes from anyone who may submit a job."""

from __future__ import annotations

from shoal.artifacts.bundles import Bundle, pack_bundle, unpack_bundle
from shoal.testing.fuzz import ParserCase, changed_bytes
from tests.fuzz.inputs import blobs, flipped_bytes

GOOD = pack_bundle(Bundle("my_app:flow", {"my_app.py": b"x = 1"}, {"f": b"blob"}, {"python": "3.11"}))

ARTIFACT_PARSERS: dict[str, ParserCase] = {
    "shoal.artifacts.bundles.unpack_bundle": ParserCase(
        unpack_bundle, blobs | changed_bytes(GOOD) | flipped_bytes(GOOD), good=(GOOD,)
    ),
}
