#include "kept_file.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

namespace paceline {

std::string file_state(const struct stat &status) {
  std::ostringstream state;
  state << status.st_dev << ' ' << status.st_ino << ' ' << status.st_size;
  for (const struct timespec &time : {status.st_mtim, status.st_ctim})
    state << ' ' << time.tv_sec << '.' << time.tv_nsec;
  return state.str();
}

KeptFile::KeptFile(const std::string &cache_dir, const std::string &name, const std::string &suffix)
    : path_(cache_dir.empty() ? "" : cache_dir + "/" + name + suffix) {}

std::string KeptFile::read() const {
  std::ifstream stream(path_, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void KeptFile::write(const std::string &content) const {
  if (path_.empty()) return;
  const std::string partial = path_ + "." + std::to_string(getpid()) + ".partial";
  bool whole;
  {
    std::ofstream stream(partial, std::ios::binary);
    stream << content;
    stream.close();
    whole = stream.good();
  }
  if (!whole || std::rename(partial.c_str(), path_.c_str()) != 0) std::remove(partial.c_str());
}

}  // namespace paceline
