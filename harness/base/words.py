"""Words that were said elsewhere, made fit to be shown."""


def readable(text: str) -> str:
    """`text` with what could command a terminal, or not be encoded, written as an escape."""
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape").decode()
        for character in text
    )
