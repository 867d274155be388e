"""The gated delta rule in plain torch: the form that a CPU runs and that the kernels are judged by."""
import torch
import torch.nn.functional as F

CHUNK = 64
# What a block of tokens may decay by, as f32 must hold the inverse; exponents above belong to
# pairs that the causal mask takes away.
EXPONENT_MAX = 80.0


def block_of(bound):
    """The largest block, up to 16 tokens, whose decay stays within EXPONENT_MAX."""
    block = 16
    while (block - 1) * -bound > EXPONENT_MAX:
        block //= 2
    return block


def delta_rule(q, k, v, g, beta, block=16):
    """The gated delta rule in chunks. q, k, g [b, t, h, d], v [b, t, h, e], beta [b, t, h], g the log
    of the decay; o [b, t, h, e]. t is padded to whole chunks: beta 0 and decay 1 change no state."""
    b, t, h, d = q.shape
    n = -(-t // CHUNK)

    def chunks(x):  # [b, h, n, CHUNK, …]
        x = F.pad(x, (0, 0, 0, 0, 0, n * CHUNK - t))
        return x.reshape(b, n, CHUNK, h, -1).permute(0, 3, 1, 2, 4)

    q, k, v, g, beta = (chunks(x) for x in (q, k, v, g, beta[..., None]))
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    total = causal.to(g.dtype) @ g  # G, decay since the chunk began; CUDA's cumsum has no fixed order
    grown = total.exp()
    # Pairs e^(G_i - G_j) as products around the first token of i's block.
    rows = total.reshape(b, h, n, CHUNK // block, block, d)
    first = rows[..., :1, :]
    left = (rows - first).exp()
    right = k[:, :, :, None] * (first - total[:, :, :, None]).clamp(max=EXPONENT_MAX).exp()

    def pairs(x):
        x = x.reshape(left.shape) * left
        return (x @ right.transpose(-1, -2)).reshape(b, h, n, CHUNK, CHUNK)

    a = torch.where(causal.tril(-1), beta * pairs(k), 0.0)
    inside = torch.where(causal, pairs(q), 0.0)
    eye = torch.eye(CHUNK, dtype=q.dtype, device=q.device)
    solved = torch.linalg.solve_triangular(eye + a, torch.cat([beta * v, beta * k * grown], -1),
                                           upper=False, unitriangular=True)
    u0, w = solved[..., :v.shape[-1]], solved[..., v.shape[-1]:]
    last = total[..., -1:, :]
    key_out, query = k * (last - total).exp(), q * grown
    state, out = q.new_zeros(b, h, d, v.shape[-1]), []
    for i in range(n):
        u = u0[:, :, i] - w[:, :, i] @ state
        out.append(query[:, :, i] @ state + inside[:, :, i] @ u)
        state = last[:, :, i].exp().transpose(-1, -2) * state + key_out[:, :, i].transpose(-1, -2) @ u
    return torch.stack(out, 2).permute(0, 2, 3, 1, 4).reshape(b, n * CHUNK, h, -1)[:, :t]
