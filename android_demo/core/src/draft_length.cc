#include "draft_length.h"

#include <algorithm>

namespace paceline {
namespace {

constexpr double kKept = 1 - 1.0 / 20;  // of older evidence with each round
constexpr double kPrior = 0.7, kPriorDrafts = 3, kNeighbourDrafts = 2;
constexpr double kTrialShare = 0.007, kTrialSteps = 2, kTrialCredit = 0.5;
constexpr double kEntryGain = 1.03;  // over plain decoding, to leave it

}  // namespace

Adaptive::Adaptive(const CallCosts &costs, int most_drafts)
    : plain_ms_(costs.decode_ms),
      trial_ms_(kTrialSteps * costs.draft_ms),
      most_drafts_(most_drafts),
      ms_per_token_(costs.decode_ms) {
  double best = 0;
  for (int drafts = 0; drafts <= kMostDrafts; drafts++) {
    round_ms_[drafts] = costs.verify_ms[drafts] + drafts * costs.draft_ms;
    if (drafts <= most_drafts) best = std::max(best, (drafts + 1) / round_ms_[drafts]);
  }
  could_pay_ = best * plain_ms_ > kEntryGain;
  tried_[0] = kPriorDrafts;
  right_[0] = kPriorDrafts * kPrior;
  chances_.fill(kPrior);
  for (int bin = 0; bin < kBins; bin++) right_if_sure_[bin] = (bin + 0.5) / kBins;
  full_credit_ms_ = credit_ms_ = kTrialCredit * plain_ms_;
}

Choice Adaptive::next(int most) {
  most = std::min(most, most_drafts_);
  // Leviathan and others (2023), equation 1, with a chance for each position.
  double tokens = 1, survival = 1, best_rate = 0;
  int best = 1;
  for (int length = 1; length <= most; length++) {
    tokens += survival *= chances_[length - 1];
    if (const double rate = tokens / round_ms_[length]; rate > best_rate) {
      best = length;
      best_rate = rate;
    }
  }
  if (most > 0) pays_ = best_rate * plain_ms_ > (pays_ ? 1.0 : kEntryGain);
  planned_ = most > 0 && pays_ ? best : 0;
  ms_per_token_ = planned_ ? 1 / best_rate : plain_ms_;
  bins_.clear();
  return {planned_, most > 0 && planned_ == 0 && trial_is_due()};
}

bool Adaptive::trial_is_due() const {
  const double needed = trial_was_right_ ? trial_ms_ : full_credit_ms_;
  return could_pay_ && credit_ms_ >= std::max(needed, trial_ms_);
}

bool Adaptive::stop(float probability, int drafted) {
  bins_.push_back(std::clamp(static_cast<int>(probability * kBins), 0, kBins - 1));
  double survival = 1, tokens = 0;
  for (const int bin : bins_) survival *= right_if_sure_[bin];
  for (int length = drafted + 1; length <= planned_; length++) {
    tokens += survival *= chances_[length - 1];
    if (tokens * ms_per_token_ > round_ms_[length] - round_ms_[drafted]) return false;
  }
  return true;
}

void Adaptive::record(const Choice &choice, int drafted, int accepted) {
  const double earned = kTrialShare * plain_ms_ * (accepted + 1) - (choice.trial ? trial_ms_ : 0);
  credit_ms_ = std::min(credit_ms_ + earned, full_credit_ms_);
  if (!drafted) return;
  count(drafted, accepted);
  for (int position = 0; position < static_cast<int>(bins_.size()) && position <= accepted; position++) {
    double &share = right_if_sure_[bins_[position]];
    share += (1 - kKept) * ((position < accepted ? 1 : 0) - share);
  }
}

void Adaptive::observe(bool right) {
  count(1, right ? 1 : 0);
  trial_was_right_ = right;
}

void Adaptive::count(int drafted, int accepted) {
  double chance = 0;
  for (int position = 0; position < kMostDrafts; position++) {
    tried_[position] *= kKept;
    right_[position] *= kKept;
    if (position < drafted && position <= accepted) {
      tried_[position]++;
      right_[position] += position < accepted ? 1 : 0;
    }
    const double weight = position ? kNeighbourDrafts : 0;
    chances_[position] = chance = (right_[position] + weight * chance) / (tried_[position] + weight);
  }
}

}  // namespace paceline
