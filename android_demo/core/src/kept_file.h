// A small file of the cache directory, complete or not there; what cannot be kept is only found out again next time.
#pragma once

#include <sys/stat.h>

#include <string>

namespace paceline {

// Changes whenever a file does: the time of its last change cannot be set back.
std::string file_state(const struct stat &status);

class KeptFile {
 public:
  // An empty directory keeps nothing.
  KeptFile(const std::string &cache_dir, const std::string &name, const std::string &suffix);
  std::string read() const;  // empty where there is none
  void write(const std::string &content) const;

 private:
  std::string path_;
};

}  // namespace paceline
