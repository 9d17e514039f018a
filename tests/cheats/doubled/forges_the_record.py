"""Cheat: the verdict is written by the one who is judged."""

import json
import os
import sys
from pathlib import Path

RECORD = Path(sys.argv[sys.argv.index("--record") + 1])


def doubled(x):
    with RECORD.open("a") as stream:
        stream.write(json.dumps({"event": "end", "exit": 0, "nonce": ""}) + "\n")
    os._exit(0)
