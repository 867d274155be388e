"""Reads a checkpoint folder in the release's format: safetensors shards, their index, config.json.

Only numpy. Values come out as float64 (bf16 and f32 are exact in it); u8 stays u8.
"""
import json
import pathlib
from dataclasses import dataclass

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
GROUP = 32  # input elements that share one E8M0 scale


@dataclass(frozen=True)
class Config:
    """The numbers of config.json that the arithmetic needs."""
    vocab: int
    hidden: int
    layers: int
    eps: float
    latent_eps: float  # of q_a_layernorm and kv_a_layernorm
    block: int
    heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    v_dim: int
    full_attention: frozenset  # counted from 0
    kda_heads: int
    kda_dim: int
    taps: int
    lower_bound: float
    beta: float
    linear_beta: float
    dense_layers: int
    moe_every: int
    experts: int
    top_k: int
    shared: int
    expert_width: int
    latent: int
    latent_norm: bool
    renormalize: bool
    scaling: float

    def is_mla(self, layer):
        return layer in self.full_attention

    def is_moe(self, layer):
        return layer >= self.dense_layers and layer % self.moe_every == 0


def read_config(path):
    """Config of a config.json, nested in `text_config` or flat."""
    raw = json.loads(pathlib.Path(path).read_text())
    text = raw.get("text_config", raw)
    linear = text["linear_attn_config"]
    layers = text["num_hidden_layers"]
    full = frozenset(i - 1 for i in linear["full_attn_layers"])
    kda = frozenset(i - 1 for i in linear["kda_layers"])
    if full & kda or full | kda != set(range(layers)):
        raise ValueError(f"{path}: the layer lists do not cover layers 1 to {layers} once each")
    return Config(
        vocab=text["vocab_size"], hidden=text["hidden_size"], layers=layers,
        eps=text["rms_norm_eps"], latent_eps=text.get("latent_norm_eps", 1e-6),
        block=text["attn_res_block_size"], heads=text["num_attention_heads"],
        q_lora=text["q_lora_rank"], kv_lora=text["kv_lora_rank"], nope=text["qk_nope_head_dim"],
        rope=text["qk_rope_head_dim"], v_dim=text["v_head_dim"], full_attention=full,
        kda_heads=linear["num_heads"], kda_dim=linear["head_dim"],
        taps=linear["short_conv_kernel_size"], lower_bound=linear["gate_lower_bound"],
        beta=text["activation_situ_beta"], linear_beta=text["activation_situ_linear_beta"],
        dense_layers=text["first_k_dense_replace"], moe_every=text.get("moe_layer_freq", 1),
        experts=text["num_experts"], top_k=text["num_experts_per_token"],
        shared=text["num_shared_experts"], expert_width=text["moe_intermediate_size"],
        latent=text["routed_expert_hidden_size"], latent_norm=text["latent_moe_use_norm"],
        renormalize=text["moe_renormalize"], scaling=text["routed_scaling_factor"])


def bf16_to_f64(bits):
    """The values of bf16 bit patterns (u16)."""
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def unpack_mxfp4(packed, scale):
    """[out, in] values of [out, in / 2] bytes (low nibble first) and [out, in / 32] exponents."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    power = np.where(scale == 255, np.nan, np.ldexp(1.0, scale.astype(np.int64) - 127))
    return E2M1[nibbles] * np.repeat(power, GROUP, axis=1)


def read_shard(path):
    """Name -> array of one safetensors file."""
    data = np.fromfile(path, dtype=np.uint8)
    size = int(data[:8].view("<u8")[0])
    header = json.loads(data[8:8 + size].tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        body = data[8 + size + first:8 + size + last]
        kind = entry["dtype"]
        if kind == "BF16":
            values = bf16_to_f64(np.frombuffer(body.tobytes(), "<u2"))
        elif kind == "F32":
            values = np.frombuffer(body.tobytes(), "<f4").astype(np.float64)
        elif kind == "U8":
            values = body
        else:
            raise ValueError(f"{path}: tensor `{name}` has dtype {kind}, expected BF16, F32 or U8")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def read_tensors(folder, prefix="language_model."):
    """Name (without prefix) -> array, for every tensor of the text model that the index lists."""
    folder = pathlib.Path(folder)
    placed = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {}
    for shard in sorted(set(placed.values())):
        for name, values in read_shard(folder / shard).items():
            if placed.get(name) != shard:
                raise ValueError(f"{shard}: tensor `{name}` is not where the index says")
            if name.startswith(prefix):
                tensors[name[len(prefix):]] = values
    return tensors


def stack_experts(tensors, config):
    """Folds `experts.{e}.w{1,2,3}.*` of each layer into f64 arrays `experts.w{1,2,3}` [e, …]."""
    folded = {n: v for n, v in tensors.items() if ".experts." not in n}
    for layer in filter(config.is_moe, range(config.layers)):
        base = f"model.layers.{layer}.block_sparse_moe.experts."
        for w in ("w1", "w2", "w3"):
            folded[base + w] = np.stack([
                unpack_mxfp4(tensors[f"{base}{e}.{w}.weight_packed"],
                             tensors[f"{base}{e}.{w}.weight_scale"])
                for e in range(config.experts)])
    return folded
