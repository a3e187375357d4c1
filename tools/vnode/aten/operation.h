/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the layer puts into a stream: a work, the memory that it touches, and how long the modelled GPU takes for it.
 *
 * Vocabulary
 *   late        the work runs after the call that submitted it has returned, on any thread, perhaps many times (a graph).
 *               Everything that it needs is in the work: host views of device memory, copies of host values. It owns no
 *               device memory: PyTorch's allocator sees tensors die when the program drops them, as on a GPU.
 *   footprint   the device memory of an operation's operands and results.
 *
 * A CPU kernel that refuses the values it finds (an index out of range) throws: in eager order the exception reaches the
 * caller; late, it is what an assertion in a kernel is on a GPU: the context ends with cudaErrorAssert.
 */
#pragma once

#include <memory>

#include "alias.h"

namespace vnode_aten {

class Footprint {
public:
  /* pre: `host` is a host view, or a CPU tensor of this layer whose bytes count as device memory. Undefined: nothing. */
  void reads(const Tensor &host) {
    add(host, false);
  }
  void writes(const Tensor &host) {
    add(host, true);
  }
  void reads_value(const void *at, size_t bytes);

  uint64_t bytes() const {
    return bytes_;
  }
  const c10::SmallVectorImpl<struct vnode_access> &accesses() const {
    return accesses_;
  }

private:
  void add(const Tensor &host, bool write);

  uint64_t bytes_ = 0;
  c10::SmallVector<struct vnode_access, 8> accesses_;
};

/* Bytes that a pass over `t` moves: a broadcast element once. */
uint64_t memory_bytes(const Tensor &t);

struct vnode_stream *current_stream(c10::Device device);

/* Modelled time of a kernel that moves `bytes`. */
int64_t kernel_ns(uint64_t bytes);

/* Throws as PyTorch does after a failed CUDA call when the node refuses work (in a forked child, in a capture). */
void check_submitted(enum vnode_status status);

/* Submits, and charges the calling thread for what PyTorch's host code takes for an operator. */
void submit(struct vnode_stream *stream, struct vnode_op &op, const Footprint &footprint);

/* The state of a thread on which late work runs: no dispatch mode, no observer, no warning of what that thread is doing. */
class LateScope {
public:
  LateScope();

private:
  class Quiet final : public c10::WarningHandler {
    void process(const c10::Warning &) override {}
  };
  c10::impl::ForceDispatchKeyGuard keys_;
  at::DisableRecordFunctionGuard observers_;
  Quiet quiet_;
  c10::WarningUtils::WarningHandlerGuard warnings_;
};

/* Runs a late work; an exception ends the context, with a message that names the operation. */
void run_late(const char *name, void (*run)(void *work), void *work);

/* Submits `work()` and returns when it has run: it may refer to the caller's variables. Rethrows what it throws. In an order
   that is not eager the stream is synchronised: for work whose result the host must see at once.
   pre: the stream does not capture. */
template <typename Work>
void on_stream_at_once(struct vnode_stream *stream, const char *name, const Footprint &footprint, int64_t duration_ns,
                       Work &work) {
  struct Call {
    Work *work;
    std::exception_ptr error;
  };
  Call call{&work, nullptr};
  Call *at = &call;
  struct vnode_op op = {};
  op.name = name;
  /* The engine is C: an exception must not cross it. */
  op.work = [](void *args) {
    Call *c = *static_cast<Call **>(args);
    try {
      (*c->work)();
    } catch (...) {
      c->error = std::current_exception();
    }
  };
  op.args = &at;
  op.args_bytes = sizeof at;
  op.duration_ns = duration_ns;
  submit(stream, op, footprint);
  if (vnode_stream_is_late(stream))
    check_submitted(vnode_stream_synchronize(stream));
  if (call.error)
    std::rethrow_exception(call.error);
}

/* Puts `work()` into `stream`'s order, where it may run late.
   `name` must outlive the process's use of the node (a literal, or a string owned by a registered kernel). */
template <typename Work>
void on_stream(struct vnode_stream *stream, const char *name, const Footprint &footprint, int64_t duration_ns, Work work) {
  if (!vnode_stream_is_late(stream))
    return on_stream_at_once(stream, name, footprint, duration_ns, work);
  struct Kept {
    const char *name;
    Work work;
  };
  auto *kept = new Kept{name, std::move(work)};
  struct vnode_op op = {};
  op.name = name;
  op.work = [](void *args) {
    Kept *k = *static_cast<Kept **>(args);
    run_late(
        k->name, [](void *w) { (*static_cast<Work *>(w))(); }, &k->work);
  };
  op.drop = [](void *args) { delete *static_cast<Kept **>(args); };
  op.args = &kept;
  op.args_bytes = sizeof kept;
  op.duration_ns = duration_ns;
  submit(stream, op, footprint);
}

/* The same for a kernel whose time is that of the memory it moves, in the current stream of `device`. */
template <typename Work> void on_stream(c10::Device device, const char *name, const Footprint &footprint, Work work) {
  on_stream(current_stream(device), name, footprint, kernel_ns(footprint.bytes()), std::move(work));
}

} // namespace vnode_aten
