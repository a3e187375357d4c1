/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading this library puts the layer in place: a boxed kernel over every ATen operator that has a CUDA and a CPU kernel,
 * the hand-written ones over them, and the kernels that PyTorch reaches without its dispatcher (copies, random numbers).
 *
 * What has neither keeps PyTorch's CUDA kernel: its launch reaches the stand-in runtime, which ends the process with the
 * kernel's name. Nothing is skipped in silence.
 */
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <string_view>

#include "attention.h"
#include "boxed.h"
#include "copy.h"
#include "norm.h"
#include "random.h"
#include "softmax.h"

namespace vnode_aten {

namespace {

/* Operators that stay PyTorch's own, all overloads of each. */
constexpr std::string_view kTorchOwn[] = {
    /* reach the stand-ins of cuBLAS and cuBLASLt, where the shim sees them */
    "mm", "addmm", "bmm", "baddbmm", "_int_mm", "_addmm_activation", "_scaled_mm", "_scaled_mm_v2", "_scaled_addmm",
    /* allocate, alias or synchronise, and launch nothing */
    "empty", "empty_strided", "_efficientzerotensor", "resize_", "set_", "is_set_to", "record_stream", "_local_scalar_dense", "as_strided", "view",
    "view_as_complex", "view_as_real", "unfold", "_reshape_alias", "_nested_view_from_buffer", "_nested_compute_contiguous_strides_offsets",
    /* choose among kernels by the device's properties */
    "_fused_sdp_choice", "_cudnn_init_dropout_state",
    /* run on the kernels of random.cpp */
    "uniform_", "normal_", "normal", "log_normal_", "exponential_", "cauchy_", "geometric_", "bernoulli_", "bernoulli", "random_", "multinomial",
    /* written in terms of other operators; the CPU's would give a CPU tensor without strides */
    "_foreach_clone", "_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc",
};

/* Composite operators that would choose a CUDA library, or start a kernel, past the dispatcher: taken whole. */
constexpr const char *kTakenWhole[] = {"convolution", "convolution_backward", "conj_physical_"};

constexpr std::string_view kNamespace = "aten::";

bool is_torch_own(std::string_view name) {
  return std::find(std::begin(kTorchOwn), std::end(kTorchOwn), name) != std::end(kTorchOwn);
}

void register_boxed(torch::Library &library, const c10::OperatorHandle &op) {
  const c10::OperatorName &name = op.operator_name();
  std::string qualified = name.name.substr(kNamespace.size());
  if (!name.overload_name.empty())
    qualified += "." + name.overload_name;
  library.impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostKernel>(op)));
}

void register_all_boxed(torch::Library &library) {
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName &name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    if (name.name.rfind(kNamespace, 0) != 0 || is_torch_own(std::string_view(name.name).substr(kNamespace.size())))
      continue;
    const auto op = dispatcher.findSchema(name);
    if (op && op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU))
      register_boxed(library, *op);
  }
  for (const char *name : kTakenWhole)
    register_boxed(library, dispatcher.findSchemaOrThrow((std::string(kNamespace) + name).c_str(), ""));
}

/* Replacing a kernel warns, 1,140 times. */
class Quiet final : public c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

struct Installed {
  Installed() {
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    /* cuDNN cannot start without a device: convolution, batch norm and recurrent layers take PyTorch's native path. */
    at::globalContext().setUserEnabledCuDNN(false);
    /* Never destroyed: at exit PyTorch's dispatcher may be gone before this library. */
    auto *boxed = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    register_all_boxed(*boxed);
    auto *written = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    register_attention(*written);
    register_norm(*written);
    register_softmax(*written);
    register_host<native_dropout>(*written, "native_dropout", {native_dropout_words, nullptr});
    register_host<fused_dropout>(*written, "_fused_dropout", {fused_dropout_words, nullptr});
    register_host<masked_scale>(*written, "_masked_scale");
    install_copy();
    install_random();
  }
};

const Installed installed;

} // namespace

} // namespace vnode_aten
