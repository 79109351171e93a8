// What the loop asks of a target and of a drafter, wherever they run.
#pragma once

#include <cstdint>

namespace paceline {

// What the target says of the rows of a call; valid until the next one.
struct Verified {
  const float *logits, *activations;  // [T, V], [T, D]
};

class Target {
 public:
  virtual ~Target() = default;
  // Write the KV rows of tokens behind the committed ones: of at most kPrefillChunk, and of at most kMostRows.
  virtual void prefill(const int32_t *tokens, int count) = 0;
  virtual Verified verify(const int32_t *tokens, int count) = 0;
};

struct DraftStep {
  int32_t token;
  float probability;   // that the drafter gives it, among the tokens it scored
  const float *state;  // [D], the next step's hidden; valid until the next step
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual DraftStep run(int32_t token, const float *hidden) = 0;
};

}  // namespace paceline
