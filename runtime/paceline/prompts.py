"""Prompts that come with paceline, for checks and measurements where a user brings none: code, chat, JSON and prose."""

from __future__ import annotations

PROMPTS = (
    "def read_lines(path, encoding='utf-8'):\n    ",
    "import os\nimport sys\n\n\nclass Config:\n    ",
    "for key, value in sorted(counts.items()):\n    ",
    "try:\n    result = connection.recv(1024)\nexcept ",
    "<|turn>user\nReturn the number of items in the queue.<turn|>\n<|turn>model\n",
    "<|turn>user\nWrite one sentence about the sea.<turn|>\n<|turn>model\n",
    "<|turn>user\nWhat is the difference between a list and a tuple?<turn|>\n<|turn>model\n",
    '{"name": "queue", "items": [1, 2, 3], "closed": false}\n{"name": "stack", "items": ',
    '[\n  {"id": 1, "title": "First"},\n  {"id": 2, "title": ',
    "A queue keeps items in the order in which they arrive. When it is empty, the consumer ",
    "The old lighthouse had not been lit for years, but that night ",
    "Returns a copy of the string in which each ",
)
