#include "sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace torchmdla {

namespace {

constexpr size_t block_bytes = 64;
constexpr size_t rounds = 64;
using State = std::array<uint32_t, 8>;

// The fractional parts of the square roots of the first eight primes (5.3.3).
constexpr State initial{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// The fractional parts of the cube roots of the first 64 primes (4.2.2).
constexpr std::array<uint32_t, rounds> constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* bytes) {
  uint32_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return std::endian::native == std::endian::little ? __builtin_bswap32(word) : word;
}

std::array<uint32_t, rounds> schedule(const std::byte* block) {
  std::array<uint32_t, rounds> w{};
  for (size_t t = 0; t < 16; ++t)
    w[t] = big_endian(block + 4 * t);
  for (size_t t = 16; t < rounds; ++t) {
    const auto s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
    const auto s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  return w;
}

void add_block(State& state, const std::byte* block) {
  const auto w = schedule(block);
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t t = 0; t < rounds; ++t) {
    const auto s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const auto t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[t] + w[t];
    const auto s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const auto t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const State added{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i)
    state[i] += added[i];
}

void put_big_endian(uint64_t number, size_t bytes, std::byte* to) {
  for (size_t i = 0; i < bytes; ++i)
    to[i] = static_cast<std::byte>(number >> 8 * (bytes - 1 - i));
}

} // namespace

Digest sha256(std::span<const std::byte> data) {
  auto state = initial;
  const auto whole = data.size() / block_bytes * block_bytes;
  for (size_t offset = 0; offset < whole; offset += block_bytes)
    add_block(state, data.data() + offset);
  // The rest, a one bit, zeros, and the length in bits at the end of a block (5.1.1).
  std::array<std::byte, 2 * block_bytes> last{};
  const auto rest = data.subspan(whole);
  std::ranges::copy(rest, last.begin());
  last[rest.size()] = std::byte{0x80};
  const auto end =
      rest.size() + 1 + sizeof(uint64_t) <= block_bytes ? block_bytes : 2 * block_bytes;
  put_big_endian(data.size() * 8, sizeof(uint64_t), last.data() + end - sizeof(uint64_t));
  for (size_t offset = 0; offset < end; offset += block_bytes)
    add_block(state, last.data() + offset);
  Digest digest{};
  for (size_t i = 0; i < state.size(); ++i)
    put_big_endian(state[i], sizeof(uint32_t), digest.data() + sizeof(uint32_t) * i);
  return digest;
}

} // namespace torchmdla
