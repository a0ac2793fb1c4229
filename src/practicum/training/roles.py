"""The roles of a training run: their settings, and the models of those that have one of their own."""

from __future__ import annotations

from practicum.agent import Agent, RoleSettings
from practicum.chat.renderer import Renderer
from practicum.chat.response_format import ANY_TEXT, ResponseFormat, read_response_format
from practicum.config.train import RoleConfig, TrainConfig
from practicum.data.run_folder import resolve_model
from practicum.engines.base import Engine
from practicum.environment import DEFAULT_ROLE, ChatModel, Environment
from practicum.errors import UserError
from practicum.models import lora
from practicum.models.loader import Device, LoadedModel
from practicum.policy import Judge
from practicum.rollout_setup import check_model_names, check_role_names, local_engine, served_engine
from practicum.training.settings import reply_format
from practicum.training.trainable_policy import TrainablePolicy, sharing_weights
from practicum.trajectory import derive_seed


def role_settings(config: TrainConfig, validating: bool) -> dict[str, RoleSettings]:
    """The settings of the agent's roles; in validation, trained roles have the temperature of the agent."""
    settings = {}
    for name, role in config.agent.roles.items():
        own = role.temperature
        if validating and role.model is None and role.url is None:
            own = None
        settings[name] = RoleSettings(
            role.agent_type, own, role.max_tokens_per_turn, role.thoughts, role.max_turns, _response_format(name, role)
        )
    return settings


def _response_format(name: str, role: RoleConfig) -> ResponseFormat | None:
    """The response format of a role that sets one; `ANY_TEXT` where it is set to none."""
    response_format = read_response_format(role.response_format, f"agent.roles.{name}.response_format")
    return ANY_TEXT if response_format is None and role.response_format is not None else response_format


def check_roles(config: TrainConfig, environment: Environment) -> None:
    """Refuse roles that the environment does not have, and settings of roles that exclude each other.

    Where several roles act, `agent.train_roles` of null becomes the environment's first.
    """
    roles, agent = environment.roles, config.agent
    check_role_names(environment, agent.roles, key="agent.roles")
    check_role_names(environment, agent.train_roles or (), allowed=roles, key="agent.train_roles")
    check_model_names(
        environment,
        [name for name, role in agent.roles.items() if role.model is not None],
        "set agent.roles.{name}.model (a model of its own, which is not trained), and agent.roles.{name}.url where a "
        "server has it",
    )
    if agent.train_roles is None and roles != (DEFAULT_ROLE,):
        agent.train_roles = [roles[0]]
    elif agent.train_roles is not None and not agent.train_roles:
        raise UserError("agent.train_roles is empty: name at least one role to train.")
    for name, role in agent.roles.items():
        if role.adapter and (role.model is not None or role.url is not None):
            raise UserError(f"agent.roles.{name}: a role has another model or an adapter of its own, not both.")
        if role.url is not None and role.model is None:
            raise UserError(f"agent.roles.{name}.url needs agent.roles.{name}.model, the server's name of the model.")
        if role.tokenizer is not None and role.url is None:
            raise UserError(f"agent.roles.{name}.tokenizer is for a server's model: it needs agent.roles.{name}.url.")
        for key, value in (("thoughts", role.thoughts), ("max_turns", role.max_turns)):
            if value is not None and name in environment.model_names():
                raise UserError(
                    f"agent.roles.{name}.{key}: '{name}' is asked single questions and has no earlier turns; leave it "
                    "out."
                )
        if role.model is not None and name in (agent.train_roles or ()):
            raise UserError(
                f"agent.roles.{name} has a model of its own, which is not trained: take '{name}' out of "
                "agent.train_roles, or give it an adapter (adapter=true) instead."
            )
        if role.adapter and not config.actor_rollout_ref.model.lora_rank:
            raise UserError(f"agent.roles.{name}.adapter needs actor_rollout_ref.model.lora_rank above 0.")
        if role.adapter and config.actor_rollout_ref.rollout.name != "local":
            raise UserError(
                f"agent.roles.{name}.adapter needs actor_rollout_ref.rollout.name=local: adapters of roles are sampled "
                "from by the engine in this process."
            )


def add_roles(
    policy: TrainablePolicy, base: LoadedModel | None, config: TrainConfig, on: Device, template: str | None
) -> None:
    """Give the policy the models of the roles that have one of their own. `base` is the model without its adapter."""
    for name, role in config.agent.roles.items():
        if role.model is not None:
            policy.role_engines[name] = role_engine(policy, role, reply_format(config), on)
        elif role.adapter:
            assert base is not None
            settings = lora.settings_of(config.actor_rollout_ref.model)
            seed = derive_seed("role", name, config.trainer.seed) % 2**31
            policy.role_policies[name] = TrainablePolicy(
                lora.add_adapter(sharing_weights(base), settings, seed),
                template,
                max_batch=policy.max_batch,
                limits=policy.limits,
                logprob_limits=policy.logprob_limits,
                separate_engine_weights=config.trainer.overlap,
            )


def asked_models(
    policy: TrainablePolicy, environment: Environment, agent: Agent, config: TrainConfig
) -> dict[str, ChatModel]:
    """The models that the environment itself calls, greedy unless `agent.roles` sets a temperature."""
    models: dict[str, ChatModel] = {}
    for name in environment.model_names():
        engine, renderer = policy.role_engines[name]
        role = config.agent.roles[name]
        settings = RoleSettings(
            role.agent_type,
            role.temperature or 0.0,
            role.max_tokens_per_turn,
            response_format=_response_format(name, role) or ANY_TEXT,
        )
        models[name] = Judge(settings.policy(engine, renderer, agent, name), agent.deadlines.judge)
    return models


def role_engine(policy: TrainablePolicy, role: RoleConfig, format: str, on: Device) -> tuple[Engine, Renderer]:
    """The engine of a role that is not trained, and the renderer of its tokenizer."""
    assert role.model is not None
    if role.url is not None:
        tokenizer = role.tokenizer
        renderer = Renderer(resolve_model(tokenizer).load_tokenizer()) if tokenizer else policy.renderer
        return served_engine(role.url, role.model, role.agent_type or format, renderer), renderer
    return local_engine(resolve_model(role.model), on, max_batch=policy.max_batch)
