"""What a kernel's sm_90 machine code does before it waits for the launches ahead of it.

An instruction is 16 bytes; the low 12 bits say which. Code that comes before the wait in a section
may run before it, so nothing there may touch memory that a launch writes: loads into registers,
stores, atomics and bulk copies are offences; 16-byte copies to shared memory (weights) and requests
that bring lines near are not.
"""
import struct

WAIT = 0x82E
ACCESSES = {0x980: "a load", 0x981: "a load", 0x985: "a store", 0x986: "a store", 0x98E: "a reduction",
            0x9A8: "an atomic", 0x38A: "an atomic", 0x3BA: "a bulk copy", 0x5B4: "a tensor copy"}


def sections(cubin: bytes) -> dict[str, bytes]:
    """The code of each entry, by its name."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    table, = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = heads[names_at][4]
    found = {}
    for name, kind, _, _, offset, length in heads:
        text = cubin[names + name:cubin.index(b"\0", names + name)].decode()
        if kind == 1 and text.startswith(".text."):
            found[text[len(".text."):]] = cubin[offset:offset + length]
    return found


def before_wait(code: bytes) -> list[str] | None:
    """What it accesses before it waits; nothing when it never waits."""
    offences = []
    for at in range(0, len(code) - 15, 16):
        which = struct.unpack_from("<H", code, at)[0] & 0xFFF
        if which == WAIT:
            return offences
        if which in ACCESSES:
            offences.append(f"{ACCESSES[which]} at {at:#x}")
    return None
