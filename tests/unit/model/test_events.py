"""Every kind of event is described once, and the names of earlier versions lead to present ones."""

from __future__ import annotations

import pytest

from shoal.model.events import RENAMED, EventKind


@pytest.mark.parametrize("kind", EventKind)
def test_a_kind_is_a_name_and_a_sentence(kind):
    assert str(kind) == kind.value
    assert kind.value.isalpha()
    assert kind.description.endswith(".")
    assert EventKind(kind.value) is kind


@pytest.mark.parametrize("old", RENAMED)
def test_no_name_of_an_earlier_version_has_another_meaning_now(old):
    assert old not in {kind.value for kind in EventKind}
