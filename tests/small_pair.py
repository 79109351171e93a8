"""The small trained pair of this repository, and prompts it has not seen."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(__file__).parents[1] / "models"
TARGET, DRAFTER = MODELS / "target", MODELS / "drafter"

PROMPTS = [
    "def read_lines(path, encoding='utf-8'):\n",
    "import os\nimport sys\n\nclass Config",
    "<|turn>user\nReturn the number of items in the queue.<turn|>\n<|turn>model\n",
    "<|turn>user\nOpen the file and return its first line.<turn|>\n<|turn>model\n",
    '"""A small library for reading tables.\n\nIt has no dependencies.\n"""\n\nfrom ',
    "    def __init__(self, name, value=None):\n        self.name = name\n",
    "for key, value in sorted(counts.items()):\n    ",
    "class TestParser(unittest.TestCase):\n    def setUp(self):\n",
    "try:\n    result = connection.recv(1024)\nexcept ",
    "# The lock must be held while the queue is changed, because\n# ",
    "with open(path, 'rb') as stream:\n    header = stream.read(8)\n    if ",
    "<|turn>user\nSort the list of names and print each one.<turn|>\n<|turn>model\n",
    "<|turn>user\nCheck whether the socket is closed.<turn|>\n<|turn>model\n",
    "def test_empty_message(self):\n    msg = ",
    "    @property\n    def size(self):\n        ",
    "Returns a copy of the string in which each ",
    "if not isinstance(value, (int, float)):\n    raise ",
    "logging.getLogger(__name__).warning(",
    'class Node:\n    """One node of a tree."""\n\n    def add_child(self, child):\n',
    "import threading\n\nlock = threading.Lock()\n\ndef worker():\n",
]
