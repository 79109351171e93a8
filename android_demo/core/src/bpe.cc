#include "bpe.h"

#include <functional>
#include <queue>
#include <utility>

#include "utf8.h"

namespace paceline {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// A piece of the word that is a token so far; a list, so that a merge takes the same time anywhere.
struct Symbol {
  uint32_t token;           // kNone once it is part of the symbol before it
  uint32_t before, after;   // kNone at the ends
  uint32_t rank = kNoRank;  // of its merge with the symbol behind it, and that merge's result
  uint32_t result = kNone;
};

class Word {
 public:
  Word(const TokenizerFile &file, std::string_view word) : file_(file) {
    symbols_.reserve(word.size());
    while (!word.empty()) {
      const size_t size = utf8_character(word).size;
      const std::string_view character = word.substr(0, size);
      if (const auto token = file.character(character)) {
        add(*token);
      } else {
        for (const char byte : character) add(file.byte_token(static_cast<unsigned char>(byte)));
      }
      word.remove_prefix(size);
    }
    if (!symbols_.empty()) symbols_.back().after = kNone;
  }

  void merge() {
    std::vector<uint64_t> known;
    for (uint32_t i = 0; i < symbols_.size(); i++) {
      if (look_at(i)) known.push_back(entry(i));
    }
    queue_ = Queue(std::greater<>(), std::move(known));
    while (!queue_.empty()) {
      const auto at = static_cast<uint32_t>(queue_.top());
      const auto rank = static_cast<uint32_t>(queue_.top() >> 32);
      queue_.pop();
      // An entry whose pair is gone names a rank that its symbol no longer has: the two have become longer texts.
      if (symbols_[at].rank == rank) merge_at(at);
    }
  }

  void append_to(std::vector<int32_t> *tokens) const {
    for (const Symbol &symbol : symbols_) {
      if (symbol.token != kNone) tokens->push_back(static_cast<int32_t>(symbol.token));
    }
  }

 private:
  using Queue = std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>>;

  void add(uint32_t token) {
    const auto at = static_cast<uint32_t>(symbols_.size());
    symbols_.push_back({token, at ? at - 1 : kNone, at + 1});
  }

  // The lowest is the next merge.
  uint64_t entry(uint32_t at) const { return uint64_t{symbols_[at].rank} << 32 | at; }

  // Whether a symbol and the one behind it can be merged.
  bool look_at(uint32_t at) {
    Symbol &symbol = symbols_[at];
    const auto merge = symbol.after == kNone ? std::nullopt : file_.merge(symbol.token, symbols_[symbol.after].token);
    symbol.rank = merge ? merge->rank : kNoRank;
    symbol.result = merge ? merge->result : kNone;
    return merge.has_value();
  }

  void merge_at(uint32_t at) {
    Symbol &left = symbols_[at];
    Symbol &right = symbols_[left.after];
    left.token = left.result;
    left.after = right.after;
    right.token = kNone;
    right.rank = kNoRank;
    if (left.after != kNone) symbols_[left.after].before = at;
    for (const uint32_t changed : {left.before, at}) {
      if (changed != kNone && look_at(changed)) queue_.push(entry(changed));
    }
  }

  const TokenizerFile &file_;
  std::vector<Symbol> symbols_;
  Queue queue_;
};

}  // namespace

void encode_word(const TokenizerFile &file, std::string_view text, std::vector<int32_t> *tokens) {
  Word word(file, text);
  word.merge();
  word.append_to(tokens);
}

}  // namespace paceline
