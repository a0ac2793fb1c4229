"""Environments, tools and rewards of a user's own files."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from practicum import registry
from practicum.collector import CollectSettings
from practicum.data.store import decode_episode, encode_episode
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.errors import UserError
from practicum.evaluation.settings import file_name
from practicum.models import loader
from practicum.report.terminal import episode_lines
from practicum.rollout import run_episodes
from practicum.rollout_setup import make_rollout_setup
from practicum.task import Task
from practicum.trajectory import Outcome, Trajectory, plan_attempts

HEAD = """
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.task import Task


class Mine(Environment):
    formats = ("hf",)

    def tasks(self, split, count, seed=0):
        return [Task(f"{split}-{n}", "mine", split, {"answer": str(n)}) for n in range(count)]

    def expert(self, task):
        return lambda observation: Action(content=task.fields["answer"])
"""
RESET = """
    async def reset(self, task, seed):
        self.answer = task.fields["answer"]
        return Observation((Message("user", "Count."),))
"""
STEP = """
    async def step(self, action):
        return Step(reward=float(action.content == self.answer), terminated=True)
"""


def play(path: Path, count: int = 2) -> list[Trajectory]:
    setup = make_rollout_setup(f"{path}:Mine", "expert")
    planned = plan_attempts(setup.environment.tasks("train", count), 1, 0)
    return asyncio.run(run_episodes(planned, setup.make_environment, setup.agent, setup.engine, setup.renderer))


def write(folder: Path, *parts: str) -> Path:
    path = folder / "mine.py"
    path.write_text("".join(parts))
    return path


def test_an_exception_is_recorded_with_file_line_and_traceback(tmp_path: Path) -> None:
    step = "\n    async def step(self, action):\n        return Step(reward={}['nothing'])\n"
    path = write(tmp_path, HEAD, RESET, step)
    line = path.read_text().splitlines().index("        return Step(reward={}['nothing'])") + 1
    episode = play(path, 1)[0]
    assert episode.outcome is Outcome.ENV_ERROR
    assert episode.error == f"step: KeyError: 'nothing' ({path}:{line} in step)"
    assert episode.traceback is not None
    assert "Traceback (most recent call last)" in episode.traceback
    assert "reward={}['nothing']" in episode.traceback
    assert decode_episode(encode_episode(episode)) == episode
    shown = episode_lines(episode, loader.load_tokenizer("tiny"), coloured=False, logprobs=False)
    assert shown[-1] == "KeyError: 'nothing'"
    assert f"mine.py:{line} in step" in shown[1]


def test_the_place_is_the_users_line_even_when_a_library_raises(tmp_path: Path) -> None:
    step = "\n    async def step(self, action):\n        import json\n        return json.loads('{')\n"
    error = play(write(tmp_path, HEAD, RESET, step), 1)[0].error
    assert error is not None
    assert "mine.py:" in error
    assert error.endswith("in step)")


def test_a_failing_reward_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(
        "from practicum.rewards.base import reward\n\n@reward\ndef broken(answer_given):\n    return 1 / 0\n"
    )
    setup = make_rollout_setup("math", "expert", options={"reward": f"{tmp_path}/judge.py:broken"})
    planned = plan_attempts(setup.environment.tasks("train", 1), 1, 0)
    episode = asyncio.run(run_episodes(planned, setup.make_environment, setup.agent, setup.engine, setup.renderer))[0]
    assert episode.outcome is Outcome.JUDGE_ERROR
    assert episode.error is not None
    assert "judge.py:5 in broken" in episode.error
    assert episode.traceback is not None
    assert "ZeroDivisionError" in episode.traceback


def test_a_file_may_import_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_mine.py").write_text("WORD = '7'\n")
    step = "\n    async def step(self, action):\n        from neighbour_of_mine import WORD as again\n"
    step += "        return Step(reward=float(WORD == again), terminated=True)\n"
    path = write(tmp_path, "from neighbour_of_mine import WORD\n", HEAD, RESET, step)
    assert [episode.outcome for episode in play(path)] == [Outcome.SUCCESS] * 2


def test_plain_functions_run_in_a_thread_and_do_not_stop_other_episodes(tmp_path: Path) -> None:
    plain = (
        (RESET + STEP)
        .replace("async def", "def")
        .replace("        return Step", "        time.sleep(0.2)\n        return Step")
    )
    path = write(tmp_path, "import time\n", HEAD, plain)
    started = time.perf_counter()
    assert [episode.outcome for episode in play(path, 16)] == [Outcome.SUCCESS] * 16
    assert time.perf_counter() - started < 16 * 0.2 - 0.2  # one after the other they take 3.2 s


def test_plain_functions_may_be_overridden_and_may_return_something_to_await() -> None:
    threads = []

    class Base(Environment):
        def reset(self, task: Task, seed: int) -> Any:
            threads.append(threading.current_thread())
            return Observation((Message("user", "Go."),))

        def step(self, action: Action) -> Any:
            return self.later()

        async def later(self) -> Step:
            threads.append(threading.current_thread())
            return Step(terminated=True)

    class Derived(Base):
        async def reset(self, task: Task, seed: int) -> Observation:
            first: Observation = await super().reset(task, seed)
            return first

    async def run() -> Step:
        environment = Derived()
        await environment.reset(Task("t", "mine", "train"), 0)
        await environment.close()
        return await environment.step(Action())

    assert asyncio.run(run()).terminated
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (STEP, "lacks reset; define `def reset(self, task, seed)`"),
        (RESET, "lacks step; define `def step(self, action)`"),
        ("", "lacks reset and step; define"),
    ],
)
def test_a_class_without_its_methods_gets_a_sentence(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace(")", r"\)")):
        registry.environment_class(f"{write(tmp_path, HEAD, body)}:Mine")


@pytest.mark.parametrize(
    ("reset", "step", "message"),
    [
        ("Observation((Message('user', 'Count.'),))", "(1.0, True)", "`step` returned a tuple; it must return a Step"),
        ("'Count.'", "Step()", "`reset` returned a str; it must return an Observation"),
        ("Observation(('Count.',))", "Step()", "messages must be Message objects, not str"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, reset: str, step: str, message: str) -> None:
    body = f"""
    async def reset(self, task, seed):
        return {reset}

    async def step(self, action):
        return {step}
"""
    error = play(write(tmp_path, HEAD, body), 1)[0].error
    assert error is not None
    assert message in error


def test_decorators_work_without_parentheses(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(
        "from practicum.rewards.base import reward\nfrom practicum.tools.base import tool\n\n"
        "@tool\ndef shout(text: str) -> str:\n    '''Shout.'''\n    return text.upper()\n\n"
        "@reward\ndef loud(answer_given):\n    return float(answer_given.isupper())\n"
    )
    shout = registry.tool(f"{tmp_path}/both.py:shout")
    assert (shout.name, shout.description) == ("shout", "Shout.")
    assert asyncio.run(shout.call({"text": "ha"})).text == "HA"
    assert registry.reward(f"{tmp_path}/both.py:loud").score(Task("t", "mine", "train"), "HA", ()).reward == 1.0


def test_the_documented_example_of_several_turns_is_sound(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    example = next(part.split("```")[0] for part in page.split("```python\n") if "class Guess" in part)
    (tmp_path / "guess.py").write_text(example)
    setup = make_rollout_setup(f"{tmp_path}/guess.py:Guess", "expert")
    planned = plan_attempts(setup.environment.tasks("train", 12), 1, 0)
    episodes = asyncio.run(run_episodes(planned, setup.make_environment, setup.agent, setup.engine, setup.renderer))
    assert [episode.outcome for episode in episodes] == [Outcome.SUCCESS] * 12
    assert max(len(episode.turns) for episode in episodes) > 3
    splits = [{task.hash for task in setup.environment.tasks(split, 99)} for split in ("train", "val", "test")]
    assert sum(map(len, splits)) == len(set[str]().union(*splits)) == 100


def test_the_documented_fields_are_the_real_ones() -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    table = page.split("### Fields")[1].split("Parameters of")[0]
    for record in (Task, Observation, Step):
        for name in record.__dataclass_fields__:
            assert f"`{name}`" in table, f"{record.__name__}.{name} is not in the table"


@pytest.mark.parametrize("name", ["../x.py:C", "./x.py:C", "../../x.py:C", "/tmp/x.py:C"])
def test_a_path_to_an_environment_makes_no_hidden_folder(name: str) -> None:
    settings = CollectSettings(environment=name)
    assert not settings.folder(f"{name}-expert-train-0").name.startswith(".")
    assert not file_name(name).startswith(".")
    assert settings.folder("math-expert-train-0").name == "math-expert-train-0"


def test_a_user_s_environment_may_name_scripted_policies_alone_and_in_a_mix(tmp_path: Path) -> None:
    half = """
    name = "mine"
    scripted_policies = ("half",)

    def scripted(self, name, task, seed):
        return lambda observation: Action(content=task.fields["answer"] if task.fields["answer"] in "02" else name)
"""
    path = write(tmp_path, HEAD, half, RESET, STEP)
    for name, options in ((f"{path}:Mine", {}), ("mix", {"environments": [f"{path}:Mine"]})):
        setup = make_rollout_setup(name, "half", options=options)
        planned = plan_attempts(setup.environment.tasks("train", 4), 1, 0)
        episodes = asyncio.run(run_episodes(planned, setup.make_environment, setup.agent, setup.engine, setup.renderer))
        assert [episode.reward for episode in episodes] == [1.0, 0.0, 1.0, 0.0]
        assert episodes[1].turns[0].reply == "half"
    with pytest.raises(UserError, match="Unknown policy 'quarter'. Scripted policies of 'mix': expert, random, null;"):
        make_rollout_setup("mix", "quarter", options={"environments": [f"{path}:Mine", "math"]})
