"""The options of a console: links to other systems, and addresses that cannot be."""

from typing import Any

import pytest

from progressor import errors
from progressor.cli.console import Addresses
from progressor.console.options import Options


def test_links_to_other_systems_have_names_filled_in_and_escaped() -> None:
    options = Options(
        address="",
        trace_link="https://traces.example/trace/{trace_id}",
        log_link="https://logs.example/?q={namespace}%20{process_id}",
    )
    assert options.trace_of("0af7") == "https://traces.example/trace/0af7"
    assert options.logs_of("a&b", "{namespace}/ü") == (
        "https://logs.example/?q=a%26b%20%7Bnamespace%7D%2F%C3%BC"
    )
    assert options.trace_of("") == ""
    assert Options(address="").logs_of("a", "b") == ""


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("trace_link", "javascript:alert({trace_id})"),
        ("trace_link", "https://traces.example/{process_id}"),
        ("log_link", "ftp://logs.example/{process_id}"),
        ("base_path", "progressor"),
        ("base_path", "/"),
        ("public_url", "ops.example"),
        ("public_url", "https://ops.example/progressor"),
    ],
)
def test_an_address_that_cannot_be_is_refused_by_its_option(field: str, text: str) -> None:
    given: dict[str, Any] = {field: text}
    with pytest.raises(errors.InvalidRequestError, match=f"--{field.replace('_', '-')}"):
        Addresses(**given)
