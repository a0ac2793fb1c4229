"""Tests that are `async def` run on an event loop of their own."""

from tests.environments.rubric.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
