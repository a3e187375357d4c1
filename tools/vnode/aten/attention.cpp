/* SPDX-License-Identifier: Apache-2.0 */
#include "attention.h"

#include <cmath>
#include <limits>

#include <ATen/OpMathType.h>

#include "boxed.h"
#include "model.h"
#include "random.h"

namespace vnode_aten {

namespace {

using OptionalTensor = std::optional<Tensor>;

/* Scores held at once. Larger problems are computed in slices of batches and heads. */
constexpr int64_t kMaxScores = 16 << 20;
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/* What query i may see: keys j with i + shift − left ≤ j ≤ i + shift + right. */
struct Window {
  int64_t shift = 0, left = kUnlimited, right = kUnlimited;
  bool limited() const {
    return left != kUnlimited || right != kUnlimited;
  }
};

Window top_left(bool causal) {
  Window window;
  if (causal)
    window.right = 0;
  return window;
}

Window bottom_right(bool causal, int64_t queries, int64_t keys, std::optional<c10::SymInt> left,
                    std::optional<c10::SymInt> right) {
  Window window;
  window.shift = keys - queries;
  if (left && left->expect_int() >= 0)
    window.left = left->expect_int();
  if (right && right->expect_int() >= 0)
    window.right = right->expect_int();
  if (causal)
    window.right = 0;
  return window;
}

/* One attention: [B, H, L, D] (or [B, Hkv, S, D]) and what shapes the scores. */
struct Problem {
  Tensor q, k, v, bias;
  Window window;
  double scale;
  double dropout;
  PhiloxState philox;

  at::ScalarType acc() const {
    return at::toOpMathType(q.scalar_type());
  }
};

double scale_or_default(std::optional<double> scale, const Tensor &q) {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(-1))));
}

/* A range of batches and heads of a problem, widened to the accumulation type; keys and values repeated for GQA. */
struct Slice {
  Tensor q, k, v, bias;
  int64_t batch, head; /* first of each, in the whole problem */

  Tensor of(const Tensor &whole) const {
    return whole.narrow(0, batch, q.size(0)).narrow(1, head, q.size(1));
  }
};

Tensor repeat_heads(const Tensor &t, int64_t heads) {
  return t.size(1) == heads ? t : t.repeat_interleave(heads / t.size(1), 1);
}

template <typename Body> void for_each_slice(const Problem &p, Body body) {
  const int64_t batches = p.q.size(0), heads = p.q.size(1), scores = std::max<int64_t>(1, p.q.size(2) * p.k.size(2));
  const int64_t head_step = std::max<int64_t>(1, std::min(heads, kMaxScores / scores));
  const int64_t batch_step =
      head_step < heads ? 1 : std::max<int64_t>(1, std::min(batches, kMaxScores / scores / std::max<int64_t>(1, heads)));
  const Tensor k = repeat_heads(p.k, heads), v = repeat_heads(p.v, heads);
  const Tensor bias = p.bias.defined() ? p.bias.expand({batches, heads, p.q.size(2), p.k.size(2)}) : Tensor();
  for (int64_t b = 0; b < batches; b += batch_step) {
    for (int64_t h = 0; h < heads; h += head_step) {
      auto cut = [&](const Tensor &t) {
        return t.narrow(0, b, std::min(batch_step, batches - b)).narrow(1, h, std::min(head_step, heads - h)).to(p.acc());
      };
      body(Slice{cut(p.q), cut(k), cut(v), bias.defined() ? cut(bias) : Tensor(), b, h});
    }
  }
}

Tensor scores(const Problem &p, const Slice &s) {
  Tensor scores = at::matmul(s.q, s.k.transpose(-2, -1)).mul_(p.scale);
  if (s.bias.defined())
    scores.add_(s.bias);
  if (p.window.limited()) {
    const Tensor distance = at::arange(s.k.size(2)).unsqueeze(0) - (at::arange(s.q.size(2)).unsqueeze(1) + p.window.shift);
    Tensor hidden = at::zeros_like(distance, distance.options().dtype(at::kBool));
    if (p.window.right != kUnlimited)
      hidden.logical_or_(distance.gt(p.window.right));
    if (p.window.left != kUnlimited)
      hidden.logical_or_(distance.lt(-p.window.left));
    scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
  return scores;
}

/* exp(scores − lse); a row that sees no key has lse = −inf and gives zeros. */
Tensor probabilities(const Tensor &scores, const Tensor &lse) {
  const Tensor finite = lse.masked_fill(lse.isinf(), 0);
  return scores.sub(finite.unsqueeze(-1)).exp_();
}

/* 0 or 1 / (1 − p) per score of the slice: element i of the whole [B, H, L, S] has word i of the state. */
Tensor dropout_factors(const Problem &p, const Slice &s) {
  const int64_t heads = p.q.size(1), per_head = s.q.size(2) * s.k.size(2);
  Tensor factors = at::empty({s.q.size(0), s.q.size(1), s.q.size(2), s.k.size(2)}, s.q.options().dtype(at::kFloat));
  auto *out = factors.mutable_data_ptr<float>();
  const auto keep = static_cast<float>(1 - p.dropout);
  for (int64_t b = 0; b < s.q.size(0); b++) {
    for (int64_t h = 0; h < s.q.size(1); h++) {
      const int64_t first = ((s.batch + b) * heads + s.head + h) * per_head;
      for (int64_t i = first; i < first + per_head; i++) {
        const auto element = static_cast<uint64_t>(i);
        *out++ = uniform(philox(p.philox.seed, element / 4, p.philox.offset / 4)[element % 4]) < keep ? 1 / keep : 0;
      }
    }
  }
  return factors.to(p.acc());
}

struct Forward {
  Tensor output, lse; /* [B, H, L, Dv] in the accumulation type; [B, H, L] */
};

Forward forward(const Problem &p) {
  const auto options = p.q.options().dtype(p.acc());
  Forward result{at::empty({p.q.size(0), p.q.size(1), p.q.size(2), p.v.size(3)}, options),
                 at::empty({p.q.size(0), p.q.size(1), p.q.size(2)}, options)};
  for_each_slice(p, [&](const Slice &s) {
    const Tensor a = scores(p, s);
    const Tensor lse =
        a.size(-1) == 0 ? at::full_like(a.sum(-1), -std::numeric_limits<double>::infinity()) : a.logsumexp(-1);
    Tensor weights = probabilities(a, lse);
    if (p.dropout > 0)
      weights.mul_(dropout_factors(p, s));
    s.of(result.output).copy_(at::matmul(weights, s.v));
    s.of(result.lse).copy_(lse);
  });
  return result;
}

struct Backward {
  Tensor q, k, v, bias; /* bias: [B, H, L, S], defined if asked for */
};

/* Sums the gradients of the query heads that share a key/value head. */
Tensor sum_heads(const Tensor &t, int64_t heads) {
  if (t.size(1) == heads)
    return t;
  return t.reshape({t.size(0), heads, t.size(1) / heads, t.size(2), t.size(3)}).sum(2);
}

Backward backward(const Problem &p, const Tensor &grad_output, const Tensor &lse, bool want_bias) {
  const auto options = p.q.options().dtype(p.acc());
  const int64_t batches = p.q.size(0), heads = p.q.size(1), keys = p.k.size(2);
  Backward whole{at::empty(p.q.sizes(), options), at::empty({batches, heads, keys, p.k.size(3)}, options),
                 at::empty({batches, heads, keys, p.v.size(3)}, options),
                 want_bias ? at::empty({batches, heads, p.q.size(2), keys}, options) : Tensor()};
  for_each_slice(p, [&](const Slice &s) {
    const Tensor grad = s.of(grad_output).to(p.acc());
    const Tensor weights = probabilities(scores(p, s), s.of(lse).to(p.acc()));
    Tensor grad_weights = at::matmul(grad, s.v.transpose(-2, -1)), used = weights;
    if (p.dropout > 0) {
      const Tensor factors = dropout_factors(p, s);
      grad_weights.mul_(factors);
      used = weights * factors;
    }
    const Tensor grad_scores = weights * (grad_weights - (grad_weights * weights).sum(-1, true));
    s.of(whole.v).copy_(at::matmul(used.transpose(-2, -1), grad));
    s.of(whole.q).copy_(at::matmul(grad_scores, s.k).mul_(p.scale));
    s.of(whole.k).copy_(at::matmul(grad_scores.transpose(-2, -1), s.q).mul_(p.scale));
    if (want_bias)
      s.of(whole.bias).copy_(grad_scores);
  });
  return {whole.q, sum_heads(whole.k, p.k.size(1)), sum_heads(whole.v, p.v.size(1)), whole.bias};
}

/* The kernels write [B, L, H, D] memory, seen as [B, H, L, D]. */
Tensor by_token(const Tensor &t, const Tensor &like) {
  return t.to(like.scalar_type()).transpose(1, 2).contiguous().transpose(1, 2);
}

Tensor plain(const Tensor &t, at::ScalarType type) {
  return t.to(type).contiguous();
}

/* ------------------------------------------------------------------------------------------------ random numbers and time
 */

uint64_t dropout_words(int64_t batches, int64_t heads, int64_t queries, int64_t keys, double dropout) {
  return dropout > 0 ? static_cast<uint64_t>(batches * heads * queries * keys) : 0;
}

/* The generator's state at a forward pass, kept in two tensors for the backward pass. */
struct SavedPhilox {
  Tensor seed, offset;
};

SavedPhilox save_philox() {
  auto scalar = [](uint64_t value) { return at::scalar_tensor(static_cast<int64_t>(value), at::kLong); };
  return {scalar(PhiloxScope::current().seed), scalar(PhiloxScope::current().offset)};
}

uint64_t read_scalar(const Tensor &t) {
  return t.defined() && t.numel() != 0 ? static_cast<uint64_t>(t.reshape(-1)[0].item<int64_t>()) : 0;
}

PhiloxState load_philox(const Tensor &seed, const Tensor &offset, double dropout) {
  if (dropout <= 0)
    return {0, 0};
  return {read_scalar(seed), read_scalar(offset)};
}

/* Pairs of a query and a key that it sees. */
double visible_pairs(const Window &window, int64_t queries, int64_t keys) {
  if (!window.limited())
    return static_cast<double>(queries) * static_cast<double>(keys);
  int64_t pairs = 0;
  for (int64_t i = 0; i < queries; i++) {
    const int64_t at = i + window.shift;
    const int64_t first = window.left == kUnlimited ? 0 : std::max<int64_t>(0, at - window.left);
    const int64_t last = window.right == kUnlimited ? keys - 1 : std::min<int64_t>(keys - 1, at + window.right);
    pairs += std::max<int64_t>(0, last - first + 1);
  }
  return static_cast<double>(pairs);
}

/* Two matrix products over the visible pairs, five in the backward pass. `maps`: batches times heads. */
int64_t attention_ns(double maps, double pairs, const Tensor &q, const Tensor &v, uint64_t bytes, bool backward) {
  const double forward_flops = 2 * maps * pairs * static_cast<double>(q.size(-1) + v.size(-1));
  return vnode_model_attention_ns(backward ? 2.5 * forward_flops : forward_flops, bytes, backward);
}

/* Of the operators whose q, k and v are [B, H, L, D] from argument `first` on. */
template <size_t first, size_t dropout> uint64_t sdpa_words(Arguments arguments) {
  const Tensor &q = arguments[first].toTensor(), &k = arguments[first + 1].toTensor();
  return dropout_words(q.size(0), q.size(1), q.size(2), k.size(2), arguments[dropout].toDouble());
}

template <size_t first, size_t causal, bool at_bottom, bool is_backward>
int64_t sdpa_ns(Arguments arguments, uint64_t bytes) {
  const Tensor &q = arguments[first].toTensor(), &k = arguments[first + 1].toTensor(), &v = arguments[first + 2].toTensor();
  const bool masked = arguments[causal].toBool();
  const Window window =
      at_bottom ? bottom_right(masked, q.size(2), k.size(2), std::nullopt, std::nullopt) : top_left(masked);
  return attention_ns(static_cast<double>(q.size(0) * q.size(1)), visible_pairs(window, q.size(2), k.size(2)), q, v, bytes,
                      is_backward);
}

/* ------------------------------------------------------------------------------------------------------- flash and cuDNN */

Problem problem(const Tensor &q, const Tensor &k, const Tensor &v, const OptionalTensor &bias, Window window,
                std::optional<double> scale, double dropout, PhiloxState philox) {
  return {q, k, v, bias && bias->defined() ? *bias : Tensor(), window, scale_or_default(scale, q), dropout, philox};
}

using FlashResult = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor>;

FlashResult sdpa_forward(const Tensor &q, const Tensor &k, const Tensor &v, const OptionalTensor &bias, Window window,
                         double dropout, std::optional<double> scale, bool lse_column) {
  const Forward result = forward(problem(q, k, v, bias, window, scale, dropout, PhiloxScope::current()));
  const SavedPhilox saved = save_philox();
  const Tensor lse = lse_column ? result.lse.unsqueeze(-1) : result.lse;
  return {by_token(result.output, q),
          plain(lse, at::kFloat),
          Tensor(),
          Tensor(),
          q.sym_size(2),
          k.sym_size(2),
          saved.seed,
          saved.offset,
          Tensor()};
}

Gradients sdpa_backward(const Tensor &grad, const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &bias,
                        const Tensor &lse, Window window, double dropout, std::optional<double> scale, const Tensor &seed,
                        const Tensor &offset) {
  const Tensor rows = lse.dim() == 4 ? lse.squeeze(-1) : lse;
  const Backward result =
      backward(problem(q, k, v, bias, window, scale, dropout, load_philox(seed, offset, dropout)), grad, rows, false);
  return {by_token(result.q, q), by_token(result.k, k), by_token(result.v, v)};
}

FlashResult sdpa_flash(const Tensor &q, const Tensor &k, const Tensor &v, double dropout, bool causal, bool debug_mask,
                       std::optional<double> scale) {
  TORCH_CHECK(!debug_mask, "virtual node: _scaled_dot_product_flash_attention does not give its debug mask");
  const Window window = bottom_right(causal, q.size(2), k.size(2), std::nullopt, std::nullopt);
  return sdpa_forward(q, k, v, std::nullopt, window, dropout, scale, false);
}

Gradients sdpa_flash_backward(const Tensor &grad, const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &,
                              const Tensor &lse, const Tensor &, const Tensor &, c10::SymInt, c10::SymInt, double dropout,
                              bool causal, const Tensor &seed, const Tensor &offset, std::optional<double> scale) {
  const Window window = bottom_right(causal, q.size(2), k.size(2), std::nullopt, std::nullopt);
  return sdpa_backward(grad, q, k, v, Tensor(), lse, window, dropout, scale, seed, offset);
}

FlashResult sdpa_cudnn(const Tensor &q, const Tensor &k, const Tensor &v, const OptionalTensor &bias, bool, double dropout,
                       bool causal, bool debug_mask, std::optional<double> scale) {
  TORCH_CHECK(!debug_mask, "virtual node: _scaled_dot_product_cudnn_attention does not give its debug mask");
  return sdpa_forward(q, k, v, bias, top_left(causal), dropout, scale, true);
}

Gradients sdpa_cudnn_backward(const Tensor &grad, const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &,
                              const Tensor &lse, const Tensor &seed, const Tensor &offset, const Tensor &bias,
                              const Tensor &, const Tensor &, c10::SymInt, c10::SymInt, double dropout, bool causal,
                              std::optional<double> scale) {
  return sdpa_backward(grad, q, k, v, bias, lse, top_left(causal), dropout, scale, seed, offset);
}

/* ------------------------------------------------------------------------------------------------------ memory-efficient */

/* Rows of the kernel's log-sum-exp are padded to this. */
constexpr int64_t kLseAlign = 32;

Tensor pad_lse(const Tensor &lse) {
  const int64_t queries = lse.size(-1), padded = (queries + kLseAlign - 1) / kLseAlign * kLseAlign;
  return at::constant_pad_nd(lse, {0, padded - queries}, std::numeric_limits<double>::infinity());
}

using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Four sdpa_efficient(const Tensor &q, const Tensor &k, const Tensor &v, const OptionalTensor &bias, bool want_lse,
                    double dropout, bool causal, std::optional<double> scale) {
  const Forward result = forward(problem(q, k, v, bias, top_left(causal), scale, dropout, PhiloxScope::current()));
  const SavedPhilox saved = save_philox();
  const Tensor lse = want_lse ? pad_lse(result.lse) : at::empty({q.size(0), q.size(1), 0}, result.lse.options());
  return {by_token(result.output, q), plain(lse, at::kFloat), saved.seed, saved.offset};
}

Four sdpa_efficient_backward(const Tensor &grad, const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &bias,
                             const Tensor &, const Tensor &lse, const Tensor &seed, const Tensor &offset, double dropout,
                             std::array<bool, 4> wanted, bool causal, std::optional<double> scale) {
  if (!grad.defined())
    return {};
  const bool want_bias = wanted[3] && bias.defined();
  const Problem p = problem(q, k, v, bias, top_left(causal), scale, dropout, load_philox(seed, offset, dropout));
  const Backward result = backward(p, grad, lse.narrow(-1, 0, q.size(2)), want_bias);
  return {by_token(result.q, q), by_token(result.k, k), by_token(result.v, v),
          want_bias ? plain(at::sum_to(result.bias, bias.sizes()), bias.scalar_type()) : Tensor()};
}

/* ------------------------------------------------------------------------ flash by tokens: [B, L, H, D], or packed
 * sequences */

/* One of the sequences that a packed call holds (all of a dense call: the whole). Views [B, H, L, D]. */
struct Sequence {
  int64_t q_first, q_count, k_first, k_count;
};

std::vector<Sequence> sequences(const Tensor &q, const Tensor &k, const OptionalTensor &q_starts,
                                const OptionalTensor &k_starts) {
  if (!q_starts || !q_starts->defined())
    return {{0, q.size(1), 0, k.size(1)}};
  TORCH_CHECK(k_starts && k_starts->defined() && k_starts->numel() == q_starts->numel(),
              "_flash_attention_forward: cum_seq_q and cum_seq_k must have the same number of sequences");
  const Tensor qs = q_starts->to(at::kLong), ks = k_starts->to(at::kLong);
  const auto *a = qs.const_data_ptr<int64_t>(), *b = ks.const_data_ptr<int64_t>();
  std::vector<Sequence> all;
  for (int64_t i = 0; i + 1 < qs.numel(); i++)
    all.push_back({a[i], a[i + 1] - a[i], b[i], b[i + 1] - b[i]});
  return all;
}

/* [B, L, H, D] or packed [T, H, D] as [B, H, L, D], cut to a sequence. */
Tensor by_head(const Tensor &t, int64_t first, int64_t count) {
  const Tensor batched = t.dim() == 3 ? t.unsqueeze(0) : t;
  return batched.narrow(1, first, count).transpose(1, 2);
}

template <size_t first, size_t dropout> uint64_t flash_words(Arguments arguments) {
  const Tensor &q = arguments[first].toTensor(), &k = arguments[first + 1].toTensor();
  return q.dim() == 4 ? dropout_words(q.size(0), q.size(2), q.size(1), k.size(1), arguments[dropout].toDouble()) : 0;
}

/* The lengths of packed sequences are in device memory: they are taken as equal. */
template <size_t first, size_t starts, size_t causal, size_t left, bool is_backward>
int64_t flash_ns(Arguments arguments, uint64_t bytes) {
  const Tensor &q = arguments[first].toTensor(), &k = arguments[first + 1].toTensor(), &v = arguments[first + 2].toTensor();
  int64_t batches = q.size(0), queries = q.size(1), keys = k.size(1);
  if (q.dim() == 3) {
    batches = std::max<int64_t>(1, arguments[starts].isTensor() ? arguments[starts].toTensor().numel() - 1 : 1);
    queries = q.size(0) / batches;
    keys = k.size(0) / batches;
  }
  const Window window = bottom_right(arguments[causal].toBool(), queries, keys, arguments[left].toOptional<c10::SymInt>(),
                                     arguments[left + 1].toOptional<c10::SymInt>());
  return attention_ns(static_cast<double>(batches * q.size(-2)), visible_pairs(window, queries, keys), q, v, bytes,
                      is_backward);
}

using TokenResult = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

TokenResult flash_forward(const Tensor &q, const Tensor &k, const Tensor &v, const OptionalTensor &q_starts,
                          const OptionalTensor &k_starts, c10::SymInt, c10::SymInt, double dropout, bool causal,
                          bool debug_mask, std::optional<double> scale, std::optional<c10::SymInt> left,
                          std::optional<c10::SymInt> right, const OptionalTensor &used_keys, const OptionalTensor &slopes,
                          const OptionalTensor &block_table, std::optional<int64_t>) {
  TORCH_CHECK(
      !debug_mask && !(used_keys && used_keys->defined()) && !(slopes && slopes->defined()) &&
          !(block_table && block_table->defined()),
      "virtual node: _flash_attention_forward is implemented without debug mask, seqused_k, alibi_slopes and block_table");
  TORCH_CHECK(dropout == 0 || q.dim() == 4,
              "virtual node: _flash_attention_forward over packed sequences is implemented without dropout");
  auto shape = q.sizes().vec();
  shape.back() = v.size(-1);
  const Tensor output = at::zeros(shape, q.options());
  const Tensor lse = q.dim() == 4 ? at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat))
                                  : at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  for (const Sequence &s : sequences(q, k, q_starts, k_starts)) {
    const Forward result =
        forward({by_head(q, s.q_first, s.q_count), by_head(k, s.k_first, s.k_count), by_head(v, s.k_first, s.k_count),
                 Tensor(), bottom_right(causal, s.q_count, s.k_count, left, right), scale_or_default(scale, q), dropout,
                 PhiloxScope::current()});
    by_head(output, s.q_first, s.q_count).copy_(result.output);
    lse.narrow(-1, s.q_first, s.q_count).copy_(q.dim() == 4 ? result.lse : result.lse[0]);
  }
  const SavedPhilox saved = save_philox();
  return {output, lse, saved.seed, saved.offset, Tensor()};
}

Gradients flash_backward(const Tensor &grad, const Tensor &q, const Tensor &k, const Tensor &v, const Tensor &,
                         const Tensor &lse, const Tensor &q_starts, const Tensor &k_starts, c10::SymInt, c10::SymInt,
                         double dropout, bool causal, const Tensor &seed, const Tensor &offset, std::optional<double> scale,
                         std::optional<c10::SymInt> left, std::optional<c10::SymInt> right) {
  const PhiloxState state = load_philox(seed, offset, dropout);
  const Tensor dq = at::zeros(q.sizes(), q.options()), dk = at::zeros(k.sizes(), k.options()),
               dv = at::zeros(v.sizes(), v.options());
  for (const Sequence &s : sequences(q, k, q_starts, k_starts)) {
    const Tensor cut = lse.narrow(-1, s.q_first, s.q_count);
    const Problem p{by_head(q, s.q_first, s.q_count),
                    by_head(k, s.k_first, s.k_count),
                    by_head(v, s.k_first, s.k_count),
                    Tensor(),
                    bottom_right(causal, s.q_count, s.k_count, left, right),
                    scale_or_default(scale, q),
                    dropout,
                    state};
    const Backward result = backward(p, by_head(grad, s.q_first, s.q_count), q.dim() == 4 ? cut : cut.unsqueeze(0), false);
    by_head(dq, s.q_first, s.q_count).copy_(result.q);
    by_head(dk, s.k_first, s.k_count).copy_(result.k);
    by_head(dv, s.k_first, s.k_count).copy_(result.v);
  }
  return {dq, dk, dv};
}

} // namespace

/* The numbers are places of arguments in the operators' schemas: of the query, the dropout probability, the causal flag … */
void register_attention(torch::Library &library) {
  register_host<sdpa_flash>(library, "_scaled_dot_product_flash_attention", {sdpa_words<0, 3>, sdpa_ns<0, 4, true, false>});
  register_host<sdpa_flash_backward>(library, "_scaled_dot_product_flash_attention_backward",
                                     {nullptr, sdpa_ns<1, 11, true, true>});
  register_host<sdpa_cudnn>(library, "_scaled_dot_product_cudnn_attention", {sdpa_words<0, 5>, sdpa_ns<0, 6, false, false>});
  register_host<sdpa_cudnn_backward>(library, "_scaled_dot_product_cudnn_attention_backward",
                                     {nullptr, sdpa_ns<1, 14, false, true>});
  register_host<sdpa_efficient>(library, "_scaled_dot_product_efficient_attention",
                                {sdpa_words<0, 5>, sdpa_ns<0, 6, false, false>});
  register_host<sdpa_efficient_backward>(library, "_scaled_dot_product_efficient_attention_backward",
                                         {nullptr, sdpa_ns<1, 11, false, true>});
  register_host<flash_forward>(library, "_flash_attention_forward", {flash_words<0, 7>, flash_ns<0, 3, 8, 11, false>});
  register_host<flash_backward>(library, "_flash_attention_backward", {nullptr, flash_ns<1, 6, 11, 15, true>});
}

} // namespace vnode_aten
