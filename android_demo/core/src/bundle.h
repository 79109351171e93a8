// A bundle's files, checked against its manifest: from a directory, or from descriptors that a file picker gave.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "manifest.h"
#include "memory.h"
#include "paceline.h"

namespace paceline {

constexpr char kTokenizerFile[] = "tokenizer.bin";
constexpr char kSamplingFile[] = "generation_config.json";  // of the checkpoint; a bundle may lack it

using Progress = std::function<void(const char *stage, double fraction)>;

class Bundle {
 public:
  // Read the manifest. Throw Error, naming the file.
  static Bundle in(const std::string &folder);
  static Bundle of(const paceline_file *files, size_t count);
  // Maps a file and compares its size with the manifest, while what the bundle was opened from is still there. Throws
  // Error, naming the file.
  void open(const std::string &name);

  const Manifest &manifest() const { return manifest_; }
  std::string_view file(const std::string &name) const;
  bool has(const std::string &name) const { return files_.count(name) > 0; }
  // Compares hashes, unless a file in `cache_dir` says that these bytes were seen here before. Throws Error, naming the
  // file.
  void check_hashes(const std::string &cache_dir, const Progress &progress) const;

 private:
  struct Opened;  // a descriptor and where in it a file lies
  using Source = std::function<Opened(const std::string &name)>;

  explicit Bundle(Source source);

  Source source_;
  Manifest manifest_;
  std::map<std::string, Mapping> files_;
  std::string state_;  // what the file system says of the files: it changes whenever one of them does
};

}  // namespace paceline
