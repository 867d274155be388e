#include "reference.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

namespace k3_test {

namespace {

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

std::string layer_name(int64_t layer, const std::string& name) {
  return "model.layers." + std::to_string(layer) + "." + name;
}

Row sum_of(const Row& a, const Row& b) {
  Row sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

double mean_square(const Row& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return sum / static_cast<double>(x.size());
}

}  // namespace

const Row& Reference::tensor(const std::string& name) {
  const auto [at, fresh] = tensors_.try_emplace(name);
  if (!fresh) return at->second;
  const auto* found = catalog_.find("language_model." + name);
  INFO(name);
  REQUIRE(found != nullptr);
  const size_t width = found->dtype == "F32" ? 4 : found->dtype == "BF16" ? 2 : 1;
  for (size_t i = 0; i < found->bytes.size(); i += width) {
    uint32_t bits = 0;
    std::memcpy(&bits, found->bytes.data() + i, width);
    if (width == 1)
      at->second.push_back(bits);
    else
      at->second.push_back(std::bit_cast<float>(width == 2 ? bits << 16 : bits));
  }
  return at->second;
}

Row Reference::linear(const std::string& name, const Row& x) {
  const Row& w = tensor(name + ".weight");
  Row y(w.size() / x.size(), 0);
  for (size_t o = 0; o < y.size(); ++o)
    for (size_t i = 0; i < x.size(); ++i) y[o] += w[o * x.size() + i] * x[i];
  return y;
}

Row Reference::norm(const std::string& name, const Row& x, double eps) {
  const Row& w = tensor(name + ".weight");
  const double scale = 1 / std::sqrt(mean_square(x) + eps);
  Row y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = w[i] * x[i] * scale;
  return y;
}

Row Reference::mix(const std::string& name, const std::vector<Row>& bank, const Row& stream) {
  std::vector<Row> sources = bank;
  sources.push_back(stream);
  const Row &wn = tensor(name + "_norm.weight"), &wp = tensor(name + "_proj.weight");
  Row out(stream.size(), 0), p;
  double total = 0;
  for (const Row& v : sources) {
    double score = 0;
    for (size_t d = 0; d < v.size(); ++d) score += v[d] * wn[d] * wp[d];
    p.push_back(std::exp(score / std::sqrt(mean_square(v) + c_.eps)));
    total += p.back();
  }
  for (size_t j = 0; j < sources.size(); ++j)
    for (size_t d = 0; d < out.size(); ++d) out[d] += p[j] / total * sources[j][d];
  return out;
}

Rows Reference::kda(int64_t layer, const Rows& x) {
  const std::string at = layer_name(layer, "self_attn.");
  const int64_t heads = c_.kda_heads, dim = c_.kda_dim, inner = heads * dim;
  const int64_t rows = static_cast<int64_t>(x.size());
  Rows u[3], y;
  for (int s = 0; s < 3; ++s)
    for (const Row& row : x) u[s].push_back(linear(at + "qkv"[s] + "_proj", row));
  Row state(inner * dim, 0);
  for (int64_t t = 0; t < rows; ++t) {
    Row qkv[3];
    for (int s = 0; s < 3; ++s) {
      const Row& taps = tensor(at + "qkv"[s] + "_conv1d.weight");
      qkv[s].assign(inner, 0);
      for (int64_t c = 0; c < inner; ++c)
        for (int64_t i = 0; i < c_.taps; ++i)
          if (const int64_t from = t - c_.taps + 1 + i; from >= 0)
            qkv[s][c] += taps[c * c_.taps + i] * u[s][from][c];
      for (double& v : qkv[s]) v *= sigmoid(v);
    }
    const Row r = linear(at + "f_b_proj", linear(at + "f_a_proj", x[t]));
    const Row beta = linear(at + "b_proj", x[t]), z = linear(at + "g_proj", x[t]);
    const Row &a_log = tensor(at + "A_log"), &dt_bias = tensor(at + "dt_bias"),
              &o_norm = tensor(at + "o_norm.weight");
    Row gated(inner);
    for (int64_t h = 0; h < heads; ++h) {
      double qq = 1e-6, kk = 1e-6;
      for (int64_t c = h * dim; c < (h + 1) * dim; ++c) {
        qq += qkv[0][c] * qkv[0][c];
        kk += qkv[1][c] * qkv[1][c];
      }
      Row o(dim, 0);
      for (int64_t i = 0; i < dim; ++i) {
        double* s = state.data() + (h * dim + i) * dim;
        double e = qkv[2][h * dim + i];
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t c = h * dim + d;
          s[d] *= std::exp(c_.gate_lower_bound * sigmoid(std::exp(a_log[h]) * (r[c] + dt_bias[c])));
          e -= s[d] * qkv[1][c] / std::sqrt(kk);
        }
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t c = h * dim + d;
          s[d] += sigmoid(beta[h]) * e * qkv[1][c] / std::sqrt(kk);
          o[i] += s[d] * qkv[0][c] / std::sqrt(qq * static_cast<double>(dim));
        }
      }
      const double scale = 1 / std::sqrt(mean_square(o) + c_.eps);
      for (int64_t i = 0; i < dim; ++i)
        gated[h * dim + i] = o[i] * scale * o_norm[i] * sigmoid(z[h * dim + i]);
    }
    y.push_back(linear(at + "o_proj", gated));
  }
  return y;
}

Rows Reference::mla(int64_t layer, const Rows& x) {
  const std::string at = layer_name(layer, "self_attn.");
  Rows k_v, k_rope, y;
  const int64_t width = c_.nope + c_.v_dim;
  for (size_t t = 0; t < x.size(); ++t) {
    Row kv = linear(at + "kv_a_proj_with_mqa", x[t]);
    k_rope.emplace_back(kv.begin() + c_.kv_lora, kv.end());
    kv.resize(c_.kv_lora);
    k_v.push_back(linear(at + "kv_b_proj", norm(at + "kv_a_layernorm", kv, c_.latent_eps)));
    const Row q = linear(at + "q_b_proj",
                         norm(at + "q_a_layernorm", linear(at + "q_a_proj", x[t]), c_.latent_eps));
    const Row z = linear(at + "g_proj", x[t]);
    Row out;
    for (int64_t h = 0; h < c_.heads; ++h) {
      const double* qh = q.data() + h * (c_.nope + c_.rope);
      Row p(t + 1), o(c_.v_dim, 0);
      double total = 0;
      for (size_t j = 0; j <= t; ++j) {
        double score = 0;
        for (int64_t d = 0; d < c_.nope; ++d) score += qh[d] * k_v[j][h * width + d];
        for (int64_t d = 0; d < c_.rope; ++d) score += qh[c_.nope + d] * k_rope[j][d];
        total += p[j] = std::exp(score / std::sqrt(static_cast<double>(c_.nope + c_.rope)));
      }
      for (size_t j = 0; j <= t; ++j)
        for (int64_t d = 0; d < c_.v_dim; ++d)
          o[d] += p[j] / total * k_v[j][h * width + c_.nope + d];
      for (int64_t d = 0; d < c_.v_dim; ++d) out.push_back(o[d] * sigmoid(z[h * c_.v_dim + d]));
    }
    y.push_back(linear(at + "o_proj", out));
  }
  return y;
}

Row Reference::situ(const Row& gate, const Row& up) const {
  Row y(gate.size());
  for (size_t i = 0; i < y.size(); ++i)
    y[i] = c_.situ_beta * std::tanh(gate[i] / c_.situ_beta) * sigmoid(gate[i]) *
           c_.situ_linear_beta * std::tanh(up[i] / c_.situ_linear_beta);
  return y;
}

Row Reference::situ_mlp(const std::string& name, const Row& x) {
  return linear(name + ".down_proj",
                situ(linear(name + ".gate_proj", x), linear(name + ".up_proj", x)));
}

Row Reference::mxfp4(const std::string& name, const Row& x) {
  constexpr double kMagnitude[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const Row &packed = tensor(name + ".weight_packed"), &scale = tensor(name + ".weight_scale");
  Row y(packed.size() * 2 / x.size(), 0);
  for (size_t o = 0; o < y.size(); ++o)
    for (size_t i = 0; i < x.size(); ++i) {
      const int byte = static_cast<int>(packed[(o * x.size() + i) / 2]);
      const int code = i % 2 == 0 ? byte % 16 : byte / 16;
      const double size = kMagnitude[code % 8] * std::exp2(scale[(o * x.size() + i) / 32] - 127);
      y[o] += (code >= 8 ? -size : size) * x[i];
    }
  return y;
}

Row Reference::expert(int64_t layer, int64_t e, const Row& z) {
  const std::string at = layer_name(layer, "block_sparse_moe.experts.") + std::to_string(e) + ".";
  return mxfp4(at + "w2", situ(mxfp4(at + "w1", z), mxfp4(at + "w3", z)));
}

Row Reference::moe(int64_t layer, const Row& x) {
  const std::string at = layer_name(layer, "block_sparse_moe.");
  const Row logits = linear(at + "gate", x), bias = tensor(at + "gate.e_score_correction_bias");
  std::vector<std::pair<double, int64_t>> order;
  for (int64_t e = 0; e < c_.experts; ++e) order.emplace_back(-(sigmoid(logits[e]) + bias[e]), e);
  std::sort(order.begin(), order.end());
  const Row z = linear(at + "routed_expert_down_proj", x);
  double total = 1e-20;
  for (int64_t k = 0; k < c_.top_k; ++k) total += sigmoid(logits[order[k].second]);
  Row sum(c_.latent, 0);
  for (int64_t k = 0; k < c_.top_k; ++k) {
    const Row y = expert(layer, order[k].second, z);
    for (int64_t i = 0; i < c_.latent; ++i)
      sum[i] += sigmoid(logits[order[k].second]) / total * c_.routed_scaling * y[i];
  }
  const Row routed =
      linear(at + "routed_expert_up_proj", norm(at + "routed_expert_norm", sum, c_.eps));
  return sum_of(routed, situ_mlp(at + "shared_experts", x));
}

Rows Reference::logits(const std::vector<int32_t>& tokens) {
  Rows stream;
  std::vector<std::vector<Row>> bank(tokens.size());
  const Row& table = tensor("model.embed_tokens.weight");
  for (const int32_t token : tokens)
    stream.emplace_back(table.begin() + token * c_.hidden, table.begin() + (token + 1) * c_.hidden);
  for (int64_t l = 0; l < c_.layers; ++l) {
    const auto at = [&](const char* name) { return layer_name(l, name); };
    const bool starts_block = l % c_.residual_block == 0;
    Rows a;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const Row mixed =
          bank[t].empty() ? stream[t] : mix(at("self_attention_res"), bank[t], stream[t]);
      if (starts_block) bank[t].push_back(stream[t]);
      a.push_back(norm(at("input_layernorm"), mixed, c_.eps));
    }
    const Rows attention = c_.is_mla[l] ? mla(l, a) : kda(l, a);
    for (size_t t = 0; t < tokens.size(); ++t) {
      stream[t] = starts_block ? attention[t] : sum_of(stream[t], attention[t]);
      const Row m =
          norm(at("post_attention_layernorm"), mix(at("mlp_res"), bank[t], stream[t]), c_.eps);
      stream[t] = sum_of(stream[t], l < c_.dense_layers ? situ_mlp(at("mlp"), m) : moe(l, m));
    }
  }
  Rows out;
  for (size_t t = 0; t < tokens.size(); ++t)
    out.push_back(linear(
        "lm_head", norm("model.norm", mix("model.output_attn_res", bank[t], stream[t]), c_.eps)));
  return out;
}

}  // namespace k3_test
