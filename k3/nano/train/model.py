"""K3's text model in PyTorch, for training: batches of whole sequences, padded at their ends.

Parameters bear the release's tensor names without `language_model.`; the experts of a layer are
one stacked tensor each, `…experts.w1` [experts, out, in], and every use of them goes through MXFP4.
Matrix products run in `dtype`; norms, routing, decays and the delta rule in f32 (f64 when dtype is
f64). Nothing attends across rows of a batch, and what is padded behind a row changes nothing in it.
"""
import json
import math
import pathlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import mxfp4

CHUNK = 64
L2_EPS = 1e-6
# What a block of tokens may decay by, as f32 must hold the inverse; exponents above belong to
# pairs that the causal mask takes away.
EXPONENT_MAX = 80.0


def read_config(path):
    raw = json.loads(pathlib.Path(path).read_text())
    t = raw.get("text_config", raw)
    linear = t["linear_attn_config"]
    return SimpleNamespace(
        vocab=t["vocab_size"], hidden=t["hidden_size"], layers=t["num_hidden_layers"],
        eps=t["rms_norm_eps"], latent_eps=t.get("latent_norm_eps", 1e-6),
        block=t["attn_res_block_size"], heads=t["num_attention_heads"], q_lora=t["q_lora_rank"],
        kv_lora=t["kv_lora_rank"], nope=t["qk_nope_head_dim"], rope=t["qk_rope_head_dim"],
        v_dim=t["v_head_dim"], full=frozenset(i - 1 for i in linear["full_attn_layers"]),
        kda_heads=linear["num_heads"], kda_dim=linear["head_dim"],
        taps=linear["short_conv_kernel_size"], bound=linear["gate_lower_bound"],
        beta=t["activation_situ_beta"], linear_beta=t["activation_situ_linear_beta"],
        dense_layers=t["first_k_dense_replace"], moe_every=t.get("moe_layer_freq", 1),
        dense_width=t["intermediate_size"], experts=t["num_experts"],
        top_k=t["num_experts_per_token"], shared=t["num_shared_experts"],
        width=t["moe_intermediate_size"], latent=t["routed_expert_hidden_size"],
        latent_norm=t["latent_moe_use_norm"], renormalize=t["moe_renormalize"],
        scaling=t["routed_scaling_factor"])


def is_moe(c, layer):
    return layer >= c.dense_layers and layer % c.moe_every == 0


def shapes(c):
    """Name -> (shape, how it begins) of every parameter, in the order they are drawn."""
    out = {"model.embed_tokens.weight": ((c.vocab, c.hidden), 0.5)}
    inner = c.kda_heads * c.kda_dim

    def linear(name, rows, columns, gain=1.0):
        out[f"{name}.weight"] = ((rows, columns), gain / math.sqrt(columns))

    def norm(name, width):
        out[f"{name}.weight"] = ((width,), "one")

    def mlp(name, width):
        linear(f"{name}.gate_proj", width, c.hidden)
        linear(f"{name}.up_proj", width, c.hidden)
        linear(f"{name}.down_proj", c.hidden, width, 0.5)

    for layer in range(c.layers):
        at, attn = f"model.layers.{layer}.", f"model.layers.{layer}.self_attn."
        for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
                     "mlp_res_norm"):
            norm(at + name, c.hidden)
        for name in ("self_attention_res_proj", "mlp_res_proj"):
            out[f"{at}{name}.weight"] = ((1, c.hidden), "zero")
        if layer in c.full:
            linear(attn + "q_a_proj", c.q_lora, c.hidden)
            norm(attn + "q_a_layernorm", c.q_lora)
            linear(attn + "q_b_proj", c.heads * (c.nope + c.rope), c.q_lora)
            linear(attn + "kv_a_proj_with_mqa", c.kv_lora + c.rope, c.hidden)
            norm(attn + "kv_a_layernorm", c.kv_lora)
            linear(attn + "kv_b_proj", c.heads * (c.nope + c.v_dim), c.kv_lora)
            linear(attn + "g_proj", c.heads * c.v_dim, c.hidden)
            linear(attn + "o_proj", c.hidden, c.heads * c.v_dim, 0.5)
        else:
            for name in "qkv":
                linear(f"{attn}{name}_proj", inner, c.hidden)
                out[f"{attn}{name}_conv1d.weight"] = ((inner, 1, c.taps), "taps")
            linear(attn + "f_a_proj", c.kda_dim, c.hidden)
            linear(attn + "f_b_proj", inner, c.kda_dim, 0.5)
            linear(attn + "b_proj", c.kda_heads, c.hidden)
            linear(attn + "g_proj", inner, c.hidden)
            out[attn + "A_log"] = ((c.kda_heads,), "zero")
            out[attn + "dt_bias"] = ((inner,), "levels")
            norm(attn + "o_norm", c.kda_dim)
            linear(attn + "o_proj", c.hidden, inner, 0.5)
        if not is_moe(c, layer):
            mlp(at + "mlp", c.dense_width)
            continue
        moe = at + "block_sparse_moe."
        linear(moe + "gate", c.experts, c.hidden)
        out[moe + "gate.e_score_correction_bias"] = ((c.experts,), "zero")
        linear(moe + "routed_expert_down_proj", c.latent, c.hidden)
        norm(moe + "routed_expert_norm", c.latent)
        linear(moe + "routed_expert_up_proj", c.hidden, c.latent, 0.5)
        mlp(moe + "shared_experts", c.shared * c.width)
        for name, rows, columns in (("w1", c.width, c.latent), ("w3", c.width, c.latent),
                                    ("w2", c.latent, c.width)):
            out[f"{moe}experts.{name}"] = ((c.experts, rows, columns), 1 / math.sqrt(columns))
    norm("model.output_attn_res_norm", c.hidden)
    out["model.output_attn_res_proj.weight"] = ((1, c.hidden), "zero")
    norm("model.norm", c.hidden)
    linear("lm_head", c.vocab, c.hidden)
    return out


def begin(c, seed):
    """Name -> f32 tensor of a model that has learned nothing."""
    generator, out = torch.Generator().manual_seed(seed), {}
    for name, (shape, how) in shapes(c).items():
        noise = torch.randn(shape, generator=generator)
        if how == "one":
            out[name] = torch.ones(shape)
        elif how == "zero":
            out[name] = torch.zeros(shape)
        elif how == "taps":
            out[name] = 0.2 * noise
            out[name][..., -1] += 0.8
        elif how == "levels":  # heads from slow decay to fast
            level = torch.linspace(-6, 1, c.kda_heads).repeat_interleave(c.kda_dim)
            out[name] = level + 0.5 * noise
        else:
            out[name] = how * noise
    return out


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


class Model(torch.nn.Module):
    def __init__(self, config, tensors, dtype=torch.float32, recompute=False):
        """`recompute`: layers keep their inputs alone for the backward pass."""
        super().__init__()
        self.config, self.dtype, self.recompute = config, dtype, recompute
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.tensors = torch.nn.ParameterDict()
        for name, (shape, _) in shapes(config).items():
            if tuple(tensors[name].shape) != tuple(shape):
                raise ValueError(f"tensor `{name}`: expected {shape}, got {tuple(tensors[name].shape)}")
            learned = not name.endswith("e_score_correction_bias")
            self.tensors[name.replace(".", "/")] = torch.nn.Parameter(
                tensors[name].to(self.wide).clone(), requires_grad=learned)
        self.load = {}  # layer -> [experts], how many tokens chose each in the last forward

    def of(self, name):
        return self.tensors[name.replace(".", "/")]

    def linear(self, x, name):
        return F.linear(x.to(self.dtype), self.of(name + ".weight").to(self.dtype))

    def rms(self, x, name, eps):
        wide = x.to(self.wide)
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * self.of(name + ".weight")).to(self.dtype)

    def mix(self, stream, bank, name):
        query = self.of(name + "_norm.weight") * self.of(name + "_proj.weight")[0]
        rows = torch.stack([*bank, stream]).to(self.wide)
        keys = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.config.eps)
        weights = (keys @ query).softmax(0)
        return (weights[..., None] * rows).sum(0).to(self.dtype)

    def situ(self, gate, up):
        c, gate, up = self.config, gate.to(self.wide), up.to(self.wide)
        bounded = c.beta * torch.tanh(gate / c.beta) * torch.sigmoid(gate)
        return (bounded * c.linear_beta * torch.tanh(up / c.linear_beta)).to(self.dtype)

    def mlp(self, x, name):
        act = self.situ(self.linear(x, name + ".gate_proj"), self.linear(x, name + ".up_proj"))
        return self.linear(act, name + ".down_proj")

    def route(self, m, moe):
        """[tokens, experts] weights, zero for those not chosen."""
        c = self.config
        s = torch.sigmoid(F.linear(m.to(self.wide), self.of(moe + "gate.weight")))
        selection = s.detach() + self.of(moe + "gate.e_score_correction_bias")
        ids = selection.topk(c.top_k, dim=-1).indices
        chosen = (ids[..., None] == torch.arange(c.experts, device=s.device)).any(-2).to(s.dtype)
        self.load[moe] = chosen.sum(0)
        s = s * chosen
        if c.renormalize:
            s = s / (s.sum(-1, keepdim=True) + 1e-20)
        return s * c.scaling

    def moe(self, x, moe):
        """Every expert runs on every token: at these sizes that is cheaper than sorting them."""
        shape, x = x.shape, x.flatten(0, 1)
        weights = self.route(x, moe)
        z = self.linear(x, moe + "routed_expert_down_proj")
        w1, w2, w3 = (mxfp4.fake(self.of(f"{moe}experts.{w}")).to(self.dtype) for w in ("w1", "w2", "w3"))
        act = self.situ(z @ w1.transpose(1, 2), z @ w3.transpose(1, 2))   # [experts, tokens, width]
        y = ((act @ w2.transpose(1, 2)).to(self.wide) * weights.T[..., None]).sum(0).to(self.dtype)
        if self.config.latent_norm:
            y = self.rms(y, moe + "routed_expert_norm", self.config.eps)
        y = self.linear(y, moe + "routed_expert_up_proj") + self.mlp(x, moe + "shared_experts")
        return y.reshape(shape)

    def kda(self, x, at):
        c, wide = self.config, self.wide
        b, t, _ = x.shape

        def heads(y):
            return y.reshape(b, t, c.kda_heads, c.kda_dim)

        def convolved(name):
            y = F.pad(self.linear(x, f"{at}{name}_proj").to(wide), (0, 0, c.taps - 1, 0))
            taps = self.of(f"{at}{name}_conv1d.weight")[:, 0]
            y = sum(taps[:, i] * y[:, i:i + t] for i in range(c.taps))
            return heads(F.silu(y).to(self.dtype)).to(wide)

        q, k, v = (convolved(name) for name in "qkv")
        q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + L2_EPS) for y in (q, k))
        r = self.linear(self.linear(x, at + "f_a_proj"), at + "f_b_proj").to(wide)
        rate = self.of(at + "A_log").exp()[:, None]
        g = c.bound * torch.sigmoid(rate * heads(r + self.of(at + "dt_bias")))
        beta = torch.sigmoid(self.linear(x, at + "b_proj").to(wide))
        o = delta_rule(q * c.kda_dim ** -0.5, k, v, g, beta, block_of(c.bound))
        o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + c.eps) * self.of(at + "o_norm.weight")
        gate = torch.sigmoid(heads(self.linear(x, at + "g_proj")).to(wide))
        return self.linear((o * gate).flatten(2), at + "o_proj")

    def mla(self, x, at):
        c = self.config
        b, t, _ = x.shape
        q = self.rms(self.linear(x, at + "q_a_proj"), at + "q_a_layernorm", c.latent_eps)
        q = self.linear(q, at + "q_b_proj").reshape(b, t, c.heads, c.nope + c.rope).transpose(1, 2)
        row = self.linear(x, at + "kv_a_proj_with_mqa")
        latent = self.rms(row[..., :c.kv_lora], at + "kv_a_layernorm", c.latent_eps)
        kv = self.linear(latent, at + "kv_b_proj").reshape(b, t, c.heads, c.nope + c.v_dim).transpose(1, 2)
        shared = row[:, None, :, c.kv_lora:].expand(b, c.heads, t, c.rope)
        k = torch.cat([kv[..., :c.nope], shared], -1)
        # Values as wide as keys: what the fast kernels ask for.
        more = max(0, c.nope + c.rope - c.v_dim)
        o = F.scaled_dot_product_attention(q, k, F.pad(kv[..., c.nope:], (0, more)), is_causal=True,
                                           scale=(c.nope + c.rope) ** -0.5)[..., :c.v_dim]
        gate = torch.sigmoid(self.linear(x, at + "g_proj").to(self.wide)).to(self.dtype)
        return self.linear(o.transpose(1, 2).flatten(2) * gate, at + "o_proj")

    def layer(self, layer, stream, *bank):
        c, at = self.config, f"model.layers.{layer}."
        begins = layer % c.block == 0
        rows = bank[:-1] if begins else bank  # the last row of a block's first layer is the stream
        mixed = self.mix(stream, rows, at + "self_attention_res") if rows else stream
        x = self.rms(mixed, at + "input_layernorm", c.eps)
        out = self.mla(x, at + "self_attn.") if layer in c.full else self.kda(x, at + "self_attn.")
        stream = out if begins else stream + out
        m = self.rms(self.mix(stream, bank, at + "mlp_res"), at + "post_attention_layernorm", c.eps)
        if is_moe(c, layer):
            return stream + self.moe(m, at + "block_sparse_moe.")
        return stream + self.mlp(m, at + "mlp")

    def forward(self, tokens):
        """Logits [b, t, vocab] of ids [b, t]."""
        stream, bank = F.embedding(tokens, self.of("model.embed_tokens.weight")).to(self.dtype), []
        for layer in range(self.config.layers):
            if layer % self.config.block == 0:
                bank.append(stream)
            if self.recompute and torch.is_grad_enabled():
                stream = checkpoint(self.layer, layer, stream, *bank, use_reentrant=False)
            else:
                stream = self.layer(layer, stream, *bank)
        mixed = self.mix(stream, bank, "model.output_attn_res")
        normed = self.rms(mixed, "model.norm", self.config.eps)
        return self.linear(normed, "lm_head")
