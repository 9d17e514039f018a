"""What is right: where TMA puts a tile, what a descriptor reads, and wgmma on the simulator."""

from functools import cache

import numpy as np

from harness.simulators.ptx import read_ptx, run_arrays

SWIZZLES = (0, 128, 64, 32)  # bytes, by the upper two bits of a descriptor


def bits(desc, at):
    """A field of 14 bits, in bytes."""
    return (int(desc) // 2**at) % 2**14 * 16


def swizzled(place, swizzle):
    """Where the byte meant for `place` lies: chunks of 16 bytes change places."""
    pieces = max(swizzle // 16, 1)
    return place ^ (place // 128 % pieces) * 16


# ---- places of elements, [rows, k] ---------------------------------------------------------


def tile_places(addr, rows, k_elems, elem_bytes, swizzle, major):
    """Where the elements of a tile lie: panels of the swizzle's width, or of 16 bytes."""
    row, k = np.mgrid[:rows, :k_elems]
    line, place, lines = (row, k, rows) if major == "K" else (k, row, k_elems)
    width = swizzle or 16
    panel, within = np.divmod(place * elem_bytes, width)
    return swizzled(addr + panel * lines * width + line * width + within, swizzle)


def places_read(desc, rows, elem_bytes, major):
    """
    Where one wgmma takes the elements of its block from.

    Source: PTX ISA, matrix descriptor, strides and canonical layouts.
    """
    start, lbo, sbo = (bits(desc, at) for at in (0, 16, 32))
    swizzle = SWIZZLES[int(desc) // 2**62]
    row, k = np.mgrid[:rows, : 32 // elem_bytes]
    along_k, along_rows = k * elem_bytes, row * elem_bytes
    if major == "K" and swizzle:
        place = row // 8 * sbo + row % 8 * swizzle + along_k
    elif major == "K":
        place = row // 8 * sbo + row % 8 * 16 + along_k // 16 * lbo + along_k % 16
    elif swizzle:
        place = along_rows // swizzle * lbo + along_rows % swizzle
        place = place + k // 8 * sbo + k % 8 * swizzle
    else:
        place = along_rows // 16 * sbo + along_rows % 16 + k // 8 * lbo + k % 8 * 16
    return swizzled(start + place, swizzle)


def difference(found, *, addr, rows, k_elems, elem_bytes, swizzle, major, block):
    """The first descriptor that does not read what lies there, or ""."""
    asked = (
        f"input: addr = {addr}, {rows} rows x {k_elems} of {elem_bytes} bytes, "
        f"swizzle {swizzle}, {major}-major, block {block}"
    )
    step = 32 // elem_bytes
    want = [k_elems // step] * (rows // block)
    counts = [len(one) for one in found]
    if counts != want:
        return f"{asked} | descriptors of each block: yours: {counts}, expected: {want}"
    lies = tile_places(addr, rows, k_elems, elem_bytes, swizzle, major)
    for b, steps in enumerate(found):
        for s, desc in enumerate(steps):
            if not isinstance(desc, int) or not 0 <= desc < 2**64:
                return f"{asked} | block {b}, step {s}: yours: {desc!r}, expected: 64 bits"
            first = b * block, s * step
            part = lies[first[0] : first[0] + block, first[1] : first[1] + step]
            if SWIZZLES[desc >> 62] != swizzle or desc >> 49 & 7:
                return f"{asked} | block {b}, step {s}: yours: {desc:#x}, has another mode"
            read = places_read(desc, block, elem_bytes, major)
            wrong = np.argwhere(read != part)
            if len(wrong):
                row, k = wrong[0]
                return (
                    f"{asked} | block {b}, step {s}, {desc:#x}: element (row {row}, k {k}) is read "
                    f"at byte {read[row, k]}, expected: {part[row, k]}"
                )
    return ""


# ---- the instruction itself ----------------------------------------------------------------

KINDS = {"f16": (2, 1), "e4m3": (1, 0), "tf32": (4, 0)}  # bytes, whether it can be turned

MULTIPLY = """
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 tile[];

.visible .entry multiply(
    .param .u64 image, .param .u32 nbytes, .param .u64 descriptors, .param .u32 steps,
    .param .u64 result)
{{
    .reg .pred %more, %adds;
    .reg .b32 %at, %nbytes, %steps, %base, %to, %four<4>;
    .reg .b64 %from, %wide, %desc, %a, %b, %unit, %out;
    .reg .f32 %sum<{count}>;
    ld.param.u64 %from, [image];
    ld.param.u32 %nbytes, [nbytes];
    ld.param.u64 %desc, [descriptors];
    ld.param.u32 %steps, [steps];
    ld.param.u64 %out, [result];
    mov.u32 %base, tile;
    mov.u32 %at, %tid.x;
    mul.wide.u32 %wide, %at, {out_bytes};
    add.s64 %out, %out, %wide;
    shl.b32 %at, %at, 4;
COPY:
    setp.ge.u32 %more, %at, %nbytes;
    @%more bra COPIED;
    cvt.u64.u32 %wide, %at;
    add.s64 %wide, %from, %wide;
    ld.global.v4.u32 {{%four0, %four1, %four2, %four3}}, [%wide];
    add.u32 %to, %base, %at;
    st.shared.v4.u32 [%to], {{%four0, %four1, %four2, %four3}};
    add.u32 %at, %at, 2048;
    bra COPY;
COPIED:
    fence.proxy.async;
    bar.sync 0;
    shr.u32 %base, %base, 4;
    cvt.u64.u32 %unit, %base;
    mov.u32 %at, 0;
    wgmma.fence.sync.aligned;
NEXT:
    ld.global.v2.u64 {{%a, %b}}, [%desc];
    add.s64 %a, %a, %unit;
    add.s64 %b, %b, %unit;
    setp.ne.u32 %adds, %at, 0;
    wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{kind}.{kind} {{{sums}}}, %a, %b, %adds, {tail};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    add.s64 %desc, %desc, 16;
    add.u32 %at, %at, 1;
    setp.lt.u32 %more, %at, %steps;
    @%more bra NEXT;
{stores}
    ret;
}}
"""


@cache
def _module(n, kind, turned):
    size, turns = KINDS[kind]
    count = n // 2
    return read_ptx(
        MULTIPLY.format(
            n=n,
            k=32 // size,
            kind=kind,
            count=count,
            out_bytes=4 * count,
            sums=", ".join(f"%sum{i}" for i in range(count)),
            tail=", ".join(map(str, [1, 1, *turned][: 2 + 2 * turns])),
            stores="\n".join(f"    st.global.f32 [%out+{4 * i}], %sum{i};" for i in range(count)),
        )
    )


def image_of(nbytes, operands):
    """
    Shared memory with tiles in it.

    Args:
        nbytes: Of shared memory.
        operands: Values, and where each of them lies.
    """
    image = np.zeros(nbytes, np.uint8)
    for values, places in operands:
        size = values.itemsize
        where = places[..., None] + np.arange(size)
        image[where] = values[..., None].view(np.uint8).reshape(*values.shape, size)
    return image


def wgmma(image, descriptors, n, kind, turned):
    """
    64 x n sums of products, one for each pair of descriptors, or the hazard that there was.

    Args:
        image: Shared memory.
        descriptors: Of A and of B, for each step.
        n: Columns of B, the rows of its tile.
        kind: The type of the operands.
        turned: Whether A, and B, is MN-major.
    """
    given = np.array(descriptors, np.uint64)
    raw = np.full((128, n // 2), np.nan, np.float32)
    arguments = [image, len(image), given, len(given), raw]
    run = run_arrays(
        _module(n, kind, turned), block=128, arguments=arguments, shared_bytes=len(image)
    )
    if run.found:
        return f"{run.found[0].name}: {run.found[0].text}"
    # register r of lane l: row l / 4, 8 further on for every second pair; 8 columns for each four
    thread, register = np.mgrid[:128, : n // 2]
    c = np.zeros((64, n))
    row = thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8
    c[row, register // 4 * 8 + thread % 4 * 2 + register % 2] = raw
    return c


def small_integers(random, rows, k_elems, kind):
    """From -4 to 4, as bits of a type and as numbers: sums are exact."""
    numbers = random.integers(-4, 5, (rows, k_elems))
    if kind == "f16":
        return numbers.astype(np.float16), numbers
    if kind == "tf32":
        return numbers.astype(np.float32), numbers
    of_e4m3 = np.array([0, 0x38, 0x40, 0x44, 0x48], np.uint8)  # 0 to 4
    return of_e4m3[abs(numbers)] | np.where(numbers < 0, 0x80, 0).astype(np.uint8), numbers


def alignment(swizzle):
    """What a tile has to begin at a multiple of."""
    return 8 * swizzle or 16
