"""Counted thresholds that no test has measured, because the test that would does not apply here."""

import ast
from collections.abc import Iterable
from pathlib import Path

from harness.base.words import readable
from harness.learner.progress import Check


def excused(tests: Path, checks: Iterable[Check]) -> dict[str, str]:
    """
    What skipped tests would have measured, by name, with their reasons.

    Args:
        tests: The test file of the kata; a threshold is measured where its name stands.
        checks: What was judged. Only a test may skip itself, never the code under test.
    """
    skipped = {
        check.name.partition("[")[0]: check.message
        for check in checks
        if check.outcome == "skipped"
    }
    if not skipped or not tests.is_file():
        return {}
    found: dict[str, str] = {}
    for node in ast.parse(tests.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in skipped:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    found[part.value] = readable(skipped[node.name])
    return found
