// A libFuzzer target for the tokenizer. Its inputs are files, or, where PACELINE_TOKENIZER names a sound one, texts:
//   clang++ -g -O1 -std=c++17 -fsanitize=fuzzer,address,undefined -Isrc -o tokenizer_fuzz fuzz/tokenizer_fuzz.cc
//     src/{utf8,tokenizer_file,added_tokens,bpe,tokenizer}.cc
//   ./tokenizer_fuzz FOLDER_OF_FILES
//   PACELINE_TOKENIZER=tokenizer.bin ./tokenizer_fuzz FOLDER_OF_TEXTS
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>

#include "error.h"
#include "tokenizer.h"
#include "utf8.h"

namespace {

using paceline::Tokenizer;

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<int32_t> encode(const Tokenizer &tokenizer, std::string_view text) {
  std::vector<int32_t> tokens = tokenizer.encode(text);
  for (const int32_t token : tokens) require(token >= 0 && token < tokenizer.size());
  return tokens;
}

// Whatever a file says, nothing is read outside it, and only an Error comes out.
void try_file(std::string_view file) try {
  const Tokenizer tokenizer(file);
  std::vector<int32_t> ids{-1, INT32_MIN, INT32_MAX, tokenizer.size()};
  for (int32_t i = 0; i < tokenizer.size() && i < 1000; i++) ids.push_back(i);
  for (const int32_t id : ids) {
    tokenizer.special(id);
    tokenizer.byte(id);
  }
  const std::string all = tokenizer.decode(ids.data(), ids.size());
  for (const std::string_view text : {std::string_view(), std::string_view(all), file.substr(file.size() / 2, 200)}) {
    const auto tokens = encode(tokenizer, text);
    tokenizer.decode(tokens.data(), tokens.size());
    tokenizer.find(text);
  }
} catch (const paceline::Error &) {
}

// A text comes back as it was, unless it has special tokens or the character that stands for a space.
void try_text(const Tokenizer &tokenizer, std::string_view text) {
  const auto tokens = encode(tokenizer, text);
  const std::string again = tokenizer.decode(tokens.data(), tokens.size());
  require(paceline::utf8_valid(again));
  for (const int32_t token : tokens) {
    if (tokenizer.special(token)) return;
  }
  if (text.find("\xE2\x96\x81") == std::string_view::npos) require(again == paceline::utf8_repaired(text));
}

std::string read(const char *name) {
  std::ifstream stream(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const name = std::getenv("PACELINE_TOKENIZER");
  const std::string_view input(reinterpret_cast<const char *>(data), size);
  if (name) {
    static const std::string file = read(name);
    static const Tokenizer tokenizer(file);
    try_text(tokenizer, input);
  } else {
    try_file(input);
  }
  return 0;
}
