"""What a GPU can do at best, and what is around a session. What a kata may import of it."""

from harness.hardware.roofline import Cost, Profile

__all__ = ["Cost", "Profile"]
