#include "generation.h"

#include <algorithm>

#include "clock.h"
#include "error.h"

namespace paceline {
namespace {

void require(bool allowed, const std::string &what) {
  if (!allowed) throw Error(what);
}

void require_settings(const Settings &settings, const std::vector<int32_t> &prompt, int vocab_size) {
  require(
      settings.draft_length == PACELINE_AUTO || (settings.draft_length >= 0 && settings.draft_length <= kMostDrafts),
      "the draft length is " + std::to_string(settings.draft_length) +
          "; allowed are 0 (off) to 7, or -1 for as many as pay.");
  require(settings.max_new_tokens >= 0, "the number of new tokens is negative; give 1 or more, or 0 for no limit.");
  const Sampling &sampling = settings.sampling;
  require(sampling.temperature == 0 || (sampling.temperature >= 0.0001f && sampling.temperature <= 10000),
          "the temperature should be from 0.0001 to 10000, or 0 for greedy.");
  require(sampling.top_k >= 0, "top-k should be 1 or more, or 0 for off.");
  require(sampling.top_p >= 0 && sampling.top_p <= 1, "top-p should be from 0 to 1.");
  require(sampling.min_p >= 0 && sampling.min_p <= 1, "min-p should be from 0 to 1.");
  for (const std::string &stop : settings.stops) require(!stop.empty(), "a stop text is empty; leave it out.");
  require(!prompt.empty(), "the prompt has no tokens; give at least one.");
  for (const int32_t token : prompt) {
    require(token >= 0 && token < vocab_size, "prompt token " + std::to_string(token) +
                                                  " is not in the vocabulary; ids go from 0 to " +
                                                  std::to_string(vocab_size - 1) + ".");
  }
}

}  // namespace

Generation::Generation(Model &model, std::vector<int32_t> prompt, const Settings &settings)
    : model_(model),
      graphs_(model.graphs()),
      prompt_(std::move(prompt)),
      settings_(settings),
      text_(model.tokenizer()),
      stops_(settings.stops),
      thoughts_(model.tokenizer()) {
  const int capacity = graphs_.cache().capacity(), count = static_cast<int>(prompt_.size());
  require_settings(settings, prompt_, model.manifest().vocab_size);
  require(count <= capacity, std::to_string(count) + " tokens do not fit in a context of " + std::to_string(capacity) +
                                 "; shorten the prompt or choose a larger context.");
  const int room = capacity - count + 1;
  budget_ = settings.max_new_tokens ? std::min(settings.max_new_tokens, room) : room;
  draft_length_ = model.draft_length(settings.draft_length);
  stats_.prompt_tokens = count;
  stats_.kept_tokens = model.keep(prompt_);
}

bool Generation::next(Piece &piece) {
  if (over_) return false;
  try {
    if (!started_ && !start()) {
      over_ = true;
      piece = {-1, "", false, false, PACELINE_CANCELLED};
      return true;
    }
    if (ready_.empty()) round();
    return next_token(piece);
  } catch (...) {
    over_ = true;
    model_.reset();
    throw;
  }
}

bool Generation::start() {
  started_ = true;
  const double begun = now_ms();
  const int last = static_cast<int>(prompt_.size()) - 1;
  for (int at = stats_.kept_tokens; at < last; at += kPrefillChunk) {
    if (cancelled_) return false;
    graphs_.prefill(prompt_.data() + at, std::min(kPrefillChunk, last - at));
  }
  if (cancelled_) return false;
  accept({}, graphs_.verify(&prompt_[last], 1));
  stats_.prefill_ms = now_ms() - begun;
  return true;
}

void Generation::round() {
  const double begun = now_ms();
  const Choice choice = draft_length_->next(std::min(kMostDrafts, budget_ - stats_.emitted - 1));
  std::vector<int32_t> drafts;
  const float *hidden = hidden_.data();
  for (int32_t token = pending_; static_cast<int>(drafts.size()) < choice.length; token = drafts.back()) {
    const DraftStep step = graphs_.draft(token, hidden);
    hidden = step.state;
    drafts.push_back(step.token);
    const int drafted = static_cast<int>(drafts.size());
    if (drafted < choice.length && draft_length_->stop(step.probability, drafted)) break;
  }
  const int32_t guess = choice.trial ? graphs_.draft(pending_, hidden_.data()).token : -1;
  stats_.draft_ms += now_ms() - begun;

  const double drafted = now_ms();
  std::vector<int32_t> rows = {pending_};
  rows.insert(rows.end(), drafts.begin(), drafts.end());
  accept(drafts, graphs_.verify(rows.data(), static_cast<int>(rows.size())));
  stats_.verify_ms += now_ms() - drafted;

  const int proposed = static_cast<int>(drafts.size()), accepted = static_cast<int>(ready_.size()) - 1;
  stats_.rounds++;
  stats_.drafted += proposed;
  stats_.accepted += accepted;
  stats_.trials += choice.trial;
  stats_.drafting = choice.length;
  for (int position = 0; position < proposed; position++) {
    stats_.drafted_at[position]++;
    stats_.accepted_at[position] += position < accepted;
  }
  draft_length_->record(choice, proposed, accepted);
  if (choice.trial) draft_length_->observe(guess == ready_.front().token);
}

// Lets the target draw at every row, and accepts drafts while they are what it draws.
void Generation::accept(const std::vector<int32_t> &drafts, const Verified &verified) {
  const size_t vocab = model_.manifest().vocab_size, width = model_.manifest().hidden_size;
  for (size_t row = 0;; row++) {
    const double u = uniform(settings_.seed, static_cast<uint64_t>(drawn_++));
    const int32_t token = sample(settings_.sampling, verified.logits + row * vocab, static_cast<int>(vocab), u);
    const bool accepted = row < drafts.size() && drafts[row] == token;
    ready_.push_back({token, accepted});
    if (accepted) continue;
    pending_ = token;
    const float *state = verified.activations + row * width;
    hidden_.assign(state, state + width);
    return;
  }
}

bool Generation::next_token(Piece &piece) {
  const Emitted emitted = ready_.front();
  ready_.pop_front();
  graphs_.cache().commit(1);  // the row of the token before this one; what follows a stop is never committed
  model_.push(emitted.token);
  stats_.emitted++;
  paceline_finish finish = PACELINE_GOES_ON;
  if (model_.manifest().stop_ids.count(emitted.token)) {
    finish = PACELINE_STOP;
  } else if (stats_.emitted >= budget_) {
    finish = PACELINE_LENGTH;
  }
  std::string completed = text_.push(emitted.token);
  if (finish) completed += text_.finish();
  auto [told, thought] = thoughts_.push(emitted.token, std::move(completed));
  auto [shown, stopped] = stops_.push(told);
  if (stopped) {
    finish = PACELINE_STOP;
  } else if (finish) {
    shown += stops_.finish();
  } else if (cancelled_) {
    finish = PACELINE_CANCELLED;
    shown += stops_.push(text_.finish()).first + stops_.finish();
  }
  over_ = finish != PACELINE_GOES_ON;
  piece = {emitted.token, std::move(shown), emitted.from_draft, thought, finish};
  return true;
}

}  // namespace paceline
