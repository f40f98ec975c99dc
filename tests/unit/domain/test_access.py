"""Bindings, what they allow, and API tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.access import tokens
from progressor.domain.access.rights import (
    EVERYTHING,
    ROLES,
    AccessRules,
    Binding,
    Permissions,
    Principal,
    Right,
    Role,
    matches,
)

_WORDS = st.text("ab-.", min_size=1, max_size=4)
_PATTERNS = st.one_of(_WORDS, _WORDS.map(lambda it: it + "*"), st.just(EVERYTHING))
_BINDINGS = st.builds(Binding, principal=_PATTERNS, role=st.sampled_from(Role), namespace=_PATTERNS)


def bound(role: Role, namespace: str) -> Permissions:
    return Permissions([Binding(principal="token:a", role=role, namespace=namespace)])


@given(bindings=st.lists(_BINDINGS, max_size=5), name=_WORDS, group=_WORDS, namespace=_WORDS)
def test_a_right_is_given_exactly_by_a_binding_that_matches(
    bindings: list[Binding], name: str, group: str, namespace: str
) -> None:
    allowed = AccessRules(bindings).permissions_of(Principal(name=name, groups=(group,)))

    for right in Right:
        expected = any(
            right in ROLES[it.role]
            and (matches(it.principal, name) or matches(it.principal, group))
            and matches(it.namespace, namespace)
            for it in bindings
        )
        assert allowed.allow(right, namespace) is expected
        assert allowed.allow(right, EVERYTHING) <= allowed.allow(right, namespace)
        assert allowed.allow(right, namespace) <= (allowed.any_binding_for(right) is not None)


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("orders", "orders", True),
        ("orders", "orders-2", False),
        ("orders*", "orders", True),
        ("orders-*", "orders-2", True),
        ("orders-*", "order", False),
        ("*", "anything", True),
        ("", "", True),
        ("orders", "order", False),
    ],
)
def test_a_pattern_is_a_name_or_its_beginning(pattern: str, name: str, is_match: object) -> None:
    assert matches(pattern, name) is is_match


def test_all_namespaces_take_a_role_in_all() -> None:
    assert bound(Role.READER, "*").allow(Right.READ, EVERYTHING)
    assert not bound(Role.READER, "o*").allow(Right.READ, EVERYTHING)


def test_the_engines_own_namespaces_are_not_matched_by_the_beginning_of_another_name() -> None:
    own = "progressor.operations"

    assert not bound(Role.READER, "p*").allow(Right.READ, own)
    assert bound(Role.READER, "progressor.*").allow(Right.READ, own)
    assert bound(Role.READER, "*").allow(Right.READ, own)
    assert bound(Role.READER, "p*").allow(Right.READ, "payments")


def test_only_who_may_read_payloads_reads_them() -> None:
    assert [role for role, rights in ROLES.items() if Right.READ_PAYLOADS in rights] == [
        Role.PAYLOAD_READER
    ]


def test_a_token_is_found_by_its_id_and_proved_by_its_secret() -> None:
    token_id, text, secret_hash = tokens.compose(b"\1" * 8, b"\2" * 32)
    parts = tokens.split(text)
    valid = tokens.ValidToken(
        token_id=token_id, name="shop", secret_hash=secret_hash, expires_at=None
    )

    assert parts is not None
    assert parts[0] == token_id
    assert tokens.is_secret_of(parts[1], valid)
    assert not tokens.is_secret_of("0" * 64, valid)
    assert parts[1] not in repr(valid)
    assert parts[1].encode() not in secret_hash


@pytest.mark.parametrize("name", ["", "zz*", "*", "a b", "a\n", "adm\u00edn", "x" * 129, "a:b"])
def test_a_name_of_a_token_cannot_be_taken_for_another(name: str) -> None:
    assert not tokens.is_token_name(name)
    assert tokens.is_token_name("shop/web-1@eu.west+2_")


@pytest.mark.parametrize("change", [str.upper, str.strip, lambda it: it[:-1], lambda it: it + "0"])
def test_a_token_that_was_changed_is_none(change: object) -> None:
    _, text, _ = tokens.compose(b"\1" * 8, b"\2" * 32)
    assert callable(change)
    changed = change(f" {text}"[change is not str.strip :])

    assert (tokens.split(changed) is None) == (changed != text)
