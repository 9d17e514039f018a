"""``python -m harness`` is the command `kata`."""

from harness.cli import main

main(prog_name="kata")
