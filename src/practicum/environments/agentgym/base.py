"""The common base of AgentGym's environments: prompt, grammars, native and shaped reward, refusals, `data_idx`.

An environment implements `begin`, `act` and `task_at`; the rest is here. Commands are text, from the agent loop
(`step`) or over HTTP (`take`, see `server.py`), and are handled in the same way.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from practicum.environment import AGENT_OPTIONS, SPLITS, Action, Environment, Message, Observation, Step
from practicum.environments.agentgym.grammar.bracket import Brackets, Call, read_bracket
from practicum.environments.agentgym.grammar.line import GRAMMARS, Refused, one_line
from practicum.environments.agentgym.shaping import ShapedRewards, Shaping
from practicum.errors import UserError, did_you_mean
from practicum.registry import make_format
from practicum.task import Task, content_hash

REWARDS = ("native", "shaped")
PROTOCOLS = ("system", "agentgym")
AGREED = "OK. I will follow these instructions."


@dataclass(frozen=True, slots=True)
class CommandResponse:
    """The response of an environment to a command."""

    text: str
    native: float = 0.0
    """The environment's own reward of this step."""
    kind: str = ""
    """Kind of a successful step, for the shaped reward; '' is looking around, which has no reward."""
    done: bool = False
    success: bool = False
    cut: bool = False
    """Whether the episode ended because the environment's own limit of steps was reached."""
    worth: float | None = None
    """Grade of the end, from 0 to 1; None: 1 for success, else 0."""
    legal: tuple[str, ...] | None = None
    """Commands that would work now, if the environment lists them."""
    valid: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerFields:
    """The field names of AgentGym's own server of an environment."""

    id: str = "id"
    index: str = "data_idx"
    text: str = "observation"
    bare: bool = False
    """Whether `/create` returns a bare number and `/reset` a pair, as WebShop's server does."""
    started: bool = False
    """Whether `/create` also starts the task of that number, as TextCraft's server does."""
    facts: tuple[str, ...] = ()
    """Further GET routes; `ask` returns their responses."""
    in_reset: tuple[str, ...] = ()
    """Facts that the response to `/reset` also contains."""
    in_step: tuple[str, ...] = ()
    """Facts that the response to `/step` also contains."""


class AgentGymEnvironment(Environment):
    """An environment that is controlled by text commands, one episode at a time."""

    formats = ("react", "hf")
    has_one_answer = False  # other commands may reach the goal too
    instruction: ClassVar[str] = ""
    """The prompt; `{usage}` is replaced by the commands of the grammar in force."""
    usage: ClassVar[str] = ""
    """AgentGym's commands, as shown to the agent."""
    brackets: ClassVar[Brackets] = Brackets({})
    """Affine's bracket commands."""
    shaping: ClassVar[Shaping] = Shaping()
    server_fields: ClassVar[ServerFields] = ServerFields()
    native_part: ClassVar[str] = "native"
    """Name of the only reward component of the native reward."""

    agent_options = (*AGENT_OPTIONS, "grammar", "protocol", "instruction")

    def __init__(
        self,
        format: str = "react",
        grammar: str = "both",
        reward: str = "native",
        protocol: str = "system",
        instruction: str | None = None,
    ) -> None:
        """`instruction` is a file whose text replaces the prompt; see `read_instruction`."""
        self.check("grammar", grammar, GRAMMARS)
        self.check("reward", reward, REWARDS)
        self.check("protocol", protocol, PROTOCOLS)
        self.format = make_format(format)
        self._opening = None if instruction is None else read_instruction(Path(instruction).expanduser())
        self.grammar, self.shaped, self.protocol = grammar, reward == "shaped", protocol
        if self.shaped:
            # A reply that does not parse is an error as well.
            self.invalid_reward = self.shaping.penalty
        self._begun = False
        self._ended: CommandResponse | None = None
        self._shaped_rewards = ShapedRewards(self.shaping)

    # To be implemented by an environment.

    @abc.abstractmethod
    async def begin(self, task: Task, seed: int) -> CommandResponse:
        """Start the task and return the first observation with the task in it (`text`, and `legal` if listed)."""

    @abc.abstractmethod
    async def act(self, command: str) -> CommandResponse:
        """Execute a command, an AgentGym sentence of one line in lower case; `Refused` says why it cannot."""

    @abc.abstractmethod
    def task_at(self, data_idx: int) -> Task:
        """Return the task of AgentGym's index; UserError if there is none (`check_index`)."""

    @property
    def num_indices(self) -> int | None:
        """Number of tasks that `task_at` has; None if they do not end."""
        return None

    def progress(self) -> float | None:
        """Return the progress of the episode, from 0 to 1; None if it is unknown."""
        return None

    def from_brackets(self, call: Call) -> str | None:
        """Translate a bracket command into a sentence; None if there is none. An environment may use its state."""
        return self.brackets.sentence(call)

    def fact(self, name: str) -> Any:
        """Return a fact that `server_fields` lists, as JSON for a client."""
        raise NotImplementedError(f"{self.short} lists the fact '{name}' and does not tell it")

    def omit_client_text(self) -> None:
        """Omit the text that AgentGym's client, not its server, adds to observations."""
        return None

    async def ask(self, name: str) -> Any:
        """Return a fact by name; an environment whose engine must be awaited overrides this."""
        return self.fact(name)

    # Common to all.

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        """Leave out the last command, the one that reaches the goal."""
        return (tuple(solution[:-1]),)

    @property
    def short(self) -> str:
        """The name without `agentgym:`."""
        return self.name.partition(":")[2]

    @property
    def shown_usage(self) -> str:
        """The commands as shown to the agent: AgentGym's unless only brackets are allowed."""
        return self.brackets.usage if self.grammar == "bracket" else self.usage

    def check(self, option: str, value: object, allowed: tuple[str, ...]) -> None:
        """Raise UserError if a setting has a value that does not exist."""
        if value not in allowed:
            raise UserError(f"{self.short} has no {option} '{value}'.{did_you_mean(str(value), allowed)}")

    def check_index(self, data_idx: int) -> None:
        """Raise UserError if there is no task of this index."""
        count = self.num_indices
        if data_idx < 0 or (count is not None and data_idx >= count):
            numbered = "from 0" if count is None else f"from 0 to {count - 1}"
            raise UserError(f"{self.short}'s tasks are numbered {numbered}; there is no task {data_idx}.")

    def check_split(self, split: str) -> None:
        self.check("split", split, SPLITS)

    def write(self, sentence: str) -> str:
        """Write a sentence in the grammar in force, for experts."""
        return self.brackets.write(sentence) if self.grammar == "bracket" else sentence

    async def start(self, task: Task, seed: int) -> CommandResponse:
        """Begin an episode, with a new reward ledger."""
        self._begun, self._ended, self._shaped_rewards = True, None, ShapedRewards(self.shaping)
        return await self.begin(task, seed)

    async def take(self, text: str) -> CommandResponse:
        """Execute a command of either grammar; one that cannot be read or executed gives an invalid reply."""
        assert self._begun, "reset comes before step"
        if self._ended is not None:
            return replace(self._ended, text="The episode is over.", native=0.0, legal=None)
        try:
            reply = await self.act(self.read(text))
        except Refused as refusal:
            reply = CommandResponse(str(refusal), valid=False)
        if reply.done:
            self._ended = reply
        return reply

    def read(self, text: str) -> str:
        """Parse a command of an allowed grammar into AgentGym's sentence."""
        line = one_line(text)
        call = read_bracket(line)
        if call is None:
            sentence = self.brackets.bare(line) if self.grammar == "bracket" else line
        else:
            sentence = self.from_brackets(call) if self.grammar != "agentgym" else None
        if not sentence:
            raise Refused(f"Could not execute '{line[:80]}'. Commands: {self.shown_usage}")
        return sentence

    def reward_components(self, reply: CommandResponse, again: bool = False) -> dict[str, float]:
        """Return the components of a reply's reward; a command after the end (`again`) has none."""
        if not self.shaped:
            return {self.native_part: 0.0 if again else reply.native}
        if again:
            return self._shaped_rewards.step("")
        if not reply.valid:
            return self._shaped_rewards.error()
        if reply.done and not reply.cut:
            return self._shaped_rewards.end(float(reply.success) if reply.worth is None else reply.worth)
        return self._shaped_rewards.step(reply.kind)

    async def reset(self, task: Task, seed: int) -> Observation:
        reply = await self.start(task, seed)
        guide = self.format.instructions(()) or "Reply with one command and nothing else."
        prompt = f"{self.instruction.format(usage=self.shown_usage)}\n{guide}"
        prompt, agreed = self._opening or (prompt, AGREED)
        if self.protocol == "agentgym":
            opening = [Message("user", prompt), Message("assistant", agreed)]
        else:
            opening = [Message("system", prompt)]
        return Observation((*opening, Message("user", reply.text)), legal=reply.legal)

    async def step(self, action: Action) -> Step:
        again = self._ended is not None
        if action.calls and not again:
            reply = CommandResponse("There are no tools here; reply with one command.", valid=False)
        else:
            reply = await self.take(action.content)
        components = self.reward_components(reply, again)
        # Observations are user messages in every format; only the wording is the format's.
        text = reply.text if self.protocol == "agentgym" else self.format.observe(self.short, reply.text).content
        return Step(
            Observation((Message("user", text),), legal=reply.legal),
            reward=sum(components.values()),
            components=components,
            terminated=reply.done and not reply.cut,
            truncated=reply.cut,
            success=reply.success,
            progress=self.progress(),
            info={"valid": reply.valid, "native": reply.native, **reply.info},
        )

    async def truncate(self) -> Step:
        success = self._ended is not None and self._ended.success
        return Step(truncated=True, success=success, progress=self.progress())


def read_instruction(path: Path) -> tuple[str, str]:
    """Return a prompt and the assistant's answer to it.

    A JSON file is one of AgentGym's data sets: the first two messages of its first conversation are used. Any other
    file is the text of the prompt.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return text.strip(), AGREED
        conversation = json.loads(text)[0]["conversations"]
        return str(conversation[0]["value"]), str(conversation[1]["value"])
    except OSError as error:
        raise UserError(f"The instruction '{path}' cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, LookupError):
        raise UserError(
            f"'{path}' is not one of AgentGym's data sets: a JSON list of objects with 'conversations'."
        ) from None


def by_hash(keys: list[Any], seed: int) -> list[Any]:
    """Return the keys in an order that depends on the seed only, on every version of Python."""
    return sorted(keys, key=lambda key: content_hash([seed, key]))
