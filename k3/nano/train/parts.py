"""The model's layers as functions of their parameters, over flat tokens [t, hidden].

Each is compiled as a whole on a GPU, once for all layers, so that what lies between two matrix products
runs as one kernel. Matrix products run in `x`'s type, norms, routing and decays in f32 (f64 when x is f64).
Sequences lie one behind the other; `position` is a token's place in its own.
"""
import torch
import torch.nn.functional as F

L2_EPS = 1e-6


def wide(x):
    return x if x.dtype == torch.float64 else x.float()


def linear(x, *weights):
    """x times some weights as one product, the results side by side."""
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    return F.linear(x, weight.to(x.dtype))


def rms(x, weight, eps):
    w = wide(x)
    return (w * torch.rsqrt(w.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def mixed_norm(key_weight, query, weight, eps, *rows):
    """The residual rows mixed by their scores, and normed. One row stays what it is."""
    mixed = rows[0]
    if len(rows) > 1:
        taken = [wide(row) for row in rows]
        asked = key_weight * query[0]
        scores = [(row * torch.rsqrt(row.square().mean(-1, keepdim=True) + eps) * asked).sum(-1, keepdim=True)
                  for row in taken]
        most = scores[0]
        for score in scores[1:]:
            most = torch.maximum(most, score)
        most = most.detach()
        powers = [(score - most).exp() for score in scores]
        mixed = sum(p * row for p, row in zip(powers, taken)) / sum(powers)
        mixed = mixed.to(rows[0].dtype)
    return rms(mixed, weight, eps)


def situ(gate, up, beta, linear_beta):
    gate, up = wide(gate), wide(up)
    bounded = beta * torch.tanh(gate / beta) * torch.sigmoid(gate)
    return bounded * linear_beta * torch.tanh(up / linear_beta)


def mlp(c, x, stream, gate, up, down):
    a, b = linear(x, gate, up).split(gate.shape[0], -1)
    return stream + linear(situ(a, b, c.beta, c.linear_beta).to(x.dtype), down)


def chosen_experts(scores, count):
    """1 for the `count` highest of a token, the lower index first among equals; the order is fixed."""
    index = torch.arange(scores.shape[-1], device=scores.device)
    mine, other = scores[..., :, None], scores[..., None, :]
    before = (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))
    return (before.sum(-1) < count).to(scores.dtype)


def moe(c, x, stream, gate, bias, down, norm, up, shared_gate, shared_up, shared_down, w1, w3, w2):
    """(stream with the experts' answer, how many tokens chose each). Every expert runs on every token:
    at these sizes that is cheaper than sorting them. The experts' weights come as they are packed."""
    s = torch.sigmoid(F.linear(wide(x), gate))
    chosen = chosen_experts(s.detach() + bias, c.top_k)
    weights = s * chosen
    if c.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * c.scaling
    width = shared_gate.shape[0]
    z, a, b = linear(x, down, shared_gate, shared_up).split([c.latent, width, width], -1)
    inner = c.experts * c.width
    g, u = linear(z, w1.reshape(inner, c.latent), w3.reshape(inner, c.latent)).split(inner, -1)
    act = situ(g, u, c.beta, c.linear_beta).reshape(-1, c.experts, c.width) * weights[..., None]
    y = linear(act.reshape(-1, inner).to(x.dtype), w2.transpose(0, 1).reshape(c.latent, inner))
    if c.latent_norm:
        y = rms(y, norm, c.eps)
    shared = linear(situ(a, b, c.beta, c.linear_beta).to(x.dtype), shared_down)
    return stream + (linear(y, up) + shared), chosen.sum(0)


def kda_in(c, x, position, q, k, v, q_taps, k_taps, v_taps, f_a, f_b, b, g):
    """(q, k, v behind their convolutions, raw decay, raw step size, output gate)."""
    t, inner = x.shape[0], c.kda_heads * c.kda_dim
    sizes = [inner, inner, inner, c.kda_dim, c.kda_heads, inner]
    yq, yk, yv, low, step, gate = linear(x, q, k, v, f_a, b, g).split(sizes, -1)

    def convolved(y, taps):
        y, taps = F.pad(wide(y), (0, 0, c.taps - 1, 0)), taps[:, 0]
        out = 0
        for i in range(c.taps):
            there = (position >= c.taps - 1 - i)[:, None]
            out = out + taps[:, i] * torch.where(there, y[i:i + t], 0.0)
        return F.silu(out).to(x.dtype)

    return (convolved(yq, q_taps), convolved(yk, k_taps), convolved(yv, v_taps), linear(low, f_b),
            step.contiguous(), gate.contiguous())


def kda_given(c, q, k, v, r, step, a_log, dt_bias):
    """What the delta rule is given: q, k, v, log decay [t, heads, d], step size [t, heads]. Apart from
    `kda_in`, so that its sums over a head read what the convolutions wrote and do not run them again."""
    def heads(y):
        return y.reshape(-1, c.kda_heads, c.kda_dim)

    def unit(y):
        return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + L2_EPS)

    decay = c.bound * torch.sigmoid(a_log.exp()[:, None] * heads(wide(r) + dt_bias))
    return (unit(heads(wide(q))) * c.kda_dim ** -0.5, unit(heads(wide(k))), heads(wide(v)).contiguous(), decay,
            torch.sigmoid(wide(step)))


def kda_out(c, o, gate, norm, o_proj):
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + c.eps) * norm
    o = o.flatten(1) * torch.sigmoid(wide(gate))
    return linear(o.to(gate.dtype), o_proj)


def mla_in(c, x, q_a, q_norm, q_b, kv_a, kv_norm, kv_b, g):
    """(q, k, v [t, heads, nope + rope], output gate). Values are padded to the keys' width, which the
    fast kernels ask for."""
    t = x.shape[0]
    low, latent, shared, gate = linear(x, q_a, kv_a, g).split(
        [c.q_lora, c.kv_lora, c.rope, c.heads * c.v_dim], -1)
    q = linear(rms(low, q_norm, c.latent_eps), q_b).reshape(t, c.heads, c.nope + c.rope)
    kv = linear(rms(latent, kv_norm, c.latent_eps), kv_b).reshape(t, c.heads, c.nope + c.v_dim)
    k = torch.cat([kv[..., :c.nope], shared[:, None].expand(t, c.heads, c.rope)], -1)
    return q, k, F.pad(kv[..., c.nope:], (0, max(0, c.nope + c.rope - c.v_dim))), gate


def mla_out(c, o, gate, o_proj):
    o = o[..., :c.v_dim].flatten(1) * torch.sigmoid(wide(gate)).to(gate.dtype)
    return linear(o, o_proj)


def judged(x, head, target, weight):
    """(weighted sum of the losses, what each token lost, whether the target is the most likely)."""
    logits = wide(linear(x, head))
    most = logits.amax(-1, keepdim=True)
    at_target = torch.arange(logits.shape[-1], device=x.device) == target[:, None]
    wanted = torch.where(at_target, logits, 0.0).sum(-1)
    losses = (logits - most.detach()).exp().sum(-1).log() + most.detach()[:, 0] - wanted
    return (losses * weight).sum(), losses.detach(), (wanted >= most[:, 0]).detach()
