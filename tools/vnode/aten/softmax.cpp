/* SPDX-License-Identifier: Apache-2.0 */
#include "softmax.h"

#include <ATen/OpMathType.h>
#include <ATen/native/Resize.h>

#include "alias.h"

namespace vnode_aten {

namespace {

using Forward = Tensor (*)(const Tensor &, int64_t, bool);
using Backward = Tensor (*)(const Tensor &, const Tensor &, int64_t, at::ScalarType);

Tensor forward(const char *name, Forward function, const Tensor &x, int64_t dim, bool half_to_float) {
  HostScope scope(x.device());
  Tensor y;
  on_stream(x.device(), name, [&] { y = function(half_to_float ? host_view(x).to(at::kFloat) : host_view(x), dim, false); });
  return to_device(y, x.device());
}

Tensor backward(const char *name, Backward function, const Tensor &grad, const Tensor &y, int64_t dim, at::ScalarType input_type) {
  HostScope scope(grad.device());
  Tensor dx;
  on_stream(grad.device(), name, [&] { dx = function(host_view(grad), host_view(y), dim, grad.scalar_type()).to(input_type); });
  return to_device(dx, grad.device());
}

/* The out= form: the result has the place that the caller gave. */
Tensor &give(const Tensor &result, Tensor &out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

Tensor softmax(const Tensor &x, int64_t dim, bool half_to_float) {
  return forward("_softmax", at::_softmax, x, dim, half_to_float);
}
Tensor log_softmax(const Tensor &x, int64_t dim, bool half_to_float) {
  return forward("_log_softmax", at::_log_softmax, x, dim, half_to_float);
}
Tensor softmax_backward(const Tensor &grad, const Tensor &y, int64_t dim, at::ScalarType type) {
  return backward("_softmax_backward_data", at::_softmax_backward_data, grad, y, dim, type);
}
Tensor log_softmax_backward(const Tensor &grad, const Tensor &y, int64_t dim, at::ScalarType type) {
  return backward("_log_softmax_backward_data", at::_log_softmax_backward_data, grad, y, dim, type);
}
Tensor &softmax_out(const Tensor &x, int64_t dim, bool half_to_float, Tensor &out) {
  return give(softmax(x, dim, half_to_float), out);
}
Tensor &log_softmax_out(const Tensor &x, int64_t dim, bool half_to_float, Tensor &out) {
  return give(log_softmax(x, dim, half_to_float), out);
}
Tensor &softmax_backward_out(const Tensor &grad, const Tensor &y, int64_t dim, at::ScalarType type, Tensor &out) {
  return give(softmax_backward(grad, y, dim, type), out);
}
Tensor &log_softmax_backward_out(const Tensor &grad, const Tensor &y, int64_t dim, at::ScalarType type, Tensor &out) {
  return give(log_softmax_backward(grad, y, dim, type), out);
}

Tensor embedding_backward(const Tensor &grad, const Tensor &indices, c10::SymInt weights, c10::SymInt padding, bool scale_by_frequency) {
  HostScope scope(grad.device());
  Tensor dw;
  on_stream(grad.device(), "embedding_dense_backward", [&] {
    const Tensor wide = host_view(grad).to(at::toOpMathType(grad.scalar_type()));
    dw = at::embedding_dense_backward_symint(wide, host_view(indices), weights, padding, scale_by_frequency).to(grad.scalar_type());
  });
  return to_device(dw, grad.device());
}

} // namespace

void register_softmax(torch::Library &library) {
  library.impl("_softmax", TORCH_FN(softmax));
  library.impl("_softmax.out", TORCH_FN(softmax_out));
  library.impl("_softmax_backward_data", TORCH_FN(softmax_backward));
  library.impl("_softmax_backward_data.out", TORCH_FN(softmax_backward_out));
  library.impl("_log_softmax", TORCH_FN(log_softmax));
  library.impl("_log_softmax.out", TORCH_FN(log_softmax_out));
  library.impl("_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
  library.impl("_log_softmax_backward_data.out", TORCH_FN(log_softmax_backward_out));
  library.impl("embedding_dense_backward", TORCH_FN(embedding_backward));
}

} // namespace vnode_aten
