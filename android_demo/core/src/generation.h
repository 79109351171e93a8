// The draft-verify loop: propose, verify, accept, roll back.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "model.h"
#include "text.h"

namespace paceline {

struct Settings {
  int draft_length = PACELINE_AUTO;
  int max_new_tokens = 0;  // 0 is no limit but the capacity
  Sampling sampling;
  uint64_t seed = 0;
  std::vector<std::string> stops;
};

struct Piece {
  int32_t token;
  std::string text;
  bool from_draft, thought;
  paceline_finish finish;
};

// One text. Its tokens are those of plain decoding at any draft length, because a draft is kept only where it is what
// the target draws by itself. After every token the cache holds the rows of all tokens but that one.
class Generation {
 public:
  // `prompt` is the whole text so far; rows that the model's sequence shares with it are kept. Throws Error where it
  // does not fit, or a setting is out of range.
  Generation(Model &model, std::vector<int32_t> prompt, const Settings &settings);

  // Whether there was one more token, or, where it was cancelled before the first, an end without any.
  bool next(Piece &piece);
  void cancel() { cancelled_ = true; }
  paceline_stats stats() const { return stats_; }

 private:
  struct Emitted {
    int32_t token;
    bool from_draft;
  };

  bool start();  // the prompt and the first token; false where it was cancelled
  void round();  // one more pass of the target
  void accept(const std::vector<int32_t> &drafts, const Verified &verified);
  bool next_token(Piece &piece);

  Model &model_;
  Graphs &graphs_;
  const std::vector<int32_t> prompt_;
  const Settings settings_;
  std::unique_ptr<DraftLength> draft_length_;
  TextStream text_;
  StopTexts stops_;
  Thoughts thoughts_;
  std::deque<Emitted> ready_;  // accepted, and not yet committed
  std::vector<float> hidden_;  // [D], activations of the row that produced the newest token
  int32_t pending_ = -1;       // the newest token, whose row is not written yet
  int budget_, drawn_ = 0;     // tokens that may be emitted; those drawn so far
  bool started_ = false, over_ = false;
  std::atomic<bool> cancelled_{false};
  paceline_stats stats_ = {};
};

}  // namespace paceline
