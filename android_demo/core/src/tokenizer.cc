#include "tokenizer.h"

#include "bpe.h"
#include "error.h"
#include "utf8.h"

namespace paceline {
namespace {

constexpr std::string_view kVisibleSpace = "\xE2\x96\x81";  // U+2581
constexpr size_t kMostText = size_t{1} << 30;  // a place in a word, three times as long at most, has 32 bits

// The normalizer of Gemma's tokenizers, Replace " " -> U+2581.
std::string with_visible_spaces(std::string_view text) {
  std::string visible;
  visible.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      visible += kVisibleSpace;
    } else {
      visible += c;
    }
  }
  return visible;
}

void append_with_spaces(std::string_view token, std::string *text) {
  while (true) {
    const size_t found = token.find(kVisibleSpace);
    *text += token.substr(0, found);
    if (found == std::string_view::npos) return;
    *text += ' ';
    token.remove_prefix(found + kVisibleSpace.size());
  }
}

// A run of byte tokens is text, or as many U+FFFD where it is not valid as a whole (decoders/byte_fallback.rs).
void append_run(std::string *run, std::string *text) {
  if (utf8_valid(*run)) {
    *text += *run;
  } else {
    for (size_t i = 0; i < run->size(); i++) *text += kReplacement;
  }
  run->clear();
}

}  // namespace

Tokenizer::Tokenizer(std::string_view file)
    : file_(file),
      raw_(file_, 0, file_.raw_patterns()),
      normalized_(file_, file_.raw_patterns(), file_.raw_patterns() + file_.normalized_patterns()) {}

std::vector<int32_t> Tokenizer::encode(std::string_view utf8) const {
  if (utf8.size() > kMostText) throw Error("a text of more than 1 GB cannot be made tokens; shorten it.");
  const std::string repaired = utf8_valid(utf8) ? std::string() : utf8_repaired(utf8);
  std::vector<int32_t> tokens;
  const auto add = [&](uint32_t token) { tokens.push_back(static_cast<int32_t>(token)); };
  // Between added tokens a text is one word: Gemma's pre-tokenizer looks for spaces, and the normalizer leaves none.
  const auto add_words = [&](std::string_view word) { encode_word(file_, word, &tokens); };
  raw_.split(
      repaired.empty() ? utf8 : std::string_view(repaired),
      [&](std::string_view piece) { normalized_.split(with_visible_spaces(piece), add_words, add); }, add);
  return tokens;
}

std::string Tokenizer::decode(const int32_t *tokens, size_t count) const {
  std::string text, run;
  for (size_t i = 0; i < count; i++) {
    if (!known(tokens[i])) continue;
    const Token token = file_.token(static_cast<uint32_t>(tokens[i]));
    if (token.special) continue;
    if (token.is_byte) {
      run += static_cast<char>(token.byte);
    } else {
      append_run(&run, &text);
      append_with_spaces(token.text, &text);
    }
  }
  append_run(&run, &text);
  return text;
}

bool Tokenizer::special(int32_t token) const {
  return known(token) && file_.token(static_cast<uint32_t>(token)).special;
}

bool Tokenizer::byte(int32_t token) const { return known(token) && file_.token(static_cast<uint32_t>(token)).is_byte; }

int32_t Tokenizer::find(std::string_view token) const {
  const auto found = file_.find(token);
  return found ? static_cast<int32_t>(*found) : -1;
}

}  // namespace paceline
