"""Templates, tasks, experts and the evaluator, played without a browser."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from practicum.environment import SPLITS
from practicum.environments.web.environment import WebEnvironment
from practicum.environments.web.evaluator import gives_answer
from practicum.environments.web.sites.shop_data import ShopState, spare_products
from practicum.environments.web.sites.variation import AXES, Faults
from practicum.environments.web.tasks import LEVELS, SITES, SiteTask, make_tasks, select_templates, templates
from practicum.errors import UserError
from practicum.task import Task
from tests.environments.web.playing import Episode, make_task

NAMES = sorted(templates())
MAX_ELEMENTS = 30
"""The observation lists at most 30 elements, options of comboboxes among them."""
MAX_BODY_CHARS = 5000
STEPS_OF_LEVEL = {1: (1, 3), 2: (2, 8), 3: (3, 20)}


def test_every_site_has_templates_in_every_split_and_at_every_level_that_need_no_typing() -> None:
    for site, split, level in itertools.product(SITES, SPLITS, LEVELS):
        chosen = select_templates(split, sites=[site], levels=[level], text=False)
        assert chosen, (site, split, level)
    for site in SITES:
        texts = Counter(
            template.split for template in templates().values() if template.site == site and template.needs_text
        )
        assert all(texts[split] for split in SPLITS), (site, texts)


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_solves_the_template_with_rising_progress_on_small_pages(name: str) -> None:
    template = templates()[name]
    min_steps, max_steps = STEPS_OF_LEVEL[template.level]
    episode = Episode.of(name, 5)
    progress = [episode.evaluate().progress]
    assert not episode.evaluate().success
    while episode.step_expert():
        options = sum(len(control.options) for control in episode.client.page.controls)
        assert len(episode.client.view.elements) + options <= MAX_ELEMENTS, episode.client.path
        assert len(episode.client.body) <= MAX_BODY_CHARS, episode.client.path
        progress.append(episode.evaluate().progress)
    assert episode.evaluate().success, (episode.evaluate(), episode.actions)
    assert progress[0] == 0.0
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert min_steps <= len(episode.actions) <= max_steps, episode.actions
    types = any(action.verb in ("fill", "send_msg_to_user") for action in episode.actions)
    assert types == template.needs_text


@pytest.mark.parametrize("name", NAMES)
def test_the_expert_solves_the_template_under_variations(name: str) -> None:
    one_axis = AXES[NAMES.index(name) % len(AXES)]
    for seed, axes in enumerate((AXES, (one_axis,))):
        episode = Episode.of(name, seed, *axes)
        assert episode.play_expert().success, (axes, episode.evaluate(), episode.actions)


@pytest.mark.parametrize("name", NAMES[::4])
def test_the_expert_copes_with_faults(name: str) -> None:
    episode = Episode(make_task(name, 2), Faults(error=0.15, vanish=0.15, popup=0.15, seed=7))
    assert episode.play_expert().success, episode.actions


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_expert_solves_many_tasks_under_every_variation_and_with_faults(name: str) -> None:
    for seed in range(10):
        for axes in ((), *((axis,) for axis in AXES), AXES):
            episode = Episode.of(name, seed, *axes)
            assert not episode.evaluate().success
            assert episode.play_expert().success, (axes, episode.evaluate(), episode.actions)
        episode = Episode(make_task(name, seed), Faults(error=0.15, vanish=0.15, popup=0.15, seed=seed))
        assert episode.play_expert().success, episode.actions


def test_tasks_are_the_same_in_every_process_and_all_different() -> None:
    every = list(templates().values())
    tasks = make_tasks(every, 3 * len(every))
    repeated = make_tasks(every, 3 * len(every))
    assert [task.hash for task in tasks] == [task.hash for task in repeated]
    assert len({task.hash for task in tasks}) == len(tasks)
    assert len({task.id for task in tasks}) == len(tasks)
    other = make_tasks(every, len(every), seed=1)
    assert not {task.hash for task in tasks} & {task.hash for task in other}


def test_the_first_tasks_of_a_split_are_of_all_sites_and_levels() -> None:
    tasks = make_tasks(select_templates("train"), 15)
    assert {task.fields["site"] for task in tasks} == set(SITES)
    assert {task.fields["level"] for task in tasks} == set(LEVELS)


def test_a_variation_changes_neither_the_goal_nor_the_data() -> None:
    plain, varied = make_task("shop/buy", 4), make_task("shop/buy", 4, *AXES)
    assert plain.fields["question"] == varied.fields["question"]
    assert plain.fields["digest"] == varied.fields["digest"]
    assert set(varied.fields["variation"]) == set(AXES)


def test_a_task_of_another_version_is_refused() -> None:
    task = make_task("shop/buy", 4)
    changed = Task(task.id, "web", "train", {**task.fields, "digest": "0" * 16})
    with pytest.raises(UserError, match="draw the tasks again"):
        SiteTask(changed)
    with pytest.raises(UserError, match="Did you mean 'shop/buy'"):
        SiteTask(Task(task.id, "web", "train", {**task.fields, "template": "shop/bui"}))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"split": "dev"}, "no split 'dev'"),
        ({"split": "train", "sites": ["shoop"]}, "Did you mean 'shop'"),
        ({"split": "train", "levels": [9]}, "levels \\[9\\]"),
        ({"split": "train", "names": ["shop/ad"]}, "Did you mean 'shop/add'"),
        ({"split": "test", "names": ["shop/add"]}, "among shop/add"),
    ],
)
def test_wrong_selections_are_refused(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        select_templates(**arguments)  # type: ignore[arg-type]


def test_templates_can_be_named() -> None:
    environment = WebEnvironment(templates=["shop/add", "mail/archive"])
    assert {task.fields["template"] for task in environment.tasks("train", 6)} == {"shop/add", "mail/archive"}


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'popup'"):
        make_task("shop/buy", 0, "popups")


# -- the evaluator on golden cases ----------------------------------------------------------


def shop_state(episode: Episode) -> ShopState:
    assert isinstance(episode.task.session.state, ShopState)
    return episode.task.session.state


def test_an_extra_change_is_not_a_success() -> None:
    episode = Episode.of("shop/wish-add")
    assert episode.play_expert().success
    state = shop_state(episode)
    state.add_wish(spare_products(state)[0].id)
    verdict = episode.evaluate()
    assert not verdict.success
    assert verdict.progress == 0.5
    assert len(verdict.unrequested) == 1


def test_a_change_that_is_undone_does_not_count() -> None:
    episode = Episode.of("shop/cart-remove")
    state = shop_state(episode)
    newsletter = state.customer.newsletter
    state.customer.newsletter = not newsletter
    assert episode.evaluate().unrequested
    state.customer.newsletter = newsletter
    assert episode.play_expert().success


def test_the_right_order_twice_is_not_a_success() -> None:
    episode = Episode.of("shop/buy", 1)
    assert episode.play_expert().success
    state = shop_state(episode)
    newest = list(state.orders)[-1]
    state.orders["2000"] = state.orders[newest]
    verdict = episode.evaluate()
    assert not verdict.success
    assert 0 < verdict.progress < 1


def test_a_wrong_option_is_an_unrequested_change_and_no_progress() -> None:
    episode = Episode.of("shop/buy", 1)
    operation = episode.task.case.operations[0]
    shop_state(episode).add_to_cart(operation.product, {"Colour": "purple"}, 1)  # type: ignore[attr-defined]
    verdict = episode.evaluate()
    assert verdict.progress == 0.0
    assert len(verdict.unrequested) == 1


def test_a_filled_cart_is_half_of_buying_and_stays_so_after_the_order() -> None:
    episode = Episode.of("shop/buy", 1)
    first, second = episode.task.case.operations
    first.apply(shop_state(episode))
    assert episode.evaluate().progress == 0.5
    assert episode.evaluate().stage == 1
    second.apply(shop_state(episode))
    assert episode.evaluate().success


def test_emptying_the_cart_is_no_part_of_ordering_it() -> None:
    episode = Episode.of("shop/checkout", 1)
    shop_state(episode).cart = {}
    assert episode.evaluate().progress == 0.0


def test_guests_may_be_invited_in_any_order() -> None:
    episode = Episode.of("calendar/same-guests", 1)
    first, second = episode.task.case.operations[1:]
    state = episode.task.session.state
    second.apply(state)
    assert episode.evaluate().progress == 0.5
    first.apply(state)
    assert episode.evaluate().success


def test_confirmation_texts_do_not_count() -> None:
    episode = Episode.of("shop/checkout", 1)
    episode.task.session.site.message = "Thank you for your order."
    assert episode.evaluate().progress == 0.0


@pytest.mark.parametrize(
    ("message", "answer", "expected"),
    [
        ("It costs $12.", "$12", True),
        ("$12", "$12", True),
        ("It costs $120.", "$12", False),
        ("Room  GREEN", "room green", True),
        ("", "$12", False),
        ("The greenroom", "room", False),
        ("12 dollars", "$12", True),
        ("$11 or $12", "$12", False),
        ("It is in Oak.", "Oak", True),
        ("Oak or Pine", "Oak", False),
        ("Room 12, at 9:00", "Room 12", True),
    ],
)
def test_an_answer_is_found_as_whole_words_and_alone(message: str, answer: str, expected: bool) -> None:
    assert gives_answer(message, answer, distractors=["Pine"]) is expected


def test_a_question_is_answered_without_changing_anything() -> None:
    episode = Episode.of("shop/price", 1)
    answer = episode.task.case.answer
    assert answer is not None
    assert not episode.task.evaluate("I do not know").success
    assert episode.task.evaluate(f"It costs {answer}.").success
    shop_state(episode).cart = {}
    assert not episode.task.evaluate(f"It costs {answer}.").success
