// The target's own sampler, as runtime/paceline/sampler.py defines it: the same seed gives the same text in both.
#pragma once

#include <cstdint>
#include <vector>

namespace paceline {

struct Sampling {
  float temperature = 0;  // 0 is greedy
  int top_k = 0;          // 0 is off
  double top_p = 1;
  float min_p = 0;
};

// A number in [0, 1) that depends on the arguments only: the top 53 bits of output `position` of a SplitMix64 generator
// whose seed is output `stream` of one with the seed `seed`. `position` is the index of the emitted token.
double uniform(uint64_t seed, uint64_t position, uint64_t stream = 0);

// The token that the sampler draws from a row of logits [V] with the number u. Throws Error where the largest logit is
// none.
int32_t sample(const Sampling &sampling, const float *logits, int vocab_size, double u);

// The likeliest token, of equal ones the lowest id.
int32_t likeliest(const float *logits, int vocab_size);

}  // namespace paceline
