"""Kata week16/wgmma_descriptor: what wgmma is told of an operand in shared memory, in 64 bits."""

UNIT = 16  # bytes in which a descriptor counts
FIELD_END = 2**18  # bytes, of 14 bits in units
SHARED_END = 228 * 1024  # bytes of shared memory that an SM has
MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # of a swizzle in bytes
STEP_BYTES = 32  # of k in one wgmma


def encode(addr: int, lbo: int, sbo: int, swizzle: int, base_offset: int = 0) -> int:
    """
    A descriptor: address and both offsets in bytes, the swizzle in bytes or 0 for none.

    Raises:
        ValueError: an argument does not fit; the message begins with its name.
    """
    raise NotImplementedError  # TODO(kata): check, pack the fields (about 15 lines with helpers)


def decode(desc: int) -> dict[str, int]:
    """What `encode` was given, by the names of its arguments; other bits mean nothing."""
    raise NotImplementedError  # TODO(kata): unpack the fields (about 8 lines)


def advance(desc: int, byte_offset: int) -> int:
    """
    The same operand so many bytes further on, or back; all other bits stay.

    Raises:
        ValueError: the offset is no multiple of 16, or leads to no address of a descriptor.
    """
    raise NotImplementedError  # TODO(kata): check, move the address (about 4 lines)


def operand_descriptors(
    addr: int,
    rows: int,
    k_elems: int,
    elem_bytes: int,
    swizzle: int,
    major: str,
    block: int = 64,
) -> list[list[int]]:
    """
    The descriptors with which wgmma reads a tile: for each block of rows one for each step along k.

    The tile lies in panels, one after the other, as TMA brings them.

    Args:
        addr: Where the tile begins, in bytes.
        rows: Of the tile, along m or n.
        k_elems: Its elements along k.
        elem_bytes: 1, 2 or 4.
        swizzle: 0, 32, 64 or 128 bytes.
        major: Whose neighbours lie side by side: "K", or "MN" for those of a column.
        block: Rows that one wgmma reads.

    Raises:
        ValueError: an argument is none that wgmma can use; the message begins with its name.
    """
    # TODO(kata): check, offsets and steps of a tile, one descriptor a step (about 30 lines)
    raise NotImplementedError
