// Byte pair encoding of one word, with the merges in the order of tokenizers' models/bpe/word.rs: lowest rank, then
// leftmost.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer_file.h"

namespace paceline {

// Appends the tokens of `word`, which has less than 2^32 bytes. A character outside the vocabulary becomes its bytes.
void encode_word(const TokenizerFile &file, std::string_view word, std::vector<int32_t> *tokens);

}  // namespace paceline
