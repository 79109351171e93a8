// The token tables, which always run on the CPU: the rows that a target and a drafter are given for tokens.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiled_model.h"
#include "manifest.h"
#include "memory.h"

namespace paceline {

// Rows of the tables for a fixed number of tokens.
class Lookup {
 public:
  // Binds the tables' calls to the buffers that their rows go to, by name; tables that none of them is for are left
  // out.
  Lookup(const Parts &parts, const Runtime &runtime, int rows, const std::map<std::string, const Buffer *> &outputs);
  // Writes the rows of at most T tokens; behind them are those of token 0.
  void run(const int32_t *tokens, int count);

 private:
  const int rows_;
  Memory tokens_;
  Buffer token_ids_;
  std::vector<Call> calls_;
};

}  // namespace paceline
