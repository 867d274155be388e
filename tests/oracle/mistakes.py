"""Mistakes known from ports of this model, each planted in the reference by one override.

A comparison that cannot tell these from the truth proves nothing; oracle_self_test.py and
oracle_test.py hold every one of them against their thresholds.
"""
import numpy as np

from k3_reference import Model, round_bf16


def swapped_queries(config, tensors):
    """The attention side mixes with the MLP side's pseudo-query and the other way round."""
    def other(name):
        for a, b in (("self_attention_res_", "mlp_res_"), ("mlp_res_", "self_attention_res_")):
            if f".{a}" in name:
                return name.replace(a, b)
        return name
    return Model(config, {n: tensors[other(n)] for n in tensors})


def swapped_nibbles(config, tensors):
    """The high nibble is read first."""
    turned = dict(tensors)
    for name in tensors:
        if ".experts.w" in name:
            pairs = tensors[name].reshape(*tensors[name].shape[:-1], -1, 2)
            turned[name] = pairs[..., ::-1].reshape(tensors[name].shape)
    return Model(config, turned)


def dropped_latent_norm(config, tensors):
    """The routed experts' sum goes on without its norm."""
    class Planted(Model):
        def latent_norm(self, layer, y, r):
            return y
    return Planted(config, tensors)


def rounded_beta(config, tensors):
    """The write strength of the delta rule is rounded to bf16."""
    class Planted(Model):
        def write_strength(self, b):
            return round_bf16(super().write_strength(b))
    return Planted(config, tensors)


def banked_mix(config, tensors):
    """A block start keeps the mixture, not the stream."""
    class Planted(Model):
        def kept(self, stream, mixed):
            return mixed
    return Planted(config, tensors)


def reversed_taps(config, tensors):
    """The convolution's first weight multiplies the current token."""
    class Planted(Model):
        def taps_of(self, layer, stream):
            return super().taps_of(layer, stream)[:, ::-1]
    return Planted(config, tensors)


def softplus_decay(config, tensors):
    """The decay of the older model: -exp(A_log) softplus(r + dt_bias)."""
    class Planted(Model):
        def decay(self, layer, r_rows):
            c = self.config
            a = np.exp(self.of(layer, "self_attn.A_log")[:c.kda_heads])[:, None]
            bias = self.of(layer, "self_attn.dt_bias").reshape(c.kda_heads, c.kda_dim)
            return -a * np.logaddexp(0, r_rows.reshape(-1, c.kda_heads, c.kda_dim) + bias)
    return Planted(config, tensors)


def nope_scale(config, tensors):
    """Attention scores are scaled by the width without the shared key."""
    class Planted(Model):
        def score_scale(self):
            return self.config.nope ** -0.5
    return Planted(config, tensors)


def biased_weights(config, tensors):
    """Experts are weighted by the score that selected them."""
    class Planted(Model):
        def route(self, layer, m):
            bias = self.of(layer, "block_sparse_moe.gate.e_score_correction_bias")
            ids, weights = super().route(layer, m)
            s = 1.0 / (1.0 + np.exp(-m @ self.of(layer, "block_sparse_moe.gate.weight").T))
            chosen = np.take_along_axis(s + bias, ids, axis=-1)
            return ids, chosen / (chosen.sum(axis=-1, keepdims=True) + 1e-20)
    return Planted(config, tensors)


def unnormalised_scores(config, tensors):
    """The residual mix scores the raw rows."""
    class Planted(Model):
        def mix(self, stream, bank, name, r):
            rows = np.stack([*bank, stream])
            query = self.tensors[name + "_norm.weight"] * self.tensors[name + "_proj.weight"][0]
            scores = rows @ query
            weights = np.exp(scores - scores.max(axis=0))
            return r.bf(np.einsum("nt,ntd->td", weights / weights.sum(axis=0), rows))
    return Planted(config, tensors)


def unsigned_codes(config, tensors):
    """An MXFP4 code's sign bit is lost: every weight is its magnitude."""
    return Model(config, {n: np.abs(v) if ".experts.w" in n else v for n, v in tensors.items()})


ALL = (swapped_queries, swapped_nibbles, dropped_latent_norm, rounded_beta, banked_mix,
       reversed_taps, softplus_decay, nope_scale, biased_weights, unnormalised_scores,
       unsigned_codes)
SUBTLE = (rounded_beta,)  # below the rounding of everything else: seen in fp64 only
