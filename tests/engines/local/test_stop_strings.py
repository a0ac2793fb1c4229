"""Stop strings: tokens are skipped only where no stop string can end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.engines.local.runner import STOP_WINDOW, StopStrings
from practicum.models import loader

TOKENIZER = loader.load_tokenizer("tiny")
TEXTS = ("Observation:", "Action: f\n", "é", "日本", "a b", "</tool_call>", "1,", "x\u00a0", "ß.", "<|im_end|>")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(TEXTS) | st.text(max_size=6), max_size=12),
    st.lists(st.sampled_from(TEXTS) | st.text(min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 767), max_size=8),
)
def test_a_reply_stops_where_decoding_after_every_token_would_stop_it(
    pieces: list[str], stops: list[str], odd: list[int]
) -> None:
    ids = [*TOKENIZER("".join(pieces), add_special_tokens=False)["input_ids"], *odd]
    tails = [ids[max(0, count - STOP_WINDOW) : count] for count in range(1, len(ids) + 1)]
    plain = [any(stop in TOKENIZER.decode(tail, skip_special_tokens=False) for stop in stops) for tail in tails]
    stop_strings = StopStrings(TOKENIZER)
    first = plain.index(True) if True in plain else len(plain)
    assert [stop_strings.reached(tail, stops) for tail in tails[:first]] == plain[:first]
    assert first == len(plain) or stop_strings.reached(tails[first], stops)
