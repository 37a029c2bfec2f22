// From a checkpoint's matrices to the packed layout of layout.h.
#pragma once

#include "layout.h"
#include "memory.h"
#include "team.h"

namespace mlx {

// Throws std::invalid_argument for a shape or format the layout cannot hold.
Matrix pack(const mlx_matrix& source, Arena& arena, Team& team);

}  // namespace mlx
