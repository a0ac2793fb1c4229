"""A calculator: + - * / // % ** and brackets on exact numbers, without eval.

The size of numbers is bounded, so that it answers at once and can run on the event loop: a thread would cost more.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from practicum.tools.base import tool

MAX_DIGITS = 60
BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}


def evaluate(expression: str) -> Fraction:
    """Return the exact value of an arithmetic expression; ValueError says what is wrong with it."""
    if len(expression) > 400:
        raise ValueError("the expression is too long")
    text = expression.replace("×", "*").replace("÷", "/").replace("^", "**").strip()
    try:
        # Deeply nested brackets overflow the parser, which raises one of the errors below.
        tree = ast.parse(text, mode="eval")
        return _value(tree.body)
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"cannot read '{expression[:80]}' as arithmetic") from None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            if right.denominator != 1 or abs(right) > 64:
                raise ValueError("powers must be whole and at most 64")
            return _bounded(Fraction(left**right))
        if type(node.op) in BINARY:
            return _bounded(BINARY[type(node.op)](left, right))
    raise ValueError("only numbers, + - * / // % ** and brackets are allowed")


def _bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 10**MAX_DIGITS:
        raise ValueError("the numbers are too large")
    return value


def show_number(value: Fraction) -> str:
    """Format integers exactly and other numbers with up to ten digits."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


@tool()
async def calculator(expression: str) -> str:
    """Work out an arithmetic expression.

    Args:
        expression: for example (12+7)*3
    """
    return show_number(evaluate(expression))
