"""Shares: no share exceeds its bound, and nothing is left over while one is short."""

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.views.activity import even_share

LENGTHS = st.lists(st.integers(0, 300), max_size=50)


@given(LENGTHS, st.integers(0, 5_000))
def test_a_share_is_the_largest_that_is_enough_for_all(lengths: list[int], total: int) -> None:
    share = even_share(lengths, total)

    assert sum(min(it, share) for it in lengths) <= total
    is_whole = share >= max(lengths, default=0)
    assert is_whole or sum(min(it, share + 1) for it in lengths) > total


def test_who_needs_little_leaves_the_rest_to_the_others() -> None:
    assert even_share([1, 100, 100], 21) == 10
