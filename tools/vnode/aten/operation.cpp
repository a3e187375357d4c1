/* SPDX-License-Identifier: Apache-2.0 */
#include "operation.h"

#include <ATen/record_function.h>
#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <string>

#include "model.h"

namespace vnode_aten {

namespace {

/* Separate pieces (of rows and pitch) in which a strided operand is described; with more it is left out. */
constexpr int64_t kMaxPieces = 8;

struct Dim {
  int64_t size, stride;
};

/* The dimensions that reach different memory, smallest stride first, merged where one continues the other. */
c10::SmallVector<Dim, 6> distinct_dims(const Tensor &t) {
  c10::SmallVector<Dim, 6> dims;
  for (int64_t d = 0; d < t.dim(); d++)
    if (t.size(d) != 1 && t.stride(d) != 0)
      dims.push_back({t.size(d), t.stride(d)});
  std::sort(dims.begin(), dims.end(), [](const Dim &a, const Dim &b) { return a.stride < b.stride; });
  c10::SmallVector<Dim, 6> merged;
  for (const Dim &dim : dims) {
    if (!merged.empty() && merged.back().size * merged.back().stride == dim.stride)
      merged.back().size *= dim.size;
    else
      merged.push_back(dim);
  }
  return merged;
}

const char *data_of(const Tensor &t) {
  return static_cast<const char *>(t.storage().data()) + static_cast<size_t>(t.storage_offset()) * t.itemsize();
}

} // namespace

uint64_t memory_bytes(const Tensor &t) {
  if (t.is_contiguous())
    return t.nbytes();
  uint64_t elements = t.numel() == 0 ? 0 : 1;
  for (int64_t d = 0; elements && d < t.dim(); d++)
    if (t.stride(d) != 0)
      elements *= static_cast<uint64_t>(t.size(d));
  return elements * t.itemsize();
}

void Footprint::reads_value(const void *at, size_t bytes) {
  accesses_.push_back({at, bytes, 1, 0, false});
}

void Footprint::add(const Tensor &host, bool write) {
  if (!host.defined() || host.numel() == 0)
    return;
  bytes_ += memory_bytes(host);
  if (host.is_contiguous()) {
    accesses_.push_back({data_of(host), host.nbytes(), 1, 0, write});
    return;
  }
  const size_t item = host.itemsize();
  auto dims = distinct_dims(host);
  auto dim = dims.begin();
  struct vnode_access piece = {data_of(host), item, 1, 0, write};
  if (dim != dims.end() && dim->stride == 1)
    piece.row_bytes = static_cast<size_t>((dim++)->size) * item;
  if (dim != dims.end()) {
    piece.rows = static_cast<size_t>(dim->size);
    piece.pitch = static_cast<size_t>((dim++)->stride) * item;
    if (piece.pitch < piece.row_bytes) /* rows overlap: one stretch */
      piece = {piece.at, (piece.rows - 1) * piece.pitch + piece.row_bytes, 1, 0, write};
  }
  int64_t pieces = 1;
  for (auto outer = dim; outer != dims.end(); outer++)
    pieces *= outer->size;
  if (pieces > kMaxPieces)
    return;
  for (int64_t i = 0; i < pieces; i++) {
    struct vnode_access one = piece;
    int64_t rest = i, offset = 0;
    for (auto outer = dim; outer != dims.end(); outer++) {
      offset += rest % outer->size * outer->stride;
      rest /= outer->size;
    }
    one.at = static_cast<const char *>(piece.at) + static_cast<size_t>(offset) * item;
    accesses_.push_back(one);
  }
}

struct vnode_stream *current_stream(c10::Device device) {
  return reinterpret_cast<struct vnode_stream *>(c10::cuda::getCurrentCUDAStream(device.index()).stream());
}

int64_t kernel_ns(uint64_t bytes) {
  return vnode_model_kernel_ns(bytes);
}

void check_submitted(enum vnode_status status) {
  if (status == VNODE_OK)
    return;
  TORCH_CHECK(status != VNODE_NOT_INITIALIZED,
              "CUDA error: initialization error (CUDA was used before fork; start DataLoader workers before, or by spawn)");
  if (status >= VNODE_NOT_READY) /* the number is CUDA's */
    C10_CUDA_CHECK(static_cast<cudaError_t>(status));
  TORCH_CHECK(false, "CUDA error: the virtual node refused an operation (status ", static_cast<int>(status), ")");
}

void submit(struct vnode_stream *stream, struct vnode_op &op, const Footprint &footprint) {
  static const int64_t host_ns = vnode_model_host_ns("torch");
  vnode_host_charge(host_ns);
  op.accesses = footprint.accesses().data();
  op.access_count = footprint.accesses().size();
  check_submitted(vnode_op_submit(stream, &op));
}

LateScope::LateScope()
    : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset),
      warnings_(&quiet_) {}

void run_late(const char *name, void (*run)(void *), void *work) {
  const char *what = "an exception of no known type";
  std::string text;
  try {
    LateScope scope;
    return run(work);
  } catch (const c10::Error &error) {
    text = error.what_without_backtrace();
    what = text.c_str();
  } catch (const std::exception &error) {
    text = error.what();
    what = text.c_str();
  } catch (...) {
  }
  const std::string message = std::string(name) + ": device-side assert triggered: " + what;
  vnode_op_fail(cudaErrorAssert, message.c_str());
}

} // namespace vnode_aten
