// Tokens to text as they come.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer.h"

namespace paceline {

// Never shows half a character: one outside the vocabulary is spelled in byte tokens, whose run is decoded as a whole
// when the token behind it arrives. As runtime/paceline/text.py.
class TextStream {
 public:
  explicit TextStream(const Tokenizer &tokenizer) : tokenizer_(tokenizer) {}
  std::string push(int32_t token);
  // The text of all waiting tokens; at the end also of a character that was never completed.
  std::string finish();

 private:
  const Tokenizer &tokenizer_;
  std::vector<int32_t> tokens_;  // the last one whose text is out, and those that wait behind it
  size_t settled_ = 0;
};

// Ends a text in front of the first of some strings; what could be the beginning of one is held back.
class StopTexts {
 public:
  explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  // What of the text so far can be shown, and whether a stop ended it.
  std::pair<std::string, bool> push(const std::string &text);
  std::string finish() { return std::exchange(held_, {}); }

 private:
  const std::vector<std::string> stops_;
  std::string held_;
};

// Tells what a model thinks before it answers from the answer; a vocabulary without the tokens around it has none.
class Thoughts {
 public:
  explicit Thoughts(const Tokenizer &tokenizer);
  // A token and the text it completed: that text without the channel's name, and whether it is a thought.
  std::pair<std::string, bool> push(int32_t token, std::string text);

 private:
  const int32_t opens_, closes_;
  bool inside_ = false, named_ = false;
};

}  // namespace paceline
