"""K3's text model in PyTorch, for training: whole sequences one behind the other, never mixed.

Parameters bear the release's tensor names without `language_model.`; the experts of a layer are
one stacked tensor each, `…experts.w1` [experts, out, in], and every use of them goes through MXFP4.
"""
import functools

import numpy as np
import torch
import torch.nn.functional as F

import delta
import mxfp4
import parts
from shapes import is_moe, shapes

ROW_MULTIPLE = 32  # sequences end on a whole chunk of the kernels


class Rows:
    """Where sequences lie: `ends` in tokens, each a multiple of ROW_MULTIPLE; empty ones are allowed."""

    TENSORS = ("position", "starts", "chunks")

    def __init__(self, lengths, device, widest=None):
        # In NumPy: torch would wake a thread a core for it, beside those that prepare batches.
        ends = np.cumsum([0, *lengths])
        self.lengths, self.widest = [n for n in lengths if n], widest or max(lengths)
        position = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
        for name, numbers in (("position", position), ("starts", ends), ("chunks", ends // ROW_MULTIPLE)):
            setattr(self, name, torch.from_numpy(numbers.astype(np.int32)).to(device))

    def pin(self):
        for name in self.TENSORS:
            setattr(self, name, getattr(self, name).pin_memory())

    def take(self, other):
        """The same memory, other sequences: what a recorded graph reads."""
        for name in self.TENSORS:
            getattr(self, name).copy_(getattr(other, name), non_blocking=True)


class Embed(torch.autograd.Function):
    """Rows of a table; the gradient is a product, so that its sums have one order."""

    @staticmethod
    def forward(ctx, table, ids, dtype):
        ctx.save_for_backward(ids)
        ctx.rows = table.shape[0]
        return table[ids].to(dtype)

    @staticmethod
    def backward(ctx, grad):
        ids, = ctx.saved_tensors
        hot = (ids[:, None] == torch.arange(ctx.rows, device=ids.device)).to(grad.dtype)
        return (hot.T @ grad).to(torch.float64 if grad.dtype == torch.float64 else torch.float32), None, None


def delta_rule(q, k, v, g, beta, rows, bound):
    block = delta.block_of(bound)
    if q.is_cuda and q.shape[-1] in (32, 64):
        from delta_kernels import DeltaRule
        return DeltaRule.apply(*(x.contiguous() for x in (q, k, v, g, beta)), rows.chunks, block)
    pieces = zip(*(x.split(rows.lengths) for x in (q, k, v, g, beta)))
    return torch.cat([delta.delta_rule(*(x[None] for x in piece), block)[0] for piece in pieces])


def attend(q, k, v, rows, scale):
    """Causal attention within each sequence."""
    if q.is_cuda:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, rows.starts, rows.starts, rows.widest, rows.widest, 0.0, True, False, scale=scale)[0]
    out = []
    for piece in zip(*(x.transpose(0, 1).split(rows.lengths, 1) for x in (q, k, v))):
        out.append(F.scaled_dot_product_attention(*(x[None] for x in piece), is_causal=True, scale=scale)[0])
    return torch.cat(out, 1).transpose(0, 1)


class Model(torch.nn.Module):
    def __init__(self, config, tensors, dtype=torch.float32):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.tensors = torch.nn.ParameterDict()
        for name, (shape, _) in shapes(config).items():
            if tuple(tensors[name].shape) != tuple(shape):
                raise ValueError(f"tensor `{name}`: expected {shape}, got {tuple(tensors[name].shape)}")
            learned = not name.endswith("e_score_correction_bias")
            self.tensors[name.replace(".", "/")] = torch.nn.Parameter(
                tensors[name].to(self.wide).clone(), requires_grad=learned)
        self.load = {}  # moe -> [experts], how many tokens chose each in the last forward
        for part in PARTS:
            setattr(self, part, functools.partial(getattr(parts, part), config))
        self.mixed_norm, self.judged = parts.mixed_norm, parts.judged

    def compile(self):
        for part in (*PARTS, "mixed_norm", "judged"):
            setattr(self, part, torch.compile(getattr(self, part), dynamic=False, fullgraph=True))

    def of(self, name):
        return self.tensors[name.replace(".", "/")]

    def all_of(self, at, names):
        return [self.of(f"{at}{name}" if name in BARE else f"{at}{name}.weight")
                for name in names]

    def packed(self):
        """Name -> the experts' weights as they are packed, all layers at once."""
        names = [n for n in self.tensors if "/experts/" in n]
        flat = torch.cat([self.tensors[n].reshape(-1, mxfp4.GROUP) for n in names])
        flat = mxfp4.fake(flat).to(self.dtype)
        sizes = [self.tensors[n].numel() // mxfp4.GROUP for n in names]
        return {n.replace("/", "."): x.reshape(self.tensors[n].shape)
                for n, x in zip(names, flat.split(sizes))}

    def mix(self, name, norm, rows):
        return self.mixed_norm(self.of(name + "_norm.weight"), self.of(name + "_proj.weight"),
                               self.of(norm + ".weight"), self.config.eps, *rows)

    def kda(self, x, rows, at):
        *raw, gate = self.kda_in(x, rows.position, *self.all_of(at, KDA))
        given = self.kda_given(*raw, self.of(at + "A_log"), self.of(at + "dt_bias"))
        o = delta_rule(*given, rows, self.config.bound)
        return self.kda_out(o, gate, *self.all_of(at, ("o_norm", "o_proj")))

    def mla(self, x, rows, at):
        q, k, v, gate = self.mla_in(x, *self.all_of(at, MLA))
        o = attend(q, k, v, rows, (self.config.nope + self.config.rope) ** -0.5)
        return self.mla_out(o, gate, self.of(at + "o_proj.weight"))

    def layer(self, layer, stream, bank, rows, packed):
        c, at = self.config, f"model.layers.{layer}."
        x = self.mix(at + "self_attention_res", at + "input_layernorm", [*bank, stream])
        begins = layer % c.block == 0
        if begins:
            bank.append(stream)
        out = (self.mla if layer in c.full else self.kda)(x, rows, at + "self_attn.")
        stream = out if begins else stream + out
        m = self.mix(at + "mlp_res", at + "post_attention_layernorm", [*bank, stream])
        if not is_moe(c, layer):
            return self.mlp(m, stream, *self.all_of(at + "mlp.", ("gate_proj", "up_proj", "down_proj")))
        moe = at + "block_sparse_moe."
        stream, self.load[moe] = self.moe(m, stream, *self.all_of(moe, MOE),
                                          *(packed[f"{moe}experts.{w}"] for w in ("w1", "w3", "w2")))
        return stream

    def hidden(self, ids, rows):
        """What the head reads, [t, hidden], of ids [t]."""
        stream, bank = Embed.apply(self.of("model.embed_tokens.weight"), ids, self.dtype), []
        packed = self.packed()
        for layer in range(self.config.layers):
            stream = self.layer(layer, stream, bank, rows, packed)
        return self.mix("model.output_attn_res", "model.norm", [*bank, stream])

    def losses(self, ids, rows, target, weight):
        return self.judged(self.hidden(ids, rows), self.of("lm_head.weight"), target, weight)

    def forward(self, tokens):
        """Logits [b, t, vocab] of ids [b, t], padded at their ends."""
        b, t = tokens.shape
        width = -(-t // ROW_MULTIPLE) * ROW_MULTIPLE
        ids = F.pad(tokens, (0, width - t)).flatten()
        x = self.hidden(ids, Rows([width] * b, ids.device))
        return parts.linear(x, self.of("lm_head.weight")).reshape(b, width, -1)[:, :t]


PARTS = ("mlp", "moe", "kda_in", "kda_given", "kda_out", "mla_in", "mla_out")
BARE = ("gate.e_score_correction_bias",)
KDA = ("q_proj", "k_proj", "v_proj", "q_conv1d", "k_conv1d", "v_conv1d", "f_a_proj", "f_b_proj", "b_proj",
       "g_proj")
MLA = ("q_a_proj", "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "g_proj")
MOE = ("gate", "gate.e_score_correction_bias", "routed_expert_down_proj", "routed_expert_norm",
       "routed_expert_up_proj", "shared_experts.gate_proj", "shared_experts.up_proj",
       "shared_experts.down_proj")
