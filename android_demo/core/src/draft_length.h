// How many drafts a round gets: none, a fixed number, or as many as pay on this device.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "paceline.h"

namespace paceline {

constexpr int kMostDrafts = PACELINE_MOST_DRAFTS;

// Milliseconds of the calls of a round; only their ratios matter.
struct CallCosts {
  double decode_ms, draft_ms;
  std::array<double, kMostDrafts + 1> verify_ms;  // by drafts that are verified; [0] is decode
};

struct Choice {
  int length;  // drafts to verify; 0 is plain decoding
  bool trial;  // also let the drafter guess the next token, only to learn whether it was right
};

class DraftLength {
 public:
  virtual ~DraftLength() = default;
  // The coming round; `most` drafts are allowed by budget and capacity.
  virtual Choice next(int most) = 0;
  // Whether to verify the `drafted` drafts that are there, given the probability the drafter gives the last one.
  virtual bool stop(float, int) { return false; }
  virtual void record(const Choice &, int /*drafted*/, int /*accepted*/) {}
  // Whether the drafter's guess in a trial was right.
  virtual void observe(bool) {}
};

class Fixed : public DraftLength {
 public:
  explicit Fixed(int length) : length_(length) {}
  Choice next(int most) override { return {most < length_ ? most : length_, false}; }

 private:
  const int length_;
};

// The length with the most expected tokens per millisecond, and plain decoding where none pays; then only a small share
// of the time goes into trials. The rules and constants are those of runtime/paceline/draft_length.py, which says why,
// without its second proposer.
class Adaptive : public DraftLength {
 public:
  // At most `most_drafts` in a round.
  Adaptive(const CallCosts &costs, int most_drafts);
  Choice next(int most) override;
  bool stop(float probability, int drafted) override;
  void record(const Choice &choice, int drafted, int accepted) override;
  void observe(bool right) override;

 private:
  static constexpr int kBins = 4;

  void count(int drafted, int accepted);
  bool trial_is_due() const;

  std::array<double, kMostDrafts + 1> round_ms_;
  const double plain_ms_, trial_ms_;
  const int most_drafts_;
  std::array<double, kMostDrafts> tried_{}, right_{}, chances_;
  std::array<double, kBins> right_if_sure_;
  std::vector<int> bins_;  // how sure the drafter was of each draft of this round
  bool pays_ = false, could_pay_, trial_was_right_ = false;
  int planned_ = 0;
  double ms_per_token_, full_credit_ms_, credit_ms_;
};

}  // namespace paceline
