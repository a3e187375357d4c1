/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a call of an operator will give, before its kernel has run.
 *
 * PyTorch's host code must know a result's shape, strides and type when the call returns; the work may run later. CUDA's
 * kernels know them from their arguments. The CPU's kernels are asked once: they run on stand-ins of the operands, zeros of
 * the same geometry, and the answer is kept for all calls with the same arguments (values of tensors apart). Errors in the
 * arguments show there, as they do on a GPU. Operators whose results' shapes depend on values are no matter of this file.
 *
 * Vocabulary
 *   operand   a device tensor of the call, with its host view.
 *   outcome   what becomes of a call: which written arguments are resized, and what each result is.
 *   stand-in  a CPU tensor with the geometry of a host view over memory of its own; operands that share memory share it.
 */
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "alias.h"

namespace vnode_aten {

struct Operand {
  Tensor device, host;
  bool written;
};
using Operands = c10::SmallVector<Operand, 8>;

struct Geometry {
  std::vector<int64_t> sizes, strides;
  at::ScalarType type = at::kFloat;
  bool wrapped = false; /* a number that Python wrapped: it does not decide the type of other results */

  bool operator==(const Geometry &other) const = default;
};

struct Result {
  enum Source {
    kValue,     /* no tensor */
    kUndefined, /* a tensor that is undefined */
    kArgument,  /* an operand itself */
    kView,      /* other geometry over an operand's memory */
    kFresh,     /* new memory */
  };
  Source source = kValue;
  size_t operand = 0; /* kArgument, kView */
  int64_t offset = 0; /* kView: in elements, from the operand's first */
  Geometry geometry;  /* kView, kFresh */
  c10::IValue value;  /* kValue */

  bool operator==(const Result &other) const {
    return source == other.source && operand == other.operand && offset == other.offset && geometry == other.geometry;
  }
};

struct Return {
  bool list;
  std::vector<Result> results; /* one, unless it is a list */
};

struct Resize {
  size_t operand;
  Geometry geometry;
  bool moved; /* to larger memory */
};

struct Outcome {
  std::vector<Resize> resized;
  std::vector<Return> returns;
};

/* `value` with each tensor in it, also in lists, replaced by what `change(tensor)` gives; undefined ones stay. */
c10::IValue map_tensors(const c10::IValue &value, const std::function<Tensor(const Tensor &)> &change);

/* What `host`, a result of a kernel that ran on `operands` (host views or stand-ins), is. */
Result describe(const Tensor &host, c10::ArrayRef<Tensor> operands, const std::string &name);

/* Equal keys: the same outcome. Empty: an argument has no key. `numbers`: floating-point arguments count by their values.
   `arguments` hold the host views of `operands`. */
std::string outcome_key(const Operands &operands, c10::ArrayRef<c10::IValue> arguments, bool numbers);

/* Runs `kernel` on stand-ins. Throws what the kernel throws for any values.
   `source[i]`: the result i is an argument by the schema, and is not described. */
Outcome learn(const Operands &operands, c10::ArrayRef<c10::IValue> arguments, const std::vector<int> &source,
              const std::string &name, const std::function<void(torch::jit::Stack &)> &kernel);

} // namespace vnode_aten
