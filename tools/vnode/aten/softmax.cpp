/* SPDX-License-Identifier: Apache-2.0 */
#include "softmax.h"

#include <ATen/OpMathType.h>
#include <ATen/native/Resize.h>

#include "boxed.h"

namespace vnode_aten {

namespace {

using Forward = Tensor (*)(const Tensor &, int64_t, bool);
using Backward = Tensor (*)(const Tensor &, const Tensor &, int64_t, at::ScalarType);

template <Forward function> Tensor forward(const Tensor &x, int64_t dim, bool half_to_float) {
  return function(half_to_float ? x.to(at::kFloat) : x, dim, false);
}

template <Backward function> Tensor backward(const Tensor &grad, const Tensor &y, int64_t dim, at::ScalarType input_type) {
  return function(grad, y, dim, grad.scalar_type()).to(input_type);
}

/* The out= forms: the result has the place that the caller gave. */
Tensor &give(const Tensor &result, Tensor &out) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

template <Forward function> Tensor &forward_out(const Tensor &x, int64_t dim, bool half_to_float, Tensor &out) {
  return give(forward<function>(x, dim, half_to_float), out);
}

template <Backward function>
Tensor &backward_out(const Tensor &grad, const Tensor &y, int64_t dim, at::ScalarType input_type, Tensor &out) {
  return give(backward<function>(grad, y, dim, input_type), out);
}

Tensor embedding_backward(const Tensor &grad, const Tensor &indices, c10::SymInt weights, c10::SymInt padding,
                          bool scale_by_frequency) {
  const Tensor wide = grad.to(at::toOpMathType(grad.scalar_type()));
  return at::embedding_dense_backward_symint(wide, indices, weights, padding, scale_by_frequency).to(grad.scalar_type());
}

} // namespace

void register_softmax(torch::Library &library) {
  register_host<forward<at::_softmax>>(library, "_softmax");
  register_host<forward_out<at::_softmax>>(library, "_softmax.out");
  register_host<backward<at::_softmax_backward_data>>(library, "_softmax_backward_data");
  register_host<backward_out<at::_softmax_backward_data>>(library, "_softmax_backward_data.out");
  register_host<forward<at::_log_softmax>>(library, "_log_softmax");
  register_host<forward_out<at::_log_softmax>>(library, "_log_softmax.out");
  register_host<backward<at::_log_softmax_backward_data>>(library, "_log_softmax_backward_data");
  register_host<backward_out<at::_log_softmax_backward_data>>(library, "_log_softmax_backward_data.out");
  register_host<embedding_backward>(library, "embedding_dense_backward");
}

} // namespace vnode_aten
