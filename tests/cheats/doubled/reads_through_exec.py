"""Cheat: the code that reads has no file of its own."""

exec(
    compile(
        "def doubled(x):\n    open('solutions/week01/doubled.py')\n    return x * 2", "?", "exec"
    )
)
