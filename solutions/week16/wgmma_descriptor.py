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
    # check
    for name, value in (("addr", addr), ("lbo", lbo), ("sbo", sbo)):
        if value not in range(0, FIELD_END, UNIT):
            raise ValueError(
                f"{name}: expected a multiple of {UNIT} from 0 to below {FIELD_END}, found {value}"
            )
    _swizzle_is_known(swizzle)
    if not 0 <= base_offset < 8:
        raise ValueError(f"base_offset: expected 0 to 7, found {base_offset}")
    # pack the fields
    offsets = addr // UNIT | lbo // UNIT << 16 | sbo // UNIT << 32
    return offsets | base_offset << 49 | MODES[swizzle] << 62


def decode(desc: int) -> dict[str, int]:
    """What `encode` was given, by the names of its arguments; other bits mean nothing."""
    # unpack the fields
    swizzles = {mode: swizzle for swizzle, mode in MODES.items()}
    return {
        "addr": (desc & 0x3FFF) * UNIT,
        "lbo": (desc >> 16 & 0x3FFF) * UNIT,
        "sbo": (desc >> 32 & 0x3FFF) * UNIT,
        "swizzle": swizzles[desc >> 62],
        "base_offset": desc >> 49 & 7,
    }


def advance(desc: int, byte_offset: int) -> int:
    """
    The same operand so many bytes further on, or back; all other bits stay.

    Raises:
        ValueError: the offset is no multiple of 16, or leads to no address of a descriptor.
    """
    # check
    addr = decode(desc)["addr"] + byte_offset
    if addr not in range(0, FIELD_END, UNIT):
        raise ValueError(f"byte_offset: {byte_offset} leads to {addr}")
    # move the address
    return desc + byte_offset // UNIT


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
    # check
    _swizzle_is_known(swizzle)
    if elem_bytes not in (1, 2, 4):
        raise ValueError(f"elem_bytes: expected 1, 2 or 4, found {elem_bytes}")
    if major not in ("K", "MN") or (major == "MN" and elem_bytes != 2):
        raise ValueError(f"major: {major} is none of elements of {elem_bytes} bytes")
    width = swizzle or UNIT
    if block not in range(8, 257, 8):
        raise ValueError(f"block: expected a multiple of 8 from 8 to 256, found {block}")
    if major == "MN" and block * elem_bytes % width:
        raise ValueError(f"block: expected whole panels of {width} bytes, found {block} rows")
    if rows < block or rows % block:
        raise ValueError(f"rows: expected blocks of {block}, found {rows}")
    k_bytes = k_elems * elem_bytes
    if k_bytes < STEP_BYTES or k_bytes % STEP_BYTES or (major == "K" and k_bytes % width):
        raise ValueError(f"k_elems: expected whole steps and panels, found {k_elems}")
    if addr % (8 * swizzle or UNIT) or addr + rows * k_bytes > SHARED_END:
        raise ValueError(f"addr: {addr} is none for a tile of {rows * k_bytes} bytes")

    # offsets and steps of a tile
    steps = range(k_bytes // STEP_BYTES)
    if major == "K":
        panel, further = rows * width, block * width
        lbo, sbo = (0 if swizzle else panel), 8 * width
        along_k = [at // width * panel + at % width for at in (STEP_BYTES * n for n in steps)]
    else:
        panel, further = k_elems * width, block * k_bytes
        lbo, sbo = (panel, 8 * width) if swizzle else (8 * width, panel)
        along_k = [STEP_BYTES // elem_bytes * width * step for step in steps]
    # one descriptor a step
    first = encode(addr, lbo, sbo, swizzle)
    return [
        [advance(first, further * number + step) for step in along_k]
        for number in range(rows // block)
    ]


def _swizzle_is_known(swizzle: int) -> None:
    if swizzle not in MODES:
        raise ValueError(f"swizzle: expected one of {', '.join(map(str, MODES))}, found {swizzle}")
