/* SPDX-License-Identifier: Apache-2.0 */
#include "norm.h"

#include <limits>
#include <numeric>

#include <ATen/OpMathType.h>

#include "alias.h"

namespace vnode_aten {

namespace {

using OptionalTensor = std::optional<Tensor>;

at::ScalarType acc_type(const Tensor &t) {
  return at::toOpMathType(t.scalar_type());
}

/* Host view in the accumulation type of `like`; undefined stays undefined. */
Tensor widen(const Tensor &t, const Tensor &like) {
  return t.defined() ? host_view(t).to(acc_type(like)) : t;
}

OptionalTensor widen(const OptionalTensor &t, const Tensor &like) {
  return t && t->defined() ? OptionalTensor(widen(*t, like)) : std::nullopt;
}

/* New device tensor of type `type`; undefined stays undefined. */
Tensor narrow(const Tensor &t, at::ScalarType type, c10::Device device) {
  return t.defined() ? to_device(t.to(type), device) : t;
}

at::ScalarType type_of(const OptionalTensor &t, const Tensor &otherwise) {
  return t && t->defined() ? t->scalar_type() : otherwise.scalar_type();
}

/* -------------------------------------------------------------------------------------------------- layer and group norm */

std::tuple<Tensor, Tensor, Tensor> layer_norm(const Tensor &x, c10::SymIntArrayRef shape, const OptionalTensor &weight, const OptionalTensor &bias,
                                              double eps) {
  HostScope scope(x.device());
  std::tuple<Tensor, Tensor, Tensor> r;
  on_stream(x.device(), "native_layer_norm",
            [&] { r = at::native_layer_norm_symint(widen(x, x), shape, widen(weight, x), widen(bias, x), eps); });
  return {narrow(std::get<0>(r), x.scalar_type(), x.device()), narrow(std::get<1>(r), acc_type(x), x.device()),
          narrow(std::get<2>(r), acc_type(x), x.device())};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor &grad, const Tensor &x, c10::SymIntArrayRef shape, const Tensor &mean,
                                                       const Tensor &rstd, const OptionalTensor &weight, const OptionalTensor &bias,
                                                       std::array<bool, 3> wanted) {
  HostScope scope(x.device());
  std::tuple<Tensor, Tensor, Tensor> r;
  on_stream(x.device(), "native_layer_norm_backward", [&] {
    r = at::native_layer_norm_backward_symint(widen(grad, x), widen(x, x), shape, widen(mean, x), widen(rstd, x), widen(weight, x), widen(bias, x),
                                              wanted);
  });
  return {narrow(std::get<0>(r), x.scalar_type(), x.device()), narrow(std::get<1>(r), type_of(weight, x), x.device()),
          narrow(std::get<2>(r), type_of(bias, x), x.device())};
}

std::tuple<Tensor, Tensor, Tensor> group_norm(const Tensor &x, const OptionalTensor &weight, const OptionalTensor &bias, c10::SymInt n, c10::SymInt c,
                                              c10::SymInt hw, int64_t group, double eps) {
  HostScope scope(x.device());
  std::tuple<Tensor, Tensor, Tensor> r;
  on_stream(x.device(), "native_group_norm",
            [&] { r = at::native_group_norm_symint(widen(x, x), widen(weight, x), widen(bias, x), n, c, hw, group, eps); });
  return {narrow(std::get<0>(r), x.scalar_type(), x.device()), narrow(std::get<1>(r), x.scalar_type(), x.device()),
          narrow(std::get<2>(r), x.scalar_type(), x.device())};
}

std::tuple<Tensor, Tensor, Tensor> group_norm_backward(const Tensor &grad, const Tensor &x, const Tensor &mean, const Tensor &rstd,
                                                       const OptionalTensor &weight, c10::SymInt n, c10::SymInt c, c10::SymInt hw, int64_t group,
                                                       std::array<bool, 3> wanted) {
  HostScope scope(x.device());
  std::tuple<Tensor, Tensor, Tensor> r;
  on_stream(x.device(), "native_group_norm_backward", [&] {
    r = at::native_group_norm_backward_symint(widen(grad, x).contiguous(), widen(x, x).contiguous(), widen(mean, x), widen(rstd, x), widen(weight, x), n,
                                              c, hw, group, wanted);
  });
  return {narrow(std::get<0>(r), x.scalar_type(), x.device()), narrow(std::get<1>(r), type_of(weight, x), x.device()),
          narrow(std::get<2>(r), type_of(weight, x), x.device())};
}

/* ---------------------------------------------------------------------------------------------------------------- RMS norm */

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
std::tuple<Tensor, Tensor> rms_norm(const Tensor &x, at::IntArrayRef shape, const OptionalTensor &weight, std::optional<double> eps) {
  HostScope scope(x.device());
  Tensor y, rstd;
  on_stream(x.device(), "_fused_rms_norm", [&] {
    const Tensor wide = widen(x, x);
    const double epsilon = eps.value_or(acc_type(x) == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon());
    rstd = wide.square().mean(last_dims(x, shape.size()), true).add_(epsilon).rsqrt_();
    y = wide * rstd;
    if (weight && weight->defined())
      y.mul_(widen(*weight, x));
  });
  return {narrow(y, x.scalar_type(), x.device()), to_device(rstd, x.device())};
}

/* With g = dy·w and n = x·r:  dx = r·(g − n·mean(g·n)),  dw = Σ dy·n over the rows. */
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor &grad, const Tensor &x, at::IntArrayRef shape, const Tensor &rstd, const OptionalTensor &weight,
                                             std::array<bool, 2> wanted) {
  HostScope scope(x.device());
  const bool has_weight = weight && weight->defined();
  Tensor dx, dw;
  on_stream(x.device(), "_fused_rms_norm_backward", [&] {
    const Tensor dy = widen(grad, x), r = widen(rstd, x), normal = widen(x, x) * r;
    if (wanted[0]) {
      const Tensor g = has_weight ? dy * widen(*weight, x) : dy;
      dx = (g - normal * (g * normal).mean(last_dims(x, shape.size()), true)) * r;
    }
    if (wanted[1] && has_weight) {
      dw = dy * normal;
      if (const auto rows = first_dims(x, shape.size()); !rows.empty())
        dw = dw.sum(rows);
    }
  });
  return {narrow(dx, x.scalar_type(), x.device()), narrow(dw, has_weight ? weight->scalar_type() : x.scalar_type(), x.device())};
}

/* ---------------------------------------------------------------------------------------- batch norm in parts (SyncBatchNorm) */

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
  HostScope scope(x.device());
  Tensor mean, invstd;
  on_stream(x.device(), "batch_norm_stats", [&] {
    const Tensor wide = widen(x, x);
    mean = wide.mean(but_channels(x));
    invstd = wide.var(but_channels(x), /*correction=*/0).add_(eps).rsqrt_();
  });
  return {to_device(mean, x.device()), to_device(invstd, x.device())};
}

/* Statistics of `counts[i]` elements each, [W, C], joined; running ones updated with the unbiased variance. */
std::tuple<Tensor, Tensor> batch_norm_gather(const Tensor &x, const Tensor &mean, const Tensor &invstd, const OptionalTensor &running_mean,
                                             const OptionalTensor &running_var, double momentum, double eps, const Tensor &counts) {
  HostScope scope(x.device());
  Tensor joined_mean, joined_invstd;
  on_stream(x.device(), "batch_norm_gather_stats_with_counts", [&] {
    const Tensor m = widen(mean, x), n = widen(counts, x).reshape({-1, 1}), total = n.sum();
    const Tensor variance = widen(invstd, x).pow(-2).sub_(eps);
    joined_mean = (m * n).sum(0).div_(total);
    const Tensor squares = ((variance + (m - joined_mean).square()) * n).sum(0);
    joined_invstd = (squares / total).add_(eps).rsqrt_();
    auto update = [&](const OptionalTensor &running, const Tensor &value) {
      if (running && running->defined())
        host_view(*running).mul_(1 - momentum).add_(value, momentum);
    };
    update(running_mean, joined_mean);
    update(running_var, squares / (total - 1));
  });
  return {to_device(joined_mean, x.device()), to_device(joined_invstd, x.device())};
}

std::tuple<Tensor, Tensor> batch_norm_gather_equal(const Tensor &x, const Tensor &mean, const Tensor &invstd, const OptionalTensor &running_mean,
                                                   const OptionalTensor &running_var, double momentum, double eps, int64_t count) {
  HostScope scope(x.device());
  return batch_norm_gather(x, mean, invstd, running_mean, running_var, momentum, eps, at::full({mean.size(0)}, static_cast<double>(count)));
}

Tensor batch_norm_elemt(const Tensor &x, const OptionalTensor &weight, const OptionalTensor &bias, const Tensor &mean, const Tensor &invstd, double) {
  HostScope scope(x.device());
  Tensor y;
  on_stream(x.device(), "batch_norm_elemt", [&] {
    y = (widen(x, x) - by_channel(mean, x)) * by_channel(invstd, x);
    if (weight && weight->defined())
      y.mul_(by_channel(*weight, x));
    if (bias && bias->defined())
      y.add_(by_channel(*bias, x));
  });
  return narrow(y, x.scalar_type(), x.device());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_backward_reduce(const Tensor &grad, const Tensor &x, const Tensor &mean, const Tensor &invstd,
                                                                      const OptionalTensor &weight, bool want_sums, bool want_weight, bool want_bias) {
  HostScope scope(x.device());
  Tensor sum, sum_centred, dw;
  on_stream(x.device(), "batch_norm_backward_reduce", [&] {
    const Tensor dy = widen(grad, x);
    sum = dy.sum(but_channels(x));
    sum_centred = (dy * (widen(x, x) - by_channel(mean, x))).sum(but_channels(x));
    dw = sum_centred * widen(invstd, x);
  });
  const c10::Device device = x.device();
  const at::ScalarType type = type_of(weight, x);
  return {want_sums ? to_device(sum, device) : Tensor(), want_sums ? to_device(sum_centred, device) : Tensor(),
          want_weight ? narrow(dw, type, device) : Tensor(), want_bias ? narrow(sum, type, device) : Tensor()};
}

Tensor batch_norm_backward_elemt(const Tensor &grad, const Tensor &x, const Tensor &mean, const Tensor &invstd, const OptionalTensor &weight,
                                 const Tensor &sum, const Tensor &sum_centred, const Tensor &count) {
  HostScope scope(x.device());
  Tensor dx;
  on_stream(x.device(), "batch_norm_backward_elemt", [&] {
    const Tensor total = host_view(count).sum(), r = by_channel(invstd, x);
    dx = widen(grad, x) - by_channel(sum, x) / total - (widen(x, x) - by_channel(mean, x)) * r.square() * (by_channel(sum_centred, x) / total);
    dx.mul_(r);
    if (weight && weight->defined())
      dx.mul_(by_channel(*weight, x));
  });
  return narrow(dx, x.scalar_type(), x.device());
}

} // namespace

void register_norm(torch::Library &library) {
  library.impl("native_layer_norm", TORCH_FN(layer_norm));
  library.impl("native_layer_norm_backward", TORCH_FN(layer_norm_backward));
  library.impl("native_group_norm", TORCH_FN(group_norm));
  library.impl("native_group_norm_backward", TORCH_FN(group_norm_backward));
  library.impl("_fused_rms_norm", TORCH_FN(rms_norm));
  library.impl("_fused_rms_norm_backward", TORCH_FN(rms_norm_backward));
  library.impl("batch_norm_stats", TORCH_FN(batch_norm_stats));
  library.impl("batch_norm_gather_stats", TORCH_FN(batch_norm_gather_equal));
  library.impl("batch_norm_gather_stats_with_counts", TORCH_FN(batch_norm_gather));
  library.impl("batch_norm_elemt", TORCH_FN(batch_norm_elemt));
  library.impl("batch_norm_backward_reduce", TORCH_FN(batch_norm_backward_reduce));
  library.impl("batch_norm_backward_elemt", TORCH_FN(batch_norm_backward_elemt));
}

} // namespace vnode_aten
