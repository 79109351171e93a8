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

constexpr char kSamplingFile[] = "generation_config.json";  // of the checkpoint; a bundle may lack it

using Progress = std::function<void(const char *stage, double fraction)>;

class Bundle {
 public:
  // Map the files and compare their sizes with the manifest. Throw Error, naming the file.
  static Bundle in(const std::string &folder);
  static Bundle of(const paceline_file *files, size_t count);

  const Manifest &manifest() const { return manifest_; }
  std::string_view file(const std::string &name) const;
  bool has(const std::string &name) const { return files_.count(name) > 0; }
  std::string_view part(const std::string &name) const { return file(manifest_.parts.at(name)); }
  // The bytes that the graphs' weights take: of the target and of the drafter.
  int64_t weights_bytes() const;
  // Compares hashes, unless a file in `cache_dir` says that these bytes were seen here before. Throws Error, naming the
  // file.
  void check_hashes(const std::string &cache_dir, const Progress &progress) const;

 private:
  explicit Bundle(Mapping manifest);
  std::vector<std::string> needed() const;
  void add(const std::string &name, int fd, int64_t offset, int64_t size);

  Manifest manifest_;
  std::map<std::string, Mapping> files_;
  std::string state_;  // what the file system says of the files: it changes whenever one of them does
};

}  // namespace paceline
