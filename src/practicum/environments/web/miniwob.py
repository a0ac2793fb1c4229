"""`miniwob`: MiniWoB++, 125 small web tasks, on BrowserGym's panel and scored as it scores.

The pages are those of Farama's package `miniwob`, or of a folder of pages in the same style. An episode ends by itself
when the page says that it is over; a raw reward above 0 is success. The reward that decays with time is not used.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from practicum.environment import SPLITS, Action
from practicum.environments.web.base import BrowserEnvironment, Start, WebVerdict, as_names
from practicum.environments.web.browser import EXECUTABLE, MAX_SESSIONS
from practicum.environments.web.gateway import Handler, HttpRequest, HttpResponse, folder_handler
from practicum.environments.web.miniwob_policies import POLICIES
from practicum.environments.web.miniwob_tasks import (
    ALL_TASKS,
    ANCHORS,
    DELAYED_TASKS,
    NUM_PANEL_SEEDS,
    TEST_TASKS,
    TRAIN_TASKS,
    page_seed,
    panel,
)
from practicum.environments.web.observation import TOP_K, Node, PageView
from practicum.environments.web.session import BrowserSession
from practicum.errors import UserError, did_you_mean
from practicum.task import Task

HOST = "miniwob.test"
MINIWOB_ACTIONS = (
    "click", "fill", "scroll", "mouse_move", "mouse_down", "mouse_up", "mouse_click", "mouse_dblclick",
    "keyboard_press", "keyboard_type",
)  # fmt: skip
"""BrowserGym's action set `miniwob_all`."""
PANELS = ("test", "all")
FIRST_TRAINING_SEED = 1000
"""Seeds of training and validation begin here; those of the panel are below."""
NUM_TRAINING_SEEDS = 1_000_000
DELAY_SECONDS = 0.6
READY_SECONDS = 5.0
RULES = "You control a web browser. Do what the goal says, one action per reply. The episode ends by itself."

BEGIN = """(async () => {
  for (let i = 0; i < 500 && !(window.core && core.cover_div && Math.seedrandom); i++)
    await new Promise(resolve => setTimeout(resolve, 20));
  Math.seedrandom(SEED);
  core.EPISODE_MAX_TIME = 1000000;
  core.startEpisodeReal();
  for (let i = 0; i < 200 && !WOB_TASK_READY; i++) await new Promise(resolve => setTimeout(resolve, 20));
  core.clearTimer();
  const said = core.getUtterance();
  const style = document.createElement('style');
  style.textContent = '#reward-display, #click-canvas, #sync-task-cover { display: none !important }' +
    '#query { visibility: hidden }';
  document.head.append(style);
  return typeof said === 'string' ? said : said.utterance;
})()"""
"""Starts an episode and returns its goal. What is meant for people is hidden: the goal above the page, the score, the
cover that waits for a click."""
RESULT = "[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, String(WOB_REWARD_REASON ?? '')]"
ANIMATED = "(window.jQuery ? jQuery(':animated').length : 0) + document.getAnimations().length"


class MiniWobEnvironment(BrowserEnvironment):
    """MiniWoB++ tasks, or pages of the same style in a folder."""

    name = "miniwob"
    rules = RULES
    viewport = (332, 214)
    with_dom = True
    force_clicks = True
    floor = 0.0
    ceiling = 0.43
    """Scripted policies exist for 27 of the 62 training tasks; the expert gives up on the others."""

    def __init__(
        self, format: str = "web", observe: str = "axtree", prompt: str = "short", fresh: bool = True,
        screenshots: bool = False, actions: Sequence[str] = MINIWOB_ACTIONS, top_k: int = TOP_K, max_chars: int = 8_000,
        pages: int = MAX_SESSIONS, chromium: str = EXECUTABLE, panel: str = "test",
        tasks: Sequence[str] = (), folder: str | None = None,
    ) -> None:  # fmt: skip
        """`panel` says what the split `test` is: BrowserGym's 63 test tasks, or `all` 125, five seeds each. `tasks`
        keeps some tasks only. `folder` has other pages (FOLDER/NAME.html, beside MiniWoB++'s own `core`)."""
        super().__init__(format, observe, prompt, fresh, screenshots, actions, top_k, max_chars, pages, chromium)
        if panel not in PANELS:
            raise UserError(f"miniwob has no panel '{panel}'.{did_you_mean(str(panel), PANELS)}")
        self.panel, self.chosen = panel, as_names(tasks)
        self.folder = None if folder is None else Path(folder).expanduser()
        for name in self.chosen:
            if name not in self.names("all"):
                raise UserError(f"miniwob has no task '{name}'.{did_you_mean(str(name), self.names('all'))}")

    def names(self, part: str) -> tuple[str, ...]:
        """Return the names of the tasks of a part: `train`, `test` or `all`; those of a folder are in every part."""
        if self.folder is not None:
            return pages_of(self.folder)
        return {"train": TRAIN_TASKS, "test": TEST_TASKS, "all": ALL_TASKS}[part]

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return the first tasks of a split; `test` is the panel and has no more than that."""
        if split not in SPLITS:
            raise UserError(f"miniwob has no split '{split}'.{did_you_mean(split, SPLITS)}")
        if split == "test":
            # Seeds are drawn for all tasks in order, so that each has the same seeds in every selection.
            drawn = panel(self.names("all"))
            selected = self._selected(self.names("test" if self.panel == "test" else "all"))
            episodes = [(name, seed, index % NUM_PANEL_SEEDS) for index, (name, seed) in enumerate(drawn)]
            return [self._task(split, *episode) for episode in episodes if episode[0] in selected][:count]
        names = self._selected(self.names("train"))
        rng = random.Random(f"miniwob/{split}/{seed}")
        offset = FIRST_TRAINING_SEED + (NUM_TRAINING_SEEDS if split == "val" else 0)
        seeds: dict[int, None] = {}
        while len(seeds) < count:
            seeds[offset + rng.randrange(NUM_TRAINING_SEEDS)] = None
        return [self._task(split, names[index % len(names)], seed) for index, seed in enumerate(seeds)]

    def _selected(self, names: Sequence[str]) -> tuple[str, ...]:
        selected = tuple(name for name in names if not self.chosen or name in self.chosen)
        if not selected:
            raise UserError("miniwob: none of the chosen tasks is in this split.")
        return selected

    def _task(self, split: str, name: str, seed: int, episode: int = 0) -> Task:
        """`episode` counts those of one task in the panel, where a seed may be drawn twice."""
        fields = {"goal": name, "site": name, "seed": seed, "episode": episode}
        return Task(f"miniwob.{name}-{seed}-{episode}", self.name, split, fields)

    def published_scores(self, tasks: Sequence[Task]) -> Mapping[str, tuple[float, float]]:
        """Return the published success rates where these tasks are the whole panel, or its part of 63 test tasks: then
        the names say that the published figures are those of the whole panel."""
        played = sorted((str(task.fields["site"]), int(task.fields["seed"])) for task in tasks)
        if self.folder is not None:
            return {}
        if played == sorted(panel()):
            return ANCHORS
        is_test = played == sorted(episode for episode in panel() if episode[0] in TEST_TASKS)
        return {f"{name}, all {len(ALL_TASKS)} tasks": score for name, score in ANCHORS.items()} if is_test else {}

    async def start(self, task: Task, seed: int) -> Start:
        self.task_name, self.task_seed = str(task.fields.get("site")), int(task.fields.get("seed", 0))
        if self.task_name not in self.names("all"):
            raise UserError(f"Task '{task.id}' is no page of miniwob.{did_you_mean(self.task_name, self.names('all'))}")
        handler = pages_handler(package_folder(), self.folder)
        part = "miniwob" if self.folder is None else self.folder.name
        self.url = f"http://{HOST}/{part}/{self.task_name}.html"
        return Start({HOST: handler}, self.url, "", self.task_name)

    async def prepare_page(self, session: BrowserSession) -> str:
        goal = await session.tab.evaluate(BEGIN.replace("SEED", str(page_seed(self.task_seed))))
        if goal is None:
            raise RuntimeError(f"the page of {self.task_name} did not start an episode")
        await self.wait_for_page()
        return str(goal)

    async def wait_for_page(self) -> None:
        """Wait for animations."""
        loop = asyncio.get_running_loop()
        until = loop.time() + READY_SECONDS
        if self.task_name in DELAYED_TASKS:
            await asyncio.sleep(DELAY_SECONDS)
        while loop.time() < until and await self.session.tab.evaluate(ANIMATED):
            await asyncio.sleep(0.05)
        await self.session.wait_until_idle()

    async def judge(self, message: str | None) -> WebVerdict:
        if self.view.url.partition("#")[0] != self.url:
            return WebVerdict(False, done=True, info={"raw_reward": 0.0})
        is_done, raw, reason = await self.session.tab.evaluate(RESULT) or (True, 0.0, "the page is gone")
        info = {"raw_reward": float(raw), **({"reason": reason} if reason else {})}
        return WebVerdict(bool(is_done) and raw > 0, float(bool(is_done) and raw > 0), bool(is_done), info)

    def expert_action(self, view: PageView, shown: Sequence[Node]) -> Action:
        policy = POLICIES.get(self.task_name)
        if policy is None:
            return Action(content="There is no scripted policy for this task.")
        return policy(self.goal, shown if self.folder is not None else view.nodes, self.recent_actions)


@functools.cache
def package_folder() -> Path:
    """Return the folder of pages in the package `miniwob`, which is not imported: it would want selenium."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("miniwob needs MiniWoB++'s pages: pip install --no-deps miniwob==1.1.0.")
    return Path(next(iter(spec.submodule_search_locations))) / "html"


@functools.cache
def pages_of(folder: Path) -> tuple[str, ...]:
    """Return the names of the pages in a folder."""
    names = tuple(sorted(path.stem for path in folder.glob("*.html"))) if folder.is_dir() else ()
    if not names:
        raise UserError(f"There is no folder '{folder}' with MiniWoB pages (NAME.html) in it.")
    return names


def pages_handler(package: Path, folder: Path | None) -> Handler:
    """Return a handler for the package's pages, and for those of a folder and its neighbours before them."""
    package_handler = folder_handler(package)
    if folder is None:
        return package_handler
    own_handler = folder_handler(folder.resolve().parent)

    async def handle(request: HttpRequest) -> HttpResponse:
        response = await own_handler(request)
        return await package_handler(request) if response.status == 404 else response

    return handle
