"""The K3 text model in float64, written from its description alone.

`Model.forward` runs whole sequences, `Model.step` one token at a time in other formulas (decay
folded into one matrix, absorbed attention, experts one by one); the two must agree. `Rounding`
says where values are rounded: EXACT nowhere, BF16 where the host kernels' headers say they round.
Stream rows are called P, the rows set aside at block starts the bank.
"""
import pathlib
from dataclasses import dataclass, field

import numpy as np

from checkpoint_files import read_config, read_tensors, stack_experts

L2_EPS = 1e-6  # on the sum of squares of a KDA head's q or k


def to_bf16_bits(x):
    """bf16 bit patterns (u16), round to nearest even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    nan = np.isnan(x)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    return np.where(nan, 0x7FC0, rounded).astype(np.uint16)


def round_bf16(x):
    return (to_bf16_bits(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Rounding:
    """`bf` is applied at every point where a bf16 value is written. `absorbed`: attention in
    latent space, with the roundings of its parts; else keys and values are expanded."""
    name: str
    bf: object
    absorbed: bool


EXACT = Rounding("fp64", lambda x: x, False)
BF16 = Rounding("bf16", round_bf16, True)


def sigmoid(x):
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def situ(gate, up, config):
    bounded = config.beta * np.tanh(gate / config.beta) * sigmoid(gate)
    return bounded * config.linear_beta * np.tanh(up / config.linear_beta)


@dataclass
class KdaState:
    """rec [heads, k, v]; windows: q, k, v -> [taps - 1 (oldest first), heads * dim]."""
    rec: np.ndarray
    windows: dict


@dataclass
class Routing:
    """Selection scores [t, experts] (sigmoid and bias) and the experts chosen [t, top_k]."""
    selection: np.ndarray
    ids: np.ndarray


@dataclass
class Trace:
    """What a forward leaves: per layer the stream and bank it read and the stream it wrote, the
    routing it chose, the state after the last token; at the end the logits of every position."""
    inputs: list = field(default_factory=list)   # (P [t, hidden], [bank rows [t, hidden]])
    outputs: list = field(default_factory=list)  # P [t, hidden]
    states: list = field(default_factory=list)   # KdaState, or latent rows [t, kv_lora + rope]
    routing: list = field(default_factory=list)  # Routing, or None
    logits: np.ndarray = None


class Model:
    def __init__(self, config, tensors):
        self.config = config
        self.tensors = tensors
        self.routing = None

    @classmethod
    def load(cls, folder):
        config = read_config(pathlib.Path(folder) / "config.json")
        return cls(config, stack_experts(read_tensors(folder), config))

    def of(self, layer, name):
        return self.tensors[f"model.layers.{layer}.{name}"]

    # ---- parts that a planted mistake may override -------------------------------------------

    def rms(self, x, w, eps, r):
        scaled = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
        return r.bf(w * r.bf(scaled))

    def latent_norm(self, layer, y, r):
        if not self.config.latent_norm:
            return y
        w = self.of(layer, "block_sparse_moe.routed_expert_norm.weight")
        return self.rms(y, w, self.config.eps, r)

    def mix(self, stream, bank, name, r):
        """The rows of bank and stream mixed by a learned pseudo-query; raw rows, no scale."""
        query = self.tensors[name + "_norm.weight"] * self.tensors[name + "_proj.weight"][0]
        rows = np.stack([*bank, stream])
        keys = rows / np.sqrt(np.mean(rows * rows, axis=-1, keepdims=True) + self.config.eps)
        scores = keys @ query
        weights = np.exp(scores - scores.max(axis=0))
        weights /= weights.sum(axis=0)
        return r.bf(np.einsum("nt,ntd->td", weights, rows))

    def kept(self, stream, mixed):
        """What a block start adds to the bank."""
        return stream

    def write_strength(self, b):
        return sigmoid(b)

    def taps_of(self, layer, stream):
        return self.of(layer, f"self_attn.{stream}_conv1d.weight")[:, 0, :]

    def decay(self, layer, r_rows):
        """log of the decay, [t, heads, dim]."""
        c = self.config
        a = np.exp(self.of(layer, "self_attn.A_log")[:c.kda_heads])[:, None]
        bias = self.of(layer, "self_attn.dt_bias").reshape(c.kda_heads, c.kda_dim)
        r_rows = r_rows.reshape(-1, c.kda_heads, c.kda_dim)
        return c.lower_bound * sigmoid(a * (r_rows + bias))

    def score_scale(self):
        return (self.config.nope + self.config.rope) ** -0.5

    def choose(self, layer, selection):
        """The experts [t, top_k] of the largest selection scores, ascending."""
        best = np.argsort(-selection, axis=-1, kind="stable")[:, :self.config.top_k]
        return np.sort(best, axis=-1)

    def route(self, layer, m):
        """Experts [t, top_k] (ascending) and weights [t, top_k] of rows m."""
        base = "block_sparse_moe.gate."
        s = sigmoid(m @ self.of(layer, base + "weight").T)
        selection = s + self.of(layer, base + "e_score_correction_bias")
        ids = self.choose(layer, selection)
        self.routing = Routing(selection, ids)
        chosen = np.take_along_axis(s, ids, axis=-1)
        if self.config.renormalize:
            chosen = chosen / (chosen.sum(axis=-1, keepdims=True) + 1e-20)
        return ids, chosen * self.config.scaling

    # ---- whole sequence ------------------------------------------------------------------------

    def forward(self, tokens, r=EXACT):
        c = self.config
        trace = Trace()
        stream = self.tensors["model.embed_tokens.weight"][np.asarray(tokens)]
        bank = []
        for layer in range(c.layers):
            trace.inputs.append((stream, bank))
            stream, bank, state = self.layer(layer, stream, bank, r)
            trace.outputs.append(stream)
            trace.states.append(state)
            trace.routing.append(self.routing)
        trace.logits = self.head(stream, bank, r)
        return trace

    def head(self, stream, bank, r=EXACT):
        mixed = self.mix(stream, bank, "model.output_attn_res", r)
        normed = self.rms(mixed, self.tensors["model.norm.weight"], self.config.eps, r)
        return normed @ self.tensors["lm_head.weight"].T

    def layer(self, layer, stream, bank, r=EXACT):
        """(stream, bank, state) after one layer; bank is not changed in place."""
        c = self.config
        prefix = f"model.layers.{layer}."
        mixed = self.mix(stream, bank, prefix + "self_attention_res", r) if bank else stream
        if layer % c.block == 0:
            bank = [*bank, self.kept(stream, mixed)]
            stream = None
        x = self.rms(mixed, self.of(layer, "input_layernorm.weight"), c.eps, r)
        attend = self.mla if c.is_mla(layer) else self.kda
        out, state = attend(layer, x, r)
        stream = r.bf(out) if stream is None else r.bf(stream + r.bf(out))
        mixed = self.mix(stream, bank, prefix + "mlp_res", r)
        m = self.rms(mixed, self.of(layer, "post_attention_layernorm.weight"), c.eps, r)
        self.routing = None
        f = self.moe(layer, m, r) if c.is_moe(layer) else r.bf(self.mlp(layer, "mlp", m, r))
        return r.bf(stream + f), bank, state

    def mlp(self, layer, name, x, r):
        gate = r.bf(x @ self.of(layer, name + ".gate_proj.weight").T)
        up = r.bf(x @ self.of(layer, name + ".up_proj.weight").T)
        act = r.bf(situ(gate, up, self.config))
        return act @ self.of(layer, name + ".down_proj.weight").T

    def moe(self, layer, m, r):
        base = "block_sparse_moe."
        ids, weights = self.route(layer, m)
        z = r.bf(m @ self.of(layer, base + "routed_expert_down_proj.weight").T)
        w1, w2, w3 = (self.of(layer, f"{base}experts.{w}") for w in ("w1", "w2", "w3"))
        total = np.zeros_like(z)
        for expert in np.unique(ids):
            rows, picks = np.nonzero(ids == expert)
            gate, up = r.bf(z[rows] @ w1[expert].T), r.bf(z[rows] @ w3[expert].T)
            y = r.bf(r.bf(situ(gate, up, self.config)) @ w2[expert].T)
            total[rows] += weights[rows, picks][:, None] * y
        y = self.latent_norm(layer, r.bf(total), r)
        routed = r.bf(y @ self.of(layer, base + "routed_expert_up_proj.weight").T)
        return r.bf(routed + r.bf(self.mlp(layer, base + "shared_experts", m, r)))

    def projections(self, layer, x, r):
        """KDA's linears of x: q, k, v before the convolution, decay input, b, output gate."""
        w = {n: self.of(layer, f"self_attn.{n}_proj.weight")
             for n in ("q", "k", "v", "f_a", "f_b", "b", "g")}
        plain = {n: r.bf(x @ w[n].T) for n in ("q", "k", "v", "b", "g")}
        plain["r"] = r.bf(r.bf(x @ w["f_a"].T) @ w["f_b"].T)
        return plain

    def kda(self, layer, x, r):
        c = self.config
        t = len(x)
        p = self.projections(layer, x, r)
        past = np.zeros((c.taps - 1, c.kda_heads * c.kda_dim))
        heads, windows = {}, {}
        for name in ("q", "k", "v"):
            padded = np.concatenate([past, p[name]])
            taps = self.taps_of(layer, name)
            summed = sum(taps[:, i] * padded[i:i + t] for i in range(c.taps))
            heads[name] = r.bf(summed * sigmoid(summed)).reshape(t, c.kda_heads, c.kda_dim)
            windows[name] = padded[len(padded) - (c.taps - 1):]
        q, k = (heads[n] / np.sqrt(np.sum(heads[n] ** 2, axis=-1, keepdims=True) + L2_EPS)
                for n in ("q", "k"))
        q = q * c.kda_dim ** -0.5
        o, rec = self.delta_rule(q, k, heads["v"], self.decay(layer, p["r"]),
                                 self.write_strength(p["b"]))
        gate = sigmoid(p["g"]).reshape(t, c.kda_heads, c.kda_dim)
        normed = o / np.sqrt(np.mean(o * o, axis=-1, keepdims=True) + c.eps)
        y = r.bf(normed * self.of(layer, "self_attn.o_norm.weight") * gate).reshape(t, -1)
        return y @ self.of(layer, "self_attn.o_proj.weight").T, KdaState(rec, windows)

    def delta_rule(self, q, k, v, g, beta):
        """Token by token from S = 0: (o [t, heads, v], S [heads, k, v])."""
        t, heads, dim = q.shape
        s = np.zeros((heads, dim, v.shape[-1]))
        o = np.empty_like(v)
        alpha = np.exp(g)
        for i in range(t):
            s *= alpha[i][:, :, None]
            e = v[i] - np.einsum("hkv,hk->hv", s, k[i])
            s += (beta[i][:, None] * k[i])[:, :, None] * e[:, None, :]
            o[i] = np.einsum("hkv,hk->hv", s, q[i])
        return o, s

    def latent_row(self, layer, x, r):
        c = self.config
        row = r.bf(x @ self.of(layer, "self_attn.kv_a_proj_with_mqa.weight").T)
        w = self.of(layer, "self_attn.kv_a_layernorm.weight")
        return np.concatenate([self.rms(row[:, :c.kv_lora], w, c.latent_eps, r),
                               row[:, c.kv_lora:]], axis=-1)

    def queries(self, layer, x, r):
        """[t, heads, nope + rope]."""
        c = self.config
        low = r.bf(x @ self.of(layer, "self_attn.q_a_proj.weight").T)
        low = self.rms(low, self.of(layer, "self_attn.q_a_layernorm.weight"), c.latent_eps, r)
        q = r.bf(low @ self.of(layer, "self_attn.q_b_proj.weight").T)
        return q.reshape(len(x), c.heads, c.nope + c.rope)

    def kv_b(self, layer):
        """W_UK [heads, nope, kv_lora], W_UV [heads, v, kv_lora]."""
        c = self.config
        w = self.of(layer, "self_attn.kv_b_proj.weight").reshape(c.heads, -1, c.kv_lora)
        return w[:, :c.nope], w[:, c.nope:]

    def mla(self, layer, x, r):
        c = self.config
        t = len(x)
        q, rows = self.queries(layer, x, r), self.latent_row(layer, x, r)
        w_k, w_v = self.kv_b(layer)
        latent, shared_key = rows[:, :c.kv_lora], rows[:, c.kv_lora:]
        if r.absorbed:
            q_abs = r.bf(np.einsum("thd,hdl->thl", q[..., :c.nope], w_k))
            scores = np.einsum("thl,sl->hts", q_abs, latent)
        else:
            keys = np.einsum("sl,hdl->hsd", latent, w_k)
            scores = np.einsum("thd,hsd->hts", q[..., :c.nope], keys)
        scores = scores + np.einsum("thd,sd->hts", q[..., c.nope:], shared_key)
        scores = np.where(np.tri(t, dtype=bool), scores * self.score_scale(), -np.inf)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        if r.absorbed:
            o = r.bf(np.einsum("thl,hvl->thv", r.bf(np.einsum("hts,sl->thl", p, latent)), w_v))
        else:
            o = np.einsum("hts,hsv->thv", p, np.einsum("sl,hvl->hsv", latent, w_v))
        z = r.bf(x @ self.of(layer, "self_attn.g_proj.weight").T)
        y = r.bf(o.reshape(t, -1) * r.bf(sigmoid(z)))
        return y @ self.of(layer, "self_attn.o_proj.weight").T, rows

    # ---- one token at a time -------------------------------------------------------------------

    def fresh_states(self):
        """States of an empty sequence, one a layer."""
        c = self.config
        width = c.kda_heads * c.kda_dim
        return [np.zeros((0, c.kv_lora + c.rope)) if c.is_mla(layer) else
                KdaState(np.zeros((c.kda_heads, c.kda_dim, c.kda_dim)),
                         {n: np.zeros((c.taps - 1, width)) for n in ("q", "k", "v")})
                for layer in range(c.layers)]

    def step(self, token, states, r=EXACT):
        """Logits [vocab] after one more token; states are replaced in the list."""
        c = self.config
        stream = self.tensors["model.embed_tokens.weight"][int(token)]
        bank = []
        for layer in range(c.layers):
            prefix = f"model.layers.{layer}."
            mixed = self.mix_one(stream, bank, prefix + "self_attention_res", r)
            if layer % c.block == 0:
                bank.append(stream)
            x = self.rms(mixed, self.of(layer, "input_layernorm.weight"), c.eps, r)
            attend = self.mla_one if c.is_mla(layer) else self.kda_one
            out, states[layer] = attend(layer, x, states[layer], r)
            stream = r.bf(out) if layer % c.block == 0 else r.bf(stream + r.bf(out))
            mixed = self.mix_one(stream, bank, prefix + "mlp_res", r)
            m = self.rms(mixed, self.of(layer, "post_attention_layernorm.weight"), c.eps, r)
            if c.is_moe(layer):
                stream = r.bf(stream + self.moe_one(layer, m, r))
            else:
                stream = r.bf(stream + r.bf(self.mlp(layer, "mlp", m, r)))
        mixed = self.mix_one(stream, bank, "model.output_attn_res", r)
        normed = self.rms(mixed, self.tensors["model.norm.weight"], c.eps, r)
        return self.tensors["lm_head.weight"] @ normed

    def mix_one(self, stream, bank, name, r):
        if not bank:
            return stream
        w, proj = self.tensors[name + "_norm.weight"], self.tensors[name + "_proj.weight"][0]
        masses, total = [], np.zeros_like(stream)
        for row in [*bank, stream]:
            root = np.sqrt(np.mean(row ** 2) + self.config.eps)
            masses.append(np.exp(np.dot(row * w, proj) / root))
        for mass, row in zip(masses, [*bank, stream]):
            total += mass / sum(masses) * row
        return r.bf(total)

    def moe_one(self, layer, m, r):
        base = "block_sparse_moe."
        ids, weights = self.route(layer, m[None])
        z = r.bf(self.of(layer, base + "routed_expert_down_proj.weight") @ m)
        y = 0.0
        for expert, weight in zip(ids[0], weights[0]):
            gate = r.bf(self.of(layer, base + "experts.w1")[expert] @ z)
            up = r.bf(self.of(layer, base + "experts.w3")[expert] @ z)
            y = y + weight * r.bf(self.of(layer, base + "experts.w2")[expert]
                                  @ r.bf(situ(gate, up, self.config)))
        y = self.latent_norm(layer, r.bf(y), r)
        routed = r.bf(self.of(layer, base + "routed_expert_up_proj.weight") @ y)
        return r.bf(routed + r.bf(self.mlp(layer, base + "shared_experts", m, r)))

    def kda_one(self, layer, x, state, r):
        """S <- (I - beta k k^T) diag(alpha) S + beta k v^T, head by head."""
        c = self.config
        p = {n: v[0] for n, v in self.projections(layer, x[None], r).items()}
        windows, conv = {}, {}
        for name in ("q", "k", "v"):
            seen = np.vstack([state.windows[name], p[name]])
            summed = np.einsum("ic,ci->c", seen, self.taps_of(layer, name))
            conv[name] = r.bf(summed / (1.0 + np.exp(-summed))).reshape(c.kda_heads, c.kda_dim)
            windows[name] = seen[1:]
        alpha = np.exp(self.decay(layer, p["r"])[0])
        beta = self.write_strength(p["b"])
        rec, outs = np.empty_like(state.rec), []
        for h in range(c.kda_heads):
            q, k, v = conv["q"][h], conv["k"][h], conv["v"][h]
            q = q / np.sqrt(q @ q + L2_EPS) / np.sqrt(c.kda_dim)
            k = k / np.sqrt(k @ k + L2_EPS)
            turn = (np.eye(c.kda_dim) - beta[h] * np.outer(k, k)) * alpha[h][None, :]
            rec[h] = turn @ state.rec[h] + beta[h] * np.outer(k, v)
            outs.append(q @ rec[h])
        o = np.array(outs)
        w = self.of(layer, "self_attn.o_norm.weight")
        y = o * w / np.sqrt(np.mean(o * o, axis=-1, keepdims=True) + c.eps)
        y = r.bf(y.reshape(-1) / (1.0 + np.exp(-p["g"])))
        return self.of(layer, "self_attn.o_proj.weight") @ y, KdaState(rec, windows)

    def mla_one(self, layer, x, rows, r):
        """Attention in latent space over the rows kept so far and this token's."""
        c = self.config
        rows = np.vstack([rows, self.latent_row(layer, x[None], r)])
        q = self.queries(layer, x[None], r)[0]
        w_k, w_v = self.kv_b(layer)
        outs = []
        for h in range(c.heads):
            q_abs = np.concatenate([r.bf(q[h, :c.nope] @ w_k[h]), q[h, c.nope:]])
            scores = rows @ q_abs * self.score_scale()
            p = np.exp(scores - scores.max())
            outs.append(r.bf(w_v[h] @ r.bf(p @ rows[:, :c.kv_lora] / p.sum())))
        z = r.bf(self.of(layer, "self_attn.g_proj.weight") @ x)
        y = r.bf(np.concatenate(outs) * r.bf(sigmoid(z)))
        return self.of(layer, "self_attn.o_proj.weight") @ y, rows


def chunked_delta_rule(q, k, v, g, beta, chunk=16):
    """The delta rule in chunks, by solving (I + A) U = beta (V - (K e^G) S0); same results as
    `Model.delta_rule`, by another route. Decays are formed as e^(G_i - G_j), never apart."""
    t, heads, dim = q.shape
    o, s = np.empty_like(v), np.zeros((heads, dim, v.shape[-1]))
    for first in range(0, t, chunk):
        part = slice(first, min(first + chunk, t))
        for h in range(heads):
            qc, kc, vc, bc = q[part, h], k[part, h], v[part, h], beta[part, h]
            grown = np.cumsum(g[part, h], axis=0)
            n = len(qc)
            pair = np.exp(np.minimum(grown[:, None, :] - grown[None, :, :], 0.0))
            a = np.tril(bc[:, None] * np.einsum("id,jd,ijd->ij", kc, kc, pair), -1)
            from_start = kc * np.exp(grown)
            u = np.linalg.solve(np.eye(n) + a, bc[:, None] * (vc - from_start @ s[h]))
            inside = np.tril(np.einsum("id,jd,ijd->ij", qc, kc, pair))
            o[part, h] = (qc * np.exp(grown)) @ s[h] + inside @ u
            s[h] = (np.exp(grown[-1])[:, None] * s[h]
                    + (kc * np.exp(grown[-1] - grown)).T @ u)
    return o, s
