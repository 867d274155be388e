"""What a config says, and every parameter's name, shape and beginning."""
import json
import math
import pathlib
from types import SimpleNamespace

import torch


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
