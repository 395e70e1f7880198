"""Errors become statuses and errors again."""

from __future__ import annotations

import base64
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core import errors
from shoal.core.errors import InvalidError, NotFoundError, Problem, ShoalError
from shoal.model.workloads import FailureReason
from shoal.runtimes.base import RunError
from shoal.testing.suites.parrot import raisable_errors
from shoal.wire.status import ERROR_TRAILER, INVALID_TRAILER, Code, Status, error_of, explain, status_of

TABLE = {
    "InvalidError": Code.INVALID_ARGUMENT,
    "CorruptError": Code.INVALID_ARGUMENT,
    "NotFoundError": Code.NOT_FOUND,
    "ConflictError": Code.ABORTED,
    "PreconditionError": Code.FAILED_PRECONDITION,
    "StaleGenerationError": Code.FAILED_PRECONDITION,
    "SessionSupersededError": Code.FAILED_PRECONDITION,
    "NotLeaderError": Code.FAILED_PRECONDITION,
    "StaleTermError": Code.FAILED_PRECONDITION,
    "MisroutedError": Code.FAILED_PRECONDITION,
    "ExhaustedError": Code.RESOURCE_EXHAUSTED,
    "DeniedError": Code.PERMISSION_DENIED,
    "UnauthenticatedError": Code.UNAUTHENTICATED,
    "UnavailableError": Code.UNAVAILABLE,
    "DamagedError": Code.UNAVAILABLE,
    "DeadlineError": Code.DEADLINE_EXCEEDED,
    "UnsupportedError": Code.UNIMPLEMENTED,
    "InternalError": Code.INTERNAL,
}


def test_the_table_has_every_type_of_the_tree():
    tree = {
        name
        for name, cls in vars(errors).items()
        if isinstance(cls, type) and issubclass(cls, ShoalError) and cls is not ShoalError
    }
    assert tree == set(TABLE)


@pytest.mark.parametrize("name", sorted(raisable_errors()))
def test_an_error_survives_as_itself(name):
    error = raisable_errors()[name]
    status = status_of(error)
    assert status.code is TABLE[name]
    assert status.message == error.message
    again = error_of(status)
    assert type(again) is type(error)
    assert (again.message, again.hint, again.facts, again.args) == (
        error.message,
        error.hint,
        error.facts,
        error.args,
    )
    assert getattr(again, "problems", ()) == getattr(error, "problems", ())
    assert str(pickle.loads(pickle.dumps(again))) == str(error)


def test_a_corrupt_file_is_invalid_for_the_caller():
    error = errors.CorruptError("events.pb", 12, "must end here")
    again = error_of(status_of(error))
    assert type(again) is InvalidError
    assert (again.message, again.facts, again.problems) == (error.message, error.facts, error.problems)


def test_a_subclass_from_elsewhere_goes_by_its_nearest_ancestor():
    class BusyError(errors.ExhaustedError):
        pass

    again = error_of(status_of(BusyError("full", queue="orders")))
    assert type(again) is errors.ExhaustedError
    assert again.facts == {"queue": "orders"}


@pytest.mark.parametrize(
    "error",
    [
        errors.InternalError("the password is 1234", secret="1234"),
        ValueError("1234"),
        ShoalError("1234", secret="1234"),
        RunError("1234", failure=FailureReason.RUNTIME_ERROR),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_bug_is_told_without_its_secrets(error):
    status = status_of(error)
    assert status.code is Code.INTERNAL
    assert "1234" not in status.message
    assert not any(b"1234" in value for value in status.trailers.values())
    assert type(error_of(status)) is errors.InternalError


def test_a_text_of_not_found_always_says_so():
    error = NotFoundError("node", "n1")
    error.message = "there is no such node"
    assert "not found" in status_of(error).message


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (Code.CANCELLED, errors.UnavailableError),
        (Code.UNKNOWN, errors.InternalError),
        (Code.ALREADY_EXISTS, errors.ConflictError),
        (Code.OUT_OF_RANGE, errors.InvalidError),
        (Code.DATA_LOSS, errors.InternalError),
        *((code, cls) for name, code in TABLE.items() if ShoalError in (cls := getattr(errors, name)).__bases__),
    ],
)
def test_a_foreign_status_goes_by_its_code(code, cls):
    error = error_of(Status(code, "what they said"))
    assert type(error) is cls
    assert error.message == "what they said"
    assert error_of(Status(code)).message


def test_a_foreign_agent_says_not_found_in_words():
    assert type(error_of(Status(Code.UNKNOWN, "status not found"))) is NotFoundError
    assert type(error_of(Status(Code.UNKNOWN, "disk on fire"))) is errors.InternalError


def test_what_the_network_says_gets_address_and_method():
    gone = explain(Status(Code.UNAVAILABLE, "refused"), address="h:1", method="/s/M", timeout=2)
    assert isinstance(gone, errors.UnavailableError)
    assert "h:1" in gone.message
    assert gone.facts["address"] == "h:1"
    late = explain(Status(Code.DEADLINE_EXCEEDED), address="h:1", method="/s/M", timeout=2)
    assert isinstance(late, errors.DeadlineError)
    assert "/s/M" in late.message
    assert "2 s" in late.message
    said = explain(status_of(errors.UnavailableError("read-only")), address="h:1", method="/s/M", timeout=2)
    assert said.message == "read-only"


@pytest.mark.parametrize(
    ("code", "number"),
    [(Code.UNIMPLEMENTED, 404), (Code.UNAVAILABLE, 502), (Code.PERMISSION_DENIED, 403)],
)
def test_a_server_that_speaks_http_but_not_grpc_is_named(code, number):
    """gRPC turns the number of the answer into a code of its own."""
    status = Status(code, f"Received http2 header with status: {number}")
    error = explain(status, address="h:1", method="/s/M", timeout=2)
    assert type(error) is errors.UnavailableError
    said = f"an HTTP server or proxy answers there with status {number}, not gRPC"
    assert error.message == f"h:1 cannot be reached: {said}"


def test_a_type_that_contradicts_the_code_is_not_believed():
    status = status_of(errors.DeniedError("no"))
    assert type(error_of(Status(Code.NOT_FOUND, "x", status.trailers))) is NotFoundError


@given(st.binary(), st.binary(), st.sampled_from(Code), st.text())
def test_garbage_in_the_trailers_is_no_reason_to_fail(detail, problems, code, message):
    error = error_of(Status(code, message, {ERROR_TRAILER: detail, INVALID_TRAILER: problems}))
    assert isinstance(error, ShoalError)


text = st.text(st.characters(), max_size=3000)


@given(
    st.lists(st.builds(Problem, field=text, value=text, rule=text), max_size=40),
    st.dictionaries(text, text, max_size=30),
    text,
    text,
)
def test_a_status_always_fits_into_the_headers(problems, facts, hint, message):
    invalid = InvalidError(problems, hint=hint, what=message)
    plain = errors.PreconditionError(message, hint=hint)
    plain.facts = facts
    for error in (invalid, plain):
        status = status_of(error)
        encoded = sum(1 if 32 <= byte < 127 and byte != ord("%") else 3 for byte in status.message.encode())
        trailers = sum(len(name) + len(base64.b64encode(value)) for name, value in status.trailers.items())
        assert encoded + trailers < 8000
        again = error_of(status)
        assert type(again) is type(error)
        for ours, theirs in zip(getattr(error, "problems", ()), getattr(again, "problems", ())[:-1], strict=False):
            assert theirs.field.rstrip("…") in ours.field.encode("utf-8", "replace").decode()
