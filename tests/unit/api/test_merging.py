"""How the pages of several cells become one."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from progressor.api.calls.page_tokens import NAMESPACES, REPLICAS
from progressor.api.server.merging import MERGED
from progressor.v1 import namespace_service_pb2, replica_service_pb2

_NAMES = st.sets(st.text("abc", min_size=1, max_size=3), max_size=12)


def _page(names: set[str], after: str, size: int) -> namespace_service_pb2.ListNamespacesResponse:
    rest = sorted(it for it in names if it > after)
    shown = [namespace_service_pb2.Namespace(name=it) for it in rest[:size]]
    token = NAMESPACES.write(shown[-1].name) if len(rest) > size else ""
    return namespace_service_pb2.ListNamespacesResponse(namespaces=shown, next_page_token=token)


@given(st.lists(_NAMES, min_size=1, max_size=4), st.integers(1, 5))
def test_pages_show_each_item_of_all_cells_once_and_in_order(
    drawn: list[set[str]], size: int
) -> None:
    # A name lives in one cell.
    cells = [{f"{name}-{number}" for name in names} for number, names in enumerate(drawn)]
    seen: list[str] = []
    after = ""
    while True:
        merged: Any = MERGED["ListNamespaces"]([_page(it, after, size) for it in cells])
        assert len(merged.namespaces) <= size
        seen += [it.name for it in merged.namespaces]
        if not merged.next_page_token:
            break
        assert merged.namespaces, "a page with a next one shows something"
        after = NAMESPACES.read(merged.next_page_token)

    assert seen == sorted(set().union(*cells))


def test_a_merged_list_without_items_is_the_last_page() -> None:
    empty = replica_service_pb2.ListReplicasResponse()
    merged: Any = MERGED["ListReplicas"]([empty, empty])

    assert merged == empty
    assert REPLICAS.read(merged.next_page_token) == 0
