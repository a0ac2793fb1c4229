"""`agentgym:sciworld`: ScienceWorld, science experiments with rooms, substances, plants and circuits.

The simulator is ScienceWorld's own, in Java, in a worker process (`sciworld_host.py`). Its score goes from 0 to 100,
and to -100 if the task is lost; the native reward of a step is its change in hundredths, so an episode's total is its
score between -1 and 1.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
import shutil
from collections.abc import Sequence
from typing import Any

from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.agentgym import sciworld_tasks
from practicum.environments.agentgym.base import AgentGymEnvironment, CommandResponse, ServerFields
from practicum.environments.agentgym.grammar.bracket import Brackets, Call
from practicum.environments.agentgym.shaping import Shaping
from practicum.environments.worker import WorkerPool, WorkerSession, shared_pool
from practicum.errors import UserError
from practicum.task import Task

HOST = "practicum.environments.agentgym.sciworld_host:ScienceWorldHost"
SIMPLIFICATIONS = (
    "easy", "teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction"
)  # fmt: skip
EXPERTS = ("gold", "looking")
MEGABYTES = 2048
"""Limit of Java's heap: 64 episodes take 800, and a nearly full heap is collected without end."""
UNKNOWN = "No known action matches that input."
QUESTION = "Ambiguous request"
LOOK_COMMANDS = ("look", "examine", "read", "inventory", "task", "wait")
"""Commands that change nothing, or only the time; they have no reward."""
REFUSALS = re.compile(
    r"(is|are) (not|already) |\bcan(not|'t)\b|not sure|isn't|doesn't|unable|not possible|(does|do) not|must be|first\b",
    re.IGNORECASE,
)
USAGE = (
    "open X | close X | activate X | deactivate X | connect X to Y | disconnect X | use X | use X on Y | look around | "
    "look at X | look in X | read X | move X to Y | pick up X | put down X | pour X into Y | dunk X into Y | mix X | "
    "go to X | eat X | flush X | focus on X | wait | wait1 | task | inventory"
)
BRACKETS = Brackets(
    {
        "goto": ("go to {}", "go {}"),
        "take": ("pick up {}",),
        "drop": ("put down {}",),
        "use": ("use {} on {}", "use {}"),
        "activate": ("activate {}",),
        "deactivate": ("deactivate {}",),
        "pour": ("pour {} into {}",),
        "mix": ("mix {}",),
        "move": ("move {} to {}",),
        "dunk": ("dunk {} into {}",),
        "open": ("open {}",),
        "close": ("close {}",),
        "connect": ("connect {} to {}",),
        "disconnect": ("disconnect {}",),
        "focus": ("focus on {}",),
        "look": ("look at {}", "look around"),
        "lookin": ("look in {}",),
        "examine": ("examine {}",),
        "read": ("read {}",),
        "eat": ("eat {}",),
        "flush": ("flush {}",),
        "teleport": ("teleport to {}",),
        "wait": ("wait",),
        "task": ("task",),
        "inventory": ("inventory",),
    }
)
_gold: dict[tuple[str, str, int], tuple[str, ...]] = {}
_gold_wanted: set[str] = set()
"""Simplifications for which an expert was used: later episodes return the solution when they begin."""


class SciWorld(AgentGymEnvironment):
    """Science experiments in ScienceWorld's own simulator: 30 tasks, 7,207 variations; needs Java."""

    name = "agentgym:sciworld"
    # The simulator's own solutions: 67 of 69 won; one was longer than 100 moves, one focused on the wrong box.
    ceiling = 0.97
    instruction = (
        "You do experiments in a small world of rooms. Commands: {usage}\n"
        "X and Y are things you see. Where a command is ambiguous you are asked which you mean: answer with a number. "
        "Focus only on what the task names: a wrong focus loses it."
    )
    usage = USAGE
    brackets = BRACKETS
    # Each new command with an effect is rewarded once: opening and closing a door repeatedly is not.
    shaping = Shaping(step=0.15, once=True)
    server_fields = ServerFields(
        facts=("action_hint", "goals"),
        in_reset=("task_name", "var_num", "task_description", "observation", "deleted"),
        in_step=("reward", "score"),
    )

    def __init__(
        self,
        format: str = "react",
        grammar: str = "both",
        reward: str = "native",
        protocol: str = "system",
        tasks: str | Sequence[str] = "agentgym",
        simplification: str = "",
        step_limit: int = 100,
        legal: bool = False,
        workers: int = 1,
        megabytes: int = MEGABYTES,
        expert: str = "gold",
        instruction: str | None = None,
    ) -> None:
        super().__init__(format, grammar, reward, protocol, instruction)
        self.check("expert", expert, EXPERTS)
        self.names, self.expert_kind = self._names(tasks), expert
        for part in filter(None, simplification.split(",")):
            self.check("simplification", part, SIMPLIFICATIONS)
        if step_limit < 1 or workers < 1:
            raise UserError("sciworld needs a step_limit and workers of at least 1.")
        self.simplification, self.step_limit, self.legal = simplification, step_limit, legal
        self._pool = pool_of(simplification, workers, megabytes)
        self._session: WorkerSession | None = None
        self._score = 0
        self._response: dict[str, Any] = {}

    def _names(self, tasks: str | Sequence[str]) -> tuple[str, ...]:
        """Return a set of tasks by its name, or tasks by theirs."""
        if isinstance(tasks, str) and tasks in sciworld_tasks.SETS:
            return sciworld_tasks.SETS[tasks]
        names = tuple([tasks] if isinstance(tasks, str) else tasks)
        for name in names:
            self.check("tasks", name, (*sciworld_tasks.SETS, *sciworld_tasks.VARIATIONS))
            if name in sciworld_tasks.SETS:
                raise UserError(f"sciworld: tasks={name} is a set of tasks and stands alone, not in a list.")
        if not names:
            raise UserError("sciworld needs a task: 'agentgym', 'all', or a list of names.")
        return names

    async def begin(self, task: Task, seed: int) -> CommandResponse:
        """Load the task. Task and variation determine the simulation; the seed has no effect."""
        name, variation = _named(task)
        if self._session is None or not self._session.alive:
            self._session = self._pool.open_session()
        key = (self.simplification, name, variation)
        gold = self.simplification in _gold_wanted and key not in _gold
        response = await self._session.call("begin", task=name, variation=variation, gold=gold)
        if gold:
            _gold[key] = tuple(response["gold"])
        self._score = 0
        self._response = {
            "task_name": name, "var_num": variation, "task_description": response["task"],
            "observation": response["text"], "deleted": False, "reward": 0,
        }  # fmt: skip
        legal = tuple(await self._session.call("valid")) if self.legal else None
        return CommandResponse(f"{response['task']}\n{response['text']}", legal=legal)

    async def act(self, command: str) -> CommandResponse:
        assert self._session is not None, "begin comes before act"
        response = await self._session.call("step", command=command, legal=self.legal)
        score = int(response["score"])
        native, self._score = (score - self._score) / 100, score
        success = score >= 100
        out_of_steps = response["moves"] > self.step_limit
        done = success or score < 0 or bool(response["completed"]) or out_of_steps
        text = response["text"]
        valid = text != UNKNOWN
        worked = valid and not text.startswith(QUESTION) and not REFUSALS.search(text)
        return CommandResponse(
            text,
            native=native,
            kind=command if worked and not command.startswith(LOOK_COMMANDS) else "",
            done=done,
            success=success,
            worth=max(0.0, score / 100) if done else None,
            legal=None if response["legal"] is None else tuple(response["legal"]),
            valid=valid,
            info={"score": score, "moves": response["moves"]},
        )

    async def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def progress(self) -> float:
        return max(0.0, self._score / 100)

    def from_brackets(self, call: Call) -> str | None:
        """Translate a bracket command; `choose[N]` answers which of several was meant, `wait[1]` is `wait1`."""
        if call.verb == "choose":
            return call.rest if call.rest.isdigit() else None
        if (call.verb, call.rest) == ("wait", "1"):
            return "wait1"
        return super().from_brackets(call)

    def write(self, sentence: str) -> str:
        if self.grammar == "bracket" and sentence.isdigit():
            return f"choose[{sentence}]"
        if self.grammar == "bracket" and sentence == "wait1":
            return "wait[1]"
        return super().write(sentence)

    def reward_components(self, reply: CommandResponse, again: bool = False) -> dict[str, float]:
        components = super().reward_components(reply, again)
        # AgentGym's server returns points.
        self._response["reward"] = sum(components.values()) if self.shaped else round(100 * sum(components.values()))
        return components

    def fact(self, name: str) -> Any:
        return self._score if name == "score" else self._response[name]

    async def ask(self, name: str) -> Any:
        """Return a fact; lists and goals come from the simulator."""
        assert self._session is not None, "reset comes before questions"
        if name == "action_hint":
            return await self._session.call("hint")
        return {"goals": await self._session.call("goals")}

    @property
    def num_indices(self) -> int:
        return sciworld_tasks.NUM_INDICES

    def task_at(self, data_idx: int) -> Task:
        self.check_index(data_idx)
        return sciworld_tasks.task_at(data_idx)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return tasks of ScienceWorld's own splits of variations; the kinds of tasks alternate."""
        self.check_split(split)
        return sciworld_tasks.in_turn(self.names, split, count, seed)

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy of the simulator's own solution; later episodes return it when they begin.

        `looking` looks around in every room that it enters: the solution names things that it has not seen there.
        """
        name, variation = _named(task)
        _gold_wanted.add(self.simplification)
        key = (self.simplification, name, variation)
        if key not in _gold:  # `ready_expert` has not been called
            _gold[key] = tuple(self._pool.ask("gold", task=name, variation=variation))
        plan = iter(_gold[key] if self.expert_kind == "gold" else with_looks(_gold[key], self.simplification))

        def act(observation: Observation) -> Action:
            return Action(content=self.write(next(plan, "look around")))

        return act

    async def ready_expert(self, task: Task) -> None:
        name, variation = _named(task)
        _gold_wanted.add(self.simplification)
        key = (self.simplification, name, variation)
        if key not in _gold:
            _gold[key] = tuple(await self._pool.call("gold", task=name, variation=variation))

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that gives a random listed command (`legal`), else a verb and objects of the observation."""
        generator = random.Random(seed)

        def act(observation: Observation) -> Action:
            if observation.legal:
                return Action(content=self.write(generator.choice(observation.legal)))
            seen = " ".join(message.content for message in observation.messages[-1:])
            names = re.findall(r"\b(?:an?|the) ((?:[a-z]+ ?){1,3}?)(?=[,.()\n\t]|$)", seen) or ["agent"]
            verb = generator.choice(("go to {}", "open door to {}", "pick up {}", "look at {}", "look around"))
            return Action(content=self.write(verb.format(generator.choice(names).strip())))

        return act


def with_looks(solution: Sequence[str], simplification: str) -> list[str]:
    """Return a solution that looks around in every room it enters, and does not open doors that are open anyway."""
    doors_are_open = {"easy", "openDoors"} & set(simplification.split(","))
    kept = [command for command in solution if not (doors_are_open and command.startswith("open door"))]
    commands: list[str] = []
    for command, following in itertools.zip_longest(kept, kept[1:]):
        # The simulator's solutions repeat the first word of some names, as in 'baby baby brown bear'.
        commands.append(re.sub(r"\b(\w+) \1\b", r"\1", command))
        if command.startswith("go to ") and following != "look around":
            commands.append("look around")
    return commands


def pool_of(simplification: str = "", workers: int = 1, megabytes: int = MEGABYTES) -> WorkerPool:
    """Return the worker pool that all SciWorld environments of these settings share."""
    if importlib.util.find_spec("scienceworld") is None:
        raise UserError("agentgym:sciworld needs the ScienceWorld package: pip install 'practicum[sciworld]'.")
    if shutil.which("java") is None:
        raise UserError("agentgym:sciworld needs Java: install a runtime, such as Debian's default-jre-headless.")
    return shared_pool(HOST, {"simplifications": simplification, "megabytes": megabytes}, workers)


def _named(task: Task) -> tuple[str, int]:
    name, variation = task.fields.get("task"), task.fields.get("variation")
    if name not in sciworld_tasks.VARIATIONS or not isinstance(variation, int):
        raise UserError(f"Task '{task.id}' needs a ScienceWorld 'task' and its 'variation', a number.")
    if not 0 <= variation < sciworld_tasks.VARIATIONS[name]:
        raise UserError(f"'{name}' has variations 0 to {sciworld_tasks.VARIATIONS[name] - 1}, not {variation}.")
    return name, variation
