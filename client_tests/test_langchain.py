"""LangChain's standard tests of chat models, with its OpenAI client.

Expected to fail (`INTELLIGENT`): methods that ask for a certain answer, which an untrained model cannot give.
"""

from __future__ import annotations

from typing import Any

import pytest
from conftest import SECOND_NAME
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

INTELLIGENT = (
    "test_agent_loop", "test_tool_calling", "test_tool_calling_async", "test_json_mode",
    "test_unicode_tool_call_integration",
)  # fmt: skip


class TestServedModel(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "tiny", "max_tokens": 900, "stream_usage": True}

    @property
    def model_override_value(self) -> str:
        return SECOND_NAME

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def has_tool_choice(self) -> bool:
        return True


for _name in INTELLIGENT:
    if hasattr(ChatModelIntegrationTests, _name):
        _marked = pytest.mark.xfail(reason="needs an intelligent model", strict=False)
        setattr(TestServedModel, _name, _marked(getattr(ChatModelIntegrationTests, _name)))
