"""The roles of a training run: their settings, and the models of those that have one of their own."""

from __future__ import annotations

from practicum.agent import Agent, RoleSettings
from practicum.chat.renderer import Renderer
from practicum.config.actor_rollout_ref import ModelConfig
from practicum.config.train import RoleConfig, TrainConfig
from practicum.data.run_folder import resolve_model
from practicum.engines.base import Engine
from practicum.engines.local.engine import LocalEngine
from practicum.engines.openai import OpenAIEngine
from practicum.environment import DEFAULT_ROLE, ChatModel, Environment
from practicum.errors import UserError, did_you_mean
from practicum.models import lora
from practicum.models.decoder import Decoder
from practicum.models.loader import Device, LoadedModel
from practicum.policy import Judge
from practicum.registry import make_format
from practicum.training.trainable_policy import TrainablePolicy, sharing_weights
from practicum.trajectory import derive_seed


def role_settings(config: TrainConfig, validating: bool) -> dict[str, RoleSettings]:
    """The settings of the agent's roles; in validation, trained roles have the temperature of the agent."""
    found = {}
    for name, role in config.agent.roles.items():
        own = role.temperature
        if validating and role.model is None and role.url is None:
            own = None
        found[name] = RoleSettings(role.agent_type, own, role.max_tokens_per_turn, role.thoughts, role.max_turns)
    return found


def check_roles(config: TrainConfig, environment: Environment) -> None:
    """Refuse roles that the environment does not have, and settings of roles that exclude each other.

    Where several roles act, `agent.train_roles` of null becomes the environment's first.
    """
    roles, agent, asked = environment.roles, config.agent, environment.model_names()
    for key, names, known in (
        ("roles", agent.roles, (*roles, *asked)),
        ("train_roles", agent.train_roles or (), roles),
    ):
        for name in names:
            if name not in known:
                raise UserError(
                    f"agent.{key}: '{environment.name}' has no role '{name}', its roles are {', '.join(known)}."
                    f"{did_you_mean(name, known)}"
                )
    for name in asked:
        if name not in agent.roles or agent.roles[name].model is None:
            raise UserError(
                f"'{environment.name}' asks a model named '{name}': set agent.roles.{name}.model (a model of its own, "
                f"which is not trained), and agent.roles.{name}.url where a server has it."
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
        if role.model is not None and name in (agent.train_roles or ()):
            raise UserError(
                f"agent.roles.{name} has a model of its own, which is not trained: take '{name}' out of "
                "agent.train_roles, or give it an adapter (adapter=true) instead."
            )
        if role.adapter and not config.actor_rollout_ref.model.lora_rank:
            raise UserError(f"agent.roles.{name}.adapter needs actor_rollout_ref.model.lora_rank above 0.")


def add_roles(
    policy: TrainablePolicy, base: LoadedModel | None, config: TrainConfig, on: Device, template: str | None
) -> None:
    """Give the policy the models of the roles that have one of their own. `base` is the model without its adapter."""
    for name, role in config.agent.roles.items():
        if role.model is not None:
            policy.role_engines[name] = role_engine(policy, role, config.agent.agent_type, on)
        elif role.adapter:
            assert base is not None
            settings = lora_settings(config.actor_rollout_ref.model)
            seed = derive_seed("role", name, config.trainer.seed) % 2**31
            policy.role_policies[name] = TrainablePolicy(
                lora.add_adapter(sharing_weights(base), settings, seed),
                template,
                max_batch=policy.max_batch,
                limits=policy.limits,
                logprob_limits=policy.logprob_limits,
            )


def asked_models(
    policy: TrainablePolicy, environment: Environment, agent: Agent, config: TrainConfig
) -> dict[str, ChatModel]:
    """The models that the environment asks by itself, greedy unless `agent.roles` says otherwise."""
    found: dict[str, ChatModel] = {}
    for name in environment.model_names():
        engine, renderer = policy.role_engines[name]
        role = config.agent.roles[name]
        settings = RoleSettings(role.agent_type, role.temperature or 0.0, role.max_tokens_per_turn)
        found[name] = Judge(settings.policy(engine, renderer, agent, name))
    return found


def role_engine(policy: TrainablePolicy, role: RoleConfig, format: str, on: Device) -> tuple[Engine, Renderer]:
    """The engine of a role that is not trained, and the renderer of its tokenizer."""
    assert role.model is not None
    if role.url is not None:
        tokenizer = role.tokenizer
        renderer = Renderer(resolve_model(tokenizer).load_tokenizer()) if tokenizer else policy.renderer
        return OpenAIEngine(role.url, role.model, make_format(role.agent_type or format), renderer), renderer
    loaded = resolve_model(role.model).load(on.dtype, on.device)
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    return LocalEngine(Decoder(loaded.model), renderer, max_batch=policy.max_batch), renderer


def lora_settings(model: ModelConfig) -> lora.LoRASettings:
    """The settings of new adapters."""
    return lora.LoRASettings(model.lora_rank, model.lora_alpha, targets=model.target_modules or lora.ALL_LINEAR)
