"""The options of a console: links to other systems, and addresses that cannot be."""

from pathlib import Path
from typing import Any

import pytest

from progressor import errors
from progressor.cli.top.console import Addresses, OpenIdInput, console
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


_ISSUER = "https://login.example"
_CONSOLE: dict[str, Any] = {"oidc_issuer": _ISSUER, "oidc_client_id": "console"}


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"oidc_issuer": "http://login.example", "oidc_client_id": "console"}, "--oidc-issuer"),
        ({"oidc_issuer": _ISSUER}, "--oidc-client-id"),
        ({"oidc_client_id": "console"}, "--oidc-issuer"),
        ({**_CONSOLE, "oidc_scope": "profile"}, "--oidc-scope"),
    ],
)
def test_an_issuer_that_cannot_be_is_refused_by_its_option(
    given: dict[str, Any], option: str
) -> None:
    with pytest.raises(errors.InvalidRequestError, match=option):
        OpenIdInput(**given)


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff"])
def test_a_file_that_has_no_secret_is_refused_without_its_content(
    tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(errors.InvalidRequestError, match="--oidc-client-secret-file") as caught:
        OpenIdInput(oidc_client_secret_file=file, **_CONSOLE).client()
    assert "lines" not in str(caught.value)


def test_a_secret_is_read_from_its_file_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    client = OpenIdInput(oidc_client_secret_file=file, **_CONSOLE).client()
    assert client is not None
    assert (client.client_secret, "s3cret" in repr(Options(address="", openid=client))) == (
        "s3cret",
        False,
    )
    assert OpenIdInput().client() is None


def test_a_console_for_others_needs_an_address_to_which_the_issuer_sends_them() -> None:
    with pytest.raises(errors.InvalidRequestError, match="--public-url"):
        console(bind="0.0.0.0:7480", openid=OpenIdInput(**_CONSOLE))
