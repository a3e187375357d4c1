/* SPDX-License-Identifier: Apache-2.0 */
#include "outcome.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace vnode_aten {

using c10::IValue;
using torch::jit::Stack;

IValue map_tensors(const IValue &value, const std::function<Tensor(const Tensor &)> &change) {
  auto changed = [&](const Tensor &t) { return t.defined() ? change(t) : t; };
  if (value.isTensor())
    return changed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor &t : value.toTensorVector())
      list.push_back(changed(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor> t : value.toOptionalTensorList())
      list.push_back(t ? std::optional<Tensor>(changed(*t)) : std::nullopt);
    return list;
  }
  return value;
}

namespace {

Geometry geometry_of(const Tensor &t) {
  return {t.sizes().vec(), t.strides().vec(), t.scalar_type(), t.unsafeGetTensorImpl()->is_wrapped_number()};
}

/* ------------------------------------------------------------------------------------------------------------------- keys
 */

class Key {
public:
  template <typename T> void put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char *>(&value), sizeof value);
  }

  void put_geometry(const Tensor &t) {
    const auto *impl = t.unsafeGetTensorImpl();
    put(static_cast<int16_t>(t.scalar_type()));
    put(static_cast<int8_t>(impl->is_wrapped_number() | t.is_conj() << 1 | t.is_neg() << 2));
    put(static_cast<int8_t>(t.dim()));
    for (int64_t d = 0; d < t.dim(); d++) {
      put(t.size(d));
      put(t.stride(d));
    }
  }

  void put_text(const std::string &text) {
    put(text.size());
    bytes_ += text;
  }

  std::string take() {
    return std::move(bytes_);
  }

private:
  std::string bytes_;
};

class Arguments {
public:
  Arguments(Key &key, const Operands &operands, bool numbers) : key_(key), numbers_(numbers) {
    std::unordered_map<const c10::StorageImpl *, size_t> first;
    for (size_t i = 0; i < operands.size(); i++) {
      const Tensor &host = operands[i].host;
      index_.emplace(host.unsafeGetTensorImpl(), i);
      const size_t base = first.emplace(host.storage().unsafeGetStorageImpl(), i).first->second;
      key_.put_geometry(host);
      key_.put(base);
      if (base != i)
        key_.put(host.storage_offset() - operands[base].host.storage_offset());
    }
  }

  /* False: the argument has no key. */
  bool put(const IValue &value) {
    if (value.isNone()) {
      key_.put('n');
    } else if (value.isTensor()) {
      put_tensor(value.toTensor());
    } else if (value.isBool()) {
      key_.put(value.toBool() ? 'T' : 'F');
    } else if (value.isInt()) {
      key_.put('i');
      key_.put(value.toInt());
    } else if (value.isDouble()) {
      key_.put('d');
      key_.put(numbers_ ? value.toDouble() : 0.0);
    } else if (value.isComplexDouble()) {
      key_.put('c');
      key_.put(numbers_ ? value.toComplexDouble().real() : 0.0);
      key_.put(numbers_ ? value.toComplexDouble().imag() : 0.0);
    } else if (value.isString()) {
      key_.put('s');
      key_.put_text(value.toStringRef());
    } else if (value.isDevice()) {
      key_.put('D');
      key_.put(value.toDevice().type());
    } else if (value.isGenerator()) {
      key_.put('g');
    } else if (value.isList()) {
      const auto list = value.toListRef();
      key_.put('l');
      key_.put(list.size());
      for (const IValue &element : list)
        if (!put(element))
          return false;
    } else {
      return false;
    }
    return true;
  }

private:
  void put_tensor(const Tensor &t) {
    if (!t.defined()) {
      key_.put('u');
    } else if (const auto known = index_.find(t.unsafeGetTensorImpl()); known != index_.end()) {
      key_.put('o');
      key_.put(known->second);
    } else {
      key_.put('h');
      key_.put_geometry(t);
    }
  }

  Key &key_;
  std::unordered_map<const c10::TensorImpl *, size_t> index_;
  bool numbers_;
};

/* -------------------------------------------------------------------------------------------------------------- stand-ins
 */

constexpr size_t kMapBytes = 1 << 20;

/* Zeros that take no memory until they are written. */
c10::DataPtr zeros(size_t bytes) {
  const c10::Device cpu(c10::kCPU);
  if (bytes < kMapBytes) {
    void *block = std::calloc(1, std::max<size_t>(bytes, 1));
    TORCH_CHECK(block, "virtual node: no memory");
    return {block, block, &std::free, cpu};
  }
  struct Map {
    void *at;
    size_t bytes;
  };
  void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(at != MAP_FAILED, "virtual node: no address space");
  auto release = [](void *context) {
    auto *map = static_cast<Map *>(context);
    munmap(map->at, map->bytes);
    delete map;
  };
  return {at, new Map{at, bytes}, release, cpu};
}

/* Stand-ins of the operands, and the arguments with them in place of the host views. */
struct Rehearsal {
  std::vector<Tensor> operands;
  Stack arguments;
};

Rehearsal rehearsal(const Operands &operands, c10::ArrayRef<IValue> arguments, bool ones) {
  std::unordered_map<const c10::StorageImpl *, c10::Storage> storages;
  std::unordered_map<const c10::TensorImpl *, Tensor> stand_ins;
  Rehearsal made;
  for (const Operand &operand : operands) {
    const Tensor &host = operand.host;
    const auto *shared = host.storage().unsafeGetStorageImpl();
    auto storage = storages.find(shared);
    if (storage == storages.end()) {
      const size_t bytes = shared->nbytes();
      storage = storages
                    .emplace(shared,
                             c10::Storage(c10::Storage::use_byte_size_t(), bytes, zeros(bytes), c10::GetAllocator(c10::kCPU),
                                          /*resizable=*/true))
                    .first;
    }
    Tensor made_tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage->second),
                                                                  c10::DispatchKeySet(c10::DispatchKey::CPU), host.dtype());
    c10::TensorImpl *impl = made_tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    if (host.unsafeGetTensorImpl()->is_wrapped_number())
      impl->set_wrapped_number(true);
    made_tensor._set_conj(host.is_conj());
    made_tensor._set_neg(host.is_neg());
    if (ones)
      made_tensor.fill_(1);
    stand_ins.emplace(host.unsafeGetTensorImpl(), made_tensor);
    made.operands.push_back(std::move(made_tensor));
  }
  for (const IValue &argument : arguments)
    made.arguments.push_back(map_tensors(argument, [&](const Tensor &t) {
      const auto known = stand_ins.find(t.unsafeGetTensorImpl());
      return known == stand_ins.end() ? t : known->second;
    }));
  return made;
}

Result value_of(const IValue &value) {
  Result result;
  result.value = value;
  return result;
}

std::vector<Resize> resizes(const Operands &before, c10::ArrayRef<Tensor> after) {
  std::vector<Resize> all;
  for (size_t i = 0; i < before.size(); i++) {
    const Tensor &host = before[i].host;
    if (host.sizes() != after[i].sizes() || host.strides() != after[i].strides())
      all.push_back({i, geometry_of(after[i]), after[i].storage().nbytes() > host.storage().nbytes()});
  }
  return all;
}

} // namespace

Result describe(const Tensor &host, c10::ArrayRef<Tensor> operands, const std::string &name) {
  Result result;
  if (!host.defined()) {
    result.source = Result::kUndefined;
    return result;
  }
  TORCH_CHECK(host.has_storage(), "virtual node: ", name,
              " gives a sparse tensor, which its CPU kernel cannot put on the device");
  for (size_t i = 0; i < operands.size(); i++) {
    if (operands[i].is_same(host)) {
      result.source = Result::kArgument;
      result.operand = i;
      return result;
    }
    if (host.numel() != 0 && operands[i].storage().unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl()) {
      result.source = Result::kView;
      result.operand = i;
      result.offset = host.storage_offset() - operands[i].storage_offset();
      result.geometry = geometry_of(host);
      return result;
    }
  }
  result.source = Result::kFresh;
  result.geometry = geometry_of(host);
  return result;
}

std::string outcome_key(const Operands &operands, c10::ArrayRef<IValue> arguments, bool numbers) {
  Key key;
  key.put(c10::get_default_dtype().id());
  Arguments writer(key, operands, numbers);
  for (const IValue &argument : arguments)
    if (!writer.put(argument))
      return {};
  return key.take();
}

Outcome learn(const Operands &operands, c10::ArrayRef<IValue> arguments, const std::vector<int> &source,
              const std::string &name, const std::function<void(Stack &)> &kernel) {
  Rehearsal run = rehearsal(operands, arguments, false);
  try {
    kernel(run.arguments);
  } catch (...) {
    /* It may only dislike zeros (a division of integers, an assertion). */
    const std::exception_ptr first = std::current_exception();
    run = rehearsal(operands, arguments, true);
    try {
      kernel(run.arguments);
    } catch (...) {
      std::rethrow_exception(first);
    }
  }
  Outcome outcome;
  outcome.resized = resizes(operands, run.operands);
  for (size_t i = 0; i < source.size(); i++) {
    const IValue &result = run.arguments[run.arguments.size() - source.size() + i];
    Return described{result.isTensorList(), {}};
    if (source[i] >= 0)
      described.list = false;
    else if (result.isTensor())
      described.results.push_back(describe(result.toTensor(), run.operands, name));
    else if (result.isTensorList())
      for (const Tensor &t : result.toTensorVector())
        described.results.push_back(describe(t, run.operands, name));
    else
      described.results.push_back(value_of(result));
    outcome.returns.push_back(std::move(described));
  }
  return outcome;
}

} // namespace vnode_aten
