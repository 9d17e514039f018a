"""Cheat: the reference is imported under its own name."""

import importlib.util

_spec = importlib.util.spec_from_file_location("reference", "solutions/week01/doubled.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
doubled = _module.doubled
