// What a round's calls cost on this device: measured once, and kept in the cache directory.
#pragma once

#include "draft_length.h"
#include "graphs.h"
#include "kept_file.h"

namespace paceline {

// The costs that `kept` holds, or new ones, which are then kept. Takes about a second, and empties the sequence.
CallCosts calibrated(Graphs &graphs, const Manifest &manifest, const KeptFile &kept);

}  // namespace paceline
