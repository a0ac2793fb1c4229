"""Environments, tools, rewards and reply formats by name: tables of import paths, imported when a name is looked up.

Wherever a name of these tables is taken, so is `path/to/file.py:attribute`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from practicum.chat.formats.base import Format
from practicum.config.fields import annotations_of, describe_type, has_type
from practicum.environment import Environment
from practicum.errors import UserError, describe_exception, did_you_mean
from practicum.rewards.base import Reward
from practicum.tools.base import Tool
from practicum.utils import user_files

ENVIRONMENTS = {
    "tools": "practicum.environments.tool_agent:ToolEnvironment",
    "mix": "practicum.environments.mix:MixEnvironment",
    "math": "practicum.environments.math:MathEnvironment",
    "search": "practicum.environments.search:SearchEnvironment",
    "code": "practicum.environments.code:CodeEnvironment",
    "gui": "practicum.environments.gui:GuiEnvironment",
    "htdag": "practicum.environments.htdag.environment:HTDAGEnvironment",
    "rubric": "practicum.environments.rubric.environment:RubricEnvironment",
    "web": "practicum.environments.web.environment:WebEnvironment",
    "miniwob": "practicum.environments.web.miniwob:MiniWobEnvironment",
    "real": "practicum.environments.web.real:RealEnvironment",
    "affine:sat": "practicum.environments.affine.sat:SatEnvironment",
    "affine:abd": "practicum.environments.affine.abd:AbdEnvironment",
    "affine:ded": "practicum.environments.affine.ded:DedEnvironment",
    "agentgym:babyai": "practicum.environments.agentgym.babyai:BabyAI",
    "agentgym:webshop": "practicum.environments.agentgym.webshop:WebShop",
    "agentgym:sciworld": "practicum.environments.agentgym.sciworld:SciWorld",
    "agentgym:alfworld": "practicum.environments.agentgym.alfworld:AlfWorld",
    "agentgym:textcraft": "practicum.environments.agentgym.textcraft:TextCraft",
}
FORMATS = {
    "hf": "practicum.chat.formats.hermes:HermesFormat",
    "react": "practicum.chat.formats.react:ReactFormat",
    "code": "practicum.chat.formats.code:CodeFormat",
    "gui": "practicum.chat.formats.gui:GuiFormat",
    "web": "practicum.chat.formats.web:WebFormat",
    "web_json": "practicum.chat.formats.web:WebJsonFormat",
}
"""The reply formats by the names that `agent.agent_type` and `--format` take."""
TOOLS = {
    "calculator": "practicum.tools.calculator:calculator",
    "answer": "practicum.tools.answer:answer",
    "python_executor": "practicum.tools.python_executor:python_executor",
    "code_interpreter": "practicum.tools.python_executor:code_interpreter",
    "google_search": "practicum.tools.google_search:google_search",
}
SAME_TOOL = (("python_executor", "code_interpreter"),)
"""Groups of names of one tool: an agent that has it under one name can call it by the others too."""
REWARDS = {
    "code_reward": "practicum.rewards.code_reward:code_reward",
    "math_reward": "practicum.rewards.math_reward:math_reward",
    "math_reward_string_equal": "practicum.rewards.math_reward:math_reward_string_equal",
    "math_equal_reward": "practicum.rewards.math_equal_reward:math_equal_reward",
    "qa_f1_reward": "practicum.rewards.qa_f1_reward:qa_f1_reward",
    "qa_em_reward": "practicum.rewards.qa_f1_reward:qa_em_reward",
    "worfbench_reward": "practicum.rewards.plan_graph_reward:worfbench_reward",
    "asynchow_reward": "practicum.rewards.plan_graph_reward:asynchow_reward",
}

GROUP_REWARDS = {"plan_diversity": "practicum.environments.htdag.group_rewards:plan_diversity"}
"""Functions that adjust the rewards of a group of episodes (`algorithm.group_reward.name`)."""


def environment_class(name: str) -> type[Environment]:
    """Return the class of an environment."""
    resolved = _resolve("environment", name, ENVIRONMENTS)
    if not (isinstance(resolved, type) and issubclass(resolved, Environment)):
        raise UserError(f"'{name}' is not an environment; point at a subclass of practicum.environment.Environment.")
    missing = sorted(resolved.__abstractmethods__)
    if missing:
        signatures = {"reset": "reset(self, task, seed)", "step": "step(self, action)"}
        needed = " and ".join(f"`def {signatures.get(method, method)}`" for method in missing)
        raise UserError(f"Environment '{name}' lacks {' and '.join(missing)}; define {needed}.")
    return resolved


def environment_maker(
    name: str, format: str | None, options: Mapping[str, Any] | None = None
) -> tuple[Callable[[], Environment], str]:
    """Return a factory of environments and the reply format they use.

    `format` None is the environment's first format. An option that the environment does not have, or a value of another
    type than its annotation, is an error; options that are None are left out.
    """
    chosen_options = {key: value for key, value in (options or {}).items() if value is not None}
    cls = environment_class(name)
    chosen_format = format or cls.formats[0]
    if chosen_format not in cls.formats and ".py:" not in chosen_format:
        raise UserError(f"Environment '{name}' has the formats {', '.join(cls.formats)}, not '{chosen_format}'.")
    accepted = inspect.signature(cls).parameters
    for key in chosen_options:
        if key not in accepted:
            names = [parameter for parameter in accepted if parameter != "format"]
            raise UserError(f"Environment '{name}' has no option '{key}' (it has: {', '.join(names) or 'none'}).")
    _check_types(name, cls, chosen_options)
    if "format" in accepted:
        chosen_options["format"] = chosen_format
    return functools.partial(cls, **chosen_options), chosen_format


def _check_types(name: str, cls: type[Environment], chosen_options: Mapping[str, Any]) -> None:
    """Refuse values that do not have the type of the constructor's annotation."""
    hints = annotations_of(cls.__init__)
    for key, value in chosen_options.items():
        if key in hints and not has_type(value, hints[key]):
            kind = describe_type(hints[key])
            raise UserError(f"The option '{key}' of the environment '{name}' is {kind}, not {value!r}.")


def tool(name: str) -> Tool:
    resolved = _resolve("tool", name, TOOLS)
    if not isinstance(resolved, Tool):
        raise UserError(f"'{name}' is not a tool; decorate the function with @tool.")
    return resolved


def tools(name: str) -> tuple[Tool, ...]:
    """Return the tools of a name: one, or all that an MCP server has (`mcp:COMMAND`, `mcp:URL`)."""
    if not name.startswith(("mcp:", "mcp[")):
        return (tool(name),)
    from practicum.tools.mcp import tools_of  # only users of MCP servers have that package

    return tools_of(name)


def other_names(name: str) -> tuple[str, ...]:
    """Return the other names of a tool."""
    return tuple(other for names in SAME_TOOL if name in names for other in names if other != name)


def reward(name: str) -> Reward:
    resolved = _resolve("reward", name, REWARDS)
    if not isinstance(resolved, Reward):
        raise UserError(f"'{name}' is not a reward; decorate the function with @reward.")
    return resolved


def group_reward(name: str) -> Callable[..., Any]:
    """Return the function of a group reward."""
    resolved = _resolve("group reward", name, GROUP_REWARDS)
    if not callable(resolved):
        raise UserError(f"'{name}' is not a function; point at a `def` with the parameters (group, rewards).")
    result: Callable[..., Any] = resolved
    return result


def function(name: str) -> Callable[..., Any]:
    """Return a user's own function, `path/to/file.py:function`."""
    resolved = _resolve("function", name, {})
    if not callable(resolved):
        raise UserError(f"'{name}' is not a function; point at a `def` of that file.")
    result: Callable[..., Any] = resolved
    return result


def takes(name: str, option: str) -> bool:
    """Whether an environment's constructor has an option."""
    return option in options(name)


def options(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the options of an environment: the parameters of its constructor."""
    return inspect.signature(environment_class(name)).parameters


def _resolve(kind: str, name: str, table: dict[str, str]) -> Any:
    target = table.get(name)
    if target is None:
        if ".py:" not in name:
            raise UserError(f"Unknown {kind} '{name}'.{did_you_mean(name, table)}")
        return _from_file(kind, name)
    return _import(target)


@functools.cache
def _import(target: str) -> Any:
    """Return the object at `module:attribute`; every episode looks up several."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _from_file(kind: str, name: str) -> Any:
    file, _, attribute = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"There is no file '{file}' to take the {kind} '{attribute}' from.")
    try:
        module = user_files.load(path)
    except Exception as error:
        raise UserError(f"'{file}' fails on import: {describe_exception(error)}.") from error
    if not hasattr(module, attribute):
        raise UserError(
            f"'{file}' has no '{attribute}'.{did_you_mean(attribute, [n for n in vars(module) if n[0] != '_'])}"
        )
    return getattr(module, attribute)


def make_format(name: str) -> Format:
    """Return the reply format of a name; raise UserError for an unknown one."""
    resolved = _resolve("reply format", name, FORMATS)
    if not isinstance(resolved, type) or not hasattr(resolved, "parse"):
        raise UserError(f"'{name}' is not a reply format; point at a class like practicum.chat.formats.base.Format.")
    made: Format = resolved()
    return made
