/* SPDX-License-Identifier: Apache-2.0 */
#include "norm.h"

#include <limits>
#include <numeric>

#include <ATen/OpMathType.h>

#include "boxed.h"

namespace vnode_aten {

namespace {

using OptionalTensor = std::optional<Tensor>;

at::ScalarType acc_type(const Tensor &t) {
  return at::toOpMathType(t.scalar_type());
}

/* In the accumulation type of `like`; undefined stays undefined. */
Tensor widen(const Tensor &t, const Tensor &like) {
  return t.defined() ? t.to(acc_type(like)) : t;
}

OptionalTensor widen(const OptionalTensor &t, const Tensor &like) {
  return t && t->defined() ? OptionalTensor(widen(*t, like)) : std::nullopt;
}

/* As `type`; undefined stays undefined. */
Tensor narrow(const Tensor &t, at::ScalarType type) {
  return t.defined() ? t.to(type) : t;
}

at::ScalarType type_of(const OptionalTensor &t, const Tensor &otherwise) {
  return t && t->defined() ? t->scalar_type() : otherwise.scalar_type();
}

/* -------------------------------------------------------------------------------------------------- layer and group norm */

using Three = std::tuple<Tensor, Tensor, Tensor>;

Three narrow(const Three &wide, at::ScalarType first, at::ScalarType second, at::ScalarType third) {
  return {narrow(std::get<0>(wide), first), narrow(std::get<1>(wide), second), narrow(std::get<2>(wide), third)};
}

Three layer_norm(const Tensor &x, c10::SymIntArrayRef shape, const OptionalTensor &weight, const OptionalTensor &bias,
                 double eps) {
  const Three wide = at::native_layer_norm_symint(widen(x, x), shape, widen(weight, x), widen(bias, x), eps);
  return narrow(wide, x.scalar_type(), acc_type(x), acc_type(x));
}

Three layer_norm_backward(const Tensor &grad, const Tensor &x, c10::SymIntArrayRef shape, const Tensor &mean,
                          const Tensor &rstd, const OptionalTensor &weight, const OptionalTensor &bias,
                          std::array<bool, 3> wanted) {
  const Three wide = at::native_layer_norm_backward_symint(widen(grad, x), widen(x, x), shape, widen(mean, x),
                                                           widen(rstd, x), widen(weight, x), widen(bias, x), wanted);
  return narrow(wide, x.scalar_type(), type_of(weight, x), type_of(bias, x));
}

Three group_norm(const Tensor &x, const OptionalTensor &weight, const OptionalTensor &bias, c10::SymInt n, c10::SymInt c,
                 c10::SymInt hw, int64_t group, double eps) {
  const Three wide = at::native_group_norm_symint(widen(x, x), widen(weight, x), widen(bias, x), n, c, hw, group, eps);
  return narrow(wide, x.scalar_type(), x.scalar_type(), x.scalar_type());
}

Three group_norm_backward(const Tensor &grad, const Tensor &x, const Tensor &mean, const Tensor &rstd,
                          const OptionalTensor &weight, c10::SymInt n, c10::SymInt c, c10::SymInt hw, int64_t group,
                          std::array<bool, 3> wanted) {
  const Three wide =
      at::native_group_norm_backward_symint(widen(grad, x).contiguous(), widen(x, x).contiguous(), widen(mean, x),
                                            widen(rstd, x), widen(weight, x), n, c, hw, group, wanted);
  return narrow(wide, x.scalar_type(), type_of(weight, x), type_of(weight, x));
}

/* ---------------------------------------------------------------------------------------------------------------- RMS norm
 */

/* The last `count` dimensions, and those before them. */
std::vector<int64_t> last_dims(const Tensor &t, size_t count) {
  std::vector<int64_t> dims(count);
  std::iota(dims.begin(), dims.end(), t.dim() - static_cast<int64_t>(count));
  return dims;
}

std::vector<int64_t> first_dims(const Tensor &t, size_t normalized) {
  std::vector<int64_t> dims(static_cast<size_t>(t.dim()) - normalized);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

/* y = x·r·w with r = (mean(x²) + eps)^(−1/2); r is kept, with 1 in place of the normalised dimensions. */
std::tuple<Tensor, Tensor> rms_norm(const Tensor &x, at::IntArrayRef shape, const OptionalTensor &weight,
                                    std::optional<double> eps) {
  const Tensor wide = widen(x, x);
  const double epsilon = eps.value_or(acc_type(x) == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                 : std::numeric_limits<float>::epsilon());
  const Tensor rstd = wide.square().mean(last_dims(x, shape.size()), true).add_(epsilon).rsqrt_();
  const Tensor y = wide * rstd;
  if (weight && weight->defined())
    y.mul_(widen(*weight, x));
  return {narrow(y, x.scalar_type()), rstd};
}

/* With g = dy·w and n = x·r:  dx = r·(g − n·mean(g·n)),  dw = Σ dy·n over the rows. */
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor &grad, const Tensor &x, at::IntArrayRef shape, const Tensor &rstd,
                                             const OptionalTensor &weight, std::array<bool, 2> wanted) {
  const bool has_weight = weight && weight->defined();
  const Tensor dy = widen(grad, x), r = widen(rstd, x), normal = widen(x, x) * r;
  Tensor dx, dw;
  if (wanted[0]) {
    const Tensor g = has_weight ? dy * widen(*weight, x) : dy;
    dx = (g - normal * (g * normal).mean(last_dims(x, shape.size()), true)) * r;
  }
  if (wanted[1] && has_weight) {
    dw = dy * normal;
    if (const auto rows = first_dims(x, shape.size()); !rows.empty())
      dw = dw.sum(rows);
  }
  return {narrow(dx, x.scalar_type()), narrow(dw, has_weight ? weight->scalar_type() : x.scalar_type())};
}

/* ---------------------------------------------------------------------------------------- batch norm in parts
 * (SyncBatchNorm) */

/* All dimensions but the channels (1). */
std::vector<int64_t> but_channels(const Tensor &x) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < x.dim(); d++)
    if (d != 1)
      dims.push_back(d);
  return dims;
}

/* [C] so that it broadcasts against x. */
Tensor by_channel(const Tensor &t, const Tensor &x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = -1;
  return widen(t, x).reshape(shape);
}

std::tuple<Tensor, Tensor> batch_norm_stats(const Tensor &x, double eps) {
  const Tensor wide = widen(x, x);
  return {wide.mean(but_channels(x)), wide.var(but_channels(x), /*correction=*/0).add_(eps).rsqrt_()};
}

/* Statistics of `counts[i]` elements each, [W, C], joined; running ones updated with the unbiased variance. */
std::tuple<Tensor, Tensor> batch_norm_gather(const Tensor &x, const Tensor &mean, const Tensor &invstd,
                                             const OptionalTensor &running_mean, const OptionalTensor &running_var,
                                             double momentum, double eps, const Tensor &counts) {
  const Tensor m = widen(mean, x), n = widen(counts, x).reshape({-1, 1}), total = n.sum();
  const Tensor variance = widen(invstd, x).pow(-2).sub_(eps);
  const Tensor joined_mean = (m * n).sum(0).div_(total);
  const Tensor squares = ((variance + (m - joined_mean).square()) * n).sum(0);
  auto update = [&](const OptionalTensor &running, const Tensor &value) {
    if (running && running->defined())
      running->mul_(1 - momentum).add_(value, momentum);
  };
  update(running_mean, joined_mean);
  update(running_var, squares / (total - 1));
  return {joined_mean, (squares / total).add_(eps).rsqrt_()};
}

std::tuple<Tensor, Tensor> batch_norm_gather_equal(const Tensor &x, const Tensor &mean, const Tensor &invstd,
                                                   const OptionalTensor &running_mean, const OptionalTensor &running_var,
                                                   double momentum, double eps, int64_t count) {
  return batch_norm_gather(x, mean, invstd, running_mean, running_var, momentum, eps,
                           at::full({mean.size(0)}, static_cast<double>(count)));
}

Tensor batch_norm_elemt(const Tensor &x, const OptionalTensor &weight, const OptionalTensor &bias, const Tensor &mean,
                        const Tensor &invstd, double) {
  const Tensor y = (widen(x, x) - by_channel(mean, x)) * by_channel(invstd, x);
  if (weight && weight->defined())
    y.mul_(by_channel(*weight, x));
  if (bias && bias->defined())
    y.add_(by_channel(*bias, x));
  return narrow(y, x.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(const Tensor &grad, const Tensor &x,
                                                                      const Tensor &mean, const Tensor &invstd,
                                                                      const OptionalTensor &weight, bool want_sums,
                                                                      bool want_weight, bool want_bias) {
  const Tensor dy = widen(grad, x);
  const Tensor sum = dy.sum(but_channels(x));
  const Tensor sum_centred = (dy * (widen(x, x) - by_channel(mean, x))).sum(but_channels(x));
  const Tensor dw = sum_centred * widen(invstd, x);
  const at::ScalarType type = type_of(weight, x);
  return {want_sums ? sum : Tensor(), want_sums ? sum_centred : Tensor(), want_weight ? narrow(dw, type) : Tensor(),
          want_bias ? narrow(sum, type) : Tensor()};
}

Tensor batch_norm_backward_elemt(const Tensor &grad, const Tensor &x, const Tensor &mean, const Tensor &invstd,
                                 const OptionalTensor &weight, const Tensor &sum, const Tensor &sum_centred,
                                 const Tensor &count) {
  const Tensor total = count.sum(), r = by_channel(invstd, x);
  const Tensor dx = widen(grad, x) - by_channel(sum, x) / total -
                    (widen(x, x) - by_channel(mean, x)) * r.square() * (by_channel(sum_centred, x) / total);
  dx.mul_(r);
  if (weight && weight->defined())
    dx.mul_(by_channel(*weight, x));
  return narrow(dx, x.scalar_type());
}

} // namespace

void register_norm(torch::Library &library) {
  register_host<layer_norm>(library, "native_layer_norm");
  register_host<layer_norm_backward>(library, "native_layer_norm_backward");
  register_host<group_norm>(library, "native_group_norm");
  register_host<group_norm_backward>(library, "native_group_norm_backward");
  register_host<rms_norm>(library, "_fused_rms_norm");
  register_host<rms_norm_backward>(library, "_fused_rms_norm_backward");
  register_host<batch_norm_stats>(library, "batch_norm_stats");
  register_host<batch_norm_gather_equal>(library, "batch_norm_gather_stats");
  register_host<batch_norm_gather>(library, "batch_norm_gather_stats_with_counts");
  register_host<batch_norm_elemt>(library, "batch_norm_elemt");
  register_host<batch_norm_backward_reduce>(library, "batch_norm_backward_reduce");
  register_host<batch_norm_backward_elemt>(library, "batch_norm_backward_elemt");
}

} // namespace vnode_aten
