"""The tasks of MiniWoB++ as BrowserGym evaluates them: names, split, seeds of its panel, published scores.

The split into 62 training and 63 test tasks is that of BrowserGym's `metadata/miniwob.csv`, by groups of similar tasks.
Its benchmark draws five seeds per task from `numpy.random.RandomState(42)`, below 34 (its source says `2 ^ 32`, 34 in
Python), and a seed's page is drawn with `RandomState(seed).randint(0, 1000000)`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

_TRAIN = """
book-flight book-flight-nodelay buy-ticket choose-date choose-date-easy choose-date-medium choose-date-nodelay
circle-center click-checkboxes click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer
click-collapsible click-collapsible-2 click-collapsible-2-nodelay click-collapsible-nodelay click-dialog
click-dialog-2 click-option click-shades click-test-2 click-test-transfer count-shape daily-calendar drag-box
drag-items drag-shapes drag-shapes-2 drag-single-shape drag-sort-numbers draw-circle draw-line enter-date
enter-password enter-text enter-text-2 enter-text-dynamic enter-time find-midpoint focus-text focus-text-2
form-sequence identify-shape login-user login-user-popup multi-layouts multi-orderings navigate-tree odd-or-even
read-table read-table-2 search-engine text-editor text-transform unicode-test use-autocomplete
use-autocomplete-nodelay use-colorwheel use-colorwheel-2 use-slider use-slider-2 visual-addition
"""
_TEST = """
ascending-numbers bisect-angle choose-list click-button click-button-sequence click-color click-link click-menu
click-menu-2 click-pie click-pie-nodelay click-scroll-list click-shape click-tab click-tab-2 click-tab-2-easy
click-tab-2-hard click-tab-2-medium click-test click-widget copy-paste copy-paste-2 count-sides drag-circle drag-cube
drag-items-grid email-inbox email-inbox-delete email-inbox-forward email-inbox-forward-nl email-inbox-forward-nl-turk
email-inbox-important email-inbox-nl-turk email-inbox-noscroll email-inbox-reply email-inbox-star-reply find-greatest
find-word form-sequence-2 form-sequence-3 generate-number grid-coordinate guess-number highlight-text highlight-text-2
hot-cold number-checkboxes order-food phone-book resize-textarea right-angle scroll-text scroll-text-2 sign-agreement
simple-algebra simple-arithmetic social-media social-media-all social-media-some stock-market terminal tic-tac-toe
use-spinner
"""
_DELAYED = """
book-flight choose-date choose-date-easy choose-date-medium click-collapsible click-collapsible-2 click-pie
stock-market use-autocomplete
"""
TRAIN_TASKS = tuple(_TRAIN.split())
TEST_TASKS = tuple(_TEST.split())
ALL_TASKS = tuple(sorted((*TRAIN_TASKS, *TEST_TASKS)))
DELAYED_TASKS = frozenset(_DELAYED.split())
"""Tasks that animate what they show; an observation waits for it."""
PANEL_SEED = 42
NUM_PANEL_SEEDS = 5
MAX_PANEL_SEED = 2 ^ 32
"""34: BrowserGym's own expression, a bitwise XOR."""
MAX_PAGE_SEED = 1_000_000

ANCHORS = {
    "GPT-4o-mini": (0.566, 0.020),
    "Llama-3.1-70B": (0.576, 0.020),
    "GPT-4o": (0.638, 0.019),
    "Llama-3.1-405B": (0.646, 0.019),
    "o1-mini": (0.678, 0.019),
    "Claude-3.5-Sonnet": (0.698, 0.018),
}
"""Success rates on the panel of 625 episodes with their standard errors, from AgentLab's reproducibility journal."""


def page_seed(seed: int) -> int:
    """Return the number with which BrowserGym seeds the page of an episode."""
    return int(np.random.RandomState(seed).randint(0, MAX_PAGE_SEED))


@functools.cache
def panel(names: Sequence[str] = ALL_TASKS) -> tuple[tuple[str, int], ...]:
    """Return the episodes of BrowserGym's panel over some tasks, as pairs of name and seed."""
    rng = np.random.RandomState(PANEL_SEED)
    drawn = {name: rng.randint(low=0, high=MAX_PANEL_SEED, size=NUM_PANEL_SEEDS) for name in names}
    return tuple((name, int(seed)) for name in names for seed in drawn[name])
