"""The pages of the sites: well-formed, small, the same for the same task, and safe from any request."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environments.web.sites.shop_data import ShopState
from practicum.environments.web.sites.site import MAX_STORED_RECORDS
from practicum.environments.web.sites.variation import AXES, WORDS, Faults, Variation, translate
from practicum.environments.web.tasks import SITES, templates
from tests.environments.web.playing import Episode, make_task

NAMES = sorted(templates())
MAX_NAME_CHARS = 50
TEXTS = ("", "tea", "<script>alert(1)</script>", "'\"&", "x" * 900, "../../etc/passwd", "é漢\n")


def random_walk(episode: Episode, rng: random.Random, num_actions: int) -> None:
    """Use elements at random, with any text and any option."""
    client = episode.client
    for _ in range(num_actions):
        assert client.status in (200, 404), client.body
        controls = client.page.controls
        control = rng.choice(controls)
        if control.role == "combobox":
            control.value = rng.choice(control.options)
        elif control.role in ("textbox", "searchbox"):
            control.value = rng.choice(TEXTS)
        else:
            client.click(control)


@given(st.sampled_from(NAMES), st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_random_clicks_never_fail_and_pages_stay_small_with_unique_names(name: str, seed: int) -> None:
    episode = Episode.of(name, seed, *(AXES if seed % 2 else ()))
    rng = random.Random(seed)
    for _ in range(8):
        random_walk(episode, rng, 4)
        elements = episode.client.view.elements
        keys = [(element.role, element.name) for element in elements]
        assert len(set(keys)) == len(keys), keys
        assert all(element.name for element in elements), keys
        assert all(len(element.name) <= MAX_NAME_CHARS for element in elements), keys
        verdict = episode.evaluate()
        assert 0.0 <= verdict.progress <= 1.0
        assert verdict.success == (verdict.progress == 1.0)


SEGMENTS = (
    *(
        "category",
        "Tea",
        "search",
        "product",
        "p1",
        "p9",
        "review",
        "cart",
        "line",
        "c1",
        "wishes",
        "checkout",
        "orders",
    ),
    *("order", "1001", "account", "add", "wish", "unwish", "remove", "empty", "coupon", "cancel", "return", "again"),
    *("folder", "Inbox", "Trash", "message", "m1", "m9", "reply", "forward", "compose", "settings", "rules", "blocked"),
    *("read-all", "empty-trash", "move", "file", "erase", "star", "unread", "unrule", "unblock", "week", "1", "day"),
    *("Mon", "event", "e1", "e9", "new", "room", "invite", "reminder", "rename", "invitations", "delete", "clear"),
    *("copy", "uninvite", "answer", "accepted", "close-popup", "..", "%00", "é", "", "x" * 300),
)
FIELDS = (
    "q",
    "page",
    "sort",
    "quantity",
    "stars",
    "text",
    "address",
    "shipping",
    "to",
    "folder",
    "day",
    "time",
    "title",
)
VALUES = ("", "1", "-1", "2", "Tea", "Home", "Express", "Mon", "9:00", "Choose", "Lowest price", "'", "x" * 2000)


@given(
    site=st.sampled_from(sorted(SITES)),
    requests=st.lists(
        st.tuples(
            st.sampled_from(("GET", "POST")),
            st.lists(st.sampled_from(SEGMENTS), max_size=3),
            st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(VALUES), max_size=4),
        ),
        max_size=12,
    ),
)
@settings(max_examples=60, deadline=None)
def test_every_request_is_answered(site: str, requests: list[tuple[str, list[str], dict[str, str]]]) -> None:
    session = Episode.of(next(name for name in NAMES if name.startswith(site)), 1).task.session
    for method, path, fields in requests:
        url = "/".join(("", site, *path))
        response = session.handle(method, url, fields, fields)
        assert response.status in (200, 303, 404)
        assert response.location.startswith(f"/{site}/") or response.status != 303


def test_random_clicks_seldom_solve_a_task() -> None:
    solved: dict[int, list[bool]] = {1: [], 2: [], 3: []}
    for name in NAMES:
        for seed in range(2):
            episode = Episode.of(name, seed)
            random_walk(episode, random.Random(f"{name}{seed}"), 8)
            solved[templates()[name].level].append(episode.evaluate().success)
    rates = {level: sum(results) / len(results) for level, results in solved.items()}
    assert rates[1] <= 0.25, rates
    assert rates[2] <= 0.05, rates
    assert rates[3] == 0.0, rates


@pytest.mark.parametrize("site", sorted(SITES))
def test_the_same_task_gives_the_same_pages_and_sessions_share_no_state(site: str) -> None:
    for name in [name for name in NAMES if templates()[name].site == site][::4]:
        first, second = (Episode.of(name, 9, *AXES) for _ in range(2))
        before = second.task.session.facts()
        assert first.play_expert().success
        assert second.task.session.facts() == before
        assert second.evaluate().progress == 0.0
        second.play_expert()
        assert first.client.bodies == second.client.bodies


@pytest.mark.parametrize("axis", AXES)
def test_each_axis_changes_pages_and_only_its_own_part(axis: str) -> None:
    variation = Variation.draw([axis], random.Random(1))
    assert set(variation.to_json()) == {axis}
    all_axes = Variation.draw(AXES, random.Random(1))
    assert getattr(all_axes, axis) == getattr(variation, axis)
    for site in SITES:
        name = next(name for name in NAMES if name.startswith(f"{site}/") and templates()[name].level == 3)
        pages = [Episode.of(name, seed, axis) for seed in range(2)]
        plain = [Episode.of(name, seed) for seed in range(2)]
        for episode in (*pages, *plain):
            episode.play_expert()
        differ = [a.client.bodies != b.client.bodies for a, b in zip(pages, plain, strict=True)]
        assert any(differ), (site, axis)


def test_other_wordings_are_unambiguous() -> None:
    for wording in (1, 2):
        words = [translate(label, wording) for label in WORDS]
        assert len(set(words)) == len(words)
        assert not set(words) & set(WORDS), set(words) & set(WORDS)


def test_a_dialog_hides_the_page_until_it_is_dismissed() -> None:
    task = make_task("shop/cart-empty", 3, "popup")
    view = task.fields["variation"]["popup"]
    episode = Episode(task)
    for _ in range(view - 1):
        episode.client.goto("/shop/cart?page=1")
    assert [element.name for element in episode.client.view.elements] == ["No thanks"]
    path = episode.client.path
    episode.click("button", "No thanks")
    assert episode.client.path == path
    assert len(episode.client.view.elements) > 3


def test_dismissing_a_dialog_leads_to_the_page_below_it_whatever_the_spelling_of_its_path() -> None:
    session = Episode.of("shop/cart-empty", 3).task.session
    for path, expected in (("/shop/", "/shop/"), ("/shop", "/shop/"), ("//shop//cart/", "/shop/cart")):
        assert session.handle("GET", path).status == 200
        assert session.handle("POST", "/shop/close-popup").location == expected


def test_faults_hit_the_requests_that_the_seed_says_and_no_others() -> None:
    task = make_task("shop/cart-empty", 0)
    faulty = Episode(task, Faults(error=0.5, seed=1))
    statuses = []
    for _ in range(40):
        faulty.client.goto("/shop/cart")
        statuses.append(faulty.client.status)
    same_seed = Episode(task, Faults(error=0.5, seed=1))
    repeated = []
    for _ in range(40):
        same_seed.client.goto("/shop/cart")
        repeated.append(same_seed.client.status)
    assert statuses == repeated
    assert 8 <= statuses.count(500) <= 32


def test_a_form_that_fails_has_no_effect() -> None:
    episode = Episode(make_task("shop/cart-empty", 0), Faults(error=1.0))
    before = episode.task.session.facts()
    episode.client.goto("/shop/empty", "POST")
    assert episode.client.status == 500
    assert episode.task.session.facts() == before


def test_a_slow_answer_waits_and_a_vanished_element_returns() -> None:
    session = Episode(make_task("shop/cart-empty", 0), Faults(slow=1.0, slow_seconds=0.5)).task.session
    assert session.handle("GET", "/shop/cart").delay_seconds == 0.5
    complete = Episode(make_task("shop/cart-empty", 0)).client
    complete.goto("/shop/cart")
    vanishing = Episode(make_task("shop/cart-empty", 0), Faults(vanish=0.5, seed=3)).client
    sizes = set()
    for _ in range(20):
        vanishing.goto("/shop/cart")
        sizes.add(len(vanishing.view.elements))
    assert sizes == {len(complete.view.elements), len(complete.view.elements) - 1}


def test_unknown_pages_and_records_are_not_found() -> None:
    client = Episode(make_task("shop/buy", 0)).client
    for path in ("/shop/nothing", "/shop/product/p999", "/shop/../../etc/passwd", "/mail/x", "/shop/order/1"):
        client.goto(path)
        assert client.status == 404, path
    for path in ("/shop/remove/c999", "/shop/cancel/1", "/shop/add/p999", "/shop/cart"):
        client.goto(path, "POST")
        assert client.status == 404, path


def test_repeating_a_form_does_not_fill_the_memory() -> None:
    episode = Episode.of("shop/checkout", 0)
    state = episode.task.session.state
    assert isinstance(state, ShopState)
    order = state.orders["1001"]
    state.orders = {str(1001 + index): order for index in range(MAX_STORED_RECORDS - 1)}
    lines = dict(state.cart)
    for _ in range(3):
        state.cart = dict(lines)
        episode.client.goto("/shop/checkout", "POST", {"address": "Home", "shipping": "Express"})
    assert len(state.orders) == MAX_STORED_RECORDS
    assert "no room" in episode.client.text
