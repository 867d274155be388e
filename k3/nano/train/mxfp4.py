"""MXFP4 as the release packs it: groups of 32 inputs share a power of two, values are E2M1.

`fake` gives, bit for bit, the values that `pack` stores; its gradient is that of the identity.
"""
import functools

import torch

GROUP = 32
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Between two levels, and which of them a value in the very middle takes: the even code.
BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


@functools.cache
def constant(numbers, device):
    """Kept, since what a graph records may not copy from the host."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def power(e):
    """2^e in f64, put together from its bits: a device's pow may miss by one."""
    return ((e.long() + 1023) << 52).view(torch.float64)


def exponents(w):
    """[..., in / 32] exponents e: the least that leave every |w| / 2^e at 6 or below."""
    groups = w.detach().reshape(*w.shape[:-1], -1, GROUP)
    mantissa, exponent = torch.frexp(groups.abs().amax(-1))  # amax = mantissa * 2^exponent, [0.5, 1)
    e = exponent - 3 + (mantissa > 0.75).to(exponent.dtype)
    return e.clamp(-126, 127)


def codes(w, e):
    """[..., in / 32, 32] E2M1 codes, the sign in bit 3."""
    scaled = w.detach().reshape(*w.shape[:-1], -1, GROUP).double() * power(-e[..., None])
    size = scaled.abs()
    between = constant(BETWEEN, w.device)
    up, down = torch.bucketize(size, between, right=True), torch.bucketize(size, between, right=False)
    magnitude = torch.where(up % 2 == 0, up, down)  # they differ in the middle only
    return magnitude | (8 * (scaled < 0) * (magnitude > 0)).to(magnitude.dtype)


def values(code, e, shape, dtype):
    levels = constant(LEVELS + tuple(-v for v in LEVELS), code.device)
    return (levels[code] * power(e[..., None])).to(dtype).reshape(shape)


class Straight(torch.autograd.Function):
    """The quantised values of w, and the gradient as if they were w."""

    @staticmethod
    def forward(_, w):
        e = exponents(w)
        return values(codes(w, e), e, w.shape, w.dtype)

    @staticmethod
    def backward(_, grad):
        return grad


def fake(w):
    """The quantised values of w, in w's type."""
    return Straight.apply(w)


def pack(w):
    """(packed u8 [out, in / 2], low nibble first; scale u8 [out, in / 32]) of [out, in]."""
    e = exponents(w)
    code = codes(w, e).reshape(w.shape).to(torch.uint8)
    return code[..., 0::2] | (code[..., 1::2] << 4), (e + 127).to(torch.uint8)


def unpack(packed, scale):
    code = torch.stack([packed & 15, packed >> 4], dim=-1).reshape(*packed.shape[:-1], -1, GROUP)
    shape = (*packed.shape[:-1], packed.shape[-1] * 2)
    return values(code.long(), scale.int() - 127, shape, torch.float32)
