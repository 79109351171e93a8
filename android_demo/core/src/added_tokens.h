// Finds added tokens in a text, as tokenizers' added_vocabulary.rs does: the leftmost, and of those that begin there
// the longest.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tokenizer_file.h"

namespace paceline {

class AddedTokens {
 public:
  // The patterns from `begin` up to `end` of a file that outlives the object.
  AddedTokens(const TokenizerFile &file, uint32_t begin, uint32_t end);

  // Calls `text` with every piece between added tokens that is not empty, and `token` with every added token, in their
  // order.
  template <typename OnText, typename OnToken>
  void split(std::string_view whole, OnText text, OnToken token) const {
    size_t begin = 0, at = 0;
    while (at < whole.size()) {
      const std::optional<Pattern> found = longest(whole.substr(at));
      if (!found) {
        at++;
        continue;
      }
      if (at > begin) text(whole.substr(begin, at - begin));
      token(found->token);
      begin = at += found->text.size();
    }
    if (at > begin) text(whole.substr(begin));
  }

 private:
  // The longest pattern that `text`, which is not empty, begins with.
  std::optional<Pattern> longest(std::string_view text) const;
  // Of the sorted patterns from `low` up to `high`, the first whose byte at `at` is `least` or above; -1 is its end.
  uint32_t lower_bound(uint32_t low, uint32_t high, size_t at, int least) const;

  const TokenizerFile *file_;
  uint32_t begin_, end_;
  std::bitset<256> starts_;  // bytes that a pattern begins with
};

}  // namespace paceline
