#include "runtime/random_masks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <mutex>

// Loops in vectors of the processor's width. The loader chooses one before sanitizers can run.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define BY_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BY_VECTORS
#endif

namespace torchmdla {

namespace {

constexpr int words_of_state = at::MERSENNE_STATE_N;
constexpr int distance = at::MERSENNE_STATE_M;

// Return the bits with which a word of the state changes another.
inline uint32_t twisted(uint32_t word, uint32_t next) {
  const uint32_t mixed = (word & at::UMASK) | (next & at::LMASK);
  return (mixed >> 1) ^ (-(next & 1) & at::MATRIX_A);
}

// Replace all words of the Mersenne Twister's state.
BY_VECTORS void advance(uint32_t* state) {
  constexpr int rest = words_of_state - distance;
  for (int k = 0; k < rest; ++k)
    state[k] = state[k + distance] ^ twisted(state[k], state[k + 1]);
  // Each word depends on one that precedes it by `rest`, so vectors are shorter than that.
  for (int k = rest; k < words_of_state - 1; ++k)
    state[k] = state[k - rest] ^ twisted(state[k], state[k + 1]);
  state[words_of_state - 1] = state[distance - 1] ^ twisted(state[words_of_state - 1], state[0]);
}

// Return the random words of `count` words of the state.
BY_VECTORS void temper(const uint32_t* state, int count, uint32_t* __restrict words) {
  for (int k = 0; k < count; ++k) {
    uint32_t word = state[k];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680;
    word ^= (word << 15) & 0xefc60000;
    words[k] = word ^ (word >> 18);
  }
}

// Set each boolean if the number of 53 bits in two words is below `limit`.
BY_VECTORS void compare(const uint32_t* words, int count, int64_t limit, bool* __restrict mask) {
  for (int k = 0; k < count; ++k) {
    const int64_t high = words[2 * k] & 0x1fffff;
    mask[k] = ((high << 32) | words[2 * k + 1]) < limit;
  }
}

// Set random words as the engine's operator() returns them one by one.
void take(at::mt19937_data_pod& engine, uint32_t* words, int count) {
  while (count > 0) {
    if (engine.left_ == 1) {
      advance(engine.state_.data());
      engine.left_ = words_of_state + 1;
      engine.next_ = 0;
    }
    const int taken = std::min(count, engine.left_ - 1);
    temper(engine.state_.data() + engine.next_, taken, words);
    engine.next_ += taken;
    engine.left_ -= taken;
    words += taken;
    count -= taken;
  }
}

void fill(at::CPUGeneratorImpl& generator, double probability, bool* mask, int64_t count) {
  constexpr int most = 2048;
  std::array<uint32_t, 2 * most> words{};
  // The numbers are multiples of 2^-53, and compared with the probability as doubles.
  const auto limit = static_cast<int64_t>(std::ceil(std::ldexp(probability, 53)));
  const std::scoped_lock lock(generator.mutex_);
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod data = engine.data();
  for (int64_t first = 0; first < count; first += most) {
    const auto part = static_cast<int>(std::min<int64_t>(most, count - first));
    take(data, words.data(), 2 * part);
    compare(words.data(), part, limit, mask + first);
  }
  engine.set_data(data);
  generator.set_engine(engine);
}

// Return whether PyTorch draws booleans in this way. On Intel's processors it uses MKL's generator.
bool is_of_twister() {
  constexpr int64_t count = 1000;
  auto ours = at::make_generator<at::CPUGeneratorImpl>(0);
  auto theirs = at::make_generator<at::CPUGeneratorImpl>(0);
  at::Tensor mask = at::empty({count}, at::kBool);
  fill(*at::check_generator<at::CPUGeneratorImpl>(ours), 0.3, mask.data_ptr<bool>(), count);
  const at::Tensor expected = at::empty({count}, at::kBool).bernoulli_(0.3, theirs);
  return mask.equal(expected) && ours.get_state().equal(theirs.get_state());
}

} // namespace

at::Tensor draw_mask(at::IntArrayRef sizes, double probability) {
  static const bool of_twister = is_of_twister();
  at::Tensor mask = at::empty(sizes, at::kBool);
  if (!of_twister || !(probability >= 0.0 && probability <= 1.0))
    return mask.bernoulli_(probability);
  auto* generator = at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
  fill(*generator, probability, mask.data_ptr<bool>(), mask.numel());
  return mask;
}

} // namespace torchmdla
