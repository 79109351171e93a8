#include "sha256.h"

#include <cstdint>
#include <cstring>

namespace paceline {
namespace {

constexpr size_t kBlock = 64;
constexpr size_t kTold = 16u << 20;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t rotated(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

void take_block(uint32_t state[8], const unsigned char *block) {
  uint32_t words[64];
  for (int i = 0; i < 16; i++) {
    words[i] =
        static_cast<uint32_t>(block[4 * i]) << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; i++) {
    const uint32_t early = rotated(words[i - 15], 7) ^ rotated(words[i - 15], 18) ^ words[i - 15] >> 3;
    const uint32_t late = rotated(words[i - 2], 17) ^ rotated(words[i - 2], 19) ^ words[i - 2] >> 10;
    words[i] = words[i - 16] + early + words[i - 7] + late;
  }
  uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6],
           h = state[7];
  for (int i = 0; i < 64; i++) {
    const uint32_t mixed =
        h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + kRound[i] + words[i];
    const uint32_t most = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + mixed, d = c, c = b, b = a, a = mixed + most;
  }
  const uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; i++) state[i] += added[i];
}

}  // namespace

std::string sha256(std::string_view bytes, const std::function<void(size_t)> &seen) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const auto *data = reinterpret_cast<const unsigned char *>(bytes.data());
  size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) {
    take_block(state, data + at);
    if (seen && at % kTold == 0) seen(at);
  }
  unsigned char last[2 * kBlock] = {};
  const size_t rest = bytes.size() - at, padded = rest + 9 <= kBlock ? kBlock : 2 * kBlock;
  if (rest) std::memcpy(last, data + at, rest);
  last[rest] = 0x80;
  const uint64_t bits = 8 * static_cast<uint64_t>(bytes.size());
  for (int i = 0; i < 8; i++) last[padded - 1 - i] = static_cast<unsigned char>(bits >> 8 * i);
  for (size_t block = 0; block < padded; block += kBlock) take_block(state, last + block);
  std::string digits;
  for (const uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) digits += "0123456789abcdef"[word >> shift & 0xF];
  }
  return digits;
}

}  // namespace paceline
