"""Settings that collecting and evaluating share: which tasks, which policy, and how its replies are sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from practicum.agent import Deadlines, ExternalAgent
from practicum.chat.response_format import ResponseFormat, read_response_format
from practicum.config.fields import check_fields
from practicum.data.collection import files_hash
from practicum.data.run_folder import ModelRef
from practicum.data.run_response_format import named_run_response_format
from practicum.data.tasks import read_registry, select
from practicum.engines.base import Sampling
from practicum.environment import Environment
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.loader import Device
from practicum.registry import environment_class, environment_maker
from practicum.rollout_setup import RolloutSetup, make_rollout_setup, scripted_names, split_url
from practicum.task import Task


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """A policy, the environment it acts in, and the tasks it is given.

    `policy` is expert, random, null, another scripted policy of the environment, or a model: a built-in name, a hub id,
    the folder of a model, an adapter, a run or a checkpoint; with `url` it is the name of a model that an
    OpenAI-compatible server has. Replies that no local model wrote are tokenised for `tokenizer`.
    """

    environment: str
    environment_options: Mapping[str, Any] = field(default_factory=dict)
    format: str | None = None
    """Reply format; None: the environment's first."""
    split: str = "train"
    num_tasks: int | None = None
    """Number of tasks, the first ones; None: 20 of a split, or all of a registry."""
    sample_size: int | None = None
    """Number of tasks to draw at random, by `seed`."""
    subset: str | None = None
    task_registry: str | Path | None = None
    max_turns: int = 10
    deadlines: Deadlines = field(default_factory=Deadlines)
    """Seconds that each wait of an episode may take."""
    policy: str = "expert"
    url: str | None = None
    tokenizer: str = "tiny"
    template: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    temperature: float | None = None
    """None: the default of the job, 1 for collecting."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 256
    """Tokens per reply, at most."""
    external: ExternalAgent | None = None
    """The agent's own program, which acts instead of the agent loop."""
    response_format: Any = None
    """The form that replies must have (`chat/response_format.py`), a JSON file that holds it, or the folder of a run
    that was trained with one; None: any text."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Policies of single roles, and of models that the environment calls, by name: NAME of a model, or MODEL@URL."""
    seed: int = 0
    concurrency: int = 64
    """Episodes that run at the same time, at most."""
    round_size: int | None = None
    """Episodes after which what they wrote to shared resources is visible to the next ones; None: never."""

    def __post_init__(self) -> None:
        counts = {"tasks": self.num_tasks, "sample-size": self.sample_size, "max-turns": self.max_turns,
                  "max-tokens": self.max_tokens, "concurrency": self.concurrency, "round": self.round_size}  # fmt: skip
        for flag, count in counts.items():
            if count is not None and count < 1:
                raise UserError(f"--{flag} {count} must be at least 1.")
        check_fields(self.deadlines, "deadlines.")

    def sampling(self, default_temperature: float = 1.0) -> Sampling:
        """How replies are sampled; numbers out of range are errors."""
        temperature = default_temperature if self.temperature is None else self.temperature
        check_temperature("--temperature", temperature)
        if not 0 < self.top_p <= 1:
            raise UserError("--top-p must be above 0 and at most 1.")
        if self.top_k < 0:
            raise UserError("--top-k must be 0 (off) or more.")
        if not 0 <= self.min_p < 1:
            raise UserError("--min-p must be at least 0 (off) and below 1.")
        return Sampling(temperature, self.top_k, self.top_p, self.max_tokens, (), self.seed, self.min_p)

    @cached_property
    def is_scripted(self) -> bool:
        """Whether the policy is one of the environment's own, and no model."""
        return self.url is None and self.policy in scripted_names(self.make_environment())

    @property
    def recorded_options(self) -> dict[str, Any]:
        """The environment's options without its files: the hash of the tasks identifies what was read from them."""
        return {key: value for key, value in self.environment_options.items() if key != "files"}

    @property
    def split_options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The recorded options that define the task, and those of the agent."""
        return environment_class(self.environment).split_options(self.recorded_options)

    @property
    def roles_record(self) -> dict[str, Any]:
        """The policies of single roles, as a result depends on them; empty where there are none."""
        policies = {
            name: policy if split_url(policy)[1] else policy_identity(policy, None)
            for name, policy in self.roles.items()
        }
        return {"roles": policies} if policies else {}

    @property
    def external_record(self) -> dict[str, Any]:
        """The agent's own program, where it has one: a result depends on it."""
        return {} if self.external is None else {"external_agent": asdict(self.external)}

    @cached_property
    def reply_form(self) -> ResponseFormat | None:
        """The form that replies must have."""
        value = self.response_format
        is_run = isinstance(value, str) and Path(value).expanduser().is_dir()
        return read_response_format(named_run_response_format(value) if is_run else value, "--response-format")

    @property
    def decoding_record(self) -> dict[str, Any]:
        """Settings of decoding that older results do not have: min-p and the form of replies, where they are set."""
        form = self.reply_form
        return {
            **({"min_p": self.min_p} if self.min_p else {}),
            **({} if form is None else {"response_format": form}),
        }

    @property
    def round_record(self) -> dict[str, int]:
        """The size of a round, where there are rounds: a result depends on it."""
        return {} if self.round_size is None else {"round_size": self.round_size}

    def find_device(self) -> Device:
        """The device and dtype of a local model."""
        return loader.resolve_device(self.device, self.dtype, may_quantise=True)

    def device_record(self) -> dict[str, str]:
        """What a result depends on: the replies of a GPU differ from those of a CPU. Empty where no model runs here."""
        placement = self.find_device()
        if self.url is not None or self.is_scripted or (placement.device, placement.dtype_name) == ("cpu", "float32"):
            return {}
        return {"device": placement.device, "dtype": placement.dtype_name}

    def make_environment(self) -> Environment:
        return environment_maker(self.environment, self.format, self.environment_options)[0]()

    def select_tasks(self, environment: Environment) -> list[Task]:
        """The tasks of a run, in the order of the split or registry."""
        path = self.task_registry
        registry = None if path is None else read_registry(Path(path), environment.name, self.split)
        return select(
            environment,
            split=self.split,
            seed=self.seed,
            count=self.num_tasks,
            sample_size=self.sample_size,
            subset=self.subset,
            registry=registry,
        )

    def make_setup(self, default_temperature: float = 1.0, ref: ModelRef | None = None) -> RolloutSetup:
        """Environment, agent and engine; a local model is loaded now. `ref` is the policy where it is resolved."""
        return make_rollout_setup(
            self.environment,
            self.policy,
            format=self.format,
            model=self.tokenizer,
            options=self.environment_options,
            sampling=self.sampling(default_temperature),
            max_turns=self.max_turns,
            deadlines=self.deadlines,
            template=self.template,
            url=self.url,
            device=self.find_device(),
            ref=ref,
            roles=self.roles,
            response_format=self.reply_form,
            external=self.external,
        )


def check_temperature(name: str, temperature: float) -> None:
    if not 0 <= temperature < math.inf:
        raise UserError(f"{name} must be 0 or more, and finite.")


def policy_identity(policy: str, url: str | None) -> str:
    """The policy's name and, for a folder, a hash of its files: a model trained again is another policy."""
    folder = Path(policy).expanduser()
    return f"{policy}@{files_hash(folder)}" if url is None and folder.is_dir() else policy
