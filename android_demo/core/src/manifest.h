// What a bundle's manifest.json says, as runtime/paceline/BUNDLE.md specifies it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

enum class CacheKind { kLocal, kFull };  // the newest rows, or all rows

// The pair of KV tensors of one target layer, each [1, K, S, H] float32.
struct CacheSpec {
  int layer;
  CacheKind kind;
  int kv_heads, head_dim;

  // The names of its key (0) or value (1) tensor in a graph, where every kv head is a tensor of its own.
  std::vector<std::string> names(int value) const;
};

struct StoredFile {
  int64_t bytes;
  std::string sha256;
};

// How a conversation is written as text: what stands in front of and behind a turn.
struct ChatTurns {
  std::string start, answer;
  std::array<std::string, 2> user, model;
};

struct Manifest {
  std::string recipe;
  int vocab_size, hidden_size, layers, per_layer_size, window, max_positions;
  std::optional<int32_t> bos_id;
  std::set<int32_t> stop_ids;
  int draft_position_offset, scored_tokens, most_drafts;  // the last one is of adaptive drafting
  std::vector<CacheSpec> caches, drafter_caches;
  std::map<std::string, std::string> parts;  // target, drafter, embedder, per_layer_embedder -> file name
  // Of graphs for an NPU: the chip that they are compiled for, empty before any compiler -> target, drafter -> file
  // name.
  std::map<std::string, std::map<std::string, std::string>> npu_parts;
  std::map<std::string, StoredFile> files;
  std::optional<ChatTurns> turns;

  // Throws Error, naming the field.
  static Manifest parse(std::string_view json);
};

}  // namespace paceline
