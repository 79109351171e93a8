// Gemma's tokenizer, with the results of the `tokenizers` library, from a tokenizer.bin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "tokenizer_file.h"

namespace paceline {

class Tokenizer {
 public:
  // `file` is a tokenizer.bin in memory that outlives the object. Throws Error for anything else.
  explicit Tokenizer(std::string_view file);
  Tokenizer(const Tokenizer &) = delete;  // its parts refer to each other
  Tokenizer &operator=(const Tokenizer &) = delete;

  // The tokens of a text, without <bos>; U+FFFD stands for what is not valid UTF-8.
  std::vector<int32_t> encode(std::string_view utf8) const;
  // The text of tokens without the special ones; ids outside the vocabulary are skipped.
  std::string decode(const int32_t *tokens, size_t count) const;

  bool special(int32_t token) const;           // an added token that decode skips
  bool byte(int32_t token) const;              // <0x00> to <0xFF>
  int32_t find(std::string_view token) const;  // the id of a token's exact text, -1 where there is none
  int32_t size() const { return static_cast<int32_t>(file_.size()); }  // ids go from 0 to size() - 1

 private:
  bool known(int32_t token) const { return token >= 0 && token < size(); }

  TokenizerFile file_;
  AddedTokens raw_, normalized_;
};

}  // namespace paceline
