"""The gated delta rule for a GPU: five Triton kernels and the autograd function around them.

Within a chunk, with G the sum of g since its start, b the step sizes, T = (1 + A)^-1, S the state:
    U  = T (b (v - (k e^G) S))        o  = (q e^G) S + P U
    S' = M S + B,  M = e^G_last - (k e^(G_last - G))' T (b k e^G),  B = (k e^(G_last - G))' T (b v)
A and P hold the pairs b_i k_i k_j e^(G_i - G_j) below the diagonal and q_i k_j e^(G_i - G_j) up to it.
All chunks run at once but for two scans, S' = M S + B forwards and its transpose backwards. Every
sum has one order, so a run gives the same bits each time.
"""
import torch
import triton
import triton.language as tl

EXPONENT_MAX = tl.constexpr(80.0)
SCAN_COLUMNS = 16


@triton.jit
def rows_of(pointer, chunk, head, heads: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
    """Pointers of a chunk's [C, D] tile in [tokens, heads, D]."""
    token = chunk * C + tl.arange(0, C)
    return pointer + (token[:, None] * heads + head) * D + tl.arange(0, D)[None, :]


@triton.jit
def square_of(pointer, at, R: tl.constexpr, D: tl.constexpr):
    return pointer + at * R * D + tl.arange(0, R)[:, None] * D + tl.arange(0, D)[None, :]


@triton.jit
def row_of(x, i, C: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, C)[:, None] == i, x, 0.0), 0)


@triton.jit
def pairs(x, k, total, C: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """x_i k_j e^(G_i - G_j) [C, C], as products around the first token of i's block."""
    rows = tl.arange(0, C)
    out = tl.zeros([C, C], tl.float32)
    for b in tl.static_range(C // BLOCK):
        first = row_of(total, b * BLOCK, C)[None, :]
        left = x * tl.exp(tl.minimum(total - first, 0.0))
        right = k * tl.exp(tl.minimum(first - total, EXPONENT_MAX))
        product = tl.dot(left, tl.trans(right), input_precision=PRECISION)
        out = tl.where((rows[:, None] // BLOCK) == b, product, out)
    return out


@triton.jit
def maps_kernel(k_, v_, g_, beta_, inverse_, m_, b_, heads: tl.constexpr, C: tl.constexpr,
                D: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """T, M and B of a chunk and head."""
    at = tl.program_id(0)
    chunk, head = (at // heads).to(tl.int64), at % heads
    k = tl.load(rows_of(k_, chunk, head, heads, C, D))
    v = tl.load(rows_of(v_, chunk, head, heads, C, D))
    g = tl.load(rows_of(g_, chunk, head, heads, C, D))
    beta = tl.load(beta_ + (chunk * C + tl.arange(0, C)) * heads + head)[:, None]
    total = tl.cumsum(g, 0)
    rows = tl.arange(0, C)
    below = rows[:, None] > rows[None, :]
    a = tl.where(below, beta * pairs(k, k, total, C, BLOCK, PRECISION), 0.0)
    inverse = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    for j in range(C):  # what row j is, all rows below need
        column = tl.sum(tl.where(rows[None, :] == j, a, 0.0), 1)
        inverse -= column[:, None] * row_of(inverse, j, C)[None, :]
    at = at.to(tl.int64)
    tl.store(square_of(inverse_, at, C, C), inverse)
    last = row_of(total, C - 1, C)
    w = tl.dot(inverse, beta * k * tl.exp(total), input_precision=PRECISION)
    u = tl.dot(inverse, beta * v, input_precision=PRECISION)
    out = tl.trans(k * tl.exp(last[None, :] - total))
    d = tl.arange(0, D)
    decay = tl.where(d[:, None] == d[None, :], tl.exp(last)[:, None], 0.0)
    tl.store(square_of(m_, at, D, D), decay - tl.dot(out, w, input_precision=PRECISION))
    tl.store(square_of(b_, at, D, D), tl.dot(out, u, input_precision=PRECISION))


@triton.jit
def scan_kernel(m_, b_, state_, starts_, heads: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
                BACKWARDS: tl.constexpr):
    """Of one sequence, head and some columns: the state before every chunk; backwards, what the loss
    changes with the state behind it."""
    head, columns = tl.program_id(1), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    first, last = tl.load(starts_ + tl.program_id(0)), tl.load(starts_ + tl.program_id(0) + 1)
    d = tl.arange(0, D)
    state = tl.zeros([D, COLUMNS], tl.float32)
    for i in range(last - first):
        chunk = (last - 1 - i) if BACKWARDS else (first + i)
        at = (chunk.to(tl.int64) * heads + head) * D * D
        cell = at + d[:, None] * D + columns[None, :]
        if BACKWARDS:
            m = tl.load(m_ + at + d[None, :] * D + d[:, None])
        else:
            m = tl.load(m_ + at + d[:, None] * D + d[None, :])
        b = tl.load(b_ + cell)
        tl.store(state_ + cell, state)
        state = tl.dot(m, state, input_precision="tf32x3") + b


@triton.jit
def outputs_kernel(q_, k_, v_, g_, beta_, inverse_, state_, o_, heads: tl.constexpr, C: tl.constexpr,
                   D: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.program_id(0)
    chunk, head = (at // heads).to(tl.int64), at % heads
    q = tl.load(rows_of(q_, chunk, head, heads, C, D))
    k = tl.load(rows_of(k_, chunk, head, heads, C, D))
    v = tl.load(rows_of(v_, chunk, head, heads, C, D))
    g = tl.load(rows_of(g_, chunk, head, heads, C, D))
    beta = tl.load(beta_ + (chunk * C + tl.arange(0, C)) * heads + head)[:, None]
    at = at.to(tl.int64)
    inverse = tl.load(square_of(inverse_, at, C, C))
    state = tl.load(square_of(state_, at, D, D))
    total = tl.cumsum(g, 0)
    grown = tl.exp(total)
    rows = tl.arange(0, C)
    u = beta * (v - tl.dot(k * grown, state, input_precision=PRECISION))
    u = tl.dot(inverse, u, input_precision=PRECISION)
    p = tl.where(rows[:, None] >= rows[None, :], pairs(q, k, total, C, BLOCK, PRECISION), 0.0)
    o = tl.dot(q * grown, state, input_precision=PRECISION)
    tl.store(rows_of(o_, chunk, head, heads, C, D), o + tl.dot(p, u, input_precision=PRECISION))


@triton.jit
def state_grads_kernel(q_, k_, g_, beta_, inverse_, do_, ds_, heads: tl.constexpr, C: tl.constexpr,
                       D: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
    """What a chunk's own outputs ask of the state before it."""
    at = tl.program_id(0)
    chunk, head = (at // heads).to(tl.int64), at % heads
    q = tl.load(rows_of(q_, chunk, head, heads, C, D))
    k = tl.load(rows_of(k_, chunk, head, heads, C, D))
    g = tl.load(rows_of(g_, chunk, head, heads, C, D))
    do = tl.load(rows_of(do_, chunk, head, heads, C, D))
    beta = tl.load(beta_ + (chunk * C + tl.arange(0, C)) * heads + head)[:, None]
    at = at.to(tl.int64)
    inverse = tl.load(square_of(inverse_, at, C, C))
    total = tl.cumsum(g, 0)
    grown = tl.exp(total)
    rows = tl.arange(0, C)
    p = tl.where(rows[:, None] >= rows[None, :], pairs(q, k, total, C, BLOCK, PRECISION), 0.0)
    du = tl.dot(tl.trans(p), do, input_precision=PRECISION)
    dr = beta * tl.dot(tl.trans(inverse), du, input_precision=PRECISION)
    ds = tl.dot(tl.trans(q * grown), do, input_precision=PRECISION)
    ds -= tl.dot(tl.trans(k * grown), dr, input_precision=PRECISION)
    tl.store(square_of(ds_, at, D, D), ds)


@triton.jit
def grads_kernel(q_, k_, v_, g_, beta_, inverse_, state_, after_, do_, dq_, dk_, dv_, dg_, dbeta_,
                 heads: tl.constexpr, C: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr,
                 PRECISION: tl.constexpr):
    """`after`: what the loss changes with the state behind the chunk."""
    at = tl.program_id(0)
    chunk, head = (at // heads).to(tl.int64), at % heads
    q = tl.load(rows_of(q_, chunk, head, heads, C, D))
    k = tl.load(rows_of(k_, chunk, head, heads, C, D))
    v = tl.load(rows_of(v_, chunk, head, heads, C, D))
    g = tl.load(rows_of(g_, chunk, head, heads, C, D))
    do = tl.load(rows_of(do_, chunk, head, heads, C, D))
    step = beta_ + (chunk * C + tl.arange(0, C)) * heads + head
    beta = tl.load(step)[:, None]
    at = at.to(tl.int64)
    inverse = tl.load(square_of(inverse_, at, C, C))
    state = tl.load(square_of(state_, at, D, D))
    after = tl.load(square_of(after_, at, D, D))
    rows = tl.arange(0, C)
    upto, below = rows[:, None] >= rows[None, :], rows[:, None] > rows[None, :]
    total = tl.cumsum(g, 0)
    last = row_of(total, C - 1, C)
    grown, left_over = tl.exp(total), tl.exp(last[None, :] - total)
    # Forwards again, as far as it is needed.
    missing = v - tl.dot(k * grown, state, input_precision=PRECISION)
    u = tl.dot(inverse, beta * missing, input_precision=PRECISION)
    p = tl.where(upto, pairs(q, k, total, C, BLOCK, PRECISION), 0.0)
    kk = tl.where(below, pairs(k, k, total, C, BLOCK, PRECISION), 0.0)
    # Backwards.
    du = tl.dot(tl.trans(p), do, input_precision=PRECISION)
    du += tl.dot(k * left_over, after, input_precision=PRECISION)
    dr = tl.dot(tl.trans(inverse), du, input_precision=PRECISION)
    dp = tl.where(upto, tl.dot(do, tl.trans(u), input_precision=PRECISION), 0.0)
    da = tl.where(below, -tl.dot(dr, tl.trans(u), input_precision=PRECISION), 0.0)
    dbeta = tl.sum(dr * missing, 1) + tl.sum(da * kk, 1)
    tl.store(dbeta_ + (chunk * C + rows) * heads + head, dbeta)
    dr = beta * dr
    tl.store(rows_of(dv_, chunk, head, heads, C, D), dr)
    da = beta * da
    dq_state = tl.dot(do, tl.trans(state), input_precision=PRECISION) * grown
    dk_state = -tl.dot(dr, tl.trans(state), input_precision=PRECISION) * grown
    dk_out = tl.dot(u, tl.trans(after), input_precision=PRECISION) * left_over
    # Of the pairs: as rows, whose decay counts up, and as columns, whose counts down.
    dq, dk_row = tl.zeros([C, D], tl.float32), tl.zeros([C, D], tl.float32)
    dk_column = tl.zeros([C, D], tl.float32)
    for b in tl.static_range(C // BLOCK):
        inside = (rows[:, None] // BLOCK) == b
        first = row_of(total, b * BLOCK, C)[None, :]
        left = tl.exp(tl.minimum(total - first, 0.0))
        right = tl.exp(tl.minimum(first - total, EXPONENT_MAX))
        dp_block, da_block = tl.where(inside, dp, 0.0), tl.where(inside, da, 0.0)
        dq += left * tl.dot(dp_block, k * right, input_precision=PRECISION)
        dk_row += left * tl.dot(da_block, k * right, input_precision=PRECISION)
        column = tl.dot(tl.trans(dp_block), q * left, input_precision=PRECISION)
        column += tl.dot(tl.trans(da_block), k * left, input_precision=PRECISION)
        dk_column += right * column
    dq += dq_state
    dk_row += dk_state
    dk_column += dk_out
    tl.store(rows_of(dq_, chunk, head, heads, C, D), dq)
    tl.store(rows_of(dk_, chunk, head, heads, C, D), dk_row + dk_column)
    dtotal = q * dq + k * (dk_row - dk_column)
    dlast = tl.sum(k * dk_out, 0) + tl.exp(last) * tl.sum(after * state, 1)
    # g of a token counts in every total from it on.
    dg = tl.sum(dtotal, 0)[None, :] - tl.cumsum(dtotal, 0) + dtotal + dlast[None, :]
    tl.store(rows_of(dg_, chunk, head, heads, C, D), dg)


CHUNK = 32
WARPS = {"maps": 1, "scan": 2, "outputs": 2, "state_grads": 1, "grads": 2}  # measured on an H200
PRECISION = "tf32"


class DeltaRule(torch.autograd.Function):
    """q, k, v, g [tokens, heads, d] and beta [tokens, heads] in f32, contiguous; `starts` i32 [n + 1], the
    chunk that each sequence begins at, the end last. Sequences may be empty."""

    @staticmethod
    def forward(ctx, q, k, v, g, beta, starts, block):
        tokens, heads, d = q.shape
        if tokens % CHUNK or v.shape != q.shape:
            raise ValueError(f"delta rule: tokens in chunks of {CHUNK} and values as wide as keys, got "
                             f"{tuple(q.shape)} and {tuple(v.shape)}")
        chunks = tokens // CHUNK
        inverse = q.new_empty(chunks, heads, CHUNK, CHUNK)
        m, b, state = (q.new_empty(chunks, heads, d, d) for _ in range(3))
        o = torch.empty_like(q)
        shape = (heads, CHUNK, d, block, PRECISION)
        maps_kernel[(chunks * heads,)](k, v, g, beta, inverse, m, b, *shape, num_warps=WARPS["maps"])
        scan_kernel[(len(starts) - 1, heads, d // SCAN_COLUMNS)](
            m, b, state, starts, heads, d, SCAN_COLUMNS, False, num_warps=WARPS["scan"])
        outputs_kernel[(chunks * heads,)](q, k, v, g, beta, inverse, state, o, *shape,
                                          num_warps=WARPS["outputs"])
        ctx.save_for_backward(q, k, v, g, beta, starts, inverse, m, state)
        ctx.shape = shape
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, g, beta, starts, inverse, m, state = ctx.saved_tensors
        heads, _, d, _, _ = ctx.shape
        do = do.contiguous()
        ds, after = torch.empty_like(state), torch.empty_like(state)
        dq, dk, dv, dg, dbeta = (torch.empty_like(x) for x in (q, k, v, g, beta))
        count = (m.shape[0] * heads,)
        state_grads_kernel[count](q, k, g, beta, inverse, do, ds, *ctx.shape, num_warps=WARPS["state_grads"])
        scan_kernel[(len(starts) - 1, heads, d // SCAN_COLUMNS)](
            m, ds, after, starts, heads, d, SCAN_COLUMNS, True, num_warps=WARPS["scan"])
        grads_kernel[count](q, k, v, g, beta, inverse, state, after, do, dq, dk, dv, dg, dbeta, *ctx.shape,
                            num_warps=WARPS["grads"])
        return dq, dk, dv, dg, dbeta, None, None
