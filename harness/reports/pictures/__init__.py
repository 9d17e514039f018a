"""
Pictures of what was measured and counted: the roofline with katas on it, and who touches what.

What is drawn is plain data first (`roofline`, `recording`), which a terminal can show as well.
Only the `draw_…` modules need matplotlib, the extra `plot`.
"""
