/* SPDX-License-Identifier: Apache-2.0 */
#include "random.h"

#include <ATen/AccumulateType.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/DistributionsHelper.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/native/TensorIterator.h>
#include <ATen/native/UnaryOps.h>

namespace vnode_aten {

namespace {

namespace transform = at::transformation;
using at::TensorIteratorBase;
using OptionalGenerator = std::optional<at::Generator>;

constexpr uint64_t kBlock = 256;      /* threads a block of PyTorch's distribution and dropout kernels */
constexpr uint64_t kWordsPerCall = 4; /* one cuRAND call moves the offset by at most this */

/* Threads of the grid that PyTorch launches for `numel` elements (DistributionTemplates.h, Dropout.cu). */
uint64_t grid_threads(uint64_t numel) {
  /* All devices of the node are equal. */
  static const cudaDeviceProp *const gpu = at::cuda::getCurrentDeviceProperties();
  const uint64_t most =
      static_cast<uint64_t>(gpu->multiProcessorCount) * (static_cast<uint64_t>(gpu->maxThreadsPerMultiProcessor) / kBlock);
  return kBlock * std::min(most, (numel + kBlock - 1) / kBlock);
}

/* Addresses of an iterator's only operand by linear index, fastest dimension first: the order in which CUDA numbers
 * elements. */
class Elements {
public:
  explicit Elements(TensorIteratorBase &iter)
      : base_(static_cast<char *>(iter.data_ptr(0))), shape_(iter.shape().begin(), iter.shape().end()),
        strides_(iter.strides(0).begin(), iter.strides(0).end()) {}

  template <typename T> T &at(uint64_t index) const {
    if (shape_.size() == 1)
      return *reinterpret_cast<T *>(base_ + static_cast<int64_t>(index) * strides_[0]);
    char *address = base_;
    for (size_t d = 0; d < shape_.size(); d++) {
      address += static_cast<int64_t>(index % static_cast<uint64_t>(shape_[d])) * strides_[d];
      index /= static_cast<uint64_t>(shape_[d]);
    }
    return *reinterpret_cast<T *>(address);
  }

private:
  char *base_;
  c10::SmallVector<int64_t, 4> shape_, strides_; /* own copies: a late kernel outlives the iterator */
};

/* distribution_nullary_kernel: thread t of n draws `draw(words)` (an array of U numbers) per round r and stores them at
   r·U·n + i·n + t. `store` turns a number into an element. */
template <typename T, typename Draw, typename Store>
void fill(const char *name, TensorIteratorBase &iter, const OptionalGenerator &generator, Draw draw, Store store) {
  const auto numel = static_cast<uint64_t>(iter.numel());
  if (numel == 0)
    return;
  constexpr uint64_t unroll = std::tuple_size_v<decltype(draw(Words{}))>;
  const c10::Device device = iter.device(0);
  c10::cuda::CUDAGuard guard(device);
  const uint64_t threads = grid_threads(numel);
  const at::PhiloxCudaState taken = take_philox(generator, device, ((numel - 1) / (threads * unroll) + 1) * kWordsPerCall);
  Footprint footprint;
  footprint.writes(host_view(iter.tensor(0)));
  add_philox(footprint, taken);
  on_stream(device, name, footprint, [out = Elements(iter), taken, numel, threads, draw, store] {
    const PhiloxState state = read_philox(taken);
    for (uint64_t first = 0, round = 0; first < numel; first += threads * unroll, round++) {
      const auto active = static_cast<int64_t>(std::min(threads, numel - first));
      at::parallel_for(0, active, 4096, [&](int64_t begin, int64_t end) {
        for (auto thread = static_cast<uint64_t>(begin); thread < static_cast<uint64_t>(end); thread++) {
          const auto numbers = draw(philox(state.seed, thread, state.offset / kWordsPerCall + round));
          for (uint64_t i = 0, index = first + thread; i < unroll && index < numel; i++, index += threads)
            out.at<T>(index) = store(numbers[i]);
        }
      });
    }
  });
}

std::array<float, 4> four_uniform(const Words &w) {
  return {uniform(w[0]), uniform(w[1]), uniform(w[2]), uniform(w[3])};
}
std::array<double, 2> two_uniform(const Words &w) {
  return {uniform(w[0], w[1]), uniform(w[2], w[3])};
}
std::array<float, 4> four_normal(const Words &w) {
  const auto a = normal(w[0], w[1]), b = normal(w[2], w[3]);
  return {a[0], a[1], b[0], b[1]};
}
std::array<double, 2> two_normal(const Words &w) {
  return normal(w);
}
Words four_words(const Words &w) {
  return w;
}
std::array<uint64_t, 2> two_long_words(const Words &w) {
  return {static_cast<uint64_t>(w[0]) << 32 | w[1], static_cast<uint64_t>(w[2]) << 32 | w[3]};
}

template <typename T, typename Store>
void fill_uniform(const char *name, TensorIteratorBase &iter, const OptionalGenerator &generator, Store store) {
  if constexpr (std::is_same_v<T, double>)
    fill<T>(name, iter, generator, two_uniform, store);
  else
    fill<T>(name, iter, generator, four_uniform, store);
}

template <typename T, typename Store>
void fill_normal(const char *name, TensorIteratorBase &iter, const OptionalGenerator &generator, Store store) {
  if constexpr (std::is_same_v<T, double>)
    fill<T>(name, iter, generator, two_normal, store);
  else
    fill<T>(name, iter, generator, four_normal, store);
}

#define VNODE_FLOATING(iter, name, ...)                                                                                     \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, (iter).dtype(), name, __VA_ARGS__)

void uniform_kernel(TensorIteratorBase &iter, double from, double to, OptionalGenerator generator) {
  VNODE_FLOATING(iter, "uniform_", [&] {
    using acc = at::opmath_type<scalar_t>;
    const auto low = static_cast<scalar_t>(from), high = static_cast<scalar_t>(to);
    const auto range = static_cast<acc>(high - low);
    fill_uniform<scalar_t>("uniform_", iter, generator, [=](acc u) {
      const auto value = static_cast<scalar_t>(std::fma(u, range, static_cast<acc>(low)));
      return value == high ? low : value;
    });
  });
}

void normal_kernel(const at::TensorBase &self, double mean, double std, OptionalGenerator generator) {
  auto iter = at::TensorIterator::borrowing_nullary_op(self);
  VNODE_FLOATING(iter, "normal_", [&] {
    using acc = at::acc_type<scalar_t, true>;
    fill_normal<scalar_t>("normal_", iter, generator, [m = static_cast<acc>(mean), s = static_cast<acc>(std)](acc n) {
      return static_cast<scalar_t>(std::fma(n, s, m));
    });
  });
}

void log_normal_kernel(TensorIteratorBase &iter, double mean, double std, OptionalGenerator generator) {
  VNODE_FLOATING(iter, "log_normal_", [&] {
    using acc = at::acc_type<scalar_t, true>;
    fill_normal<scalar_t>("log_normal_", iter, generator, [m = static_cast<acc>(mean), s = static_cast<acc>(std)](acc n) {
      return static_cast<scalar_t>(std::exp(std::fma(n, s, m)));
    });
  });
}

void exponential_kernel(TensorIteratorBase &iter, double lambda, OptionalGenerator generator) {
  VNODE_FLOATING(iter, "exponential_", [&] {
    using acc = at::acc_type<scalar_t, true>;
    fill_uniform<scalar_t>("exponential_", iter, generator, [l = static_cast<acc>(lambda)](acc u) {
      constexpr acc half_epsilon = std::numeric_limits<acc>::epsilon() / 2; /* CUDA keeps log(u) away from 0 */
      const acc log = u >= acc(1) - half_epsilon ? -half_epsilon : std::log(u);
      return static_cast<scalar_t>(acc(-1) / l * log);
    });
  });
}

void cauchy_kernel(TensorIteratorBase &iter, double median, double sigma, OptionalGenerator generator) {
  VNODE_FLOATING(iter, "cauchy_", [&] {
    using acc = at::acc_type<scalar_t, true>;
    fill_uniform<scalar_t>("cauchy_", iter, generator, [m = static_cast<acc>(median), s = static_cast<acc>(sigma)](acc u) {
      return static_cast<scalar_t>(transform::cauchy<acc>(u, m, s));
    });
  });
}

void geometric_kernel(TensorIteratorBase &iter, double p, OptionalGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "geometric_", [&] {
    using acc = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    fill_uniform<scalar_t>("geometric_", iter, generator,
                           [=](acc u) { return static_cast<scalar_t>(transform::geometric<acc>(u, static_cast<acc>(p))); });
  });
}

void bernoulli_scalar_kernel(const at::TensorBase &self, double p, OptionalGenerator generator) {
  auto iter = at::TensorIterator::borrowing_nullary_op(self);
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, iter.dtype(), "bernoulli_", [&] {
    using acc = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    fill_uniform<scalar_t>("bernoulli_", iter, generator,
                           [=](acc u) { return static_cast<scalar_t>(u < static_cast<acc>(p)); });
  });
}

/* One thread takes four neighbours (bernoulli_tensor_cuda_kernel). */
void bernoulli_tensor_kernel(const at::TensorBase &self, const at::TensorBase &p, OptionalGenerator generator) {
  TORCH_CHECK(at::isFloatingType(p.scalar_type()), "expected probabilities tensor to have floating type, got ",
              p.scalar_type());
  const c10::Device device = self.device();
  HostScope scope(device);
  const at::PhiloxCudaState taken = take_philox(generator, device, 10);
  const Tensor out = host_view(Tensor(self)), chances = host_view(Tensor(p));
  Footprint footprint;
  footprint.reads(chances);
  footprint.writes(out);
  add_philox(footprint, taken);
  on_stream(device, "bernoulli_", footprint, [out, chances, taken] {
    const PhiloxState state = read_philox(taken);
    const bool wide = out.scalar_type() == at::kDouble;
    const Tensor limit = chances.to(wide ? at::kDouble : at::kFloat).expand_as(out).contiguous();
    const Tensor u = at::empty(out.sizes(), limit.options());
    AT_DISPATCH_FLOATING_TYPES(limit.scalar_type(), "bernoulli_", [&] {
      auto *numbers = u.mutable_data_ptr<scalar_t>();
      for (int64_t i = 0; i < u.numel(); i++) {
        const Words w = philox(state.seed, static_cast<uint64_t>(i) / 4, state.offset / kWordsPerCall);
        numbers[i] = uniform(w[static_cast<size_t>(i) % 4]);
      }
    });
    out.copy_(u.le(limit));
  });
}

void random_from_to_kernel(TensorIteratorBase &iter, uint64_t range, int64_t base, OptionalGenerator generator) {
  AT_DISPATCH_V2(iter.dtype(), "random_", AT_WRAP([&] {
                   auto store = [=](auto word) { return transform::uniform_int_from_to<scalar_t>(word, range, base); };
                   if (range >= uint64_t{1} << 28)
                     fill<scalar_t>("random_", iter, generator, two_long_words, store);
                   else
                     fill<scalar_t>("random_", iter, generator, four_words, store);
                 }),
                 AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16, AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

void random_full_range_kernel(TensorIteratorBase &iter, OptionalGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND(at::kBFloat16, iter.dtype(), "random_", [&] {
    fill<scalar_t>("random_", iter, generator, two_long_words,
                   [](uint64_t word) { return transform::uniform_int_full_range<scalar_t>(word); });
  });
}

void random_kernel(TensorIteratorBase &iter, OptionalGenerator generator) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, iter.dtype(), "random_", [&] {
    auto store = [](auto word) { return transform::uniform_int<scalar_t>(word); };
    if constexpr (std::is_same_v<scalar_t, double> || std::is_same_v<scalar_t, int64_t>)
      fill<scalar_t>("random_", iter, generator, two_long_words, store);
    else
      fill<scalar_t>("random_", iter, generator, four_words, store);
  });
}

void multinomial_kernel(Tensor &result, const Tensor &weights, int64_t samples, OptionalGenerator generator) {
  const c10::Device device = weights.device();
  HostScope scope(device);
  const at::PhiloxCudaState taken = take_philox(generator, device, kBoxedIncrement);
  const Tensor out = host_view(result), chances = host_view(weights);
  Footprint footprint;
  footprint.reads(chances);
  footprint.writes(out);
  add_philox(footprint, taken);
  on_stream(device, "multinomial", footprint, [out, chances, samples, taken] {
    out.copy_(at::multinomial(chances, samples, true, host_generator(read_philox(taken))));
  });
}

/* The random words of Dropout.cu: with a vector width v > 1 thread t takes v neighbours per call, else elements a grid
 * apart. */
class DropoutWords {
public:
  DropoutWords(const PhiloxState &state, uint64_t numel, uint64_t threads)
      : state_(state), threads_(threads), width_(numel % 4 == 0   ? 4
                                                 : numel % 2 == 0 ? 2
                                                                  : 1) {}

  float at(uint64_t index) const {
    if (width_ == 1)
      return word(index % threads_, index / (threads_ * 4), index / threads_ % 4);
    const uint64_t group = index / width_;
    return word(group % threads_, group / threads_, index % width_);
  }

private:
  float word(uint64_t thread, uint64_t call, uint64_t lane) const {
    return uniform(philox(state_.seed, thread, state_.offset / kWordsPerCall + call)[lane]);
  }

  PhiloxState state_;
  uint64_t threads_, width_;
};

uint64_t dropout_words(const Tensor &input) {
  const auto numel = static_cast<uint64_t>(input.numel());
  return numel == 0 ? 0 : ((numel - 1) / (grid_threads(numel) * 4) + 1) * kWordsPerCall;
}

std::tuple<Tensor, Tensor> dropout(const Tensor &input, double keep, at::ScalarType mask_type) {
  const auto numel = static_cast<uint64_t>(input.numel());
  const Tensor mask = at::empty_like(input, input.options().dtype(mask_type));
  if (numel == 0)
    return {at::empty_like(input), mask};
  const DropoutWords words(PhiloxScope::current(), numel, grid_threads(numel));
  auto *bytes = static_cast<uint8_t *>(mask.mutable_data_ptr()); /* empty_like made it dense: memory order is CUDA's order */
  const auto limit = static_cast<float>(keep);
  at::parallel_for(0, static_cast<int64_t>(numel), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      bytes[i] = words.at(static_cast<uint64_t>(i)) < limit;
  });
  const auto acc = at::toOpMathType(input.scalar_type());
  return {at::empty_like(input).copy_(input.to(acc).mul(mask).mul_(1.0 / keep)), mask};
}

thread_local const PhiloxState *current_state;

} // namespace

at::PhiloxCudaState take_philox(const OptionalGenerator &generator, c10::Device device, uint64_t increment) {
  auto *cuda = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      generator, at::cuda::detail::getDefaultCUDAGenerator(device.index()));
  std::lock_guard<std::mutex> lock(cuda->mutex_);
  return cuda->philox_cuda_state(increment);
}

PhiloxState read_philox(const at::PhiloxCudaState &taken) {
  if (!taken.captured_)
    return {taken.seed_.val, taken.offset_.val};
  return {static_cast<uint64_t>(*taken.seed_.ptr), static_cast<uint64_t>(*taken.offset_.ptr) + taken.offset_intragraph_};
}

void add_philox(Footprint &footprint, const at::PhiloxCudaState &taken) {
  if (!taken.captured_)
    return;
  footprint.reads_value(taken.seed_.ptr, sizeof *taken.seed_.ptr);
  footprint.reads_value(taken.offset_.ptr, sizeof *taken.offset_.ptr);
}

at::Generator host_generator(const PhiloxState &state) {
  /* A subsequence that no thread of a grid has: the words are not those of another kernel. */
  const Words words = philox(state.seed, ~uint64_t{0}, state.offset);
  return at::detail::createCPUGenerator(static_cast<uint64_t>(words[0]) << 32 | words[1]);
}

PhiloxScope::PhiloxScope(const PhiloxState &state) : outer_(current_state) {
  current_state = &state;
}

PhiloxScope::~PhiloxScope() {
  current_state = outer_;
}

const PhiloxState &PhiloxScope::current() {
  return *current_state;
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor &input, double p, std::optional<bool> train) {
  if (train.has_value() && !*train)
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  if (p == 1)
    return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(at::kBool))};
  return dropout(input, 1 - p, at::kBool);
}

uint64_t native_dropout_words(c10::ArrayRef<c10::IValue> arguments) {
  const auto train = arguments[2].toOptional<bool>();
  return train.value_or(true) && arguments[1].toDouble() != 1 ? dropout_words(arguments[0].toTensor()) : 0;
}

std::tuple<Tensor, Tensor> fused_dropout(const Tensor &input, double keep, OptionalGenerator) {
  return dropout(input, keep, at::kByte);
}

uint64_t fused_dropout_words(c10::ArrayRef<c10::IValue> arguments) {
  return dropout_words(arguments[0].toTensor());
}

Tensor masked_scale(const Tensor &input, const Tensor &mask, double scale) {
  TORCH_CHECK(mask.scalar_type() == at::kByte, "mask should be torch.uint8 dtype");
  const auto acc = at::toOpMathType(input.scalar_type());
  return input.to(acc).mul(mask).mul_(scale).to(input.scalar_type());
}

void install_random() {
  at::native::uniform_stub.set_cuda_dispatch_ptr(&uniform_kernel);
  at::native::normal_stub.set_cuda_dispatch_ptr(&normal_kernel);
  at::native::log_normal_stub.set_cuda_dispatch_ptr(&log_normal_kernel);
  at::native::exponential_stub.set_cuda_dispatch_ptr(&exponential_kernel);
  at::native::cauchy_stub.set_cuda_dispatch_ptr(&cauchy_kernel);
  at::native::geometric_stub.set_cuda_dispatch_ptr(&geometric_kernel);
  at::native::bernoulli_scalar_stub.set_cuda_dispatch_ptr(&bernoulli_scalar_kernel);
  at::native::bernoulli_tensor_stub.set_cuda_dispatch_ptr(&bernoulli_tensor_kernel);
  at::native::random_from_to_stub.set_cuda_dispatch_ptr(&random_from_to_kernel);
  at::native::random_full_64_bits_range_stub.set_cuda_dispatch_ptr(&random_full_range_kernel);
  at::native::random_stub.set_cuda_dispatch_ptr(&random_kernel);
  at::native::multinomial_with_replacement_stub.set_cuda_dispatch_ptr(&multinomial_kernel);
}

} // namespace vnode_aten
