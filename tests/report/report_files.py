"""Runs made by hand for the report and the live page, and the browser that looks at them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from practicum.data import store
from practicum.data.store import encode_episode
from practicum.environment import Action, Message, ToolCall
from practicum.task import Task
from practicum.training.monitor.loggers import MetricsFile
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@contextmanager
def launch_chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def make_turn(tokenizer: PreTrainedTokenizerBase | None, question: str, reply: str, **changed: Any) -> Turn:
    """One exchange, tokenised where there is a tokenizer."""
    spans: tuple[Span, ...] = (Span(Origin.SAMPLED, ()),)
    if tokenizer is not None:
        prompt_ids, reply_ids = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in (question, reply))
        logprobs = tuple(-0.5 * index for index in range(len(reply_ids)))
        spans = (
            Span(Origin.TEMPLATE, (1,)),
            Span(Origin.OBSERVATION, prompt_ids),
            Span(Origin.SAMPLED, reply_ids, logprobs),
        )
    turn = Turn(
        spans=spans,
        restart=True,
        messages=(Message("user", question),),
        reply=reply,
        action=Action(text=reply, content=reply, calls=(ToolCall("calculator", {"expression": "1+1"}),)),
        source=ActionSource.POLICY,
        policy_version=3,
        stop_reason=StopReason.END,
        seed=1,
    )
    return replace(turn, **changed)


def make_episode(
    task: str,
    attempt: int,
    reward: float,
    tokenizer: PreTrainedTokenizerBase | None = None,
    reply: str = "the answer is 4",
    **changed: Any,
) -> Trajectory:
    question = f"What is {task}?"
    episode = Trajectory(
        task=Task(task, "math", "test", {"question": question}),
        attempt=attempt,
        group=task,
        outcome=Outcome.SUCCESS if reward >= 1 else Outcome.FAILURE,
        turns=(make_turn(tokenizer, question, reply, reward=reward),),
        reward=reward,
        components={"answer": reward, "brevity": 0.25},
        seeds=Seeds(1, 2),
        provenance={"model": "tiny"},
    )
    return replace(episode, **changed)


def write_run(
    folder: Path, rewards: Sequence[Sequence[float]], tokenizer: PreTrainedTokenizerBase | None = None
) -> Path:
    """`rewards[task][attempt]`."""
    for index, tries in enumerate(rewards):
        for attempt, reward in enumerate(tries):
            store.write_episode(folder, make_episode(f"task-{index}", attempt, reward, tokenizer))
    return folder


def step_values(step: int, seed: int = 0) -> dict[str, float]:
    """What a training step writes, as far as the page reads it."""
    rng = random.Random(1000 * seed + step)
    success = min(1.0, 0.2 + 0.02 * step + 0.1 * rng.random())
    return {"reward/mean": success, "reward/std": 0.4, "success/mean": success, "rollout/groups": 16.0,
            "rollout/episodes": 128.0, "actor/entropy": 2.0, "actor/ppo_kl": 0.01, "actor/loss": 0.1,
            "hacking/share/answer": 0.7, "hacking/share/brevity": 0.3, "health/findings": 0.0}  # fmt: skip


def write_training(folder: Path, steps: int, seed: int = 0, planned: int = 100, **extra: float) -> Path:
    """A training run's folder; `odd` metrics stand in every step."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(f"trainer:\n  total_training_steps: {planned}\nhealth:\n  repeat_every: 5\n")
    file = MetricsFile(folder / "metrics.jsonl")
    for step in range(1, steps + 1):
        validation = {"val/success/mean": 0.5, "val/success/low": 0.4, "val/success/high": 0.6, "val/n": 40.0}
        file.write(step, {**step_values(step, seed), **(validation if step % 5 == 0 else {}), **extra})
    file.close()
    return folder


SCRIPT = "</script><script>window.owned=1</script><img src=x onerror=window.owned=1>"
HOSTILE_TEXTS = {
    "markup": SCRIPT,
    "comment": "<!--<script>" + SCRIPT,
    "terminal": "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "direction": "abc\u202edcba\u2066\u200b",
    "separators": "one\u2028two\u2029three\x00four",
    "half a character": "\ud83d",
    "template": "{{title}}{{body}}${window.owned=1}`javascript:window.owned=1`",
}


def write_hostile_episodes(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, Path]:
    """Episodes that mean harm, by what is wrong with them."""
    paths = {}
    for name, text in HOSTILE_TEXTS.items():
        plain = text.encode("utf-8", "replace").decode()
        episode = make_episode(f"{name} {plain}"[:100], 0, 1.0, tokenizer, plain)
        action = Action(text=text, content=text, calls=(ToolCall(text, {text: text}),), error=text)
        messages = (Message("user", text, text),)
        turn = replace(episode.turns[0], reply=text, info={text: text}, messages=messages, action=action)
        task = Task(episode.task.id, f"math{plain}"[:80], "test", {"question": plain})
        paths[name] = store.write_episode(
            folder, replace(episode, task=task, turns=(turn,), components={text: 1.0}, error=text, group=text,
                            closing=(Message("user", text),), provenance={"model": "tiny", text: text})
        )  # fmt: skip
    long = "<b>long</b> " * 450_000
    paths["long"] = store.write_episode(folder, make_episode("long", 0, 1.0, None, long))
    valid = encode_episode(make_episode("sound", 0, 0.5, tokenizer))
    for name, old, new in (
        ("nan reward", b'"outcome":"failure","reward":0.5', b'"outcome":"failure","reward":NaN'),
        ("infinite part", b'"brevity":0.25}', b'"brevity":-Infinity}'),
        ("nan log-prob", b'"logprobs":[-0.0', b'"logprobs":[NaN'),
    ):
        assert old in valid, name
        paths[name] = _put(folder, name, valid.replace(old, new))
    return paths


def write_damaged_episodes(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, Path]:
    """Files that are no episodes, by what is wrong with them."""
    valid = encode_episode(make_episode("sound", 0, 0.5, tokenizer))
    reward = b'"outcome":"failure","reward":'
    return {
        name: _put(folder, name, data)
        for name, data in {
            "not UTF-8": valid.replace(b'"reply":"', b'"reply":"\xff\xfe', 1),
            "cut short": valid[: len(valid) // 2],
            "empty": b"",
            "a text as reward": valid.replace(reward + b"0.5", reward + b'"<b>"'),
            "a huge number": valid.replace(reward + b"0.5", reward + b"1" + b"0" * 400),
            "deep": b"[" * 100_000 + b"\n",
            "not JSON": SCRIPT.encode() + b"\n",
            "ids as texts": valid.replace(b'"ids":[1]', b'"ids":["<b>"]', 1),
            "another hash": valid.replace(b'"question":"', b'"question":"!', 1),
        }.items()
    }  # fmt: skip


def _put(folder: Path, name: str, data: bytes) -> Path:
    path = store.episode_path(folder, name, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def embedded_data(page: bytes) -> dict[str, Any]:
    """The JSON inside a report."""
    text = page.split(b'<script type="application/json" id="data">')[1].split(b"</script>")[0]
    data: dict[str, Any] = json.loads(text)
    return data
