#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "error.h"

namespace paceline {
namespace {

constexpr size_t kFirstNucleus = 256;  // candidates that top-p without top-k sorts first; a guess, enough for most rows

// Source: G. Steele and others, "Fast Splittable Pseudorandom Number Generators" (2014); S. Vigna's splitmix64.c.
uint64_t splitmix64(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

// Tokens and their likelihoods against the row's highest logit, whose own is 1; computed in float32, summed in float64.
class Row {
 public:
  Row(const float *logits, int vocab_size, float highest, float temperature)
      : logits_(logits), size_(vocab_size), highest_(highest), temperature_(temperature) {}

  float weight(int32_t token) const { return std::exp((logits_[token] - highest_) / temperature_); }

  // The `count` likeliest tokens, of equal ones the lowest ids, likeliest first.
  std::vector<int32_t> largest(size_t count) const {
    std::vector<int32_t> tokens(size_);
    std::iota(tokens.begin(), tokens.end(), 0);
    count = std::min(count, tokens.size());
    std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(), [this](int32_t a, int32_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    });
    tokens.resize(count);
    return tokens;
  }

  // Of the likeliest tokens, those down to the first with which their share reaches p; always one.
  std::vector<int32_t> nucleus(size_t top_k, double top_p) const {
    double whole = 0;
    if (!top_k) {
      for (int token = 0; token < size_; token++) whole += weight(token);
    }
    for (size_t size = top_k ? top_k : kFirstNucleus;; size *= 16) {
      std::vector<int32_t> tokens = largest(size);
      std::vector<double> sums(tokens.size());
      double sum = 0;
      for (size_t i = 0; i < tokens.size(); i++) sums[i] = sum += weight(tokens[i]);
      const double share = top_p * (top_k ? sum : whole);
      if (sum < share && tokens.size() < static_cast<size_t>(size_)) continue;
      const size_t kept = std::lower_bound(sums.begin(), sums.end(), share) - sums.begin() + 1;
      tokens.resize(std::min(kept, tokens.size()));
      return tokens;
    }
  }

 private:
  const float *logits_;
  const int size_;
  const float highest_, temperature_;
};

}  // namespace

double uniform(uint64_t seed, uint64_t position, uint64_t stream) {
  return static_cast<double>(splitmix64(splitmix64(seed, stream), position) >> 11) / 9007199254740992.0;
}

int32_t likeliest(const float *logits, int vocab_size) {
  return static_cast<int32_t>(std::max_element(logits, logits + vocab_size) - logits);
}

int32_t sample(const Sampling &sampling, const float *logits, int vocab_size, double u) {
  const int32_t best = likeliest(logits, vocab_size);
  if (!std::isfinite(logits[best])) throw Error("the largest logit is no number to sample with; the model is broken.");
  if (sampling.temperature == 0) return best;
  const Row row(logits, vocab_size, logits[best], sampling.temperature);
  const size_t top_k = sampling.top_k > 0 && sampling.top_k < vocab_size ? sampling.top_k : 0;
  std::vector<int32_t> tokens;
  if (sampling.top_p < 1) {
    tokens = row.nucleus(top_k, sampling.top_p);
  } else if (top_k) {
    tokens = row.largest(top_k);
  } else {
    tokens.resize(vocab_size);
    std::iota(tokens.begin(), tokens.end(), 0);
  }
  std::sort(tokens.begin(), tokens.end());
  double sum = 0;
  std::vector<double> sums;
  std::vector<int32_t> kept;
  for (const int32_t token : tokens) {
    const float weight = row.weight(token);
    if (weight <= 0 || weight < sampling.min_p) continue;
    kept.push_back(token);
    sums.push_back(sum += weight);
  }
  const size_t picked = std::upper_bound(sums.begin(), sums.end(), u * sum) - sums.begin();
  return kept[std::min(picked, kept.size() - 1)];
}

}  // namespace paceline
