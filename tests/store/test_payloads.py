from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signoff.store import Store, Tx, payloads

LIMIT = payloads.INLINE_LIMIT


@pytest.mark.parametrize(
    ("text", "inline"),
    [("", True), ("x" * LIMIT, True), ("x" * (LIMIT + 1), False), ("ü" * (LIMIT // 2), True), ("ü" * LIMIT, False)],
    ids=["empty", "just fits", "one more", "bytes fit", "bytes do not"],
)
async def test_large_texts_stand_beside_the_row_and_come_back(store: Store, text: str, inline: bool) -> None:
    stored = await store.write(payloads.put, 1, text)
    assert (stored == text) is inline
    assert stored.startswith("@") is not inline
    assert len(stored) < 40 or inline
    assert await store.read(payloads.get, stored) == text


async def test_many_come_back_in_their_order_and_none_stays_none(store: Store) -> None:
    texts = [None, "1", "a" * 9000, '"@x"', "b" * 9000, None, "a" * 9000]

    def put(tx: Tx) -> list[str | None]:
        return [None if text is None else payloads.put(tx, None, text) for text in texts]

    stored = await store.write(put)
    stored.append(stored[2])
    assert await store.read(payloads.get_many, stored) == [*texts, texts[2]]
    assert await store.read(payloads.get_many, []) == []


async def test_a_payload_that_is_gone_is_an_error_not_a_value(store: Store) -> None:
    with pytest.raises(LookupError, match="gone"):
        await store.read(payloads.get, "@gone")


@given(st.text(max_size=60).map(lambda text: text * 200))
def test_what_is_inline_is_decided_by_bytes(text: str) -> None:
    assert payloads.is_inline(text) == (len(text.encode("utf-8", "surrogatepass")) <= LIMIT)
