"""Chat templates by name, in Jinja: each writes the tokens that its model was trained on.

`tests/chat/test_templates.py` compares them, token for token, with the templates that the models' authors publish. An
assistant's message is written unchanged: a reply is what the policy sampled, tool calls included.
"""

from __future__ import annotations

CALLS = (
    "{{- '\\n\\nTools:' }}{%- for tool in tools %}{{- '\\n' + (tool.function | tojson) }}{%- endfor %}"
    '{{- \'\\nTo call one: <tool_call>{"name": ..., "arguments": ...}</tool_call>\' }}'
)
"""A short list of tools, for templates that have none of their own."""

CHATML = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\\n' + m.content }}"
    "{%- if loop.first and tools %}"
    "{%- if m.role != 'system' %}{{- raise_exception('tools need a system message') }}{%- endif %}"
    f"{CALLS}"
    "{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""ChatML with the tools listed below the system message."""

LLAMA3 = (
    "{{- bos_token }}"
    "{%- for m in messages %}"
    "{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\\n\\n' }}"
    "{{- m.content | trim }}"
    f"{{%- if loop.first and tools %}}{CALLS}{{%- endif %}}"
    "{{- '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
"""Llama-3's headers, with the short list of tools."""


def _im(default_system: str | None, tools: str) -> str:
    """Return a template of the `<|im_start|>` family: an optional default system message, its list of tools, and tool
    messages as the user's."""
    opening = "{%- set given = messages[0].content if messages[0].role == 'system' else none %}"
    if default_system is not None:
        opening += f"{{%- if given is none %}}{{%- set given = '{default_system}' %}}{{%- endif %}}"
    head = (
        "{%- if given is not none or tools %}"
        "{{- '<|im_start|>system\\n' + (given or '') }}"
        f"{{%- if tools %}}{tools}{{%- endif %}}"
        "{{- '<|im_end|>\\n' }}"
        "{%- endif %}"
    )
    body = (
        "{%- for m in messages %}"
        "{%- if m.role == 'tool' %}"
        "{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
        "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
        "{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
        "{%- elif not (loop.first and m.role == 'system') %}"
        "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
        "{%- endif %}"
        "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
    )
    return opening + head + body


def _qwen_tools(gap: str) -> str:
    """Return Qwen's list of tools; `gap` is the text between the system message and the list."""
    before = (
        "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n"
        "You are provided with function signatures within <tools></tools> XML tags:\\n<tools>"
    )
    after = (
        "\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments "
        "within <tool_call></tool_call> XML tags:\\n<tool_call>\\n"
        '{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}\\n</tool_call>'
    )
    return (
        f'{{{{- {gap} + "{before}" }}}}'
        "{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}"
        f'{{{{- "{after}" }}}}'
    )


TEMPLATES = {
    "chatml": CHATML,
    "llama-3": LLAMA3,
    "qwen2.5": _im("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", _qwen_tools("'\\n\\n'")),
    "qwen2.5-vl": _im("You are a helpful assistant.", _qwen_tools("'\\n\\n'")),
    "qwen3": _im(None, _qwen_tools("('\\n\\n' if given is not none else '')")),
    "smollm2": _im("You are a helpful AI assistant named SmolLM, trained by Hugging Face", CALLS),
}
