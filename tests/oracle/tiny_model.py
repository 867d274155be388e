"""A random model of a few kilobytes, written as a checkpoint folder in the release's format.

The self-checks need no program of this repository: what they load they have written here. Norm
epsilons differ on purpose (2e-5, 1e-6), and sizes are pairwise different wherever they may be.
"""
import json
import pathlib

import numpy as np

from checkpoint_files import GROUP
from k3_reference import to_bf16_bits

TEXT = {
    "vocab_size": 97, "hidden_size": 40, "num_hidden_layers": 7, "rms_norm_eps": 2e-5,
    "latent_norm_eps": 1e-6, "attn_res_block_size": 3, "num_attention_heads": 3,
    "q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 30,
    "v_head_dim": 14, "first_k_dense_replace": 1, "moe_layer_freq": 1, "intermediate_size": 56,
    "num_experts": 9, "num_experts_per_token": 3, "num_shared_experts": 2,
    "moe_intermediate_size": 32, "routed_expert_hidden_size": 64, "latent_moe_use_norm": True,
    "moe_renormalize": True, "routed_scaling_factor": 1.5, "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "linear_attn_config": {"num_heads": 5, "head_dim": 12, "short_conv_kernel_size": 4,
                           "gate_lower_bound": -5.0, "full_attn_layers": [4, 7],
                           "kda_layers": [1, 2, 3, 5, 6]},
}
PREFIX = "language_model."


class Shapes:
    """Adds every tensor of the model to `tensors`: name -> (dtype, array)."""

    def __init__(self, rng):
        self.rng = rng
        self.tensors = {}

    def bf16(self, name, shape, scale=None):
        scale = scale if scale is not None else shape[-1] ** -0.5
        self.tensors[PREFIX + name] = ("BF16", to_bf16_bits(self.rng.normal(0, scale, shape)))

    def norm(self, name, width):
        bits = to_bf16_bits(1 + self.rng.normal(0, 0.2, width))
        self.tensors[PREFIX + name] = ("BF16", bits)

    def f32(self, name, values):
        self.tensors[PREFIX + name] = ("F32", np.asarray(values, dtype="<f4"))

    def mxfp4(self, name, rows, columns):
        packed = self.rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
        scale = self.rng.integers(123, 126, (rows, columns // GROUP), dtype=np.uint8)
        self.tensors[f"{PREFIX}{name}.weight_packed"] = ("U8", packed)
        self.tensors[f"{PREFIX}{name}.weight_scale"] = ("U8", scale)


def add_kda(s, base, text):
    linear, hidden = text["linear_attn_config"], text["hidden_size"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    for n in ("q", "k", "v"):
        s.bf16(f"{base}{n}_proj.weight", (heads * dim, hidden))
        s.f32(f"{base}{n}_conv1d.weight", s.rng.normal(0, 0.5, (heads * dim, 1, 4)))
    s.bf16(base + "f_a_proj.weight", (dim, hidden))
    s.bf16(base + "f_b_proj.weight", (heads * dim, dim))
    s.bf16(base + "b_proj.weight", (heads, hidden))
    s.bf16(base + "g_proj.weight", (heads * dim, hidden))
    padded = np.zeros(heads + 3)
    padded[:heads] = np.log(s.rng.uniform(0.5, 4, heads))
    s.f32(base + "A_log", padded)
    s.f32(base + "dt_bias", s.rng.uniform(-4, 1, heads * dim))
    s.f32(base + "o_norm.weight", 1 + s.rng.normal(0, 0.2, dim))
    s.bf16(base + "o_proj.weight", (hidden, heads * dim))


def add_mla(s, base, text):
    hidden, heads, v = text["hidden_size"], text["num_attention_heads"], text["v_head_dim"]
    nope, rope = text["qk_nope_head_dim"], text["qk_rope_head_dim"]
    q_lora, kv_lora = text["q_lora_rank"], text["kv_lora_rank"]
    s.bf16(base + "q_a_proj.weight", (q_lora, hidden))
    s.norm(base + "q_a_layernorm.weight", q_lora)
    s.bf16(base + "q_b_proj.weight", (heads * (nope + rope), q_lora), 2 * q_lora ** -0.5)
    s.bf16(base + "kv_a_proj_with_mqa.weight", (kv_lora + rope, hidden), 2 * hidden ** -0.5)
    s.norm(base + "kv_a_layernorm.weight", kv_lora)
    s.bf16(base + "kv_b_proj.weight", (heads * (nope + v), kv_lora))
    s.bf16(base + "g_proj.weight", (heads * v, hidden))
    s.bf16(base + "o_proj.weight", (hidden, heads * v))


def add_mlp(s, base, hidden, width):
    s.bf16(base + "gate_proj.weight", (width, hidden))
    s.bf16(base + "up_proj.weight", (width, hidden))
    s.bf16(base + "down_proj.weight", (hidden, width))


def add_moe(s, base, text):
    hidden, latent = text["hidden_size"], text["routed_expert_hidden_size"]
    width = text["moe_intermediate_size"]
    s.bf16(base + "gate.weight", (text["num_experts"], hidden))
    s.f32(base + "gate.e_score_correction_bias", s.rng.normal(0, 1, text["num_experts"]))
    s.bf16(base + "routed_expert_down_proj.weight", (latent, hidden))
    s.norm(base + "routed_expert_norm.weight", latent)
    s.bf16(base + "routed_expert_up_proj.weight", (hidden, latent))
    add_mlp(s, base + "shared_experts.", hidden, width * text["num_shared_experts"])
    for expert in range(text["num_experts"]):
        s.mxfp4(f"{base}experts.{expert}.w1", width, latent)
        s.mxfp4(f"{base}experts.{expert}.w3", width, latent)
        s.mxfp4(f"{base}experts.{expert}.w2", latent, width)


def build(seed, text=None):
    """name -> (dtype, array) of a whole random model."""
    text = text or TEXT
    s, hidden = Shapes(np.random.default_rng(seed)), text["hidden_size"]
    s.bf16("model.embed_tokens.weight", (text["vocab_size"], hidden), 1.0)
    s.bf16("lm_head.weight", (text["vocab_size"], hidden))
    s.norm("model.norm.weight", hidden)
    s.norm("model.output_attn_res_norm.weight", hidden)
    s.bf16("model.output_attn_res_proj.weight", (1, hidden))
    for layer in range(text["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        for n in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
                  "mlp_res_norm"):
            s.norm(f"{base}{n}.weight", hidden)
        s.bf16(base + "self_attention_res_proj.weight", (1, hidden))
        s.bf16(base + "mlp_res_proj.weight", (1, hidden))
        mla = layer + 1 in text["linear_attn_config"]["full_attn_layers"]
        (add_mla if mla else add_kda)(s, base + "self_attn.", text)
        if layer < text["first_k_dense_replace"]:
            add_mlp(s, base + "mlp.", hidden, text["intermediate_size"])
        else:
            add_moe(s, base + "block_sparse_moe.", text)
    return s.tensors


def write_shard(path, tensors):
    header, body = {}, b""
    for name, (dtype, values) in tensors.items():
        data = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape),
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + body)


def write(folder, tensors, config=None):
    """Two shards, their index and the config; a tensor of another model part in between."""
    folder = pathlib.Path(folder)
    everything = {**tensors, "vision_tower.x": ("BF16", np.zeros(4, "<u2"))}
    names = list(everything)
    placed = {}
    for shard, part in enumerate((names[::2], names[1::2])):
        file = f"model-{shard + 1:05}-of-00002.safetensors"
        write_shard(folder / file, {n: everything[n] for n in part})
        placed.update({n: file for n in part})
    index = {"metadata": {}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config or {"text_config": TEXT}))
